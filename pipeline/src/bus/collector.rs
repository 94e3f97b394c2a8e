//! The bus's thread: takes what was put, numbers batches, hands them on (DESIGN §3).
//!
//! Invariant: one thread does all of it, so a topic's rows have one order everywhere. A batch goes to the live tables (which
//! number it), to the log's pending rows, to watchers, and then to subscribers, for whom the thread may wait.
//! Rows leave when there are `flush_rows` of a topic, at the latest `flush_interval` after the first, in batches of `flush_rows`
//! at most. The log is written `sync_interval` after its first pending row (group commit), at a flush, and when enough rows are pending.
//! Cost: O(columns) a batch.

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
    counters::LogState,
    log::Fault,
    origin::{Origins, Verdict},
};
use crate::{config, rows::FaultRow};

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
    pub(super) fn take_log(&mut self, log: Option<LogWriter>) {
        let Some(mut log) = log else { return };
        let live_rows = self.tables.rows_max();
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

    pub(super) async fn run(mut self, mut batches: mpsc::Receiver<BatchCommand>, stop: CancellationToken) {
        self.stop = stop.clone();
        let shared = self.shared.clone();
        let mut stopping = false;
        loop {
            tokio::select! {
                is_urgent = shared.intake.wait() => match is_urgent {
                    true => self.flush_rows().await,
                    false => {
                        self.flush_at.get_or_insert_with(|| Instant::now() + self.flush_interval);
                    }
                },
                command = batches.recv() => match command {
                    Some(command) => self.take_batch(command).await,
                    None => break,
                },
                () = at(self.flush_at) => self.flush_rows().await,
                () = at(self.commit_at) => self.commit(),
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    shared.intake.close();
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

    async fn take_batch(&mut self, command: BatchCommand) {
        let (topic, origin, batch) = match command {
            BatchCommand::Batch { topic, origin, batch } => (topic, origin, batch),
            BatchCommand::Own { topic, batch } => return self.emit(topic, batch).await,
            BatchCommand::Flush(done) => {
                self.flush_rows().await;
                self.commit();
                // The caller may have gone; then nobody wants to know.
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
        self.shared.intake.put_own(&row);
    }

    async fn flush_rows(&mut self) {
        self.flush_at = None;
        self.shared.intake.begin();
        for topic in Topic::ALL {
            self.flush_topic(topic).await;
        }
    }

    async fn flush_topic(&mut self, topic: Topic) {
        let Some((rows, batch)) = self.shared.intake.take(topic) else { return };
        match batch {
            Ok(batch) => {
                for start in (0..rows).step_by(self.flush_rows) {
                    self.emit(topic, batch.slice(start, self.flush_rows.min(rows - start))).await;
                }
            }
            Err(error) => {
                self.shared.counters.rows_invalid.add(rows as u64);
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

/// A bus whose thread has ended, however it did, takes no more rows.
impl Drop for Collector {
    fn drop(&mut self) {
        self.shared.intake.close();
    }
}

/// Ends at the time given, never without one.
pub(crate) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
