//! Foreign block hashes to our own: an engine's hashes are its own affair, so blocks are indexed under the hashes that the
//! gateway computes from the same tokens (`engine::block_hash`).
//!
//! A block's own hashes follow from the tokens of its event and from those of its parent. A foreign block of `n` times our
//! block size has `n` of them; one whose size is no multiple is refused. An adapter or a salt becomes the chain's salt;
//! what else a block depends on (pictures) is mixed into its hashes, so that it is never taken for plain text. Only the
//! main group of a hybrid model counts. A block without tokens must have been told before, at another level.
//! Invariant: a foreign hash is known while it is held at some level; a block whose parent is not known waits for it, at
//! most [`ORPHANS_MAX`] events of an instance do: at the bound the oldest is refused.
//! Cost: O(tokens). State: about 60 bytes and the own hashes a foreign block held; the tokens of what waits.

use std::collections::{HashMap, VecDeque};

use engine::{block_hash::next_block_hash, events::BlockHash};
use operators::KvChange;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::decode::{ForeignError, ForeignEvent, ForeignStored};

/// Events that wait for their parent; at the bound the oldest is refused.
pub const ORPHANS_MAX: usize = 1024;

struct Known {
    own: Box<[u64]>,
    /// Times it was stored and not removed, over all levels.
    references: u32,
}

/// One instance's hashes.
pub struct ForeignChain {
    /// Tokens of our blocks.
    block_size: usize,
    known: HashMap<u64, Known>,
    orphans: VecDeque<ForeignStored>,
}

impl ForeignChain {
    /// # Panics
    /// If `block_size` is 0.
    pub fn new(block_size: usize) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        Self { block_size, known: HashMap::new(), orphans: VecDeque::new() }
    }

    /// Foreign blocks known.
    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// Events that wait for their parent.
    pub fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Translates an event, and what waited for it.
    ///
    /// # Errors
    /// The event, or the oldest that waited, was refused; `changes` has what became of the others.
    pub fn take(&mut self, event: ForeignEvent, changes: &mut Vec<KvChange>) -> Result<(), ForeignError> {
        match event {
            ForeignEvent::Cleared => {
                self.clear();
                changes.push(KvChange::Cleared);
                Ok(())
            }
            ForeignEvent::Removed { hashes, level, group } => {
                if group == 0 {
                    hashes.into_iter().for_each(|hash| self.remove(hash, level, changes));
                }
                Ok(())
            }
            ForeignEvent::Stored(stored) if stored.group > 0 => Ok(()),
            ForeignEvent::Stored(stored) => {
                let mut told = stored.hashes.clone();
                let result = self.store(stored, changes);
                while let Some(parent) = told.pop() {
                    let (ready, waiting) = self.orphans.drain(..).partition(|orphan| orphan.parent == Some(parent));
                    self.orphans = waiting;
                    for orphan in Vec::from(ready) {
                        told.extend(&orphan.hashes);
                        self.store(orphan, changes)?;
                    }
                }
                result
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.known.clear();
        self.orphans.clear();
    }

    fn remove(&mut self, hash: u64, level: u8, changes: &mut Vec<KvChange>) {
        let Some(known) = self.known.get_mut(&hash) else {
            self.orphans.retain(|orphan| !(orphan.hashes.contains(&hash) && orphan.level == level));
            return;
        };
        changes.extend(known.own.iter().map(|own| KvChange::Removed { hash: *own, level }));
        known.references -= 1;
        if known.references == 0 {
            self.known.remove(&hash);
        }
    }

    fn store(&mut self, stored: ForeignStored, changes: &mut Vec<KvChange>) -> Result<(), ForeignError> {
        let ForeignStored { level, block_size, .. } = stored;
        if stored.tokens.is_empty() {
            return self.store_again(&stored, changes);
        }
        if block_size % self.block_size != 0 {
            let value = block_size.to_string();
            return Err(ForeignError { field: "block_size", value, expected: "a multiple of workers.block_size" });
        }
        let full = stored.tokens.len() / block_size;
        if stored.hashes.len() != full && stored.hashes.len() != stored.tokens.len().div_ceil(block_size) {
            let value = format!("{} tokens for {} blocks of {block_size}", stored.tokens.len(), stored.hashes.len());
            return Err(ForeignError { field: "token_ids", value, expected: "as many tokens as the blocks hold" });
        }
        let mut parent = match stored.parent {
            None => None,
            // A store that names one of its own blocks as parent says nothing of what is before it.
            Some(parent) if stored.hashes.contains(&parent) => {
                let value = format!("{parent:016x}");
                return Err(ForeignError { field: "parent_block_hash", value, expected: "another block" });
            }
            Some(parent) => match self.known.get(&parent) {
                Some(known) => known.own.last().copied(),
                None => return self.park(stored),
            },
        };
        let salt =
            if stored.scope.is_empty() { 0 } else { xxh3_64_with_seed(&stored.scope, engine::block_hash::HASH_SEED) };
        for (place, (hash, tokens)) in stored.hashes.iter().zip(stored.tokens.chunks_exact(block_size)).enumerate() {
            let extra = stored.extra.get(place).filter(|extra| !extra.is_empty());
            let mut own = Vec::with_capacity(block_size / self.block_size);
            let before = parent;
            for tokens in tokens.chunks_exact(self.block_size) {
                let name = next_block_hash(parent.map(BlockHash), tokens, salt).0;
                own.push(extra.map_or(name, |extra| xxh3_64_with_seed(extra, name)));
                parent = own.last().copied();
            }
            if self.known.get(hash).is_some_and(|known| *known.own != *own) {
                let value = format!("{hash:016x}");
                return Err(ForeignError {
                    field: "block_hashes",
                    value,
                    expected: "the tokens it was told with before",
                });
            }
            let parents = std::iter::once(before).chain(own.iter().copied().map(Some));
            let tokens = self.block_size as u32;
            let stored =
                own.iter().zip(parents).map(|(hash, parent)| KvChange::Stored { hash: *hash, parent, level, tokens });
            changes.extend(stored);
            let known = self.known.entry(*hash).or_insert_with(|| Known { own: own.into(), references: 0 });
            known.references = known.references.saturating_add(1);
        }
        Ok(())
    }

    /// Blocks that were told with their tokens before.
    fn store_again(&mut self, stored: &ForeignStored, changes: &mut Vec<KvChange>) -> Result<(), ForeignError> {
        let mut unknown = None;
        for hash in &stored.hashes {
            let Some(known) = self.known.get_mut(hash) else {
                unknown = Some(*hash);
                continue;
            };
            known.references = known.references.saturating_add(1);
            let (level, tokens) = (stored.level, self.block_size as u32);
            changes.extend(known.own.iter().map(|own| KvChange::Stored { hash: *own, parent: None, level, tokens }));
        }
        let Some(hash) = unknown else { return Ok(()) };
        let value = format!("none for block {hash:016x}");
        Err(ForeignError { field: "token_ids", value, expected: "tokens, or blocks that were told before" })
    }

    fn park(&mut self, stored: ForeignStored) -> Result<(), ForeignError> {
        self.orphans.push_back(stored);
        if self.orphans.len() <= ORPHANS_MAX {
            return Ok(());
        }
        let oldest = self.orphans.pop_front().and_then(|orphan| orphan.parent).unwrap_or(0);
        let value = format!("{oldest:016x}");
        Err(ForeignError { field: "parent_block_hash", value, expected: "a block that was told (1024 wait already)" })
    }
}
