//! KV of interrupted sequences on its way to L2 and back (SPEC B8, C3).
//!
//! Invariants: a waiting sequence's slots hold the KV of its first `tokens` tokens; transfers are listed in the order
//! in which the block bookkeeping decided them and are done in that order before the batch, so that a page is read
//! before it is written for its next owner.
//!
//! Cost: O(blocks) a swap. State: 4 bytes a slot held. Bound: `l2_blocks`.

use crate::{
    block_pool::{BlockId, BlockPool, second_level::BlockName},
    runner::{ModelRunner, RunnerError, Transfer},
    sequence::Sequence,
};

/// What a waiting sequence has in L2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Swapped {
    slots: Vec<u32>,
    /// Tokens whose KV is there.
    pub tokens: usize,
}

/// Names of the leading blocks of `sequence` that are full with `tokens` tokens.
fn name_of(sequence: &Sequence, (index, tokens): (usize, usize), block_size: usize) -> Option<BlockName> {
    let full = (tokens / block_size).min(sequence.hashes.len());
    (index < full).then(|| BlockName {
        hash: sequence.hashes[index],
        parent: index.checked_sub(1).map(|before| sequence.hashes[before]),
    })
}

/// Lists the copies of all KV of `sequence` to L2, where slots for it are free.
pub(crate) fn swap_out(sequence: &mut Sequence, pool: &mut BlockPool, transfers: &mut Vec<Transfer>) {
    let (tokens, block_size) = (sequence.computed, pool.block_size());
    let mut slots = Vec::with_capacity(tokens.div_ceil(block_size));
    for (index, block) in sequence.table.blocks().take(tokens.div_ceil(block_size)).enumerate() {
        let name = name_of(sequence, (index, tokens), block_size);
        let slot = pool.take_l2(name).expect("invariant: the prediction saw enough free slots");
        transfers.push(Transfer::SwapOut { from: block.0, to: slot });
        slots.push(slot);
    }
    sequence.swapped = Some(Swapped { slots, tokens });
}

/// Lists the copies of what `sequence` has in L2 behind its first `matched` blocks, which were found in L1, to the
/// blocks of its table, and gives the slots back. Returns the blocks copied.
pub(crate) fn swap_in(
    sequence: &mut Sequence,
    matched: usize,
    pool: &mut BlockPool,
    transfers: &mut Vec<Transfer>,
) -> usize {
    let Some(swapped) = &sequence.swapped else { return 0 };
    let tokens = swapped.tokens;
    sequence.table.grow_to(pool, tokens).expect("invariant: pages for known tokens were promised");
    let blocks: Vec<BlockId> = sequence.table.blocks().collect();
    let before = transfers.len();
    for (slot, block) in swapped.slots.iter().zip(&blocks).skip(matched) {
        transfers.push(Transfer::SwapIn { from: *slot, to: block.0 });
    }
    sequence.computed = sequence.computed.max(tokens);
    forget(sequence, pool);
    transfers.len() - before
}

/// Gives back what `sequence` has in L2, last block first.
pub(crate) fn forget(sequence: &mut Sequence, pool: &mut BlockPool) {
    let Some(swapped) = sequence.swapped.take() else { return };
    for (index, slot) in swapped.slots.iter().enumerate().rev() {
        let name = name_of(sequence, (index, swapped.tokens), pool.block_size());
        pool.give_back_l2(*slot, name);
    }
}

impl Swapped {
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }
}

/// Does the transfers in order, neighbours of one kind in one call.
pub(crate) fn carry_out(runner: &mut dyn ModelRunner, transfers: &[Transfer]) -> Result<(), RunnerError> {
    let same_kind = |a: &Transfer, b: &Transfer| std::mem::discriminant(a) == std::mem::discriminant(b);
    for run in transfers.chunk_by(same_kind) {
        let pairs: Vec<(u32, u32)> = run.iter().map(Transfer::pair).collect();
        match run[0] {
            Transfer::Copy { .. } => runner.copy_blocks(&pairs)?,
            Transfer::SwapOut { .. } => runner.swap_out(&pairs)?,
            Transfer::SwapIn { .. } => runner.swap_in(&pairs)?,
        }
    }
    Ok(())
}
