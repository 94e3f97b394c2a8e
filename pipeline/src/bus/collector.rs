//! The bus's thread: collects rows, numbers batches, hands them on (DESIGN §3).
//!
//! Invariant: one thread does all of it, so a topic's rows have one order everywhere. A batch goes to the live tables (which
//! number it), to the log's pending rows, to watchers, and then to subscribers, for whom the thread may wait.
//! A topic's rows leave when there are `flush_rows` of them, at the latest `flush_interval` after the first. The log is
//! written `sync_interval` after its first pending row (group commit), at a flush, and when enough rows are pending.
//! Cost: O(1) a row beside building columns.

use std::{sync::Arc, time::Duration};

use arrow::array::RecordBatch;
use queries::{LiveTables, Topic};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Clock, LogWriter, Origin, Published, Shared,
    appender::{AnyRow, Appender},
    counters::LogState,
    log::Fault,
    origin::{Origins, Verdict},
};
use crate::{config, rows::FaultRow};

/// Rows taken from the queue at once.
const ROWS_AT_ONCE: usize = 512;
/// After the queue was emptied the next rows gather for this long, so that a publisher does not pay for waking the thread
/// row by row. It is short beside `flush_interval`.
const REST: Duration = Duration::from_millis(1);

/// What comes through the row queue.
#[derive(Debug)]
pub(super) enum RowCommand {
    Row(AnyRow),
    Flush(oneshot::Sender<()>),
}

/// What comes through the batch queue.
#[derive(Debug)]
pub(super) enum BatchCommand {
    Batch {
        topic: Topic,
        origin: Origin,
        batch: RecordBatch,
    },
    /// Of this process: nobody else counts it.
    Own {
        topic: Topic,
        batch: RecordBatch,
    },
    Flush(oneshot::Sender<()>),
}

pub(super) struct Collector {
    flush_rows: usize,
    flush_interval: Duration,
    appenders: Vec<Appender>,
    origins: Origins,
    tables: Arc<LiveTables>,
    log: Option<LogWriter>,
    shared: Arc<Shared>,
    clock: Clock,
    /// When the rows collected must leave.
    flush_at: Option<Instant>,
    /// When the log's pending rows must be written.
    commit_at: Option<Instant>,
    stop: CancellationToken,
}

impl Collector {
    pub(super) fn new(config: &config::Bus, tables: Arc<LiveTables>, shared: Arc<Shared>, clock: Clock) -> Collector {
        Collector {
            flush_rows: config.flush_rows.max(1),
            flush_interval: config.flush_interval,
            appenders: Topic::ALL.map(Appender::new).into(),
            origins: Origins::default(),
            tables,
            log: None,
            shared,
            clock,
            flush_at: None,
            commit_at: None,
            stop: CancellationToken::new(),
        }
    }

    /// Takes the log over: its newest rows go into the tables, its faults become rows, and the tables read older rows
    /// from it.
    pub(super) fn take_log(&mut self, log: Option<LogWriter>, live_rows: usize) {
        let Some(mut log) = log else { return };
        let reader = log.reader();
        for topic in Topic::ALL {
            let (end, kept) = (log.next_row(topic), live_rows.max(1) as u64);
            for read in reader.read(topic, end.saturating_sub(kept)..end) {
                let loaded = read.map_err(|error| error.to_string()).and_then(|(first_row, batch)| {
                    self.tables.skip_to(topic, first_row);
                    self.tables.append(topic, batch).map_err(|error| error.to_string())
                });
                if let Err(detail) = loaded {
                    self.note("log", Fault { kind: "unreadable", detail, count: 1 });
                }
            }
            self.tables.skip_to(topic, end);
        }
        // Rows must be in the log before they can leave memory.
        log.commit_at_rows(live_rows / 2);
        self.tables.set_history(Arc::new(reader));
        self.log = Some(log);
        self.after_log();
    }

    pub(super) async fn run(
        mut self,
        mut rows: mpsc::Receiver<RowCommand>,
        mut batches: mpsc::Receiver<BatchCommand>,
        stop: CancellationToken,
    ) {
        self.stop = stop.clone();
        let mut taken = Vec::with_capacity(ROWS_AT_ONCE);
        let (mut rows_open, mut batches_open, mut stopping) = (true, true, false);
        let mut rest_until = None;
        while rows_open || batches_open {
            tokio::select! {
                () = at(rest_until) => rest_until = None,
                count = rows.recv_many(&mut taken, ROWS_AT_ONCE), if rows_open && rest_until.is_none() => {
                    rows_open = count > 0;
                    if count < ROWS_AT_ONCE && !stopping {
                        rest_until = Some(Instant::now() + REST);
                    }
                    for command in taken.drain(..) {
                        self.take_row(command).await;
                    }
                }
                command = batches.recv(), if batches_open => match command {
                    Some(command) => self.take_batch(command).await,
                    None => batches_open = false,
                },
                () = at(self.flush_at) => self.flush_rows().await,
                () = at(self.commit_at) => self.commit(),
                () = stop.cancelled(), if !stopping => {
                    (stopping, rest_until) = (true, None);
                    rows.close();
                    batches.close();
                }
            }
        }
        self.flush_rows().await;
        self.commit();
        // The commit itself may have had something to say.
        self.flush_rows().await;
        if let Some(log) = &mut self.log {
            log.seal();
        }
        self.shared.fanout.close();
    }

    async fn take_row(&mut self, command: RowCommand) {
        match command {
            RowCommand::Row(row) => {
                let topic = row.topic();
                self.collect(topic, &row);
                if self.appenders[topic.index()].rows() >= self.flush_rows {
                    self.flush_topic(topic).await;
                }
            }
            RowCommand::Flush(done) => {
                self.flush_rows().await;
                self.commit();
                // The caller may have gone; then nobody wants to know.
                let _ = done.send(());
            }
        }
    }

    async fn take_batch(&mut self, command: BatchCommand) {
        let (topic, origin, batch) = match command {
            BatchCommand::Batch { topic, origin, batch } => (topic, origin, batch),
            BatchCommand::Own { topic, batch } => return self.emit(topic, batch).await,
            BatchCommand::Flush(done) => {
                let _ = done.send(());
                return;
            }
        };
        let counters = &self.shared.counters;
        let who = format!("instance {} epoch {} topic {}", origin.producer, origin.epoch.0, topic.name());
        match self.origins.judge(topic, origin) {
            Verdict::Duplicate => return counters.duplicates.add(1),
            Verdict::Stale => return counters.stale.add(1),
            Verdict::Next => {}
            Verdict::Gap { missing } => {
                counters.gap_batches.add(missing);
                let detail = format!("{who}: {missing} batches before batch {} never came", origin.seq);
                self.note("bus", Fault { kind: "gap", detail, count: missing });
            }
            Verdict::Restart { missing } => {
                counters.restarts.add(1);
                counters.gap_batches.add(missing);
                let detail = format!("{who}: restarted; {missing} batches before batch {} never came", origin.seq);
                self.note("bus", Fault { kind: "restart", detail, count: 1 });
            }
        }
        self.emit(topic, batch).await;
    }

    fn collect(&mut self, topic: Topic, row: &AnyRow) {
        let appender = &mut self.appenders[topic.index()];
        let before = appender.rows() as u64;
        match appender.push(row) {
            Ok(()) => {
                self.flush_at.get_or_insert_with(|| Instant::now() + self.flush_interval);
            }
            Err(error) => {
                self.shared.counters.rows_invalid.add(before + 1);
                tracing::error!(%error, lost = before + 1, "rows dropped");
            }
        }
    }

    /// Publishes a fault as a row.
    fn note(&mut self, component: &str, fault: Fault) {
        tracing::warn!(component, kind = fault.kind, count = fault.count, "{}", fault.detail);
        let row = FaultRow {
            at: (self.clock)(),
            component: component.to_string(),
            kind: fault.kind.to_string(),
            detail: fault.detail,
            count: fault.count,
        };
        self.collect(Topic::Faults, &AnyRow::new(row));
    }

    async fn flush_rows(&mut self) {
        self.flush_at = None;
        for topic in Topic::ALL {
            self.flush_topic(topic).await;
        }
    }

    async fn flush_topic(&mut self, topic: Topic) {
        let appender = &mut self.appenders[topic.index()];
        let rows = appender.rows() as u64;
        match appender.take() {
            Ok(Some(batch)) => self.emit(topic, batch).await,
            Ok(None) => {}
            Err(error) => {
                self.shared.counters.rows_invalid.add(rows);
                tracing::error!(%error, lost = rows, "rows dropped");
            }
        }
    }

    async fn emit(&mut self, topic: Topic, batch: RecordBatch) {
        let rows = batch.num_rows() as u64;
        if rows == 0 {
            return;
        }
        let first_row = match self.tables.append(topic, batch.clone()) {
            Ok(first_row) => first_row,
            Err(error) => {
                self.shared.counters.rows_invalid.add(rows);
                tracing::error!(%error, lost = rows, "batch dropped");
                return;
            }
        };
        self.shared.counters.rows[topic.index()].add(rows);
        self.shared.counters.batches.add(1);
        if let Some(log) = &mut self.log {
            let full = log.append(topic, first_row, batch.clone());
            self.commit_at.get_or_insert_with(|| Instant::now() + log.pause());
            if full {
                self.commit();
            }
        }
        let waits = &self.shared.counters.subscriber_waits;
        self.shared.fanout.send(Published { topic, first_row, batch }, waits, &self.stop).await;
    }

    /// Writes the log's pending rows. A fault is noted and the next attempt planned; nothing else stops.
    fn commit(&mut self) {
        self.commit_at = None;
        let Some(log) = &mut self.log else { return };
        log.commit((self.clock)());
        if log.has_pending() {
            self.commit_at = Some(Instant::now() + log.pause());
        }
        self.after_log();
    }

    fn after_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        let faults = log.take_faults();
        let (counters, totals) = (&self.shared.counters, log.totals());
        counters.set_log_state(if log.is_faulted() { LogState::Faulted } else { LogState::Healthy });
        counters.log_bytes.set(totals.bytes);
        counters.log_bytes_written.set(totals.bytes_written);
        counters.log_faults.set(totals.faults);
        counters.log_rows_lost.set(totals.rows_lost);
        for fault in faults {
            self.note("log", fault);
        }
    }
}

/// Ends at the time given, never without one.
pub(crate) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
