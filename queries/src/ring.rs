//! The newest rows of one table, in chunks (SPEC E2).
//!
//! Rows are numbered from 0 over the table's whole life. Invariant: the ring holds a suffix of the rows pushed, cut at a
//! chunk's border; it holds at least the newest `rows_max` rows and less than `rows_max` plus one chunk.
//! Small batches are joined into chunks of up to [`CHUNK_ROWS`] rows the way an LSM tree merges runs, so a row is copied
//! O(log CHUNK_ROWS) times and the number of chunks stays near `rows_max / CHUNK_ROWS`; text in views is copied together (see `views`),
//! so that a chunk keeps no buffers of the batches it was joined from. Time: push is amortised
//! O(rows · log CHUNK_ROWS); memory: the rows themselves.
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
        while self.merge_last_two() {}
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

    /// Joins the newest two chunks if they are neighbours, of like size and small enough together.
    fn merge_last_two(&mut self) -> bool {
        let Some(before_last) = self.chunks.len().checked_sub(2) else { return false };
        let (older, newer) = (&self.chunks[before_last], &self.chunks[before_last + 1]);
        let fits = older.rows() + newer.rows() <= self.chunk_rows;
        if !fits || older.rows() >= 2 * newer.rows() || older.end_row() != newer.first_row {
            return false;
        }
        // Schemas are equal by contract; if they ever were not, the chunks simply stay apart.
        let Ok(batch) = concat_batches(&older.batch.schema(), [&older.batch, &newer.batch]) else { return false };
        let joined =
            Chunk { first_row: older.first_row, batch: views::compact(batch), times: older.times.union(newer.times) };
        self.chunks.truncate(before_last);
        self.chunks.push_back(Arc::new(joined));
        true
    }
}
