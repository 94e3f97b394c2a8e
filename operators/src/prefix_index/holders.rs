//! Who holds a block, as one word; equal sets of two and more holders are kept once.
//!
//! A word is 0 (nobody), one holder, or the place of a set in an arena of atomics. A holder is an instance and one bit
//! a level. Invariant: a set's content does not change from its first word in a slot until [`Sets::reuse`]; so a reader
//! that finds the word finds the content, as long as the root it holds is older than the set's end.
//! Cost: O(holders) for a change of a set. State: 4 bytes a holder and 8 a set, rounded up to a power of two, and a map
//! entry a set for the writers; at most [`MAX_HOLDERS`] holders.
use std::{
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use foldhash::fast::FixedState;

use crate::IntMap;

/// See the module.
pub(super) type Word = u32;

/// Instances with larger numbers are not indexed: their additions count as dropped.
pub const MAX_INSTANCE: u32 = (1 << 23) - 1;
/// Holders of one block; further ones count as dropped.
pub const MAX_HOLDERS: usize = 4096;

/// Marks the words that are places of sets.
const SET: u32 = 1 << 31;
const CHUNK_BITS: u32 = 16;
const CHUNK: usize = 1 << CHUNK_BITS;
/// Before the holders of a set: their number, and how many slots have its word.
const HEAD: usize = 2;

/// An instance (at most [`MAX_INSTANCE`]) with some levels (at least one).
pub(super) fn holder(instance: u32, levels: u8) -> u32 {
    instance << 8 | u32::from(levels)
}

pub(super) fn instance_of(holder: u32) -> u32 {
    holder >> 8
}

pub(super) fn levels_of(holder: u32) -> u8 {
    holder as u8
}

/// Pieces of the arena that readers see; grows by whole pieces.
pub(super) type Chunks = Arc<[Arc<[AtomicU32]>]>;

/// The holders behind a word, sorted by instance.
pub(super) fn read(chunks: &Chunks, word: Word, into: &mut Vec<u32>) {
    if word & SET == 0 {
        into.extend((word != 0).then_some(word));
        return;
    }
    let at = (word & !SET) as usize;
    // A word is published after its chunk.
    let Some(chunk) = chunks.get(at >> CHUNK_BITS) else { return };
    let at = at & (CHUNK - 1);
    let count = chunk[at].load(Ordering::Relaxed) as usize;
    into.extend(chunk[at + HEAD..].iter().take(count).map(|holder| holder.load(Ordering::Relaxed)));
}

/// More holders than a block may have, or no place left for sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// The writers' side.
pub(super) struct Sets {
    chunks: Chunks,
    /// First unused place of the last chunk; [`CHUNK`] if there is none.
    next: usize,
    /// Unused places by the logarithm of their size.
    free: [Vec<u32>; 14],
    /// Content's hash to place. A second content with the same hash is not listed, and then not shared.
    known: IntMap<u64, u32>,
    hasher: FixedState,
    scratch: Vec<u32>,
    /// Places without a slot that readers of the current root may still look at.
    pub(super) ended: Vec<u32>,
    /// Chunks were added since the last root.
    pub(super) grown: bool,
}

impl Sets {
    pub fn new() -> Self {
        Self {
            chunks: Arc::new([]),
            next: CHUNK,
            free: Default::default(),
            known: IntMap::default(),
            hasher: FixedState::with_seed(0),
            scratch: Vec::new(),
            ended: Vec::new(),
            grown: false,
        }
    }

    pub fn chunks(&self) -> Chunks {
        self.chunks.clone()
    }

    /// The word for the same holders and `added`; `None` if that is the same word.
    pub fn with(&mut self, word: Word, added: u32) -> Result<Option<Word>, TooMany> {
        let mut holders = self.take(word);
        match holders.binary_search_by_key(&instance_of(added), |holder| instance_of(*holder)) {
            Ok(at) if holders[at] | added == holders[at] => {
                self.scratch = holders;
                return Ok(None);
            }
            Ok(at) => holders[at] |= added,
            Err(at) => holders.insert(at, added),
        }
        let changed = self.word_of(&holders);
        self.scratch = holders;
        changed.map(Some)
    }

    /// The word for the same holders without `gone`; `None` if that is the same word.
    pub fn without(&mut self, word: Word, gone: u32) -> Result<Option<Word>, TooMany> {
        let mut holders = self.take(word);
        let found = holders.binary_search_by_key(&instance_of(gone), |holder| instance_of(*holder));
        let Some(at) = found.ok().filter(|at| levels_of(holders[*at]) & levels_of(gone) != 0) else {
            self.scratch = holders;
            return Ok(None);
        };
        holders[at] &= !u32::from(levels_of(gone));
        if levels_of(holders[at]) == 0 {
            holders.remove(at);
        }
        let changed = self.word_of(&holders);
        self.scratch = holders;
        changed.map(Some)
    }

    fn take(&mut self, word: Word) -> Vec<u32> {
        let mut holders = std::mem::take(&mut self.scratch);
        holders.clear();
        read(&self.chunks, word, &mut holders);
        holders
    }

    /// One more slot has the word.
    fn word_of(&mut self, holders: &[u32]) -> Result<Word, TooMany> {
        match holders {
            [] => return Ok(0),
            [one] => return Ok(*one),
            many if many.len() > MAX_HOLDERS => return Err(TooMany),
            _ => {}
        }
        let hash = self.hasher.hash_one(holders);
        if let Some(&at) = self.known.get(&hash) {
            let mut content = Vec::with_capacity(holders.len());
            read(&self.chunks, at | SET, &mut content);
            if content == holders {
                self.cell(at + 1).fetch_add(1, Ordering::Relaxed);
                return Ok(at | SET);
            }
        }
        let at = self.room(holders.len() + HEAD)?;
        for (cell, value) in (at..).zip([holders.len() as u32, 1].iter().chain(holders)) {
            self.cell(cell).store(*value, Ordering::Relaxed);
        }
        self.known.entry(hash).or_insert(at);
        Ok(at | SET)
    }

    fn cell(&self, at: u32) -> &AtomicU32 {
        &self.chunks[(at >> CHUNK_BITS) as usize][at as usize & (CHUNK - 1)]
    }

    fn room(&mut self, size: usize) -> Result<u32, TooMany> {
        let size = size.next_power_of_two();
        if let Some(at) = self.free[size.trailing_zeros() as usize].pop() {
            return Ok(at);
        }
        if self.next + size > CHUNK {
            if self.chunks.len() >= (SET >> CHUNK_BITS) as usize {
                return Err(TooMany);
            }
            let chunk: Arc<[AtomicU32]> = (0..CHUNK).map(|_| AtomicU32::new(0)).collect();
            self.chunks = self.chunks.iter().cloned().chain([chunk]).collect();
            (self.next, self.grown) = (0, true);
        }
        let at = (self.chunks.len() - 1) << CHUNK_BITS | self.next;
        self.next += size;
        Ok(at as u32)
    }

    /// One slot less has the word.
    pub fn release(&mut self, word: Word) {
        if word & SET == 0 {
            return;
        }
        let at = word & !SET;
        if self.cell(at + 1).fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let holders = self.take(word);
        let hash = self.hasher.hash_one(&holders[..]);
        if self.known.get(&hash) == Some(&at) {
            self.known.remove(&hash);
        }
        self.scratch = holders;
        self.ended.push(at);
    }

    /// Nobody can look at these places any more.
    pub fn reuse(&mut self, places: Vec<u32>) {
        for at in places {
            let size = self.cell(at).load(Ordering::Relaxed) as usize + HEAD;
            self.free[size.next_power_of_two().trailing_zeros() as usize].push(at);
        }
    }
}
