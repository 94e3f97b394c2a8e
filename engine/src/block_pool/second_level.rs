//! L2 of the pool (SPEC B8, C3): host memory for the blocks of sequences that gave way.
//!
//! A sequence that gives way may copy its KV here and take it back when it runs again. Blocks in L2 belong to one
//! waiting sequence each and are not matched by others; their names are reported, so that the cluster sees where KV is.
//!
//! Invariants: a slot is free or held by one waiting sequence; a name is reported stored when the first slot gets it
//! and removed when the last one loses it.
//!
//! Cost: O(1) a block. Memory: 4 bytes a slot here, the KV itself at the runner. Bound: `l2_blocks`; when none is free,
//! whoever gives way is recomputed instead.

use std::collections::HashMap;

use super::BlockPool;
use crate::events::{BlockHash, KvEvent, Level};

/// Slots of L2 and how often each name is held there.
#[derive(Debug, Default)]
pub(super) struct SecondLevel {
    free: Vec<u32>,
    total: usize,
    names: HashMap<BlockHash, u32>,
}

impl SecondLevel {
    /// Names that some slot has.
    pub(super) fn held_names(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.names.keys().copied()
    }
}

/// The name of a full block: its hash, and that of the block before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockName {
    pub hash: BlockHash,
    pub parent: Option<BlockHash>,
}

impl BlockPool {
    /// The same pool with `blocks` free slots in L2.
    pub fn with_l2(mut self, blocks: usize) -> Self {
        let count = u32::try_from(blocks).expect("invariant: block numbers fit in 32 bits");
        self.l2 = SecondLevel { free: (0..count).rev().collect(), total: blocks, names: HashMap::new() };
        self
    }

    /// Free slots of L2.
    pub fn l2_free(&self) -> usize {
        self.l2.free.len()
    }

    /// Slots of L2 in use.
    pub fn l2_used(&self) -> usize {
        self.l2.total - self.l2.free.len()
    }

    /// Takes a slot of L2 for a block with this name; `None` if all are taken.
    pub fn take_l2(&mut self, name: Option<BlockName>) -> Option<u32> {
        let slot = self.l2.free.pop()?;
        if let Some(BlockName { hash, parent }) = name {
            let holders = self.l2.names.entry(hash).or_default();
            *holders += 1;
            if *holders == 1 {
                let tokens = u32::try_from(self.block_size).unwrap_or(u32::MAX);
                self.events.push(KvEvent::Stored { hash, parent, level: Level::L2, tokens });
            }
        }
        Some(slot)
    }

    /// Gives a slot of L2 back that was taken with this name.
    pub fn give_back_l2(&mut self, slot: u32, name: Option<BlockName>) {
        self.l2.free.push(slot);
        assert!(self.l2.free.len() <= self.l2.total, "invariant: L2 slot {slot} is given back once");
        let Some(BlockName { hash, .. }) = name else { return };
        let holders = self.l2.names.get_mut(&hash).expect("invariant: the slot was taken with its name");
        *holders -= 1;
        if *holders == 0 {
            self.l2.names.remove(&hash);
            self.events.push(KvEvent::Removed { hash, level: Level::L2 });
        }
    }

    /// Compares L2 with the slots that waiting sequences hold.
    pub fn check_l2(&self, held: impl Iterator<Item = u32>) -> Result<(), String> {
        let mut homes = vec![0u32; self.l2.total];
        held.chain(self.l2.free.iter().copied()).for_each(|slot| homes[slot as usize] += 1);
        match homes.iter().position(|count| *count != 1) {
            Some(slot) => Err(format!("L2 slot {slot} is free or held {} times; it must be once", homes[slot])),
            None => Ok(()),
        }
    }
}
