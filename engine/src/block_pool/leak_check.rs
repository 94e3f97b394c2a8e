//! The leak checker of the block pool (SPEC C1): compares it with the tables that exist.
//!
//! Invariant: it only reads. Debug builds run the sums after every step and the whole after each 64th.
//!
//! Cost: O(blocks) time and 16 bytes a block for the time of the call. No state.

use super::{BlockId, BlockPool};

impl BlockPool {
    /// The part of the check that is O(1): the tables hold `held` blocks, counted once for each table, and `promised`
    /// promises. A block or a promise that a table lost or took twice shows here.
    pub fn check_sums(&self, held: usize, promised: usize) -> Result<(), String> {
        if promised != self.reserved {
            return Err(format!("tables hold {promised} promises and the pool has given {}", self.reserved));
        }
        if held != self.held {
            return Err(format!("tables hold {held} blocks and the pool has given {}", self.held));
        }
        if self.reserved > self.free.len() + self.cached.len() {
            return Err(format!("{} pages are promised and fewer can be had", self.reserved));
        }
        Ok(())
    }

    /// Compares the pool with the tables that exist. `held` yields each block once for each table that holds it,
    /// `promised` is the sum of their promises. Errors say what is wrong and with which block.
    pub fn check_invariants(&self, held: impl Iterator<Item = BlockId>, promised: usize) -> Result<(), String> {
        let mut expected = vec![0u32; self.blocks.len()];
        let mut count = 0;
        for block in held {
            expected[block.0 as usize] += 1;
            count += 1;
        }
        self.check_sums(count, promised)?;
        // Position in the LRU + 1, or 0 for blocks outside it.
        let mut age = vec![0usize; self.blocks.len()];
        for (position, block) in self.cached.iter().enumerate() {
            age[block as usize] = position + 1;
        }
        let mut places = vec![0u32; self.blocks.len()];
        self.free.iter().for_each(|block| places[*block as usize] += 1);
        for (block, state) in self.blocks.iter().enumerate() {
            if state.references != expected[block] {
                return Err(format!(
                    "block {block} has {} references, tables hold {}",
                    state.references, expected[block]
                ));
            }
            let homes = places[block] + u32::from(age[block] > 0) + u32::from(state.references > 0);
            if homes != 1 {
                return Err(format!("block {block} is in {homes} of free list, LRU and use"));
            }
            self.check_name(block, &age)?;
        }
        let named = self.blocks.iter().filter(|state| state.name.is_some()).count();
        if named != self.index.len() {
            return Err(format!("{named} blocks have names and the index has {}", self.index.len()));
        }
        Ok(())
    }

    fn check_name(&self, block: usize, age: &[usize]) -> Result<(), String> {
        let Some(name) = self.blocks[block].name else {
            return if age[block] > 0 { Err(format!("block {block} is cached without a name")) } else { Ok(()) };
        };
        if self.index.get(&name.hash).map(|holder| holder.0 as usize) != Some(block) {
            return Err(format!("block {block} has name {:?}, which the index gives to another", name.hash));
        }
        if let Some(parent) = name.parent.and_then(|parent| self.index.get(&parent)) {
            let parent = parent.0 as usize;
            if self.blocks[parent].references < self.blocks[block].references {
                return Err(format!("block {block} has more references than its parent {parent}"));
            }
            if age[parent] > 0 && age[parent] < age[block] {
                return Err(format!("block {parent} would be evicted before its child {block}"));
            }
        }
        Ok(())
    }
}
