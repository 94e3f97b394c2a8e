//! A fixed part of the table: buckets of one cache line, five keys and their words each.
//!
//! Invariant: a slot's key is written once, after its first word; its word changes for as long as the segment lives (0:
//! nobody holds the block, the slot stays the key's). So a reader that finds the key reads one whole word. A bucket's
//! slots fill in order; a key stands in the first bucket from its own that had room.
//! Cost: one line at the usual filling. State: 64 bytes a bucket.
use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::holders::Word;

/// Keys of a bucket: five keys of 8 bytes and words of 4 fill its line but for 4 bytes.
pub(super) const SLOTS: usize = 5;

#[repr(align(64))]
#[derive(Default)]
pub(super) struct Bucket {
    keys: [AtomicU64; SLOTS],
    words: [AtomicU32; SLOTS],
}

/// A power of two of buckets.
pub(super) type Segment = Arc<[Bucket]>;

pub(super) fn empty(buckets: usize) -> Segment {
    (0..buckets).map(|_| Bucket::default()).collect()
}

fn first(segment: &[Bucket], key: u64) -> usize {
    key as usize & (segment.len() - 1)
}

/// The bucket a key belongs to.
#[inline]
pub(super) fn home(segment: &[Bucket], key: u64) -> &Bucket {
    &segment[first(segment, key)]
}

impl Bucket {
    /// Reads from the line, for nothing but to have it nearby.
    #[inline]
    pub fn touch(&self) -> u64 {
        self.keys[0].load(Ordering::Relaxed)
    }

    /// The key's word, 0 if the key is not here; `None` if it may be in a later bucket. Which slot has it is anybody's guess,
    /// so all are looked at rather than one guessed wrongly.
    #[inline]
    pub fn word(&self, key: u64) -> Option<Word> {
        let (mut found, mut word) = (false, 0);
        for (held, value) in self.keys.iter().zip(&self.words) {
            let is_here = held.load(Ordering::Acquire) == key;
            word |= value.load(Ordering::Acquire) & u32::from(is_here).wrapping_neg();
            found |= is_here;
        }
        (found || self.keys[SLOTS - 1].load(Ordering::Relaxed) == 0).then_some(word)
    }
}

/// A place for a key: that of the key itself, or the one it would take.
pub(super) enum Slot {
    Held(Place),
    Free(Place),
}

#[derive(Clone, Copy)]
pub(super) struct Place {
    bucket: usize,
    slot: usize,
}

/// Finds the key's slot; `None` if the segment is full and does not have it, which its filling limit rules out.
#[inline]
pub(super) fn find(segment: &[Bucket], key: u64) -> Option<Slot> {
    let mut bucket = first(segment, key);
    for _ in 0..segment.len() {
        for (slot, held) in segment[bucket].keys.iter().enumerate() {
            match held.load(Ordering::Acquire) {
                held if held == key => return Some(Slot::Held(Place { bucket, slot })),
                0 => return Some(Slot::Free(Place { bucket, slot })),
                _ => {}
            }
        }
        bucket = (bucket + 1) & (segment.len() - 1);
    }
    None
}

#[inline]
pub(super) fn word(segment: &[Bucket], key: u64) -> Word {
    match find(segment, key) {
        Some(Slot::Held(place)) => at(segment, place),
        Some(Slot::Free(_)) | None => 0,
    }
}

#[inline]
pub(super) fn at(segment: &[Bucket], place: Place) -> Word {
    segment[place.bucket].words[place.slot].load(Ordering::Acquire)
}

/// Changes the word of a key that has its slot.
pub(super) fn set(segment: &[Bucket], place: Place, word: Word) {
    segment[place.bucket].words[place.slot].store(word, Ordering::Release);
}

/// Gives a free slot to a key.
pub(super) fn fill(segment: &[Bucket], place: Place, (key, word): (u64, Word)) {
    set(segment, place, word);
    segment[place.bucket].keys[place.slot].store(key, Ordering::Release);
}

/// All keys that somebody holds.
pub(super) fn live(segment: &[Bucket]) -> impl Iterator<Item = (u64, Word)> + '_ {
    segment
        .iter()
        .flat_map(|bucket| {
            let slots = bucket.keys.iter().zip(&bucket.words);
            slots.map(|(key, word)| (key.load(Ordering::Relaxed), word.load(Ordering::Relaxed)))
        })
        .filter(|(_, word)| *word != 0)
}
