//! Blocks that were asked for or stored before, by model.
//!
//! Invariant: of a block the first asking and the first storing are kept. At the bound the block that was not asked for
//! longest is forgotten: one that was asked for since it was last looked at is passed over once.
//! Cost: one map access per call; tables are small, so that none takes long to grow (see `shards`).
//! State: 48 bytes a block and map slack, and 16 for its place in the order; at most `max_hashes`, evenly over the tables.
use std::collections::VecDeque;

use crate::IntMap;

/// Blocks of a table, at the least.
const TABLE_BLOCKS: usize = 4096;
const MAX_TABLES: usize = 256;

/// No time: later than all.
const NEVER: i64 = i64::MAX;

/// When a block of a model was first asked for and first stored; [`NEVER`] if it was not.
struct Seen {
    asked: (i64, u64),
    stored_us: i64,
    /// Asked for since it was last looked at for forgetting.
    is_fresh: bool,
}

/// A block and the model it is of.
pub(super) type Block = (u64, u32);

#[derive(Default)]
struct Table {
    blocks: IntMap<Block, Seen>,
    /// Keys of `blocks`, in the order in which they may be forgotten.
    order: VecDeque<Block>,
}

/// See the module.
pub(super) struct SeenBlocks {
    tables: Box<[Table]>,
    /// Blocks of a table, at the most.
    table_max: usize,
    forgotten: u64,
}

impl SeenBlocks {
    pub fn new(max_hashes: usize) -> Self {
        let tables = (max_hashes / TABLE_BLOCKS).clamp(1, MAX_TABLES);
        Self {
            tables: (0..tables).map(|_| Table::default()).collect(),
            table_max: (max_hashes / tables).max(1),
            forgotten: 0,
        }
    }

    fn table(&self, hash: u64) -> usize {
        // Bits that the exchange between workers does not look at.
        (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % self.tables.len()
    }

    fn seen(&mut self, block: Block) -> &mut Seen {
        let place = self.table(block.0);
        let Table { blocks, order } = &mut self.tables[place];
        if !blocks.contains_key(&block) {
            while blocks.len() >= self.table_max {
                let Some(oldest) = order.pop_front() else { break };
                match blocks.get_mut(&oldest).filter(|seen| seen.is_fresh) {
                    Some(seen) => {
                        seen.is_fresh = false;
                        order.push_back(oldest);
                    }
                    None => {
                        blocks.remove(&oldest);
                        self.forgotten += 1;
                    }
                }
            }
            order.push_back(block);
        }
        blocks.entry(block).or_insert(Seen { asked: (NEVER, u64::MAX), stored_us: NEVER, is_fresh: false })
    }

    /// A request asked for it at a time.
    pub fn asked(&mut self, block: Block, by: (i64, u64)) {
        let seen = self.seen(block);
        seen.asked = seen.asked.min(by);
        seen.is_fresh = true;
    }

    pub fn stored(&mut self, block: Block, at_us: i64) {
        let seen = self.seen(block);
        seen.stored_us = seen.stored_us.min(at_us);
    }

    /// Whether a request that comes before `by` asked for it.
    pub fn was_asked_before(&self, block: Block, by: (i64, u64)) -> bool {
        self.get(block).is_some_and(|seen| seen.asked < by)
    }

    pub fn was_stored_by(&self, block: Block, at_us: i64) -> bool {
        self.get(block).is_some_and(|seen| seen.stored_us <= at_us)
    }

    fn get(&self, block: Block) -> Option<&Seen> {
        self.tables[self.table(block.0)].blocks.get(&block)
    }

    /// Blocks forgotten at the bound since the last call.
    pub fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }
}
