//! What each foreign worker is believed to have cached: the blocks of the prompts that were sent to it (SPEC C4 without
//! events).
//!
//! The answers come from the same index as those about our own workers ([`PrefixIndex`]); here its entries are written at
//! dispatch, so that the next request finds them at once. A worker forgets by itself, and nobody says so: of each at most
//! `blocks_max` blocks are believed, the one used longest ago is forgotten first, and of a prompt its end before its front.
//!
//! Invariant: a hit is never longer than the longest common front of this prompt and one that was sent there since the
//! worker's start. Cost: a look for a prompt takes no lock, one for sizes takes one; so does a dispatch, with a map access
//! a block. State: `blocks_max` blocks of 80 bytes or so a worker.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
};

use operators::{PrefixIndex, PrefixIndexConfig};

use crate::{
    ids::InstanceId,
    policy::{PrefixHits, PrefixReading},
};

/// The level that a worker's own memory counts as.
const LEVEL: u8 = 0;

/// See the file's header.
pub struct PrefixRecord {
    index: PrefixIndex,
    orders: Mutex<HashMap<InstanceId, Order>>,
    blocks_max: usize,
}

/// Blocks of one worker by their last use.
#[derive(Default)]
struct Order {
    uses: u64,
    last_use: HashMap<u64, u64>,
    /// Uses in order; only the last of a block counts.
    queue: VecDeque<(u64, u64)>,
}

impl PrefixRecord {
    /// `blocks_max`: of one worker, at least 1.
    pub fn new(blocks_max: usize) -> Self {
        let config =
            PrefixIndexConfig { max_entries: usize::MAX, segment_buckets: 1 << 8, ..PrefixIndexConfig::default() };
        Self { index: PrefixIndex::new(config), orders: Mutex::default(), blocks_max: blocks_max.max(1) }
    }

    /// Cached tokens per worker. There is no state that could be rebuilt from rows, so the reading names none.
    pub fn read(&self, prompts: &[Vec<u64>], block_tokens: usize) -> PrefixReading {
        let found = prompts.iter().flat_map(|hashes| self.index.longest_prefix(hashes));
        let tokens = |blocks: u32| blocks.saturating_mul(block_tokens as u32);
        let hits = PrefixHits::near(found.map(|(instance, blocks)| (InstanceId(instance), tokens(blocks))));
        PrefixReading { hits, as_of: None, blocks: Vec::new() }
    }

    /// A prompt goes to a worker.
    pub fn sent(&self, instance: InstanceId, hashes: &[u64]) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let order = orders.entry(instance).or_default();
        let mut changes = Vec::new();
        // The front is used last, so that it is forgotten last.
        for hash in hashes[..hashes.len().min(self.blocks_max)].iter().rev() {
            order.uses += 1;
            if order.last_use.insert(*hash, order.uses).is_none() {
                changes.push(((*hash, instance.0, LEVEL), 1));
            }
            order.queue.push_back((*hash, order.uses));
        }
        while order.last_use.len() > self.blocks_max {
            let Some((hash, used)) = order.queue.pop_front() else { break };
            if order.last_use.get(&hash) == Some(&used) {
                order.last_use.remove(&hash);
                changes.push(((hash, instance.0, LEVEL), -1));
            }
        }
        if order.queue.len() > 2 * self.blocks_max + 1024 {
            let last_use = &order.last_use;
            order.queue.retain(|(hash, used)| last_use.get(hash) == Some(used));
        }
        if !changes.is_empty() {
            self.index.apply(&changes);
        }
    }

    /// The worker started anew: it has nothing cached.
    pub fn forget(&self, instance: InstanceId) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(order) = orders.remove(&instance) else { return };
        let changes: Vec<_> = order.last_use.keys().map(|hash| ((*hash, instance.0, LEVEL), -1)).collect();
        self.index.apply(&changes);
    }

    /// Blocks believed of each of some workers.
    pub fn blocks(&self, instances: impl IntoIterator<Item = InstanceId>) -> Vec<u64> {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks = |instance| orders.get(&instance).map_or(0, |order| order.last_use.len() as u64);
        instances.into_iter().map(blocks).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn hits(record: &PrefixRecord, hashes: &[u64]) -> Vec<(u32, u32)> {
        let hits = record.read(&[hashes.to_vec()], 16).hits;
        hits.iter().map(|hit| (hit.instance.0, hit.tokens.total())).collect()
    }

    /// Scenario: two workers get prompts with a common front; one starts anew; a third gets more than is remembered.
    /// Guarantees: hits are as long as the common front, at once; nothing is believed of a new start; at the bound the end
    /// of the prompt used longest ago is forgotten first.
    #[test]
    fn believes_what_was_sent() {
        let record = PrefixRecord::new(4);
        record.sent(InstanceId(1), &[10, 11, 12]);
        record.sent(InstanceId(2), &[10, 21]);
        assert_eq!(hits(&record, &[10, 11, 99]), [(1, 32), (2, 16)]);
        assert_eq!(
            hits(&record, &[11, 12]),
            [(1, 16 * 2)],
            "an inner block alone is one, too: chains name their front"
        );
        record.forget(InstanceId(1));
        assert_eq!(hits(&record, &[10, 11]), [(2, 16)]);
        record.sent(InstanceId(3), &[1, 2, 3]);
        record.sent(InstanceId(3), &[7, 8]);
        assert_eq!((hits(&record, &[1, 2, 3]), hits(&record, &[7, 8])), (vec![(3, 32)], vec![(3, 32)]));
        assert_eq!(record.blocks([3, 1].map(InstanceId)), [4, 0]);
    }

    proptest! {
        /// Scenario: prompts out of a few long ones go to a few workers, with little room, and some workers start anew.
        /// Guarantees: the record is what a list in the order of use says, block by block, and within its bound.
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec((0u32..3, 0u64..4, 0usize..9), 1..60), max in 1usize..12) {
            let record = PrefixRecord::new(max);
            let mut lists: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
            for (instance, prompt, length) in steps {
                let list = lists.entry(instance).or_default();
                if length == 8 {
                    record.forget(InstanceId(instance));
                    list.clear();
                    continue;
                }
                let hashes: Vec<u64> = (0..length as u64).map(|block| if block < 2 { block + 1 } else { 100 * prompt + block }).collect();
                record.sent(InstanceId(instance), &hashes);
                for hash in hashes[..length.min(max)].iter().rev() {
                    list.retain(|held| held != hash);
                    list.push(*hash);
                }
                let over = list.len().saturating_sub(max);
                list.drain(..over);
                for (instance, list) in &lists {
                    prop_assert_eq!(record.blocks([InstanceId(*instance)]), [list.len() as u64]);
                    for hash in list {
                        prop_assert!(hits(&record, &[*hash]).iter().any(|(id, _)| id == instance));
                    }
                }
            }
        }
    }
}
