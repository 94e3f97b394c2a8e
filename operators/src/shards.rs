//! A map by block hash, in many small tables.
//!
//! Why: one large table that grows takes as long as all its keys to move, and its epoch waits; page by page of fresh memory
//! is the larger part of that. Here one of [`SHARDS`] tables grows at a time. The tables fill at about the same pace, so
//! they grow in the same second, but not in the same epoch.
//! Invariant: a hash is in the table of its first bits alone; so an audit bucket is [`SHARDS`] / 16 whole tables. Hashes that
//! share their first bits share a table, which costs what one large table costs, and nothing else.
//! Cost: that of a hash map. State: 40 bytes a table.
use crate::IntMap;

/// Leading bits of a hash that name its table.
const SHARD_BITS: u32 = 6;
/// Tables of a map.
pub(crate) const SHARDS: usize = 1 << SHARD_BITS;

/// See the module.
pub(crate) struct Shards<V>(Box<[IntMap<u64, V>]>);

impl<V> Default for Shards<V> {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| IntMap::default()).collect())
    }
}

fn shard(hash: u64) -> usize {
    (hash >> (u64::BITS - SHARD_BITS)) as usize
}

impl<V> Shards<V> {
    pub fn of(&self, hash: u64) -> &IntMap<u64, V> {
        &self.0[shard(hash)]
    }

    pub fn of_mut(&mut self, hash: u64) -> &mut IntMap<u64, V> {
        &mut self.0[shard(hash)]
    }

    pub fn get(&self, hash: u64) -> Option<&V> {
        self.of(hash).get(&hash)
    }

    pub fn get_mut(&mut self, hash: u64) -> Option<&mut V> {
        self.of_mut(hash).get_mut(&hash)
    }

    pub fn contains(&self, hash: u64) -> bool {
        self.of(hash).contains_key(&hash)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.0.iter().flatten().map(|(hash, value)| (*hash, value))
    }

    /// Takes all tables of the `part`-th of `parts` equal parts of the hashes; `parts` divides [`SHARDS`].
    pub fn take_part(&mut self, part: usize, parts: usize) -> impl Iterator<Item = (u64, V)> + use<'_, V> {
        let tables = SHARDS / parts;
        self.0[part * tables..(part + 1) * tables].iter_mut().flat_map(std::mem::take)
    }
}
