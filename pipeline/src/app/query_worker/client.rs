//! [`SqlAnswers`] by the process that is there now.
//!
//! Invariants: an answer knows every row that the tables had when it was asked for; dropping the future stops the query; whatever ends
//! the process is [`SqlError::EngineRestarted`] to all who wait for it, never a part of an answer. A question that finds no process
//! waits for one, as long as a statement may run.
//! Bounds: statements under way by `concurrent_max` and its waiting ones, the rest is [`SqlError::Busy`]; an answer by what the engine
//! allows. State: none but handles.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use queries::{Described, LiveTables, QueryResult, Question, SqlAnswers, SqlError, SqlLimits, sql::WAITING_PER_SLOT};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tonic::{Code, Status, transport::Channel};

use super::{
    keeper::{LAST_WORDS, Life},
    wire::{self, Joined, WireError},
};
use crate::query_proto::{AskRequest, query_worker_client::QueryWorkerClient};

/// See the file's header.
pub struct SqlProcess {
    limits: SqlLimits,
    tables: Arc<LiveTables>,
    /// Has the process sent the rows that are held back.
    wanted: Arc<Notify>,
    life: watch::Receiver<Life>,
    /// How the last process ended.
    ends: watch::Receiver<String>,
    under_way: Semaphore,
    most: usize,
}

impl fmt::Debug for SqlProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlProcess").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl SqlProcess {
    pub(super) fn new(
        limits: SqlLimits,
        (tables, wanted): (Arc<LiveTables>, Arc<Notify>),
        (life, ends): (watch::Receiver<Life>, watch::Receiver<String>),
    ) -> Self {
        let most = limits.concurrent_max.max(1) * (1 + WAITING_PER_SLOT);
        SqlProcess { limits, tables, wanted, life, ends, under_way: Semaphore::new(most), most }
    }

    async fn up(&self, patience: Duration) -> Result<QueryWorkerClient<Channel>, SqlError> {
        let mut life = self.life.clone();
        let up = tokio::time::timeout(patience, life.wait_for(|life| matches!(life, Life::Up(_)))).await;
        if let Ok(Ok(life)) = up
            && let Life::Up(client) = &*life
        {
            return Ok(client.clone());
        }
        Err(SqlError::EngineRestarted(match &*self.life.borrow() {
            Life::Down(why) => why.clone(),
            Life::Up(_) => "it has just come back".into(),
        }))
    }

    fn request(&self, question: &Question) -> Result<AskRequest, SqlError> {
        let seen = self.tables.snapshot().tables().map(|table| table.next_row()).collect();
        self.wanted.notify_one();
        wire::question_to_proto(question, seen).map_err(|error| SqlError::Refused(error.to_string()))
    }

    /// What every question passes first.
    async fn begin(&self, question: &Question) -> Result<Begun<'_>, SqlError> {
        self.limits.check_length(&question.sql)?;
        let running = self.limits.concurrent_max.max(1);
        let busy = |_| SqlError::Busy { running, waiting: self.most - running };
        let place = self.under_way.try_acquire().map_err(busy)?;
        let client = self.up(self.limits.patience(&question.caller)).await?;
        let mut ends = self.ends.clone();
        ends.mark_unchanged();
        Ok(Begun { client, request: self.request(question)?, ends, _place: place })
    }
}

/// A question on its way.
struct Begun<'a> {
    client: QueryWorkerClient<Channel>,
    request: AskRequest,
    ends: watch::Receiver<String>,
    _place: SemaphorePermit<'a>,
}

/// Why a message did not come: as a rule, because the process has ended.
async fn lost(status: Status, mut ends: watch::Receiver<String>) -> SqlError {
    if matches!(status.code(), Code::InvalidArgument | Code::OutOfRange) {
        return SqlError::Refused(status.message().into());
    }
    let why = match tokio::time::timeout(LAST_WORDS, ends.changed()).await {
        Ok(Ok(())) => ends.borrow().clone(),
        Ok(Err(_)) | Err(_) => "its connection was lost".into(),
    };
    SqlError::EngineRestarted(why)
}

#[async_trait]
impl SqlAnswers for SqlProcess {
    async fn answer(&self, question: Question) -> Result<QueryResult, SqlError> {
        let Begun { mut client, request, ends, _place } = self.begin(&question).await?;
        let mut parts = match client.ask(request).await {
            Ok(parts) => parts.into_inner(),
            Err(status) => return Err(lost(status, ends).await),
        };
        let (mut joined, mut batches) = (Joined::default(), Vec::new());
        loop {
            let part = match parts.message().await {
                Ok(Some(part)) => part,
                Ok(None) => return Err(lost(Status::unavailable("the answer was cut"), ends).await),
                Err(status) => return Err(lost(status, ends).await),
            };
            if let Some(error) = wire::error_from_json(&part.error).map_err(unreadable)? {
                return Err(error);
            }
            batches.extend(joined.take(part.ipc).map_err(|error| unreadable(error.into()))?);
            if part.is_last {
                return Ok(QueryResult { schema: joined.end().map_err(unreadable)?, batches });
            }
        }
    }

    async fn describe(&self, question: Question) -> Result<Described, SqlError> {
        let Begun { mut client, request, ends, _place } = self.begin(&question).await?;
        match client.describe(request).await {
            Ok(reply) => wire::described_from_proto(reply.into_inner()).map_err(unreadable)?,
            Err(status) => Err(lost(status, ends).await),
        }
    }
}

fn unreadable(error: WireError) -> SqlError {
    SqlError::Execution(format!("the engine's answer cannot be read: {error}"))
}
