//! The plain side: a map from block hash to the set of its holders, behind a read-write lock, with fast hashing.
//!
//! Invariant: a question holds the read lock to its end, a batch of events the write lock: the simplest program that is
//! right. It does without order, restarts, audits and references.

use std::{
    collections::{HashMap, HashSet},
    sync::{PoisonError, RwLock},
};

use operators::{KvChange, KvRow};

type Holders = HashSet<u32>;

#[derive(Default)]
pub(super) struct Plain(RwLock<HashMap<u64, Holders>>);

impl Plain {
    pub fn apply(&self, rows: &[KvRow]) {
        let mut blocks = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            match row.event {
                KvChange::Stored { hash, .. } => {
                    blocks.entry(hash).or_default().insert(row.instance);
                }
                KvChange::Removed { hash, .. } => {
                    if let Some(holders) = blocks.get_mut(&hash)
                        && holders.remove(&row.instance)
                        && holders.is_empty()
                    {
                        blocks.remove(&hash);
                    }
                }
                _ => {}
            }
        }
    }

    /// The instance with the longest prefix and its length.
    pub fn longest(&self, hashes: &[u64]) -> (u32, u32) {
        let blocks = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut live: Vec<u32> =
            hashes.first().and_then(|hash| blocks.get(hash)).into_iter().flatten().copied().collect();
        let mut best = (0, 0);
        for (depth, hash) in hashes.iter().enumerate() {
            let Some(holders) = blocks.get(hash) else { break };
            live.retain(|instance| holders.contains(instance));
            let Some(first) = live.first() else { break };
            best = (*first, depth as u32 + 1);
        }
        best
    }
}
