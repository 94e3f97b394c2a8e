//! Rows of the bus, sent to the process for SQL from where it is: the newest of the log, what the tables have, then what comes.
//!
//! Invariants: the process gets each row of a topic once, in order, with the numbers it has here; the bus never waits for it. It listens
//! to the bus as a watcher: one that falls behind loses batches, sees so by their numbers, and is sent what it missed from the log and
//! the tables. Only if those have let go of such rows, too, does the feed end, and a new process begins with what is there.
//! Rows that nobody asks about are held for a while ([`HELD_FOR`]) and go as one batch: encoding, decoding and joining cost by the batch,
//! and a process that answers nothing should cost little. A question has what is held sent at once (`wanted`).
//! Bounds: [`HELD_MAX`] rows held of a topic, and one batch; [`MESSAGES_MAX`] messages of at most [`ROWS_MAX`] rows, one window of the
//! connection, `bus.subscriber_batches` batches at the watcher, and while it catches up the chunks of one moment of the tables; no message
//! taken for [`STALL`] ends the feed.
//! Cost: one copy and one encoding of the rows, on the thread that runs this. State: the next row of each topic, and what is held.

use std::{sync::Arc, time::Duration};

use arrow::{array::RecordBatch, compute::concat_batches};
use queries::{LiveTables, TableSnapshot, Topic};
use tokio::{
    sync::{Notify, mpsc},
    task::spawn_blocking,
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::{keeper::Counters, wire::Pieces};
use crate::{
    bus::{Bus, Published, at},
    query_proto::{FeedRows, query_worker_client::QueryWorkerClient},
};

/// Messages that wait to be sent.
pub const MESSAGES_MAX: usize = 16;
/// Rows of one message.
const ROWS_MAX: usize = 8192;
/// Rows of a topic that are held. More in one batch saves little, and takes buffers that are given back and zeroed each time.
const HELD_MAX: usize = 1024;
/// Longest time that a row is held. So many rows at most the first question after a pause has to wait for.
const HELD_FOR: Duration = Duration::from_secs(1);
/// Longest wait for a message to be taken.
const STALL: Duration = Duration::from_secs(30);

/// Feeds until the process takes no more, which keeps `live_rows` rows of a topic; says why. When `wanted` is notified, everything that
/// the tables have is sent.
pub(super) async fn run(
    mut client: QueryWorkerClient<Channel>,
    (bus, tables, live_rows): (&Bus, &LiveTables, usize),
    (wanted, counters): (&Notify, Arc<Counters>),
) -> String {
    let mut watcher = bus.watch();
    let (out, messages) = mpsc::channel(MESSAGES_MAX);
    let mut feed = Feed::new(out, live_rows, counters);
    let send = async {
        feed.catch_up(tables).await?;
        let mut is_open = true;
        loop {
            tokio::select! {
                // Of what the tables have, some may not have come here yet.
                () = wanted.notified() => feed.catch_up(tables).await?,
                () = at(feed.due) => feed.send_held().await?,
                published = watcher.recv(), if is_open => match published {
                    Some(published) => feed.follow(published, tables).await?,
                    // The bus has stopped: what is there can still be asked about.
                    None => is_open = false,
                },
            }
        }
    };
    tokio::select! {
        ended = client.feed(ReceiverStream::new(messages)) => match ended {
            Ok(_) => "it ended the feed".into(),
            Err(status) => format!("it refused rows: {}", status.message()),
        },
        Err::<(), FeedError>(error) = send => error.to_string(),
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
    live_rows: usize,
    counters: Arc<Counters>,
    /// When what is held must be sent.
    due: Option<Instant>,
}

struct TopicFeed {
    topic: Topic,
    /// Number of the next row to send.
    next: u64,
    /// The rows from there on that have come.
    held: Vec<RecordBatch>,
    held_rows: usize,
    pieces: Option<Pieces>,
}

impl Feed {
    fn new(out: mpsc::Sender<FeedRows>, live_rows: usize, counters: Arc<Counters>) -> Feed {
        let topic = |topic: &Topic| TopicFeed { topic: *topic, next: 0, held: Vec::new(), held_rows: 0, pieces: None };
        Feed { topics: Topic::ALL.iter().map(topic).collect(), out, live_rows, counters, due: None }
    }

    /// Sends what the log and the tables have and the process has not.
    async fn catch_up(&mut self, tables: &LiveTables) -> Result<(), FeedError> {
        self.send_held().await?;
        for table in tables.snapshot().tables() {
            self.catch_up_table(table).await?;
        }
        Ok(())
    }

    async fn catch_up_table(&mut self, table: &TableSnapshot) -> Result<(), FeedError> {
        let (topic, sent) = (table.topic(), self.topics[table.topic().index()].next);
        self.send_older(table).await?;
        if sent > 0 && table.first_row() > self.topics[topic.index()].next {
            return Err(FeedError::Behind {
                topic: topic.name(),
                from: self.topics[topic.index()].next,
                to: table.first_row(),
            });
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

    /// Sends what left the tables and is still wanted, as far as the log has it without a gap.
    async fn send_older(&mut self, table: &TableSnapshot) -> Result<(), FeedError> {
        let (topic, end) = (table.topic(), table.first_row());
        let live_rows = self.live_rows.min(topic.live_rows_max()) as u64;
        let sent = self.topics[topic.index()].next;
        let mut next = sent.max(table.next_row().saturating_sub(live_rows));
        let Some(history) = table.older_rows().filter(|_| next < end) else { return Ok(()) };
        let mut batches = history.numbered(topic, next..end);
        loop {
            let reading = spawn_blocking(move || (batches.next(), batches));
            let (read, rest) = reading.await.map_err(|_| FeedError::Ended)?;
            batches = rest;
            match read {
                Some(Ok((first_row, batch))) if sent == 0 || first_row == next => {
                    next = first_row + batch.num_rows() as u64;
                    self.send(topic, (first_row, &batch)).await?;
                }
                Some(Ok(_)) | None => return Ok(()),
                Some(Err(error)) => {
                    tracing::warn!(topic = topic.name(), %error, "older rows cannot be read for SQL");
                    return Ok(());
                }
            }
        }
    }

    /// Holds a batch, or sends it with what is held.
    async fn follow(&mut self, published: Published, tables: &LiveTables) -> Result<(), FeedError> {
        let topic = &mut self.topics[published.topic.index()];
        let next = topic.next + topic.held_rows as u64;
        // A batch is in the tables, as a whole, before watchers hear of it.
        if published.first_row < next {
            return Ok(());
        }
        if published.first_row > next {
            self.counters.catch_ups.add(1);
            return self.catch_up(tables).await;
        }
        topic.held_rows += published.batch.num_rows();
        topic.held.push(published.batch);
        if topic.held_rows >= HELD_MAX {
            return self.send_held_of(published.topic).await;
        }
        self.due.get_or_insert_with(|| Instant::now() + HELD_FOR);
        Ok(())
    }

    async fn send_held(&mut self) -> Result<(), FeedError> {
        self.due = None;
        for topic in Topic::ALL {
            self.send_held_of(topic).await?;
        }
        Ok(())
    }

    async fn send_held_of(&mut self, topic: Topic) -> Result<(), FeedError> {
        let state = &mut self.topics[topic.index()];
        state.held_rows = 0;
        let held = std::mem::take(&mut state.held);
        let (Some(first), from) = (held.first(), state.next) else { return Ok(()) };
        let rows = if held.len() == 1 { first.clone() } else { concat_batches(first.schema_ref(), &held)? };
        drop(held);
        self.send(topic, (from, &rows)).await
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::FaultRow;

    fn feed() -> (Feed, mpsc::Receiver<FeedRows>, LiveTables) {
        let (out, messages) = mpsc::channel(MESSAGES_MAX);
        (Feed::new(out, 100_000, Arc::default()), messages, LiveTables::new(100_000))
    }

    fn fault_rows(rows: usize) -> RecordBatch {
        let row = FaultRow { at: 0, component: "test".into(), kind: "k".into(), detail: "d".into(), count: 1 };
        serde_arrow::to_record_batch(Topic::Faults.schema().fields(), &vec![row; rows]).unwrap()
    }

    async fn publish(feed: &mut Feed, tables: &LiveTables, rows: usize) {
        let batch = fault_rows(rows);
        let first_row = tables.append(Topic::Faults, batch.clone()).unwrap();
        feed.follow(Published { topic: Topic::Faults, first_row, batch }, tables).await.unwrap();
    }

    /// Numbers of first rows of the messages there are.
    fn sent(messages: &mut mpsc::Receiver<FeedRows>) -> Vec<u64> {
        std::iter::from_fn(|| messages.try_recv().ok()).map(|message| message.first_row).collect()
    }

    /// Scenario: small batches, until their time is over, until there are many rows, and until a question comes, which knows of rows that
    /// the feed has not heard of.
    /// Guarantees: each time what was held goes as one message, in order, and nothing twice.
    #[tokio::test]
    async fn rows_are_held_and_go_together() {
        let (mut feed, mut messages, tables) = feed();
        for _ in 0..10 {
            publish(&mut feed, &tables, 3).await;
        }
        assert!(sent(&mut messages).is_empty());
        assert!(feed.due.is_some());
        feed.send_held().await.unwrap();
        assert_eq!((sent(&mut messages), feed.due), (vec![0], None));
        for _ in 0..HELD_MAX / 32 {
            publish(&mut feed, &tables, 32).await;
        }
        assert_eq!(sent(&mut messages), [30]);
        publish(&mut feed, &tables, 5).await;
        let batch = fault_rows(7);
        let first_row = tables.append(Topic::Faults, batch.clone()).unwrap();
        feed.catch_up(&tables).await.unwrap();
        let held = 30 + HELD_MAX as u64;
        assert_eq!(sent(&mut messages), [held, held + 5]);
        feed.follow(Published { topic: Topic::Faults, first_row, batch }, &tables).await.unwrap();
        feed.send_held().await.unwrap();
        assert!(sent(&mut messages).is_empty());
        assert_eq!(feed.counters.catch_ups.get(), 0);
    }
}
