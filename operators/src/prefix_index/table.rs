//! The table: a directory of segments, what readers hold of it, and how it grows (extendible hashing).
//!
//! Invariant: the directory's entry at a key's first `depth` bits is the one segment that may have the key. A segment
//! that reaches its limit is copied without the keys nobody holds, into one or into two. Readers see new segments when
//! the writer publishes a root; a root that was replaced is kept until its last reader has gone, and only then are the
//! sets that ended under it or before it used again.
//! Cost: a copy of a segment per fifth of its slots that are newly taken, at most; a root is as long as the directory.
//! State: segments, at least 48 % full on average while growing; at most 2^[`MAX_DEPTH`] of them: at the bound a key is
//! refused.
use std::{collections::VecDeque, sync::Arc};

use arc_swap::ArcSwap;

use super::{
    holders::{self, Chunks, Sets, TooMany, Word},
    segment::{self, Bucket, SLOTS, Segment, Slot},
};

/// Directory entries are at most two to this power.
const MAX_DEPTH: u32 = 20;

/// A keyed bijection of hashes: distinct hashes have distinct keys.
pub(super) struct Mix {
    flip: u64,
    factor: u64,
}

impl Mix {
    pub fn new(seed: u64) -> Self {
        let flip = scramble(seed ^ 0x9e37_79b9_7f4a_7c15);
        Self { flip, factor: scramble(flip) | 1 }
    }

    #[inline]
    pub fn key(&self, hash: u64) -> u64 {
        scramble((hash ^ self.flip).wrapping_mul(self.factor))
    }
}

#[inline]
fn scramble(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let value = (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value ^ (value >> 32)
}

/// What a reader holds for one question.
pub(super) struct Root {
    depth: u32,
    directory: Box<[Segment]>,
    chunks: Chunks,
}

impl Root {
    #[inline]
    fn segment(&self, key: u64) -> &Segment {
        &self.directory[entry(key, self.depth)]
    }

    /// The bucket a key belongs to.
    #[inline]
    pub fn home(&self, key: u64) -> &Bucket {
        segment::home(self.segment(key), key)
    }

    #[inline]
    pub fn word(&self, key: u64) -> Word {
        segment::word(self.segment(key), key)
    }

    pub fn holders(&self, word: Word, into: &mut Vec<u32>) {
        holders::read(&self.chunks, word, into);
    }
}

#[inline]
fn entry(key: u64, depth: u32) -> usize {
    // Shifted twice: a shift by 64 is none.
    (key >> 1 >> (63 - depth)) as usize
}

/// A segment with what the writer knows of it.
struct Part {
    segment: Segment,
    /// Leading bits that all its keys share.
    depth: u32,
    /// Slots that have a key.
    used: usize,
    /// Slots that have a word.
    live: usize,
}

/// The writers' side.
pub(super) struct Table {
    buckets: usize,
    depth: u32,
    /// Numbers of parts.
    directory: Vec<u32>,
    parts: Vec<Part>,
    sets: Sets,
    changed: bool,
    /// Roots that were replaced, oldest first, with the places of the sets that ended under each.
    replaced: VecDeque<(Arc<Root>, Vec<u32>)>,
}

impl Table {
    pub fn new(buckets: usize) -> Self {
        let part = Part { segment: segment::empty(buckets), depth: 0, used: 0, live: 0 };
        Self {
            buckets,
            depth: 0,
            directory: vec![0],
            parts: vec![part],
            sets: Sets::new(),
            changed: false,
            replaced: VecDeque::new(),
        }
    }

    pub fn root(&self) -> Root {
        let segments = self.directory.iter().map(|part| self.parts[*part as usize].segment.clone());
        Root { depth: self.depth, directory: segments.collect(), chunks: self.sets.chunks() }
    }

    /// Slots of a segment that may have a key.
    fn limit(&self) -> usize {
        (self.buckets * SLOTS * 4 / 5).max(1)
    }

    /// Adds a holder; says whether it is new.
    pub fn add(&mut self, key: u64, added: u32) -> Result<bool, TooMany> {
        let limit = self.limit();
        loop {
            let number = self.directory[entry(key, self.depth)] as usize;
            let part = &mut self.parts[number];
            match segment::find(&part.segment, key) {
                Some(Slot::Held(place)) => {
                    let before = segment::at(&part.segment, place);
                    let Some(word) = self.sets.with(before, added)? else { return Ok(false) };
                    part.live += usize::from(before == 0);
                    segment::set(&part.segment, place, word);
                    self.sets.release(before);
                    return Ok(true);
                }
                Some(Slot::Free(place)) if part.used < limit => {
                    segment::fill(&part.segment, place, (key, added));
                    (part.used, part.live) = (part.used + 1, part.live + 1);
                    return Ok(true);
                }
                _ => self.make_room(number, key)?,
            }
        }
    }

    /// Removes a holder; says whether it was there.
    pub fn remove(&mut self, key: u64, gone: u32) -> bool {
        let part = &mut self.parts[self.directory[entry(key, self.depth)] as usize];
        let Some(Slot::Held(place)) = segment::find(&part.segment, key) else { return false };
        let before = segment::at(&part.segment, place);
        // A smaller set always fits, unless no place is left for sets at all: then the holder stays, as stale.
        let Ok(Some(word)) = self.sets.without(before, gone) else { return false };
        part.live -= usize::from(word == 0);
        segment::set(&part.segment, place, word);
        self.sets.release(before);
        true
    }

    /// Copies a full part, into two if most of its keys are held.
    fn make_room(&mut self, number: usize, key: u64) -> Result<(), TooMany> {
        self.changed = true;
        let (live, depth) = (self.parts[number].live, self.parts[number].depth);
        let old = self.parts[number].segment.clone();
        if live * 5 < self.limit() * 3 {
            self.parts[number] = self.copied(segment::live(&old), depth);
            return Ok(());
        }
        if depth == MAX_DEPTH {
            return Err(TooMany);
        }
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|part| [*part; 2]).collect();
            self.depth += 1;
        }
        let is_upper = |key: u64| entry(key, depth + 1) & 1 == 1;
        let lower = self.copied(segment::live(&old).filter(|(key, _)| !is_upper(*key)), depth + 1);
        let upper = self.copied(segment::live(&old).filter(|(key, _)| is_upper(*key)), depth + 1);
        self.parts[number] = lower;
        self.parts.push(upper);
        // The entries of the old part are neighbours; the upper half of them is the new part's.
        let span = 1 << (self.depth - depth);
        let start = entry(key, depth) * span;
        self.directory[start + span / 2..start + span].fill(self.parts.len() as u32 - 1);
        Ok(())
    }

    fn copied(&self, keys: impl Iterator<Item = (u64, Word)>, depth: u32) -> Part {
        let segment = segment::empty(self.buckets);
        let mut count = 0;
        for (key, word) in keys {
            if let Some(Slot::Free(place)) = segment::find(&segment, key) {
                segment::fill(&segment, place, (key, word));
                count += 1;
            }
        }
        Part { segment, depth, used: count, live: count }
    }

    /// Shows readers what changed, and takes back what no reader can see any more.
    pub fn publish(&mut self, root: &ArcSwap<Root>) {
        if self.changed || self.sets.grown || !self.sets.ended.is_empty() {
            let before = root.swap(Arc::new(self.root()));
            self.replaced.push_back((before, std::mem::take(&mut self.sets.ended)));
            (self.changed, self.sets.grown) = (false, false);
        }
        while let Some((root, _)) = self.replaced.front_mut() {
            // Unique: its readers have gone, and what they read happened before.
            if Arc::get_mut(root).is_none() {
                break;
            }
            let ended = self.replaced.pop_front().map(|(_, ended)| ended);
            self.sets.reuse(ended.unwrap_or_default());
        }
    }
}
