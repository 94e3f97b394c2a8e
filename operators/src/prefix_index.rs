//! Block hash → who holds it, for many concurrent readers, fed by the changes of [`crate::CacheIndex`] (C4).
//!
//! Invariant: once the changes of an epoch are applied, a lookup of one hash gives exactly the holders the collection
//! has, except for at most `dropped()` entries that did not fit. A reader during `apply` may see part of an epoch; each
//! hash by itself is always whole.
//! Choice: a fixed number of shards, each a map behind a read-write lock. Readers share; a reader waits only while a
//! writer changes the same shard (one map access), never for another shard or a whole epoch. Swapping whole maps would
//! free readers of that too, but costs a copy of the map per epoch.
//! Cost: `longest_prefix` takes one read lock and one map access per block until nobody holds the next, and walks the
//! holders of each; `apply` takes one write lock and one map access per change.
//! State: about 40 bytes per block held once, and 8 more per further holder; at most `max_entries` (hash, instance,
//! level) entries; at the bound an addition is dropped and counted.
use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use foldhash::fast::FixedState;

use crate::{cache_index::CacheKey, rows::LEVELS};

/// Bounds and shape of a [`PrefixIndex`].
#[derive(Clone, Copy, Debug)]
pub struct PrefixIndexConfig {
    /// (hash, instance, level) entries held. At the bound: an addition is dropped and counted.
    pub max_entries: usize,
    /// Locks; rounded up to a power of two.
    pub shards: usize,
    /// Seeds the hashing of block hashes, so that crafted prompts cannot aim at one place of the map.
    pub seed: u64,
}

impl Default for PrefixIndexConfig {
    fn default() -> Self {
        Self { max_entries: 1 << 23, shards: 256, seed: 0 }
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

#[derive(Clone, Copy)]
struct Holder {
    instance: u32,
    /// One bit a level; never 0.
    levels: u8,
}

/// Most blocks have one holder: it needs no allocation of its own.
enum Holders {
    One(Holder),
    /// Sorted by instance; at least one.
    Many(Vec<Holder>),
}

impl Holders {
    fn as_slice(&self) -> &[Holder] {
        match self {
            Self::One(holder) => std::slice::from_ref(holder),
            Self::Many(holders) => holders,
        }
    }

    /// Sets one bit; says whether it was clear.
    fn add(&mut self, instance: u32, bit: u8) -> bool {
        let (place, held) = match self.as_slice().binary_search_by_key(&instance, |holder| holder.instance) {
            Ok(place) => (place, true),
            Err(place) => (place, false),
        };
        if held {
            let holder = match self {
                Self::One(holder) => holder,
                Self::Many(holders) => &mut holders[place],
            };
            let fresh = holder.levels & bit == 0;
            holder.levels |= bit;
            return fresh;
        }
        let holder = Holder { instance, levels: bit };
        match self {
            Self::One(one) => {
                let mut holders = vec![*one];
                holders.insert(place, holder);
                *self = Self::Many(holders);
            }
            Self::Many(holders) => holders.insert(place, holder),
        }
        true
    }

    /// Clears one bit; says whether it was set. The holder goes with its last bit.
    fn remove(&mut self, instance: u32, bit: u8) -> bool {
        let Ok(place) = self.as_slice().binary_search_by_key(&instance, |holder| holder.instance) else { return false };
        match self {
            Self::One(holder) => {
                let held = holder.levels & bit != 0;
                holder.levels &= !bit;
                held
            }
            Self::Many(holders) => {
                let held = holders[place].levels & bit != 0;
                holders[place].levels &= !bit;
                if holders[place].levels == 0 {
                    holders.remove(place);
                }
                if let [one] = holders[..] {
                    *self = Self::One(one);
                }
                held
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.as_slice().iter().all(|holder| holder.levels == 0)
    }
}

type Shard = RwLock<HashMap<u64, Holders, FixedState>>;

/// The concurrent reader side of the cache view. Shared by reference between threads.
pub struct PrefixIndex {
    shards: Box<[Shard]>,
    hasher: FixedState,
    max_entries: usize,
    entries: AtomicUsize,
    dropped: AtomicU64,
}

impl PrefixIndex {
    pub fn new(config: PrefixIndexConfig) -> Self {
        let shards = config.shards.max(1).next_power_of_two();
        let map = || RwLock::new(HashMap::with_hasher(FixedState::with_seed(config.seed)));
        Self {
            shards: (0..shards).map(|_| map()).collect(),
            hasher: FixedState::with_seed(config.seed.rotate_left(32) ^ 1),
            max_entries: config.max_entries,
            entries: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    fn shard(&self, hash: u64) -> &Shard {
        use std::hash::BuildHasher;
        let place = self.hasher.hash_one(hash) as usize & (self.shards.len() - 1);
        &self.shards[place]
    }

    /// Applies consolidated changes; several workers may call it at once, each with its own instances. Retractions are
    /// applied first, so that an epoch that moves blocks needs no room for both places.
    pub fn apply(&self, changes: &[(CacheKey, i64)]) {
        for ((hash, instance, level), _) in changes.iter().filter(|(_, diff)| *diff < 0) {
            self.remove(*hash, *instance, *level);
        }
        for ((hash, instance, level), _) in changes.iter().filter(|(_, diff)| *diff > 0) {
            self.add(*hash, *instance, *level);
        }
    }

    fn add(&self, hash: u64, instance: u32, level: u8) {
        let reserved = self.entries.fetch_add(1, Ordering::Relaxed) < self.max_entries;
        let mut fresh = false;
        if reserved && level < LEVELS {
            let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
            let bit = 1 << level;
            match shard.get_mut(&hash) {
                Some(holders) => fresh = holders.add(instance, bit),
                None => {
                    shard.insert(hash, Holders::One(Holder { instance, levels: bit }));
                    fresh = true;
                }
            }
        }
        if !fresh {
            self.entries.fetch_sub(1, Ordering::Relaxed);
        }
        if !reserved {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn remove(&self, hash: u64, instance: u32, level: u8) {
        if level >= LEVELS {
            return;
        }
        let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
        let Some(holders) = shard.get_mut(&hash) else { return };
        if holders.remove(instance, 1 << level) {
            self.entries.fetch_sub(1, Ordering::Relaxed);
        }
        if holders.is_empty() {
            shard.remove(&hash);
        }
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
        // `found[..live]` are the instances that hold all blocks so far.
        let mut found: Vec<PrefixMatch> = Vec::new();
        let mut live = 0;
        for (depth, hash) in hashes.iter().enumerate() {
            let shard = self.shard(*hash).read().unwrap_or_else(PoisonError::into_inner);
            let Some(holders) = shard.get(hash) else { break };
            let holders = holders.as_slice();
            if depth == 0 {
                found.extend(holders.iter().map(|holder| PrefixMatch {
                    instance: holder.instance,
                    blocks: 0,
                    by_level: [0; LEVELS as usize],
                }));
                live = found.len();
            }
            let mut place = 0;
            while place < live {
                let instance = found[place].instance;
                match holders.binary_search_by_key(&instance, |holder| holder.instance) {
                    Ok(at) => {
                        found[place].blocks += 1;
                        found[place].by_level[holders[at].levels.trailing_zeros() as usize] += 1;
                        place += 1;
                    }
                    Err(_) => {
                        live -= 1;
                        found.swap(place, live);
                    }
                }
            }
            if live == 0 {
                break;
            }
        }
        found.sort_unstable_by_key(|found| (std::cmp::Reverse(found.blocks), found.instance));
        found
    }
}
