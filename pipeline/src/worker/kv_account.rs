//! What a worker tells of its KV blocks when it is asked: events again, sums, or the blocks themselves (SPEC C4).
//!
//! Invariant: an account is made from the engine's pool, not from the events that were sent, and stands in one piece among
//! them, so that a reader compares both at the same place. Events are kept for [`ROWS_KEPT`] rows; if some that are asked
//! for are older, everything is told instead. Cost: O(blocks held) per account, on the engine's thread. State: the rows
//! kept, about 200 bytes each.

use std::collections::VecDeque;

use engine::events::{HeldBlock, Level};
use operators::{AUDIT_BUCKETS, audit_bucket, audit_weight};

use super::step_rows::level_name;
use crate::rows::KvEventRow;

/// Events kept to be told again; the oldest go first.
pub const ROWS_KEPT: usize = 16_384;

/// The last rows, in order.
#[derive(Default)]
pub struct KeptRows(VecDeque<KvEventRow>);

impl KeptRows {
    pub fn keep(&mut self, rows: &[KvEventRow]) {
        self.0.extend(rows.iter().cloned());
        let excess = self.0.len().saturating_sub(ROWS_KEPT);
        self.0.drain(..excess);
    }

    /// The rows with these numbers; `None` if the first of them is gone, or never was.
    pub fn between(&self, from_seq: u64, to_seq: u64) -> Option<Vec<KvEventRow>> {
        let first = self.0.front()?.seq;
        let start = usize::try_from(from_seq.checked_sub(first)?).ok()?;
        let end = usize::try_from(to_seq.checked_sub(first)?.checked_add(1)?).ok()?.min(self.0.len());
        (start < end).then(|| self.0.range(start..end).cloned().collect())
    }
}

/// A row without what the events of an instance have in common.
fn row(event: &str) -> KvEventRow {
    KvEventRow { event: event.into(), ..KvEventRow::default() }
}

fn level_number(level: Level) -> u8 {
    match level {
        Level::L1 => 0,
        Level::L2 => 1,
    }
}

/// One row a bucket.
pub fn sums(held: &[HeldBlock]) -> Vec<KvEventRow> {
    let mut sums = vec![(0u32, 0u64); AUDIT_BUCKETS.into()];
    for block in held {
        let (blocks, sum) = &mut sums[usize::from(audit_bucket(block.hash.0))];
        (*blocks, *sum) = (*blocks + 1, sum.wrapping_add(audit_weight(block.hash.0, level_number(block.level))));
    }
    let rows = (0..).zip(sums).map(|(bucket, (blocks, sum))| KvEventRow {
        block_hash: Some(sum),
        bucket: Some(bucket),
        blocks: Some(blocks),
        ..row("sum")
    });
    rows.collect()
}

/// The blocks of some buckets, each bucket in one piece.
pub fn listed(held: &[HeldBlock], block_size: u32, mask: u64) -> Vec<KvEventRow> {
    let mut rows = Vec::new();
    for bucket in (0..AUDIT_BUCKETS).filter(|bucket| mask >> bucket & 1 == 1) {
        let blocks: Vec<_> = held.iter().filter(|block| audit_bucket(block.hash.0) == bucket).collect();
        rows.push(KvEventRow { bucket: Some(bucket.into()), blocks: Some(blocks.len() as u32), ..row("listed") });
        rows.extend(blocks.into_iter().map(|block| stored(block, block_size)));
    }
    rows
}

/// `cleared`, and all that is held, parents first.
pub fn everything(held: &[HeldBlock], block_size: u32) -> Vec<KvEventRow> {
    let blocks = held.iter().map(|block| stored(block, block_size));
    std::iter::once(row("cleared")).chain(blocks).collect()
}

fn stored(block: &HeldBlock, tokens: u32) -> KvEventRow {
    KvEventRow {
        block_hash: Some(block.hash.0),
        parent_hash: block.parent.map(|parent| parent.0),
        level: Some(level_name(block.level).into()),
        tokens: Some(tokens),
        ..row("stored")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: more rows than are kept. Guarantees: those kept can be had by number, older ones and future ones not.
    #[test]
    fn the_newest_rows_are_kept() {
        let mut kept = KeptRows::default();
        let rows: Vec<_> = (1..=ROWS_KEPT as u64 + 10).map(|seq| KvEventRow { seq, ..row("hit") }).collect();
        rows.chunks(1000).for_each(|rows| kept.keep(rows));
        let seqs = |from, to| kept.between(from, to).map(|rows| rows.iter().map(|row| row.seq).collect::<Vec<_>>());
        assert_eq!(seqs(11, 13), Some(vec![11, 12, 13]));
        assert_eq!((seqs(10, 13), seqs(ROWS_KEPT as u64 + 11, u64::MAX - 1)), (None, None));
    }
}
