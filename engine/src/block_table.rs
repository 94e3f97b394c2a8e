//! The block table of one sequence (SPEC C1): which physical block holds each `block_size` positions, and its share of
//! the quota.
//!
//! Invariants: promised pages become blocks before new promises are asked for; the first `published` blocks are
//! canonical (see `block_pool`) and are never written again; [`BlockTable::release`] gives everything back, tail first.
//!
//! Cost: O(new blocks) to grow, O(block size) for each published block, O(blocks) to release. 4 bytes a block. Bound:
//! the sequence's context / block size.

use crate::block_pool::{BlockContent, BlockId, BlockPool, OutOfBlocks, Published};

/// Whether further blocks of this sequence can get names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Chain {
    #[default]
    Open,
    /// A block of the chain has no name (a collision, or the cache was cleared): nothing behind it can be found.
    Broken,
}

/// See the file's header.
#[derive(Debug, Default)]
#[repr(C)]
pub struct BlockTable {
    /// Raw block numbers, in the shape that a `BatchSlot` wants, so that the vector can travel there and back.
    blocks: Vec<u32>,
    reserved: usize,
    published: usize,
    chain: Chain,
}

/// Blocks that hold `tokens` positions.
pub fn blocks_for(tokens: usize, block_size: usize) -> usize {
    tokens.div_ceil(block_size)
}

impl BlockTable {
    /// Starts a table on `shared` blocks (a matched prefix) and a promise of `fresh` more. All or nothing.
    pub fn admit(pool: &mut BlockPool, shared: &[BlockId], fresh: usize) -> Result<Self, OutOfBlocks> {
        pool.admit(shared, fresh)?;
        let blocks = shared.iter().map(|block| block.0).collect();
        Ok(Self { blocks, reserved: fresh, published: shared.len(), chain: Chain::Open })
    }

    /// Has blocks for `tokens` positions: from the promise first, then from what the pool can still promise. Blocks got
    /// before the pool ran out stay in the table.
    pub fn grow_to(&mut self, pool: &mut BlockPool, tokens: usize) -> Result<(), OutOfBlocks> {
        let wanted = blocks_for(tokens, pool.block_size());
        while self.blocks.len() < wanted {
            if self.reserved == 0 {
                pool.reserve(1)?;
                self.reserved = 1;
            }
            self.blocks.push(pool.take_reserved().0);
            self.reserved -= 1;
        }
        Ok(())
    }

    /// Full blocks that have been offered to the pool's index; the next to publish.
    pub fn published(&self) -> usize {
        self.published
    }

    /// Whether publishing further blocks makes sense.
    pub fn can_publish(&self) -> bool {
        self.chain == Chain::Open
    }

    /// Offers the next full block, whose KV is computed. A block with the same content may take its place in the table.
    pub fn publish_next(&mut self, pool: &mut BlockPool, content: &BlockContent<'_>) {
        assert!(self.can_publish() && self.published < self.blocks.len(), "invariant: the next block exists");
        match pool.publish(BlockId(self.blocks[self.published]), content) {
            Published::New => self.published += 1,
            Published::Duplicate(holder) => {
                self.blocks[self.published] = holder.0;
                self.published += 1;
            }
            Published::Collision => self.chain = Chain::Broken,
        }
    }

    /// Stops publishing, because the names of earlier blocks are gone.
    pub fn break_chain(&mut self) {
        self.chain = Chain::Broken;
    }

    /// Takes the names of this table's blocks away, from the tail to the first block that others use too: their content
    /// is not to be trusted.
    pub fn forget_own(&mut self, pool: &mut BlockPool) {
        self.chain = Chain::Broken;
        for block in self.blocks[..self.published].iter().rev() {
            if pool.references(BlockId(*block)) > 1 {
                break;
            }
            pool.forget(BlockId(*block));
        }
    }

    /// Gives all blocks and promises back, tail first. The table is empty afterwards and can be admitted anew.
    pub fn release(&mut self, pool: &mut BlockPool) {
        for block in self.blocks.drain(..).rev() {
            pool.release(BlockId(block));
        }
        pool.unreserve(self.reserved);
        *self = Self::default();
    }

    /// Moves the block numbers out, into a batch; [`BlockTable::put_back`] must follow.
    pub(crate) fn lend(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.blocks)
    }

    pub(crate) fn put_back(&mut self, blocks: Vec<u32>) {
        assert!(self.blocks.is_empty(), "invariant: the table was lent");
        self.blocks = blocks;
    }

    /// Positions that the blocks hold.
    pub fn capacity(&self, block_size: usize) -> usize {
        self.blocks.len() * block_size
    }

    /// Physical blocks in order of position.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.iter().map(|block| BlockId(*block))
    }

    /// Physical blocks held.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Pages promised and not taken.
    pub fn reserved(&self) -> usize {
        self.reserved
    }
}
