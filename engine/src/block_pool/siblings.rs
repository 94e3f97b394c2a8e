//! Which named blocks follow the same parent (SPEC C2): where a prompt that leaves a cached chain inside a block looks
//! for the block whose beginning it shares.
//!
//! Families are lists inside two flat arrays, the most recently named block first.
//!
//! Invariant: a block is in one family at most, the one it was named into, for as long as it has its name.
//!
//! Cost: O(1) to add and to remove; O(members looked at) to walk. 8 bytes a block of the pool and a map entry a family;
//! bound: the pool's size.

use std::collections::HashMap;

use crate::events::BlockHash;

const NONE: u32 = u32::MAX;

/// Parent hash (`None`: the block is the first of a sequence) and salt.
pub(super) type Family = (Option<BlockHash>, u64);

/// See the file's header.
#[derive(Debug)]
pub(super) struct Siblings {
    first: HashMap<Family, u32>,
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Siblings {
    pub fn new(blocks: usize) -> Self {
        Self { first: HashMap::new(), before: vec![NONE; blocks], after: vec![NONE; blocks] }
    }

    pub fn add(&mut self, family: Family, block: u32) {
        let next = self.first.insert(family, block).unwrap_or(NONE);
        self.before[block as usize] = NONE;
        self.after[block as usize] = next;
        if next != NONE {
            self.before[next as usize] = block;
        }
    }

    pub fn remove(&mut self, family: Family, block: u32) {
        let (before, after) = (self.before[block as usize], self.after[block as usize]);
        if after != NONE {
            self.before[after as usize] = before;
        }
        match (before, after) {
            (NONE, NONE) => drop(self.first.remove(&family)),
            (NONE, after) => drop(self.first.insert(family, after)),
            (before, after) => self.after[before as usize] = after,
        }
    }

    pub fn clear(&mut self) {
        self.first.clear();
    }

    /// Members of a family, the most recently named first.
    pub fn members(&self, family: Family) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.first.get(&family).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let block = next;
            if block == NONE {
                return None;
            }
            next = self.after[block as usize];
            Some(block)
        })
    }
}
