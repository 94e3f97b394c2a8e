//! The pool of KV blocks (SPEC C1, C2): fixed size, counted references, a quota before pages, and an index of what may
//! be reused.
//!
//! A block is in exactly one of three places: *free* (no content), *used* (one or more tables hold it), or *cached*
//! (nobody holds it, its content is named in the index, and it may be evicted). Freed blocks without a name go to the
//! free list, named ones to the recent end of an LRU list. A page is taken from the free list, else by evicting the
//! least recent cached block.
//!
//! Invariants:
//! - Quota: `reserved <= free + cached`, so a reserved page can always be had; [`BlockPool::available`] is what is left
//!   to promise.
//! - A parent is never evicted before its child. Tables hold whole chains of *canonical* blocks (publishing a content
//!   that has a name already gives back the block that has it), release from the tail and acquire from the head; so a
//!   child with references has a parent with references, and an unreferenced child is older in the LRU than its parent.
//! - A hit is exact: hash, tokens, parent hash and salt must all agree, so a hash collision can't hand out foreign KV.
//!
//! Cost: O(1) a call, O(block size) for publish and lookup (times [`MOST_SIBLINGS`] for a part of a block), O(blocks)
//! for `check_invariants`. Memory: about `48 + 4 × block_size` bytes a block and a hash-map entry a cached block, bounded by the pool's size. Pending events are
//! bounded by the calls since the last [`BlockPool::take_events`], which the engine makes once a step.

mod leak_check;
pub mod second_level;
mod siblings;

use std::collections::{HashMap, HashSet};

use self::{second_level::SecondLevel, siblings::Siblings};
use crate::{
    events::{BlockHash, HeldBlock, KvEvent, Level},
    lru::LruList,
};

/// Most blocks behind one parent that are compared with the beginning of a prompt's next block.
pub const MOST_SIBLINGS: usize = 16;

/// A physical block of the runner's KV memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// The pool has not as many unpromised blocks as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{asked} KV blocks were asked for and {available} are available")]
pub struct OutOfBlocks {
    pub asked: usize,
    pub available: usize,
}

/// The full content of a block: what must agree for its KV to be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockContent<'a> {
    pub hash: BlockHash,
    /// Hash of the block before it; `None` for the first of a sequence.
    pub parent: Option<BlockHash>,
    /// Exactly `block_size` tokens.
    pub tokens: &'a [u32],
    pub salt: u64,
}

/// What became of a published block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// The block has the name now.
    New,
    /// Another block has this content already; it was acquired for the caller, and the caller's own was released.
    Duplicate(BlockId),
    /// Another content has this hash; the block stays nameless.
    Collision,
}

/// Where the blocks are. `used + cached + free = total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolFigures {
    pub total: usize,
    pub used: usize,
    pub cached: usize,
    pub free: usize,
    /// Promised to tables and not taken yet.
    pub reserved: usize,
}

#[derive(Debug, Clone, Copy)]
struct Name {
    hash: BlockHash,
    parent: Option<BlockHash>,
    salt: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct BlockState {
    references: u32,
    name: Option<Name>,
}

/// See the file's header.
#[derive(Debug)]
pub struct BlockPool {
    block_size: usize,
    blocks: Vec<BlockState>,
    /// Tokens of named blocks, `block_size` each, by block.
    tokens: Vec<u32>,
    free: Vec<u32>,
    cached: LruList,
    index: HashMap<BlockHash, BlockId>,
    reserved: usize,
    siblings: Siblings,
    l2: SecondLevel,
    /// References over all blocks.
    held: usize,
    events: Vec<KvEvent>,
}

impl BlockPool {
    /// A pool of `blocks` free blocks of `block_size` tokens.
    ///
    /// # Panics
    /// If `block_size` is 0 or `blocks` does not fit in 32 bits; `EngineConfig::validate` refuses both before.
    pub fn new(blocks: usize, block_size: usize) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        let count = u32::try_from(blocks).expect("invariant: block numbers fit in 32 bits");
        Self {
            block_size,
            blocks: vec![BlockState::default(); blocks],
            tokens: vec![0; blocks * block_size],
            free: (0..count).rev().collect(),
            cached: LruList::new(blocks),
            index: HashMap::new(),
            reserved: 0,
            siblings: Siblings::new(blocks),
            l2: SecondLevel::default(),
            held: 0,
            events: Vec::new(),
        }
    }

    /// Tokens a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    pub fn figures(&self) -> PoolFigures {
        let (total, cached, free) = (self.blocks.len(), self.cached.len(), self.free.len());
        PoolFigures { total, used: total - cached - free, cached, free, reserved: self.reserved }
    }

    /// Blocks that can still be promised: free and evictable ones less those promised.
    pub fn available(&self) -> usize {
        self.free.len() + self.cached.len() - self.reserved
    }

    /// Promises `count` pages. All or nothing.
    pub fn reserve(&mut self, count: usize) -> Result<(), OutOfBlocks> {
        let available = self.available();
        if count > available {
            return Err(OutOfBlocks { asked: count, available });
        }
        self.reserved += count;
        Ok(())
    }

    /// Gives back promises that were not taken.
    pub fn unreserve(&mut self, count: usize) {
        assert!(count <= self.reserved, "invariant: {count} promises exist; {} are out", self.reserved);
        self.reserved -= count;
    }

    /// Takes a page against one promise, with one reference. Its content is undefined.
    pub fn take_reserved(&mut self) -> BlockId {
        assert!(self.reserved > 0, "invariant: a page is taken against a promise");
        self.reserved -= 1;
        let block = match self.free.pop() {
            Some(block) => block,
            None => self.evict_oldest(),
        };
        debug_assert!(self.blocks[block as usize].references == 0 && self.blocks[block as usize].name.is_none());
        self.blocks[block as usize].references = 1;
        self.held += 1;
        BlockId(block)
    }

    /// Acquires `shared` and promises `fresh` pages: what a sequence needs to start. All or nothing.
    pub fn admit(&mut self, shared: &[BlockId], fresh: usize) -> Result<(), OutOfBlocks> {
        let revived = shared.iter().filter(|block| self.references(**block) == 0).count();
        let available = self.available();
        if revived + fresh > available {
            return Err(OutOfBlocks { asked: revived + fresh, available });
        }
        for block in shared {
            self.acquire(*block);
        }
        self.reserve(fresh)
    }

    /// The block that holds exactly this content, if there is one. Takes no reference.
    pub fn lookup(&self, content: &BlockContent<'_>) -> Option<BlockId> {
        let block = *self.index.get(&content.hash)?;
        self.holds(block, content).then_some(block)
    }

    /// The block behind `parent` whose tokens begin like `tokens`, with the number of tokens they share, at least 1; the
    /// longest among the [`MOST_SIBLINGS`] most recently named. Takes no reference.
    pub fn lookup_part(&self, (parent, salt): (Option<BlockHash>, u64), tokens: &[u32]) -> Option<(BlockId, usize)> {
        let shared = |block: u32| {
            let start = block as usize * self.block_size;
            let stored = &self.tokens[start..start + self.block_size];
            stored.iter().zip(tokens).take_while(|(stored, wanted)| stored == wanted).count()
        };
        let family = self.siblings.members((parent, salt)).take(MOST_SIBLINGS);
        let best = family.map(|block| (BlockId(block), shared(block))).max_by_key(|(_, shared)| *shared)?;
        (best.1 > 0).then_some(best)
    }

    /// Reports that a sequence starts on `tokens` tokens up to and with `block`, or a part of it.
    pub fn note_hit(&mut self, block: BlockId, tokens: usize) {
        if let Some(name) = self.blocks[block.0 as usize].name {
            let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            self.events.push(KvEvent::Hit { hash: name.hash, level: Level::L1, tokens });
        }
    }

    /// Reports that a sequence starts on `tokens` tokens of its own that were in L2 up to the block with this hash.
    pub fn note_l2_hit(&mut self, hash: BlockHash, tokens: usize) {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.events.push(KvEvent::Hit { hash, level: Level::L2, tokens });
    }

    /// Adds a reference to a used or cached block.
    fn acquire(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.0 as usize];
        if state.references == 0 {
            assert!(state.name.is_some(), "invariant: only named blocks can be revived; {block:?} has no name");
            self.cached.remove(block.0);
        }
        state.references += 1;
        self.held += 1;
    }

    /// Gives one reference back. Tables release from their tail, so that a child becomes evictable before its parent.
    pub fn release(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.0 as usize];
        assert!(state.references > 0, "invariant: {block:?} is released as often as it was taken");
        state.references -= 1;
        self.held -= 1;
        if state.references == 0 {
            match state.name {
                Some(_) => self.cached.push_newest(block.0),
                None => self.free.push(block.0),
            }
        }
    }

    /// Names a used block whose KV is computed, so that others can reuse it.
    pub fn publish(&mut self, block: BlockId, content: &BlockContent<'_>) -> Published {
        assert_eq!(content.tokens.len(), self.block_size, "only full blocks are named");
        let state = self.blocks[block.0 as usize];
        assert!(state.references > 0 && state.name.is_none(), "invariant: {block:?} is used and nameless");
        if let Some(&holder) = self.index.get(&content.hash) {
            if !self.holds(holder, content) {
                return Published::Collision;
            }
            self.acquire(holder);
            self.release(block);
            return Published::Duplicate(holder);
        }
        let BlockContent { hash, parent, salt, tokens } = *content;
        self.blocks[block.0 as usize].name = Some(Name { hash, parent, salt });
        let start = block.0 as usize * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        self.index.insert(hash, block);
        self.siblings.add((parent, salt), block.0);
        let tokens = u32::try_from(self.block_size).unwrap_or(u32::MAX);
        self.events.push(KvEvent::Stored { hash, parent, level: Level::L1, tokens });
        Published::New
    }

    /// Takes a used block's name away, so that nobody reuses its content. A nameless block is left as it is.
    pub fn forget(&mut self, block: BlockId) {
        assert!(self.references(block) > 0, "invariant: {block:?} is used");
        self.unname(block.0);
    }

    /// Drops all reusable content. Used blocks stay with their tables and lose their names.
    pub fn clear(&mut self) {
        while let Some(block) = self.cached.pop_oldest() {
            self.free.push(block);
        }
        for state in &mut self.blocks {
            state.name = None;
        }
        self.index.clear();
        self.siblings.clear();
        self.events.push(KvEvent::Cleared);
    }

    /// References to `block`.
    pub fn references(&self, block: BlockId) -> u32 {
        self.blocks[block.0 as usize].references
    }

    /// Changes of the reusable content since the last call, in order.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.events)
    }

    /// All blocks that have a name, by level, parents first: what the events so far come to. O(blocks).
    pub fn held_blocks(&self) -> Vec<HeldBlock> {
        let mut held = Vec::with_capacity(self.index.len());
        let mut told = HashSet::with_capacity(self.index.len());
        let mut chain = Vec::new();
        for name in self.blocks.iter().filter_map(|state| state.name) {
            let mut next = Some(name);
            while let Some(name) = next.filter(|name| told.insert(name.hash)) {
                chain.push(HeldBlock { hash: name.hash, parent: name.parent, level: Level::L1 });
                let parent = name.parent.and_then(|parent| self.index.get(&parent));
                next = parent.and_then(|block| self.blocks[block.0 as usize].name);
            }
            held.extend(chain.drain(..).rev());
        }
        held.extend(self.l2.held_names().map(|hash| HeldBlock { hash, parent: None, level: Level::L2 }));
        held
    }

    fn evict_oldest(&mut self) -> u32 {
        let block = self.cached.pop_oldest().expect("invariant: reserved <= free + cached");
        self.unname(block);
        block
    }

    fn unname(&mut self, block: u32) {
        if let Some(name) = self.blocks[block as usize].name.take() {
            self.index.remove(&name.hash);
            self.siblings.remove((name.parent, name.salt), block);
            self.events.push(KvEvent::Removed { hash: name.hash, level: Level::L1 });
        }
    }

    fn holds(&self, block: BlockId, content: &BlockContent<'_>) -> bool {
        let start = block.0 as usize * self.block_size;
        self.blocks[block.0 as usize].name.is_some_and(|name| {
            (name.hash, name.parent, name.salt) == (content.hash, content.parent, content.salt)
                && self.tokens[start..start + self.block_size] == *content.tokens
        })
    }
}
