//! Block hash → who holds it, for many concurrent readers, fed by the changes of [`crate::CacheIndex`] (C4).
//!
//! Invariant: once the changes of an epoch are applied, a lookup of one hash gives exactly the holders the collection
//! has, except for at most `dropped()` entries that did not fit. A reader takes no lock and waits for nobody: it holds
//! one root for one question. During `apply` it may see part of an epoch; each hash by itself is always whole.
//! Choice: a hash table of atomics in segments (`segment`), equal sets of holders kept once (`holders`). A key's slot
//! never changes its key while its segment lives; who holds it is one atomic word. What is replaced (segments, sets)
//! leaves when the last reader of an older root has gone.
//! Cost: `prefix_matches` reads one cache line per block until nobody holds the next; lines are asked for
//! [`GROUP`] blocks ahead, so that their way from memory overlaps. Blocks with the same holders cost no more than the
//! comparison of a word. `apply` takes the writers' lock, and one line and a few words per change.
//! State: 12.8 bytes a slot, 48 to 80 % of them in use, and 4 bytes per holder of each set of two or more that differs;
//! at most `max_entries` (hash, instance, level) entries and [`MAX_HOLDERS`] holders a block; at the bound an addition
//! is dropped and counted, which understates hits.
mod holders;
mod segment;
mod table;

use std::{
    hint::black_box,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;

use self::{
    holders::{Word, holder, instance_of, levels_of},
    segment::Bucket,
    table::{Mix, Root, Table},
};
use crate::{cache_index::CacheKey, rows::LEVELS};

pub use self::holders::{MAX_HOLDERS, MAX_INSTANCE};

/// Blocks of a prompt whose lines are on their way from memory at once.
pub const GROUP: usize = 64;

/// Bounds and shape of a [`PrefixIndex`].
#[derive(Clone, Copy, Debug)]
pub struct PrefixIndexConfig {
    /// (hash, instance, level) entries held. At the bound: an addition is dropped and counted.
    pub max_entries: usize,
    /// Buckets of five slots that are copied together when full; rounded up to a power of two.
    pub segment_buckets: usize,
    /// Seeds the hashing of block hashes, so that crafted prompts cannot aim at one place of the table.
    pub seed: u64,
}

impl Default for PrefixIndexConfig {
    fn default() -> Self {
        Self { max_entries: 1 << 24, segment_buckets: 1 << 12, seed: 0 }
    }
}

/// How much of a prompt's prefix one instance holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixMatch {
    pub instance: u32,
    /// Leading blocks held, at any level.
    pub blocks: u32,
    /// Those blocks by the lowest level number that holds each; sums to `blocks`.
    pub by_level: [u32; LEVELS as usize],
}

/// The concurrent reader side of the cache view. Shared by reference between threads.
pub struct PrefixIndex {
    mix: Mix,
    root: ArcSwap<Root>,
    /// Writers only.
    table: Mutex<Table>,
    max_entries: usize,
    entries: AtomicUsize,
    dropped: AtomicU64,
    /// The first epoch that is not whole here.
    open: AtomicU64,
}

impl PrefixIndex {
    pub fn new(config: PrefixIndexConfig) -> Self {
        let table = Table::new(config.segment_buckets.max(1).next_power_of_two());
        Self {
            mix: Mix::new(config.seed),
            root: ArcSwap::from_pointee(table.root()),
            table: Mutex::new(table),
            max_entries: config.max_entries,
            entries: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            open: AtomicU64::new(0),
        }
    }

    /// Applies consolidated changes; several workers may call it at once and then take turns. Retractions are applied
    /// first, so that an epoch that moves blocks needs no room for both places.
    pub fn apply(&self, changes: &[(CacheKey, i64)]) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = self.entries.load(Ordering::Relaxed);
        for ((hash, instance, level), _) in changes.iter().filter(|(_, diff)| *diff < 0) {
            if let Some((key, bit)) = self.place(*hash, *instance, *level)
                && table.remove(key, holder(*instance, bit))
            {
                entries -= 1;
            }
        }
        let mut dropped = 0;
        for ((hash, instance, level), _) in changes.iter().filter(|(_, diff)| *diff > 0) {
            let place = self.place(*hash, *instance, *level).filter(|_| entries < self.max_entries);
            match place.map(|(key, bit)| table.add(key, holder(*instance, bit))) {
                Some(Ok(fresh)) => entries += usize::from(fresh),
                Some(Err(_)) | None => dropped += 1,
            }
        }
        self.entries.store(entries, Ordering::Relaxed);
        self.dropped.fetch_add(dropped, Ordering::Relaxed);
        table.publish(&self.root);
    }

    /// Says that the changes of all epochs up to `epoch` have been applied.
    pub fn complete(&self, epoch: u64) {
        self.open.fetch_max(epoch + 1, Ordering::Release);
    }

    /// The first epoch whose changes may be missing. Look-ups made afterwards know all before it.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// Who holds a block: each instance and level. `scratch` is overwritten.
    pub fn holders<'a>(&self, hash: u64, scratch: &'a mut Vec<u32>) -> impl Iterator<Item = (u32, u8)> + use<'a> {
        scratch.clear();
        let root = self.root.load();
        root.holders(root.word(self.mix.key(hash)), scratch);
        scratch.iter().flat_map(|holder| {
            let (instance, levels) = (instance_of(*holder), levels_of(*holder));
            (0..LEVELS).filter(move |level| levels & 1 << level != 0).map(move |level| (instance, level))
        })
    }

    /// The key of a hash and the bit of a level; `None` for what the table cannot hold.
    fn place(&self, hash: u64, instance: u32, level: u8) -> Option<(u64, u8)> {
        let key = self.mix.key(hash);
        (level < LEVELS && instance <= MAX_INSTANCE && key != 0).then(|| (key, 1 << level))
    }

    /// Entries held: (hash, instance, level) triples.
    pub fn entries(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Additions that did not fit, since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// For each instance that holds the first block of `hashes` (a prompt's chained block hashes, in order): how many
    /// leading blocks it holds, `(instance, blocks)`; longest first, then by instance. Empty if nobody holds the first.
    pub fn longest_prefix(&self, hashes: &[u64]) -> Vec<(u32, u32)> {
        self.prefix_matches(hashes).into_iter().map(|found| (found.instance, found.blocks)).collect()
    }

    /// [`longest_prefix`](Self::longest_prefix) with the level that would serve each block.
    pub fn prefix_matches(&self, hashes: &[u64]) -> Vec<PrefixMatch> {
        let root = self.root.load();
        let mut walk = Walk::default();
        let mut groups = hashes.chunks(GROUP);
        let mut ahead = self.ask(&root, groups.next().unwrap_or_default());
        'prompt: while ahead.1 > 0 {
            let (asked, count) = ahead;
            ahead = self.ask(&root, groups.next().unwrap_or_default());
            for (key, home) in &asked[..count] {
                let word = home.word(*key).unwrap_or_else(|| root.word(*key));
                if !walk.step(word, &root) {
                    break 'prompt;
                }
            }
        }
        walk.finish()
    }

    /// The keys of some blocks and their buckets, whose lines are asked for. Nothing waits for a line here: the loads do
    /// not depend on one another.
    #[inline]
    fn ask<'a>(&self, root: &'a Root, hashes: &[u64]) -> ([(u64, &'a Bucket); GROUP], usize) {
        let mut asked = [(0, root.home(0)); GROUP];
        for (slot, hash) in asked.iter_mut().zip(hashes) {
            let key = self.mix.key(*hash);
            *slot = (key, root.home(key));
        }
        // Loads and nothing between them: as many are on their way at once as the processor can hold.
        black_box(asked[..hashes.len()].iter().fold(0, |seen, (_, home)| seen ^ home.touch()));
        (asked, hashes.len())
    }
}

/// The instances that hold all blocks so far, and for how many blocks the same word has come.
#[derive(Default)]
struct Walk {
    /// `found[..live]` hold all blocks up to and with the current run.
    found: Vec<PrefixMatch>,
    /// The lowest level of each of `found[..live]` in the current run.
    level: Vec<u8>,
    live: usize,
    word: Word,
    run: u32,
    started: bool,
    scratch: Vec<u32>,
}

impl Walk {
    /// Takes the next block's word; false if nobody holds the prefix so far and this block.
    fn step(&mut self, word: Word, root: &Root) -> bool {
        if self.started && word == self.word {
            self.run += 1;
            return self.live > 0;
        }
        self.flush();
        self.scratch.clear();
        root.holders(word, &mut self.scratch);
        if !self.started {
            let held = self.scratch.iter().map(|holder| instance_of(*holder));
            self.found.extend(held.map(|instance| PrefixMatch { instance, blocks: 0, by_level: Default::default() }));
            self.level.resize(self.found.len(), 0);
            self.live = self.found.len();
            self.started = true;
        }
        self.keep_holders();
        (self.word, self.run) = (word, 1);
        self.live > 0
    }

    /// Lets go of those that are not among `scratch`.
    fn keep_holders(&mut self) {
        let mut place = 0;
        while place < self.live {
            let instance = self.found[place].instance;
            match self.scratch.binary_search_by_key(&instance, |holder| instance_of(*holder)) {
                Ok(at) => {
                    self.level[place] = levels_of(self.scratch[at]).trailing_zeros() as u8;
                    place += 1;
                }
                Err(_) => {
                    self.live -= 1;
                    self.found.swap(place, self.live);
                }
            }
        }
    }

    /// Counts the current run.
    fn flush(&mut self) {
        for (found, level) in self.found[..self.live].iter_mut().zip(&self.level) {
            found.blocks += self.run;
            found.by_level[usize::from(*level)] += self.run;
        }
        self.run = 0;
    }

    fn finish(mut self) -> Vec<PrefixMatch> {
        self.flush();
        self.found.sort_unstable_by_key(|found| (std::cmp::Reverse(found.blocks), found.instance));
        self.found
    }
}
