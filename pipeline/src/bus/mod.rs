//! The metrics bus: everything that flows is a row of a topic, in order, in one place (DESIGN §3; SPEC E2, X2).
//!
//! | file | idea |
//! |---|---|
//! | `intake` | publishers put rows into columns |
//! | `collector` | the bus's thread: takes them as batches, numbers, hands on |
//! | `origin` | duplicates, gaps and restarts of remote producers |
//! | `fanout` | lossless subscribers and lossy watchers |
//! | `counters` | what /metrics reads |
//! | `log`, `segment`, `recovery`, `history`, `fs` | the log on disk: write, format, start-up, read, files |
//! | `archive` | a log read by another process than its server |
//! | `follower` | the same while the server goes on writing, for older rows |
//!
//! Invariants: rows of a topic are numbered from 0 without gaps in the order in which they left the bus, and the log, the
//! live tables and every subscriber see that order. A row is accepted or its publisher is told why not.
//! Bounds: `queue_rows` rows, one of several KiB for so many, and [`REMOTE_BATCHES`] batches on their way in (publishers wait;
//! `try_publish` says `Full`); `subscriber_batches` on their way to each subscriber (the bus waits); as many for watchers (the oldest are
//! skipped and counted). Cost: a row is copied into its columns when it is published; batches are shared, not copied.
//!
//! A subscriber must not wait in `publish` on the thread that empties its subscription: with both queues full the two
//! would wait for each other. Views that become rows use `try_publish`.

mod archive;
mod collector;
mod counters;
mod fanout;
mod follower;
pub mod fs;
mod history;
mod intake;
pub mod log;
mod origin;
mod recovery;
mod segment;
#[cfg(test)]
pub(crate) mod tests;

use std::{sync::Arc, thread};

use arrow::array::RecordBatch;
use queries::{LiveTables, Topic, live_table::SchemaMismatch};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use self::{
    archive::{Archive, ArchiveError},
    counters::{BusCounters, LogState},
    fanout::{Published, STOP_PATIENCE, Subscription, Watcher},
    follower::LogFollower,
    history::LogReader,
    intake::{RowsError, rows_of},
    log::{LogError, LogWriter},
    origin::Origin,
};
pub(crate) use self::{collector::at, counters::Count};
use self::{
    collector::{BatchCommand, Collector},
    counters::Counters,
    fanout::Fanout,
    intake::Intake,
};
use crate::{config, ids::Micros, rows::Row};

/// Says what time it is, in microseconds since the epoch.
pub type Clock = Arc<dyn Fn() -> Micros + Send + Sync>;

/// Batches on their way into the bus, of remote producers and of views of this process.
pub const REMOTE_BATCHES: usize = 256;
/// Most rows of one remote batch.
pub const REMOTE_ROWS_MAX: usize = 65_536;

/// A row or batch was not taken.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("the bus has stopped")]
    Closed,
    #[error("the bus's queue is full (bus.queue_rows)")]
    Full,
    #[error(transparent)]
    Schema(#[from] SchemaMismatch),
    #[error("a batch of {rows} rows is too large; publish at most {REMOTE_ROWS_MAX} rows at once")]
    TooManyRows { rows: usize },
}

/// The bus could not start.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    #[error("cannot start the bus's thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What the handle and the thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) counters: Counters,
    pub(crate) fanout: Fanout,
    intake: Intake,
}

/// Handle of the bus. Clones are equal.
#[derive(Debug, Clone)]
pub struct Bus {
    batches: mpsc::Sender<BatchCommand>,
    shared: Arc<Shared>,
}

/// Owner of the bus's thread. Dropping it (or [`BusGuard::stop`]) publishes what was accepted, syncs the log and ends the
/// thread; subscriptions then end too. A subscriber that does not empty its queue for [`STOP_PATIENCE`] is left.
#[derive(Debug)]
pub struct BusGuard {
    stop: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl Bus {
    /// Starts the bus on a thread of its own. With a log, its newest rows are read into `tables` first, numbering goes on
    /// after the last row logged, and `tables` gets the log as its history.
    pub fn start(
        config: &config::Bus,
        log: Option<LogWriter>,
        tables: Arc<LiveTables>,
        clock: Clock,
    ) -> Result<(Bus, BusGuard), BusError> {
        let shared = Arc::new(Shared {
            counters: Counters::default(),
            fanout: Fanout::new(config.subscriber_batches),
            intake: Intake::new(config.flush_rows, config.queue_rows),
        });
        let (batches, batches_in) = mpsc::channel(REMOTE_BATCHES);
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let mut collector = Collector::new(config, tables, shared.clone(), clock);
        collector.take_log(log);
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("bus".to_string())
            .spawn(move || runtime.block_on(collector.run(batches_in, stopped)))?;
        Ok((Bus { batches, shared }, BusGuard { stop, thread: Some(thread) }))
    }

    /// Publishes a row; waits while `queue_rows` rows are on their way. Errors: `Closed`.
    pub async fn publish<R: Row>(&self, row: R) -> Result<(), PublishError> {
        self.shared.intake.put(&row).await
    }

    /// Publishes a row if there is room now; else it comes back, for [`publish`](Self::publish).
    pub fn offer<R: Row>(&self, row: R) -> Result<(), R> {
        self.shared.intake.try_put(&row).map_err(|_| row)
    }

    /// Publishes a row without waiting. Errors: `Full`, `Closed`.
    pub fn try_publish<R: Row>(&self, row: R) -> Result<(), PublishError> {
        self.shared.intake.try_put(&row).inspect_err(|error| {
            if matches!(error, PublishError::Full) {
                self.shared.counters.refused_full.add(1);
            }
        })
    }

    /// Publishes a row from a plain thread, which it blocks while `queue_rows` rows are on their way. Errors: `Closed`.
    pub fn blocking_publish<R: Row>(&self, row: R) -> Result<(), PublishError> {
        futures::executor::block_on(self.shared.intake.put(&row))
    }

    /// Publishes a batch of a remote producer. A batch that was there already is dropped and counted, a gap or a restart of
    /// the producer is noted as a `faults` row. Waits while [`REMOTE_BATCHES`] are on their way.
    /// Errors: `Schema` (says which column), `TooManyRows`, `Closed`.
    pub async fn publish_remote(&self, topic: Topic, origin: Origin, batch: RecordBatch) -> Result<(), PublishError> {
        if batch.num_rows() > REMOTE_ROWS_MAX {
            return Err(PublishError::TooManyRows { rows: batch.num_rows() });
        }
        let batch = queries::live_table::conform(topic, batch)?;
        self.batches.send(BatchCommand::Batch { topic, origin, batch }).await.map_err(|_| PublishError::Closed)
    }

    /// Publishes a batch of this process. Waits while [`REMOTE_BATCHES`] are on their way. Errors: `Schema` (says which column),
    /// `TooManyRows`, `Closed`.
    pub async fn publish_batch(&self, topic: Topic, batch: RecordBatch) -> Result<(), PublishError> {
        if batch.num_rows() > REMOTE_ROWS_MAX {
            return Err(PublishError::TooManyRows { rows: batch.num_rows() });
        }
        let batch = queries::live_table::conform(topic, batch)?;
        self.batches.send(BatchCommand::Own { topic, batch }).await.map_err(|_| PublishError::Closed)
    }

    /// Returns when everything published before is in the tables and the log and has been handed to every subscriber.
    /// Errors: `Closed`.
    pub async fn flush(&self) -> Result<(), PublishError> {
        let (done, is_done) = oneshot::channel();
        self.batches.send(BatchCommand::Flush(done)).await.map_err(|_| PublishError::Closed)?;
        is_done.await.map_err(|_| PublishError::Closed)
    }

    /// Every batch of `topics` from now on, in order, none left out; the bus waits when the subscriber is
    /// `subscriber_batches` behind. Drop the subscription to end it.
    pub fn subscribe(&self, topics: &[Topic]) -> Subscription {
        self.shared.fanout.subscribe(topics)
    }

    /// Batches of all topics from now on; one that falls behind skips the oldest and knows how many.
    pub fn watch(&self) -> Watcher {
        self.shared.fanout.watch(self.shared.clone())
    }

    /// Counts since the start, for /metrics.
    pub fn counters(&self) -> BusCounters {
        self.shared.counters.read(self.shared.intake.room_taken(), self.shared.fanout.deepest())
    }
}

impl BusGuard {
    /// Publishes what was accepted, syncs the log, ends the thread. Blocks: call it on a plain thread or by
    /// `spawn_blocking`.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the bus's thread panicked");
        }
    }
}

impl Drop for BusGuard {
    fn drop(&mut self) {
        self.end();
    }
}
