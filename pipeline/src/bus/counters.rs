//! What the bus counts, for /metrics (DESIGN §7 rules 6 and 8). Relaxed atomics: numbers are exact, their moment is not.

use std::sync::atomic::{AtomicU64, Ordering};

use queries::Topic;

/// A count that only rises, or a level that is set.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// State of the log as /metrics and the page show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// There is no log (`log.mode = "off"`).
    Off,
    Healthy,
    /// Writing failed; rows are kept in memory and writing is tried again. Serving goes on.
    Faulted,
}

/// The live counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) rows: [Count; Topic::ALL.len()],
    pub(crate) batches: Count,
    pub(crate) refused_full: Count,
    pub(crate) rows_invalid: Count,
    pub(crate) duplicates: Count,
    pub(crate) stale: Count,
    pub(crate) gap_batches: Count,
    pub(crate) restarts: Count,
    pub(crate) watcher_lag: Count,
    pub(crate) subscriber_waits: Count,
    pub(crate) log_state: Count,
    pub(crate) log_bytes: Count,
    pub(crate) log_bytes_written: Count,
    pub(crate) log_faults: Count,
    pub(crate) log_rows_lost: Count,
}

/// Counts since the start, and levels now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusCounters {
    /// Rows published, by topic.
    pub rows: [(Topic, u64); Topic::ALL.len()],
    pub batches: u64,
    /// Rows on their way into the bus, one of several KiB for so many (level, of `queue_rows`).
    pub queue_depth: usize,
    /// Batches waiting at the slowest subscriber (level, of `subscriber_batches`).
    pub subscriber_depth: usize,
    /// `try_publish` calls that found the queue full.
    pub refused_full: u64,
    /// Rows that did not fit their topic; dropped.
    pub rows_invalid: u64,
    /// Remote batches dropped because they were there already.
    pub duplicates: u64,
    /// Remote batches dropped because their producer has been restarted since.
    pub stale: u64,
    /// Remote batches that never came.
    pub gap_batches: u64,
    /// Restarts of remote producers.
    pub restarts: u64,
    /// Batches that watchers skipped.
    pub watcher_lag: u64,
    /// Times the bus waited for a subscriber.
    pub subscriber_waits: u64,
    pub log_state: LogState,
    /// Bytes of all segments now (level, of `log.retain_bytes`).
    pub log_bytes: u64,
    pub log_bytes_written: u64,
    /// Failed attempts to write the log.
    pub log_faults: u64,
    /// Rows that are not in the log because it could not be written.
    pub log_rows_lost: u64,
}

impl Counters {
    pub(super) fn set_log_state(&self, state: LogState) {
        self.log_state.set(match state {
            LogState::Off => 0,
            LogState::Healthy => 1,
            LogState::Faulted => 2,
        });
    }

    pub(super) fn read(&self, queue_depth: usize, subscriber_depth: usize) -> BusCounters {
        BusCounters {
            rows: Topic::ALL.map(|topic| (topic, self.rows[topic.index()].get())),
            batches: self.batches.get(),
            queue_depth,
            subscriber_depth,
            refused_full: self.refused_full.get(),
            rows_invalid: self.rows_invalid.get(),
            duplicates: self.duplicates.get(),
            stale: self.stale.get(),
            gap_batches: self.gap_batches.get(),
            restarts: self.restarts.get(),
            watcher_lag: self.watcher_lag.get(),
            subscriber_waits: self.subscriber_waits.get(),
            log_state: match self.log_state.get() {
                0 => LogState::Off,
                1 => LogState::Healthy,
                _ => LogState::Faulted,
            },
            log_bytes: self.log_bytes.get(),
            log_bytes_written: self.log_bytes_written.get(),
            log_faults: self.log_faults.get(),
            log_rows_lost: self.log_rows_lost.get(),
        }
    }
}
