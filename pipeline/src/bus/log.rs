//! The log on disk: what left the bus, for SQL over older rows, replay and restarts (DESIGN §3; SPEC X2).
//!
//! Layout: `<data folder>/log/<topic>/<first row>.arrows` and `.idx` (see `segment`), `<data folder>/lock`.
//! Invariants: rows of a topic are written in order; a group commit every `sync_interval` at most joins what is pending of
//! a topic into one batch, writes it and syncs it, so a crash loses at most that much. One process has a data folder.
//! A write that fails (full disk, IO error) stops nothing: the log is *faulted*, rows stay pending up to
//! [`PENDING_ROWS_MAX`] a topic (then the oldest are given up and counted), and writing is tried again with growing pauses.
//! Entering and leaving that state and every loss is a [`Fault`], which the bus publishes as a row.
//! Bounds on disk: `retain_bytes` over all topics and `retain_age`; the oldest closed segments are deleted.
//! Cost: one encode, write and two fsyncs a topic and commit.

use std::{
    collections::VecDeque,
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arrow::{array::RecordBatch, compute::concat_batches};
use queries::Topic;

use super::{
    fs::{DiskFs, SegmentFs},
    history::{LogIndex, LogReader},
    recovery::recover,
    segment::{OpenSegment, SegmentError, index_path},
};
use crate::{
    config,
    ids::{Micros, micros},
};

/// Rows of a topic kept pending while the log cannot be written.
pub const PENDING_ROWS_MAX: usize = 65_536;
/// Pending rows of a topic that are written without waiting for the interval.
const COMMIT_ROWS: usize = 8192;
/// Pauses between attempts while the log is faulted.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(
        "cannot use data folder {path:?} (server.data_dir): {source}; give a folder that this user may create and write to"
    )]
    DataFolder { path: PathBuf, source: io::Error },
    #[error(
        "data folder {path:?} is in use by another process ({holder}); stop it, or give this one a server.data_dir of its own"
    )]
    Locked { path: PathBuf, holder: String },
}

/// Something that went wrong and is worth a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// One word.
    pub(super) kind: &'static str,
    pub(super) detail: String,
    /// How many rows, batches or files it stands for.
    pub(super) count: u64,
}

/// Counts of the log since its start, and its size now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) bytes: u64,
    pub(super) bytes_written: u64,
    pub(super) faults: u64,
    pub(super) rows_lost: u64,
}

/// Rows of one topic on their way to disk.
#[derive(Debug)]
struct TopicLog {
    topic: Topic,
    folder: PathBuf,
    pending: VecDeque<(u64, RecordBatch)>,
    pending_rows: usize,
    /// Rows given up since the last successful commit.
    lost: u64,
    segment: Option<OpenSegment>,
    next_row: u64,
}

/// Writes the log. Owned by the bus's thread.
#[derive(Debug)]
pub struct LogWriter {
    fs: Arc<dyn SegmentFs>,
    config: config::Log,
    topics: Vec<TopicLog>,
    index: Arc<LogIndex>,
    /// Pause before the next attempt; `None` while healthy.
    faulted: Option<Duration>,
    commit_rows: usize,
    faults: Vec<Fault>,
    totals: Totals,
    /// Held as long as the log lives; the lock ends with the process at the latest.
    _lock: File,
}

impl LogWriter {
    /// Opens the log in a data folder: takes the folder's lock, recovers every topic (see `recovery`). Blocks on the disk.
    pub fn open(data_folder: &Path, config: &config::Log) -> Result<LogWriter, LogError> {
        LogWriter::open_on(Arc::new(DiskFs), data_folder, config)
    }

    /// The same with another way to write files.
    pub fn open_on(fs: Arc<dyn SegmentFs>, data_folder: &Path, config: &config::Log) -> Result<LogWriter, LogError> {
        let unusable = |path: &Path| {
            let path = path.to_path_buf();
            move |source| LogError::DataFolder { path, source }
        };
        fs::create_dir_all(data_folder).map_err(unusable(data_folder))?;
        let lock = lock(data_folder)?;
        let (mut topics, mut segments, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for topic in Topic::ALL {
            let folder = data_folder.join("log").join(topic.name());
            fs::create_dir_all(&folder).map_err(unusable(&folder))?;
            let recovered = recover(&folder).map_err(unusable(&folder))?;
            let next_row = recovered.segments.iter().map(|meta| meta.rows.end).max().unwrap_or(0);
            topics.push(TopicLog::new(topic, folder, next_row));
            segments.push(recovered.segments);
            faults.extend(recovered.faults);
        }
        let mut log = LogWriter {
            fs,
            config: config.clone(),
            topics,
            index: Arc::new(LogIndex::new(segments)),
            faulted: None,
            commit_rows: COMMIT_ROWS,
            faults,
            totals: Totals::default(),
            _lock: lock,
        };
        log.totals.bytes = log.bytes();
        Ok(log)
    }

    /// Reads what is committed, while this goes on writing.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.index.clone())
    }

    /// Number of the next row of a topic.
    pub(super) fn next_row(&self, topic: Topic) -> u64 {
        self.topics[topic.index()].next_row
    }

    /// Commits at the latest when `rows` rows of a topic are pending (never more than the built-in bound).
    pub(super) fn commit_at_rows(&mut self, rows: usize) {
        self.commit_rows = rows.clamp(1, COMMIT_ROWS);
    }

    pub(super) fn is_faulted(&self) -> bool {
        self.faulted.is_some()
    }

    pub(super) fn has_pending(&self) -> bool {
        self.topics.iter().any(|topic| !topic.pending.is_empty())
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Longest time until the next commit: the group-commit interval, or the pause before the next attempt.
    pub(super) fn pause(&self) -> Duration {
        self.faulted.unwrap_or(self.config.sync_interval)
    }

    pub(super) fn take_faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }

    /// Takes rows in. True when so many are pending that they should be committed now.
    pub(super) fn append(&mut self, topic: Topic, first_row: u64, batch: RecordBatch) -> bool {
        let log = &mut self.topics[topic.index()];
        log.pending_rows += batch.num_rows();
        log.next_row = first_row + batch.num_rows() as u64;
        log.pending.push_back((first_row, batch));
        while log.pending_rows > PENDING_ROWS_MAX && log.pending.len() > 1 {
            if let Some((_, oldest)) = log.pending.pop_front() {
                log.pending_rows -= oldest.num_rows();
                log.lost += oldest.num_rows() as u64;
                self.totals.rows_lost += oldest.num_rows() as u64;
            }
        }
        self.faulted.is_none() && log.pending_rows >= self.commit_rows
    }

    /// Writes and syncs everything pending, then deletes what is too old or too much. `now` is in microseconds.
    pub(super) fn commit(&mut self, now: Micros) {
        let mut failed = None;
        for at in 0..self.topics.len() {
            if let Err(error) = self.commit_topic(at) {
                self.totals.faults += 1;
                self.give_up_segment(at);
                failed.get_or_insert((self.topics[at].topic, error));
            }
        }
        match failed {
            None => self.recover_from_fault(),
            Some((topic, error)) => self.fault(topic, &error),
        }
        self.retain(now);
        self.totals.bytes = self.bytes();
    }

    /// Closes all segments in order. Called once, at the end.
    pub(super) fn seal(&mut self) {
        for at in 0..self.topics.len() {
            self.seal_segment(at);
        }
    }

    fn commit_topic(&mut self, at: usize) -> Result<(), SegmentError> {
        let log = &mut self.topics[at];
        let Some((first_row, first)) = log.pending.front() else { return Ok(()) };
        let (first_row, schema) = (*first_row, first.schema());
        let joined = concat_batches(&schema, log.pending.iter().map(|(_, batch)| batch))
            .map_err(|error| SegmentError::corrupt(&log.folder, error))?;
        if log.segment.is_none() {
            log.segment = Some(OpenSegment::create(self.fs.as_ref(), &log.folder, log.topic, first_row)?);
        }
        let segment = log.segment.as_mut().expect("invariant: a segment was just opened");
        let before = segment.meta.bytes;
        segment.append(first_row, &joined)?;
        segment.sync()?;
        self.totals.bytes_written += segment.meta.bytes - before;
        let (meta, full) = (segment.meta.clone(), segment.meta.bytes >= self.config.segment_bytes.as_u64());
        log.pending.clear();
        log.pending_rows = 0;
        self.index.change(log.topic, |segments| match segments.last_mut().filter(|last| last.path == meta.path) {
            Some(last) => *last = meta,
            None => segments.push(meta),
        });
        if full {
            self.seal_segment(at);
        }
        Ok(())
    }

    fn seal_segment(&mut self, at: usize) {
        let log = &mut self.topics[at];
        let Some(segment) = log.segment.take() else { return };
        match segment.seal() {
            Ok(meta) => self.index.change(log.topic, |segments| {
                if let Some(last) = segments.last_mut().filter(|last| last.path == meta.path) {
                    *last = meta;
                }
            }),
            // Every row in it was synced before; only the end marker is missing, which readers do without.
            Err(error) => tracing::warn!(%error, "a segment could not be ended properly"),
        }
    }

    /// Drops a segment that a write failed on; what it holds up to there stays readable.
    fn give_up_segment(&mut self, at: usize) {
        let log = &mut self.topics[at];
        let Some(segment) = log.segment.take() else { return };
        let meta = segment.give_up();
        if meta.entries == 0 {
            // Nothing is lost if these stay: the next start removes them.
            let _ = self.fs.remove(&meta.path);
            let _ = self.fs.remove(&index_path(&meta.path));
        }
    }

    fn fault(&mut self, topic: Topic, error: &SegmentError) {
        let entering = self.faulted.is_none();
        let pause = self.faulted.map_or(RETRY_MIN, |pause| (pause * 2).min(RETRY_MAX));
        self.faulted = Some(pause);
        if entering {
            let name = topic.name();
            let detail = format!(
                "cannot write the log of {name}: {error}; serving goes on, rows stay in memory, next attempt in {pause:?}"
            );
            self.faults.push(Fault { kind: "log_faulted", detail, count: 1 });
        }
    }

    fn recover_from_fault(&mut self) {
        if self.faulted.take().is_none() {
            return;
        }
        let lost: Vec<_> =
            self.topics.iter_mut().map(|log| (log.topic.name(), std::mem::take(&mut log.lost))).collect();
        let count = lost.iter().map(|(_, rows)| rows).sum::<u64>();
        let detail = match count {
            0 => "the log is written again; no row was lost".to_string(),
            _ => {
                let parts: Vec<_> =
                    lost.iter().filter(|(_, rows)| *rows > 0).map(|(name, rows)| format!("{rows} of {name}")).collect();
                format!("the log is written again; rows missing in it: {}", parts.join(", "))
            }
        };
        self.faults.push(Fault { kind: "log_recovered", detail, count });
    }

    /// Deletes closed segments that are too old, then the oldest until all fit `retain_bytes`.
    fn retain(&mut self, now: Micros) {
        let oldest_kept = now.saturating_sub(micros(self.config.retain_age));
        loop {
            let over = self.bytes() > self.config.retain_bytes.as_u64();
            let oldest = (0..self.topics.len()).filter_map(|at| Some((self.oldest_closed(at)?, at))).min();
            match oldest {
                Some((newest_row_at, at)) if over || newest_row_at < oldest_kept => self.delete_oldest(at),
                _ => return,
            }
        }
    }

    /// Time of the newest row in the oldest segment of a topic that is no longer written.
    fn oldest_closed(&self, at: usize) -> Option<i64> {
        let log = &self.topics[at];
        let open = log.segment.as_ref().map(|segment| &segment.meta.path);
        self.index.with(log.topic, |segments| {
            segments.first().filter(|first| Some(&first.path) != open).map(|first| first.times.max)
        })
    }

    fn delete_oldest(&mut self, at: usize) {
        let meta = self.index.change(self.topics[at].topic, |segments| segments.remove(0));
        for path in [index_path(&meta.path), meta.path] {
            if let Err(error) = self.fs.remove(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                let detail = format!("cannot delete {}: {error}", path.display());
                self.faults.push(Fault { kind: "cannot_remove", detail, count: 1 });
            }
        }
    }

    fn bytes(&self) -> u64 {
        let of_topic = |topic| self.index.with(topic, |segments| segments.iter().map(|meta| meta.bytes).sum::<u64>());
        Topic::ALL.into_iter().map(of_topic).sum()
    }
}

impl TopicLog {
    fn new(topic: Topic, folder: PathBuf, next_row: u64) -> TopicLog {
        TopicLog { topic, folder, pending: VecDeque::new(), pending_rows: 0, lost: 0, segment: None, next_row }
    }
}

/// Takes the data folder for this process.
fn lock(data_folder: &Path) -> Result<File, LogError> {
    let path = data_folder.join("lock");
    let unusable = |source| LogError::DataFolder { path: data_folder.to_path_buf(), source };
    let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(source)) => return Err(unusable(source)),
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(&path).unwrap_or_default();
            let holder = if holder.trim().is_empty() { "unknown".to_string() } else { holder.trim().to_string() };
            return Err(LogError::Locked { path: data_folder.to_path_buf(), holder });
        }
    }
    // For the other process's error only; on a full disk the lock holds without it.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "process {}", std::process::id()));
    Ok(file)
}
