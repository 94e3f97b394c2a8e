//! Rows of the bus on their way to the process for SQL: what the tables have, then every batch.
//!
//! Invariants: the process gets each row of a topic once, in order, with the numbers it has here; the bus never waits for it. It listens
//! to the bus as a watcher: one that falls behind loses batches, sees so by their numbers, and is sent what it missed from the tables.
//! Only if those have let go of such rows, too, does the feed end, and a new process begins with what is there.
//! Bounds: [`MESSAGES_MAX`] messages of at most [`ROWS_MAX`] rows, one window of the connection, `bus.subscriber_batches` batches at the
//! watcher, and while it catches up the chunks of one moment of the tables; no message taken for [`STALL`] ends the feed.
//! Cost: one encoding of each batch, on the thread that runs this. State: the next row of each topic.

use std::{sync::Arc, time::Duration};

use arrow::array::RecordBatch;
use queries::{LiveTables, TableSnapshot, Topic};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::{keeper::Counters, wire::Pieces};
use crate::{
    bus::{Bus, Published},
    query_proto::{FeedRows, query_worker_client::QueryWorkerClient},
};

/// Messages that wait to be sent.
pub const MESSAGES_MAX: usize = 16;
/// Rows of one message.
const ROWS_MAX: usize = 8192;
/// Longest wait for a message to be taken.
const STALL: Duration = Duration::from_secs(30);

/// Feeds until the process takes no more; says why.
pub(super) async fn run(
    mut client: QueryWorkerClient<Channel>,
    (bus, tables): (&Bus, &LiveTables),
    counters: Arc<Counters>,
) -> String {
    let mut watcher = bus.watch();
    let (out, messages) = mpsc::channel(MESSAGES_MAX);
    let mut feed = Feed::new(out, counters);
    let send = async {
        feed.catch_up(tables).await?;
        while let Some(published) = watcher.recv().await {
            feed.follow(&published, tables).await?;
        }
        // The bus has stopped: what is there can still be asked about.
        std::future::pending::<Result<(), FeedError>>().await
    };
    tokio::select! {
        ended = client.feed(ReceiverStream::new(messages)) => match ended {
            Ok(_) => "it ended the feed".into(),
            Err(status) => format!("it refused rows: {}", status.message()),
        },
        Err(error) = send => error.to_string(),
    }
}

#[derive(Debug, thiserror::Error)]
enum FeedError {
    #[error("it took no rows for {STALL:?}")]
    Stalled,
    #[error("it ended the feed")]
    Ended,
    #[error("it fell behind: rows {from} to {to} of {topic} are no longer in memory")]
    Behind { topic: &'static str, from: u64, to: u64 },
    #[error("rows cannot be written: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
}

struct Feed {
    topics: Vec<TopicFeed>,
    out: mpsc::Sender<FeedRows>,
    counters: Arc<Counters>,
}

struct TopicFeed {
    topic: Topic,
    /// Number of the next row to send.
    next: u64,
    pieces: Option<Pieces>,
}

impl Feed {
    fn new(out: mpsc::Sender<FeedRows>, counters: Arc<Counters>) -> Feed {
        let topics = Topic::ALL.iter().map(|topic| TopicFeed { topic: *topic, next: 0, pieces: None }).collect();
        Feed { topics, out, counters }
    }

    /// Sends what the tables have and the process has not.
    async fn catch_up(&mut self, tables: &LiveTables) -> Result<(), FeedError> {
        for table in tables.snapshot().tables() {
            self.catch_up_table(table).await?;
        }
        Ok(())
    }

    async fn catch_up_table(&mut self, table: &TableSnapshot) -> Result<(), FeedError> {
        let (topic, sent) = (table.topic(), self.topics[table.topic().index()].next);
        if sent > 0 && table.first_row() > sent {
            return Err(FeedError::Behind { topic: topic.name(), from: sent, to: table.first_row() });
        }
        for chunk in table.chunks() {
            let from = self.topics[topic.index()].next.max(chunk.first_row);
            let skipped = (from - chunk.first_row) as usize;
            if skipped < chunk.batch.num_rows() {
                let rest = chunk.batch.slice(skipped, chunk.batch.num_rows() - skipped);
                self.send(topic, (from, &rest)).await?;
            }
        }
        // Rows may be counted that nobody has.
        if self.topics[topic.index()].next < table.next_row() {
            self.topics[topic.index()].next = table.next_row();
            self.post(FeedRows { topic: topic.index() as u32, first_row: table.next_row(), ipc: Vec::new() }).await?;
        }
        Ok(())
    }

    async fn follow(&mut self, published: &Published, tables: &LiveTables) -> Result<(), FeedError> {
        let next = self.topics[published.topic.index()].next;
        // A batch is in the tables, as a whole, before watchers hear of it.
        if published.first_row < next {
            return Ok(());
        }
        if published.first_row > next {
            self.counters.catch_ups.add(1);
            return self.catch_up(tables).await;
        }
        self.send(published.topic, (published.first_row, &published.batch)).await
    }

    async fn send(&mut self, topic: Topic, (first_row, batch): (u64, &RecordBatch)) -> Result<(), FeedError> {
        let mut offset = 0;
        while offset < batch.num_rows() {
            let rows = (batch.num_rows() - offset).min(ROWS_MAX);
            let state = &mut self.topics[topic.index()];
            let pieces = match &mut state.pieces {
                Some(pieces) => pieces,
                none => none.insert(Pieces::new(&state.topic.schema())?),
            };
            let ipc = pieces.batch(&batch.slice(offset, rows))?;
            let first_row = first_row + offset as u64;
            state.next = first_row + rows as u64;
            offset += rows;
            self.post(FeedRows { topic: topic.index() as u32, first_row, ipc }).await?;
        }
        Ok(())
    }

    async fn post(&self, rows: FeedRows) -> Result<(), FeedError> {
        match tokio::time::timeout(STALL, self.out.send(rows)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(FeedError::Ended),
            Err(_) => Err(FeedError::Stalled),
        }
    }
}
