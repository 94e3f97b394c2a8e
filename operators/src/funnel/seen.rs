//! Blocks that were asked for or stored before, by model.
//!
//! Blocks live in two generations of a table: new ones, and old ones that are asked for again, are in the younger. When that
//! is full, the older is forgotten and the younger takes its place; nothing is ever taken out one by one, which would wear a
//! hash table out and make it twice as large.
//! Invariant: of a block the first asking and the first storing are kept. What is forgotten at the bound was not asked for
//! since at least half of the blocks of its table came.
//! Cost: one or two map accesses per call; tables are small, so that none takes long to grow (see `shards`).
//! State: 41 bytes a block and map slack; at most `max_hashes` blocks, evenly over the tables.
use crate::IntMap;

/// Blocks of a generation, at the most: as many as fit 2048 slots.
const GENERATION: usize = 1792;

/// No time: later than all.
const NEVER: i64 = i64::MAX;

/// When a block of a model was first asked for and first stored; [`NEVER`] if it was not.
struct Seen {
    asked: (i64, u64),
    stored_us: i64,
}

const UNSEEN: Seen = Seen { asked: (NEVER, u64::MAX), stored_us: NEVER };

/// A block and the model it is of.
pub(super) type Block = (u64, u32);

#[derive(Default)]
struct Table {
    young: IntMap<Block, Seen>,
    old: IntMap<Block, Seen>,
}

impl Table {
    fn get(&self, block: &Block) -> Option<&Seen> {
        self.young.get(block).or_else(|| self.old.get(block))
    }

    /// Makes room for one more; says how many were forgotten for it.
    fn make_room(&mut self, max: usize) -> usize {
        if self.young.len() < max {
            return 0;
        }
        let forgotten = self.old.len();
        self.old.clear();
        std::mem::swap(&mut self.young, &mut self.old);
        forgotten
    }
}

/// See the module.
pub(super) struct SeenBlocks {
    tables: Box<[Table]>,
    /// Blocks of a generation.
    max: usize,
    forgotten: usize,
}

impl SeenBlocks {
    pub fn new(max_hashes: usize) -> Self {
        let tables = max_hashes.div_ceil(2 * GENERATION).max(1);
        let max = (max_hashes / tables / 2).max(1);
        Self { tables: (0..tables).map(|_| Table::default()).collect(), max, forgotten: 0 }
    }

    fn table(&self, hash: u64) -> usize {
        // Bits that the exchange between workers does not look at.
        (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % self.tables.len()
    }

    /// A request asked for it at a time.
    pub fn asked(&mut self, block: Block, by: (i64, u64)) {
        let place = self.table(block.0);
        let table = &mut self.tables[place];
        if !table.young.contains_key(&block) {
            let seen = table.old.remove(&block).unwrap_or(UNSEEN);
            self.forgotten += table.make_room(self.max);
            table.young.insert(block, seen);
        }
        table.young.entry(block).and_modify(|seen| seen.asked = seen.asked.min(by));
    }

    pub fn stored(&mut self, block: Block, at_us: i64) {
        let place = self.table(block.0);
        let table = &mut self.tables[place];
        if let Some(seen) = table.young.get_mut(&block).or_else(|| table.old.get_mut(&block)) {
            seen.stored_us = seen.stored_us.min(at_us);
            return;
        }
        self.forgotten += table.make_room(self.max);
        table.young.insert(block, Seen { stored_us: at_us, ..UNSEEN });
    }

    /// Whether a request that comes before `by` asked for it.
    pub fn was_asked_before(&self, block: Block, by: (i64, u64)) -> bool {
        self.get(block).is_some_and(|seen| seen.asked < by)
    }

    pub fn was_stored_by(&self, block: Block, at_us: i64) -> bool {
        self.get(block).is_some_and(|seen| seen.stored_us <= at_us)
    }

    fn get(&self, block: Block) -> Option<&Seen> {
        self.tables[self.table(block.0)].get(&block)
    }

    /// Blocks forgotten at the bound since the last call.
    pub fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: many more blocks are stored than fit, while one is asked for again and again.
    /// Guarantees: that one is kept, with its first storing and its first asking; no more are held than may be, at least half
    /// as many, and the others are counted as forgotten.
    #[test]
    fn what_is_asked_for_stays() {
        const MAX: usize = 10_000;
        let mut seen = SeenBlocks::new(MAX);
        seen.stored((7, 1), 5);
        for number in 0..100_000u64 {
            seen.stored((number << 20, 2), 6);
            if number % 500 == 0 {
                seen.asked((7, 1), (100 + number as i64, 3));
            }
        }
        assert!(seen.was_stored_by((7, 1), 5) && !seen.was_stored_by((7, 1), 4) && !seen.was_stored_by((7, 2), 9));
        assert!(seen.was_asked_before((7, 1), (101, 0)) && !seen.was_asked_before((7, 1), (100, 3)));
        let held: usize = seen.tables.iter().map(|table| table.young.len() + table.old.len()).sum();
        assert!((MAX / 2..=MAX).contains(&held), "{held}");
        assert_eq!(seen.take_forgotten() as usize, 100_001 - held);
        assert_eq!(seen.take_forgotten(), 0);
    }
}
