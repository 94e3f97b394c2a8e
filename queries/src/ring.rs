//! The newest rows of one table, in chunks (SPEC E2).
//!
//! Rows are numbered from 0 over the table's whole life. Invariant: the ring holds a suffix of the rows pushed, cut at a
//! chunk's border; it holds at least the newest `rows_max` rows and less than `rows_max` plus one chunk.
//! Small batches are joined into chunks of up to [`CHUNK_ROWS`] rows the way an LSM tree merges runs, up to [`FAN_IN`] of like
//! size at once: a row is copied at most once for each power of [`FAN_IN`] between its batch and a chunk, and there are at most twice
//! `rows_max / CHUNK_ROWS` chunks and [`FAN_IN`] for each power. Text in views is copied together (see `views`), so that a chunk keeps
//! no buffers of the batches it was joined from. Time: push is amortised O(rows · log CHUNK_ROWS); memory: the rows themselves.
//! At the bound the oldest chunk leaves memory; the log still holds its rows (see [`crate::History`]).

use std::{collections::VecDeque, sync::Arc};

use arrow::{
    array::{AsArray, RecordBatch},
    compute::{concat_batches, max, min},
    datatypes::{DataType, TimeUnit, TimestampMicrosecondType},
};

use crate::views;

/// Most rows that small batches are joined to.
pub const CHUNK_ROWS: usize = 8192;
/// Chunks of like size that are joined at once. Sizes are alike between two powers of it.
pub const FAN_IN: usize = 8;

/// Times in microseconds since the epoch, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    pub min: i64,
    pub max: i64,
}

impl TimeRange {
    /// Every time there is.
    pub const ALL: TimeRange = TimeRange { min: i64::MIN, max: i64::MAX };

    pub fn overlaps(self, other: TimeRange) -> bool {
        self.min <= other.max && other.min <= self.max
    }

    /// The smallest range that holds both.
    pub fn union(self, other: TimeRange) -> TimeRange {
        TimeRange { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Range of a batch's first column, the time of every topic. [`TimeRange::ALL`] if that column is no microsecond
    /// timestamp or holds no value: such a batch is never pruned.
    pub fn of(batch: &RecordBatch) -> TimeRange {
        match batch.columns().first() {
            Some(column) if matches!(column.data_type(), DataType::Timestamp(TimeUnit::Microsecond, _)) => {
                let times = column.as_primitive::<TimestampMicrosecondType>();
                match (min(times), max(times)) {
                    (Some(min), Some(max)) => TimeRange { min, max },
                    _ => TimeRange::ALL,
                }
            }
            _ => TimeRange::ALL,
        }
    }
}

/// Neighbouring rows of one table.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Number of the first row.
    pub first_row: u64,
    pub batch: RecordBatch,
    /// Times of the rows.
    pub times: TimeRange,
}

impl Chunk {
    fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    fn end_row(&self) -> u64 {
        self.first_row + self.rows() as u64
    }

    /// The power of [`FAN_IN`] that it has reached.
    fn size(&self) -> u32 {
        self.rows().max(1).ilog(FAN_IN)
    }
}

/// The newest rows of one table.
#[derive(Debug)]
pub struct Ring {
    chunks: VecDeque<Arc<Chunk>>,
    rows: usize,
    rows_max: usize,
    chunk_rows: usize,
    next_row: u64,
}

impl Ring {
    /// A ring that keeps at least the newest `rows_max` rows (at least 1).
    pub fn new(rows_max: usize) -> Ring {
        let rows_max = rows_max.max(1);
        Ring {
            chunks: VecDeque::new(),
            rows: 0,
            rows_max,
            chunk_rows: (rows_max / 8).clamp(1, CHUNK_ROWS),
            next_row: 0,
        }
    }

    /// Most rows of a batch that is joined to others like it before long. Of larger ones two do not fit a chunk.
    pub fn joined_rows(&self) -> usize {
        self.chunk_rows / 2
    }

    /// Number that the next row pushed gets.
    pub fn next_row(&self) -> u64 {
        self.next_row
    }

    /// Moves the numbering on (rows that are known to exist but are not held). Never moves back.
    pub fn skip_to(&mut self, row: u64) {
        self.next_row = self.next_row.max(row);
    }

    /// Number of the oldest row held; `next_row` when none is.
    pub fn first_row(&self) -> u64 {
        self.chunks.front().map_or(self.next_row, |chunk| chunk.first_row)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn chunks(&self) -> impl ExactSizeIterator<Item = &Arc<Chunk>> {
        self.chunks.iter()
    }

    /// Takes rows in, which get the next numbers; returns the number of the first. All batches of a ring have one schema.
    pub fn push(&mut self, batch: RecordBatch) -> u64 {
        let first_row = self.next_row;
        if batch.num_rows() == 0 {
            return first_row;
        }
        self.next_row += batch.num_rows() as u64;
        self.rows += batch.num_rows();
        let times = TimeRange::of(&batch);
        self.chunks.push_back(Arc::new(Chunk { first_row, batch, times }));
        while self.merge_newest() {}
        while self.chunks.front().is_some_and(|oldest| self.rows - oldest.rows() >= self.rows_max) {
            let oldest = self.chunks.pop_front().expect("invariant: a front was just seen");
            self.rows -= oldest.rows();
        }
        assert!(
            self.rows == self.chunks.iter().map(|chunk| chunk.rows()).sum::<usize>(),
            "ring lost count of its rows"
        );
        first_row
    }

    /// Joins the newest chunk with the smaller ones right before it, else with those of like size once there are [`FAN_IN`] of
    /// them or another would not fit; neighbours only, and while they are small enough together.
    fn merge_newest(&mut self) -> bool {
        let Some(newest) = self.chunks.back() else { return false };
        let (mut from, mut rows) = (self.chunks.len() - 1, newest.rows());
        let are_smaller = from > 0 && self.chunks[from - 1].size() < newest.size();
        while let Some(before) = from.checked_sub(1) {
            let (older, newer) = (&self.chunks[before], &self.chunks[from]);
            let belongs = if are_smaller { older.size() < newest.size() } else { older.size() == newest.size() };
            if !belongs || rows + older.rows() > self.chunk_rows || older.end_row() != newer.first_row {
                break;
            }
            (from, rows) = (before, rows + older.rows());
        }
        let count = self.chunks.len() - from;
        let is_due = are_smaller || count >= FAN_IN || rows + newest.rows() > self.chunk_rows;
        if count < 2 || !is_due {
            return false;
        }
        let (first_row, schema) = (self.chunks[from].first_row, newest.batch.schema());
        let times = self.chunks.range(from..).map(|chunk| chunk.times).reduce(TimeRange::union).unwrap_or(newest.times);
        // Schemas are equal by contract; if they ever were not, the chunks simply stay apart.
        let Ok(batch) = concat_batches(&schema, self.chunks.range(from..).map(|chunk| &chunk.batch)) else {
            return false;
        };
        self.chunks.truncate(from);
        self.chunks.push_back(Arc::new(Chunk { first_row, batch: views::compact(batch), times }));
        true
    }
}
