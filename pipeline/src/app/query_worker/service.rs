//! The gRPC `QueryWorker` service: rows into the tables, questions to the engine.
//!
//! Invariants: rows of a topic are taken in their order, each once, and what does not fit ends the feed (its sender then starts the
//! process anew); an answer knows all rows that its question names as seen; dropping an answer's stream stops the query.
//! Cost: one copy of the rows into the tables' chunks. State: the tables; bounds are theirs and the engine's.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt, stream};
use queries::{LiveTables, SqlAnswers, SqlEngine, SqlError, Topic};
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

use super::wire::{self, Joined};
use crate::query_proto::{
    AnswerPart, AskRequest, DescribeReply, FeedReply, FeedRows, QueryHealthReply, QueryHealthRequest,
    query_worker_server::QueryWorker,
};

/// See the file's header. Clones share everything.
#[derive(Clone)]
pub(super) struct QueryService {
    engine: Arc<SqlEngine>,
    tables: Arc<LiveTables>,
    /// Changes when rows have come.
    news: Arc<watch::Sender<()>>,
}

impl QueryService {
    pub(super) fn new(engine: Arc<SqlEngine>, tables: Arc<LiveTables>) -> Self {
        QueryService { engine, tables, news: Arc::new(watch::channel(()).0) }
    }

    /// Waits until the tables have the rows that a question has seen.
    async fn caught_up(&self, seen: &[u64], patience: Duration) -> Result<(), SqlError> {
        let mut news = self.news.subscribe();
        let is_there =
            |_: &()| self.tables.snapshot().tables().zip(seen).all(|(table, seen)| table.next_row() >= *seen);
        let there = tokio::time::timeout(patience, news.wait_for(is_there)).await;
        there.map(drop).map_err(|_| SqlError::EngineRestarted("it has not been given all rows yet".into()))
    }

    fn take(&self, joined: &mut [Joined], rows: FeedRows) -> Result<(), Status> {
        let wrong = |detail: String| Status::invalid_argument(detail);
        let topic = Topic::ALL.get(rows.topic as usize).copied();
        let topic = topic.ok_or_else(|| wrong(format!("there is no topic {}", rows.topic)))?;
        let next = self.tables.snapshot().table(topic).next_row();
        if rows.first_row < next {
            let (name, first_row) = (topic.name(), rows.first_row);
            return Err(wrong(format!("{name}: row {first_row} came after row {next}")));
        }
        self.tables.skip_to(topic, rows.first_row);
        for batch in joined[topic.index()].take(rows.ipc).map_err(|error| wrong(error.to_string()))? {
            self.tables.append(topic, batch).map_err(|error| wrong(error.to_string()))?;
        }
        self.news.send_replace(());
        Ok(())
    }
}

#[tonic::async_trait]
impl QueryWorker for QueryService {
    type AskStream = Pin<Box<dyn Stream<Item = Result<AnswerPart, Status>> + Send>>;

    async fn feed(&self, request: Request<Streaming<FeedRows>>) -> Result<Response<FeedReply>, Status> {
        let mut rows = request.into_inner();
        let mut joined: Vec<Joined> = Topic::ALL.iter().map(|_| Joined::default()).collect();
        while let Some(rows) = rows.message().await? {
            self.take(&mut joined, rows)?;
        }
        Ok(Response::new(FeedReply {}))
    }

    async fn ask(&self, request: Request<AskRequest>) -> Result<Response<Self::AskStream>, Status> {
        let mut request = request.into_inner();
        let seen = std::mem::take(&mut request.seen);
        let question = wire::question_from_proto(request).map_err(|e| Status::invalid_argument(e.to_string()))?;
        let service = self.clone();
        let answer = async move {
            service.caught_up(&seen, service.engine.limits().patience(&question.caller)).await?;
            service.engine.answer(question).await
        };
        let parts = stream::once(answer).flat_map(|answer| stream::iter(wire::answer_to_proto(answer)).map(Ok));
        Ok(Response::new(Box::pin(parts)))
    }

    async fn describe(&self, request: Request<AskRequest>) -> Result<Response<DescribeReply>, Status> {
        let question = wire::question_from_proto(request.into_inner());
        let question = question.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Response::new(wire::described_to_proto(self.engine.describe(question).await)))
    }

    async fn health(&self, _: Request<QueryHealthRequest>) -> Result<Response<QueryHealthReply>, Status> {
        let running = u32::try_from(self.engine.running()).unwrap_or(u32::MAX);
        Ok(Response::new(QueryHealthReply { running, left: self.engine.left() }))
    }
}
