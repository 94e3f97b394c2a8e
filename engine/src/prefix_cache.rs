//! Prefix reuse (SPEC C2): how much of a sequence's KV is in the pool already.
//!
//! Longest match by chained hash from the first block on; a hit is verified by content (see `block_pool`). Three
//! limits: the last token is always recomputed (its logits are needed), `max_prefix_tokens` caps what is matched and
//! what is published, and a match shorter than `min_match_tokens` counts as none.
//!
//! Cost: O(matched tokens) time and 4 bytes a matched block for a lookup. No state of its own: names live in the pool.

use crate::{
    block_pool::{BlockContent, BlockId, BlockPool},
    events::BlockHash,
};

/// Whether KV of finished and running sequences is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefixCacheMode {
    #[default]
    On,
    /// Nothing is named, matched or kept.
    Off,
}

/// The limits of reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixCache {
    pub mode: PrefixCacheMode,
    /// Most tokens of a sequence that are reusable; `None`: no cap.
    pub max_prefix_tokens: Option<usize>,
    /// Least tokens that make a match worth taking.
    pub min_match_tokens: usize,
}

/// A sequence's tokens as the cache sees them.
#[derive(Debug, Clone, Copy)]
pub struct PrefixQuery<'a> {
    /// Chained hashes of full blocks, from the first.
    pub hashes: &'a [BlockHash],
    pub prompt: &'a [u32],
    /// Tokens behind the prompt (of a sequence that was preempted).
    pub generated: &'a [u32],
    pub salt: u64,
}

impl PrefixQuery<'_> {
    fn len(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    /// The tokens of block `index`, gathered in `buffer`.
    pub fn block_tokens<'b>(&self, index: usize, buffer: &'b mut [u32]) -> &'b [u32] {
        let start = index * buffer.len();
        for (offset, slot) in buffer.iter_mut().enumerate() {
            let position = start + offset;
            *slot = match position.checked_sub(self.prompt.len()) {
                None => self.prompt[position],
                Some(generated) => self.generated[generated],
            };
        }
        buffer
    }
}

impl PrefixCache {
    /// Blocks of the longest reusable prefix, in order. Takes no references.
    pub fn longest_match(&self, pool: &BlockPool, query: &PrefixQuery<'_>) -> Vec<BlockId> {
        let block_size = pool.block_size();
        let limit = self.reusable_blocks(query.len().saturating_sub(1), block_size);
        let mut matched = Vec::new();
        let mut parent = None;
        let mut buffer = vec![0; block_size];
        for (index, hash) in query.hashes.iter().take(limit).enumerate() {
            let tokens = query.block_tokens(index, &mut buffer);
            let content = BlockContent { hash: *hash, parent, tokens, salt: query.salt };
            let Some(block) = pool.lookup(&content) else { break };
            matched.push(block);
            parent = Some(*hash);
        }
        if matched.len() * block_size < self.min_match_tokens {
            matched.clear();
        }
        matched
    }

    /// How many leading full blocks of `tokens` tokens may be matched or published.
    pub fn reusable_blocks(&self, tokens: usize, block_size: usize) -> usize {
        match self.mode {
            PrefixCacheMode::Off => 0,
            PrefixCacheMode::On => self.max_prefix_tokens.map_or(tokens, |cap| cap.min(tokens)) / block_size,
        }
    }
}
