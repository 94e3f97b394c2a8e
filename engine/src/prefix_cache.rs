//! Prefix reuse (SPEC C2): how much of a sequence's KV is in the pool already.
//!
//! Longest match by chained hash from the first block on; a hit is verified by content (see `block_pool`). Three
//! limits: the last token is always recomputed (its logits are needed), `max_prefix_tokens` caps what is matched and
//! what is published, and a match shorter than `min_match_tokens` counts as none.
//!
//! Where the prompt leaves a cached chain inside a block, the block whose beginning it shares is found among the blocks
//! behind the same parent; its KV is copied to a block of the sequence's own, which goes on from there (copy on write).
//!
//! Cost: O(matched tokens) time and 4 bytes a matched block for a lookup; a part of a block adds at most 16 comparisons
//! of a block's tokens. No state of its own: names live in the pool.

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

/// What of a sequence's KV is in the pool. No references are taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrefixMatch {
    /// Whole blocks from the first on.
    pub blocks: Vec<BlockId>,
    /// The block that begins as the sequence goes on behind them, and how many tokens they share: at least 1 and less
    /// than a block.
    pub part: Option<(BlockId, usize)>,
}

impl PrefixMatch {
    /// Tokens that need not be computed.
    pub fn tokens(&self, block_size: usize) -> usize {
        self.blocks.len() * block_size + self.part.map_or(0, |(_, shared)| shared)
    }
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
            *slot = self.token(start + offset);
        }
        buffer
    }

    fn token(&self, position: usize) -> u32 {
        match position.checked_sub(self.prompt.len()) {
            None => self.prompt[position],
            Some(generated) => self.generated[generated],
        }
    }
}

impl PrefixCache {
    /// The longest reusable prefix: whole blocks, then a part of one that shares at least `least_part` tokens (copying
    /// costs something too). Takes no references.
    pub fn find(&self, pool: &BlockPool, query: &PrefixQuery<'_>, least_part: usize) -> PrefixMatch {
        let blocks = self.whole_blocks(pool, query);
        let part = self.part(pool, query, blocks.len()).filter(|(_, shared)| *shared >= least_part);
        let found = PrefixMatch { blocks, part };
        match found.tokens(pool.block_size()) < self.min_match_tokens {
            true => PrefixMatch::default(),
            false => found,
        }
    }

    fn part(&self, pool: &BlockPool, query: &PrefixQuery<'_>, matched: usize) -> Option<(BlockId, usize)> {
        let block_size = pool.block_size();
        let limit = self.reusable_tokens(query.len().saturating_sub(1));
        let known = limit.saturating_sub(matched * block_size).min(block_size - 1);
        if known == 0 {
            return None;
        }
        let mut buffer = vec![0; known];
        for (offset, slot) in buffer.iter_mut().enumerate() {
            *slot = query.token(matched * block_size + offset);
        }
        let parent = matched.checked_sub(1).map(|last| query.hashes[last]);
        pool.lookup_part((parent, query.salt), &buffer)
    }

    /// Blocks of the longest reusable prefix of whole blocks, in order; none if they hold less than
    /// `min_match_tokens`. Takes no references.
    pub fn longest_match(&self, pool: &BlockPool, query: &PrefixQuery<'_>) -> Vec<BlockId> {
        let mut matched = self.whole_blocks(pool, query);
        if matched.len() * pool.block_size() < self.min_match_tokens {
            matched.clear();
        }
        matched
    }

    fn whole_blocks(&self, pool: &BlockPool, query: &PrefixQuery<'_>) -> Vec<BlockId> {
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
        matched
    }

    fn reusable_tokens(&self, tokens: usize) -> usize {
        match self.mode {
            PrefixCacheMode::Off => 0,
            PrefixCacheMode::On => self.max_prefix_tokens.map_or(tokens, |cap| cap.min(tokens)),
        }
    }

    /// How many leading full blocks of `tokens` tokens may be matched or published.
    pub fn reusable_blocks(&self, tokens: usize, block_size: usize) -> usize {
        self.reusable_tokens(tokens) / block_size
    }
}
