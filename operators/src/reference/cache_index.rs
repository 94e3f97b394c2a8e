//! The twin of `cache_index` and of `PrefixIndex`: every event kept, the sets built anew after every epoch.
//!
//! Invariant: the same rules as the operator for unbounded state. Cost: O(all events) per call of `blocks`.
//! State: all events of each instance's highest incarnation, unbounded.
use std::collections::{BTreeMap, BTreeSet};

use crate::{CacheKey, KvChange, KvRow};

/// See the module.
#[derive(Default)]
pub struct SlowCacheIndex {
    /// Per instance: the events taken, in the order in which they count.
    taken: BTreeMap<u32, Vec<KvRow>>,
}

impl SlowCacheIndex {
    /// Folds one epoch; gives `(instance, expected, got)` of each gap.
    pub fn epoch(&mut self, rows: &[KvRow]) -> Vec<(u32, u64, u64)> {
        let mut gaps = Vec::new();
        let mut rows: Vec<KvRow> = rows.iter().copied().filter(|row| row.check().is_ok()).collect();
        rows.sort();
        for row in rows {
            let taken = self.taken.entry(row.instance).or_default();
            let (epoch, seq) = taken.last().map_or((row.epoch, 0), |last| (last.epoch, last.seq));
            let expected = if row.epoch > epoch { 1 } else { seq + 1 };
            if row.epoch < epoch || row.seq < expected {
                continue;
            }
            if row.epoch > epoch {
                taken.clear();
            }
            if row.seq > expected {
                gaps.push((row.instance, expected, row.seq));
            }
            taken.push(row);
        }
        gaps
    }

    /// What is held.
    pub fn blocks(&self) -> BTreeSet<CacheKey> {
        let mut blocks = BTreeSet::new();
        for (instance, rows) in &self.taken {
            for row in rows {
                match row.event {
                    KvChange::Stored { hash, level, .. } => {
                        blocks.insert((hash, *instance, level));
                    }
                    KvChange::Hit { .. } => {}
                    KvChange::Removed { hash, level } => {
                        blocks.remove(&(hash, *instance, level));
                    }
                    KvChange::Cleared => blocks.retain(|(_, holder, _)| holder != instance),
                }
            }
        }
        blocks
    }

    /// Instances whose content is not certain: a gap since their last clear.
    pub fn degraded(&self) -> BTreeSet<u32> {
        let mut degraded = BTreeSet::new();
        for (instance, rows) in &self.taken {
            let since = rows.iter().rposition(|row| row.event == KvChange::Cleared);
            let sure = since.map_or(0, |place| rows[place].seq);
            let rest = &rows[since.map_or(0, |place| place + 1)..];
            if rest.iter().zip(sure + 1..).any(|(row, seq)| row.seq != seq) {
                degraded.insert(*instance);
            }
        }
        degraded
    }
}

/// Per instance that holds the first of `hashes`: how many leading ones it holds; longest first, then by instance.
pub fn longest_prefix(blocks: &BTreeSet<CacheKey>, hashes: &[u64]) -> Vec<(u32, u32)> {
    let instances: BTreeSet<u32> = blocks.iter().map(|(_, instance, _)| *instance).collect();
    let holds = |instance: u32, hash: u64| blocks.iter().any(|(held, holder, _)| *held == hash && *holder == instance);
    let mut found: Vec<(u32, u32)> = instances
        .into_iter()
        .map(|instance| (instance, hashes.iter().take_while(|hash| holds(instance, **hash)).count() as u32))
        .filter(|(_, blocks)| *blocks > 0)
        .collect();
    found.sort_by_key(|(instance, blocks)| (std::cmp::Reverse(*blocks), *instance));
    found
}
