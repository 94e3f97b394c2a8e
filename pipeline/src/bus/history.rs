//! Reads rows back from the log, for SQL over what left memory and for start-up (DESIGN §3).
//!
//! Invariant: rows come in rising number, each once. Segments and batches whose times or rows are not asked for are not
//! read. A segment that retention removed meanwhile reads as no rows; a damaged batch is an error that names it.
//! Cost: the list of segments is copied at the start; an index is read when its segment's turn comes; one batch at a time.

use std::{
    io, iter,
    ops::Range,
    sync::{Arc, PoisonError, RwLock},
};

use arrow::array::RecordBatch;
use queries::{History, HistoryBatches, HistoryError, NumberedBatches, Older, TimeRange, Topic, live_table::widen};

use super::segment::{Entry, SegmentError, SegmentMeta, SegmentReader, entries};

/// Segments of every topic, oldest first. The log's writer keeps it; readers copy what they need.
#[derive(Debug, Default)]
pub(super) struct LogIndex(RwLock<Vec<Vec<SegmentMeta>>>);

impl LogIndex {
    pub(super) fn new(segments: Vec<Vec<SegmentMeta>>) -> LogIndex {
        assert!(segments.len() == Topic::ALL.len(), "a list of segments for every topic");
        LogIndex(RwLock::new(segments))
    }

    pub(super) fn with<T>(&self, topic: Topic, read: impl FnOnce(&[SegmentMeta]) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner)[topic.index()])
    }

    pub(super) fn change<T>(&self, topic: Topic, change: impl FnOnce(&mut Vec<SegmentMeta>) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner)[topic.index()])
    }
}

/// Reads the log while it is written.
#[derive(Debug, Clone)]
pub struct LogReader {
    index: Arc<LogIndex>,
}

/// A batch and the number of its first row.
pub type NumberedBatch = (u64, RecordBatch);

impl LogReader {
    pub(super) fn new(index: Arc<LogIndex>) -> LogReader {
        LogReader { index }
    }

    /// Rows numbered within `rows`, oldest first, batch by batch.
    pub fn read(
        &self,
        topic: Topic,
        rows: Range<u64>,
    ) -> impl Iterator<Item = Result<NumberedBatch, HistoryError>> + Send + use<> {
        self.read_between(topic, rows, TimeRange::ALL)
    }

    fn read_between(
        &self,
        topic: Topic,
        rows: Range<u64>,
        times: TimeRange,
    ) -> impl Iterator<Item = Result<NumberedBatch, HistoryError>> + Send + use<> {
        let wanted = |meta: &&SegmentMeta| overlap(&meta.rows, &rows) && meta.times.overlaps(times);
        let segments = self.index.with(topic, |all| all.iter().filter(wanted).cloned().collect::<Vec<_>>());
        // Rows written twice (a failed attempt that reached the disk after all) are passed over.
        let (mut next, before) = (rows.start, rows.end);
        let batches = segments.into_iter().flat_map(move |meta| batches_of(topic, meta, (rows.clone(), times)));
        batches.filter_map(move |read| match read {
            Ok((first_row, batch)) => {
                let end = (first_row + batch.num_rows() as u64).min(before);
                let start = first_row.max(next);
                next = next.max(end);
                let slice = || batch.slice((start - first_row) as usize, (end - start) as usize);
                (start < end).then(|| Ok((start, slice())))
            }
            Err(error) => {
                let detail = format!("{error}; move the file away to go on without its rows");
                Some(Err(HistoryError { table: topic.name(), detail }))
            }
        })
    }
}

type Read = Result<NumberedBatch, SegmentError>;

/// Batches of one segment, read one at a time, cut to the rows wanted.
fn batches_of(
    topic: Topic,
    meta: SegmentMeta,
    (rows, times): (Range<u64>, TimeRange),
) -> Box<dyn Iterator<Item = Read> + Send> {
    let (reader, index) = match SegmentReader::open(&meta.path) {
        Ok(opened) => opened,
        Err(SegmentError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Box::new(iter::empty());
        }
        Err(error) => return Box::new(iter::once(Err(error))),
    };
    let asked = |entry: &Entry| {
        let asked = overlap(&(entry.first_row..entry.end_row()), &rows) && entry.times.overlaps(times);
        asked && !meta.damaged.contains(&entry.offset)
    };
    let chosen: Vec<Entry> = entries(&index).into_iter().take(meta.entries).flatten().filter(asked).collect();
    Box::new(chosen.into_iter().map(move |entry| {
        let batch = reader.read(&entry)?;
        let batch = widen(topic, batch).map_err(|error| SegmentError::corrupt(&meta.path, error))?;
        Ok((entry.first_row, batch))
    }))
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl History for LogReader {
    fn rows_before(&self, topic: Topic, before: u64) -> u64 {
        self.index.with(topic, |segments| {
            segments.iter().map(|meta| meta.rows.end.min(before).saturating_sub(meta.rows.start)).sum()
        })
    }

    fn older(&self, wanted: Older) -> HistoryBatches {
        let batches = self.read_between(wanted.topic, 0..wanted.before, wanted.times);
        Box::new(batches.map(|read| read.map(|(_, batch)| batch)))
    }

    fn numbered(&self, topic: Topic, rows: Range<u64>) -> NumberedBatches {
        Box::new(self.read(topic, rows))
    }
}
