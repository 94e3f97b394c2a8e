//! What one instance holds: references by level, blocks that wait for their parent, and the sums that audits compare.
//!
//! Rules: a block stored `n` times at a level is held until it was removed `n` times ([`MAX_REFERENCES`] at most: further
//! ones are not counted, which understates hits); removing what is not held changes nothing. A block whose parent is not
//! held waits, unseen, until the parent is; then it and those that wait for it are held, with the references they had.
//! It is not called an orphan again when its parent goes later.
//! Invariant: a block is held or waits, never both; `entries` and `sums` are those of the blocks held.
//! Cost: O(1) per call, and per block adopted; `drain_bucket` costs the blocks of its bucket and all orphans, `drain` the
//! blocks of the instance. State: 17 bytes a block and map slack, in tables that grow one by one (`shards`); bounded by the
//! caller's [`Room`].
use crate::{IntMap, rows::LEVELS, shards::Shards};

/// Most references counted per block and level.
pub const MAX_REFERENCES: u8 = u8::MAX;
/// Parts into which an audit divides an instance's blocks.
pub const AUDIT_BUCKETS: u8 = 16;

/// The audit bucket of a block.
pub fn audit_bucket(hash: u64) -> u8 {
    (hash >> 60) as u8
}

/// What a block at a level adds to its bucket's sum; sums wrap.
pub fn audit_weight(hash: u64, level: u8) -> u64 {
    hash.wrapping_mul(2 * u64::from(level) + 1)
}

/// The most that this store may hold: what the worker's other stores leave of the bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub entries: usize,
    pub orphans: usize,
}

/// What did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    Entries,
    Orphans,
    References,
}

/// Blocks and sum of one audit bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub blocks: u64,
    pub sum: u64,
}

/// References by level, one byte each.
type References = [u8; LEVELS as usize];

#[derive(Default)]
struct Orphan {
    parent: u64,
    references: References,
}

/// See the module.
#[derive(Default)]
pub(super) struct Store {
    blocks: Shards<References>,
    orphans: IntMap<u64, Orphan>,
    /// Parent to the orphans that wait for it.
    waiting: IntMap<u64, Vec<u64>>,
    sums: [Sum; AUDIT_BUCKETS as usize],
    entries: usize,
}

/// A block that came (+1) or went (−1): `(hash, level, difference)`.
pub(super) type Change = (u64, u8, isize);

fn levels(references: &References) -> impl Iterator<Item = u8> + '_ {
    (0..LEVELS).filter(|level| references[usize::from(*level)] > 0)
}

impl Store {
    /// (hash, level) pairs held.
    pub fn entries(&self) -> usize {
        self.entries
    }

    pub fn orphans(&self) -> usize {
        self.orphans.len()
    }

    pub fn sum(&self, bucket: u8) -> Sum {
        self.sums[usize::from(bucket)]
    }

    /// One more reference to a block. `parent`: the block before it, where the caller knows it to matter.
    pub fn store(
        &mut self,
        (hash, level): (u64, u8),
        parent: Option<u64>,
        room: Room,
        changes: &mut Vec<Change>,
    ) -> Result<(), Full> {
        if let Some(orphan) = self.orphans.get_mut(&hash) {
            if parent.is_some_and(|parent| !self.blocks.contains(parent)) {
                return reference(&mut orphan.references[usize::from(level)]);
            }
            // Its parent is another, or not asked for: it waits no longer.
            self.settle(hash, room, changes)?;
        } else if let Some(parent) = parent
            && !self.blocks.contains(parent)
            && !self.blocks.contains(hash)
        {
            if self.orphans.len() >= room.orphans {
                return Err(Full::Orphans);
            }
            let mut references = References::default();
            references[usize::from(level)] = 1;
            self.orphans.insert(hash, Orphan { parent, references });
            self.waiting.entry(parent).or_default().push(hash);
            return Ok(());
        }
        let is_new = !self.blocks.contains(hash);
        self.hold((hash, level), room, changes)?;
        if is_new {
            self.adopt(hash, room, changes)?;
        }
        Ok(())
    }

    /// One more reference to a block that does not wait.
    fn hold(&mut self, (hash, level): (u64, u8), room: Room, changes: &mut Vec<Change>) -> Result<(), Full> {
        let at = usize::from(level);
        if let Some(references) = self.blocks.get_mut(hash)
            && references[at] > 0
        {
            return reference(&mut references[at]);
        }
        if self.entries >= room.entries {
            return Err(Full::Entries);
        }
        self.blocks.of_mut(hash).entry(hash).or_default()[at] = 1;
        self.entries += 1;
        let sum = &mut self.sums[usize::from(audit_bucket(hash))];
        (sum.blocks, sum.sum) = (sum.blocks + 1, sum.sum.wrapping_add(audit_weight(hash, level)));
        changes.push((hash, level, 1));
        Ok(())
    }

    /// Holds what waits for `parent`, and what waits for that.
    fn adopt(&mut self, parent: u64, room: Room, changes: &mut Vec<Change>) -> Result<(), Full> {
        let mut parents = vec![parent];
        let mut result = Ok(());
        while let Some(parent) = parents.pop() {
            for hash in self.waiting.remove(&parent).unwrap_or_default() {
                let Some(orphan) = self.orphans.remove(&hash) else { continue };
                result = self.restore(hash, &orphan.references, (room, changes)).and(result);
                if self.blocks.contains(hash) {
                    parents.push(hash);
                }
            }
        }
        result
    }

    /// Holds one block that waited.
    fn settle(&mut self, hash: u64, room: Room, changes: &mut Vec<Change>) -> Result<(), Full> {
        let Some(orphan) = self.forget_orphan(hash) else { return Ok(()) };
        self.restore(hash, &orphan.references, (room, changes))?;
        self.adopt(hash, room, changes)
    }

    fn restore(
        &mut self,
        hash: u64,
        references: &References,
        (room, changes): (Room, &mut Vec<Change>),
    ) -> Result<(), Full> {
        for level in levels(references) {
            self.hold((hash, level), room, changes)?;
            if let Some(held) = self.blocks.get_mut(hash) {
                held[usize::from(level)] = references[usize::from(level)];
            }
        }
        Ok(())
    }

    fn forget_orphan(&mut self, hash: u64) -> Option<Orphan> {
        let orphan = self.orphans.remove(&hash)?;
        if let Some(siblings) = self.waiting.get_mut(&orphan.parent) {
            siblings.retain(|sibling| *sibling != hash);
            if siblings.is_empty() {
                self.waiting.remove(&orphan.parent);
            }
        }
        Some(orphan)
    }

    /// One reference less.
    pub fn remove(&mut self, (hash, level): (u64, u8), changes: &mut Vec<Change>) {
        let at = usize::from(level);
        if let Some(orphan) = self.orphans.get_mut(&hash) {
            orphan.references[at] = orphan.references[at].saturating_sub(1);
            if levels(&orphan.references).next().is_none() {
                self.forget_orphan(hash);
            }
            return;
        }
        let Some(references) = self.blocks.get_mut(hash).filter(|references| references[at] > 0) else { return };
        references[at] -= 1;
        if references[at] > 0 {
            return;
        }
        if levels(references).next().is_none() {
            self.blocks.of_mut(hash).remove(&hash);
        }
        self.left((hash, level), changes);
    }

    fn left(&mut self, (hash, level): (u64, u8), changes: &mut Vec<Change>) {
        self.entries -= 1;
        let sum = &mut self.sums[usize::from(audit_bucket(hash))];
        (sum.blocks, sum.sum) = (sum.blocks - 1, sum.sum.wrapping_sub(audit_weight(hash, level)));
        changes.push((hash, level, -1));
    }

    /// Empties an audit bucket, orphans included; gives what was held there.
    pub fn drain_bucket(&mut self, bucket: u8, changes: &mut Vec<Change>) -> Vec<(u64, u8)> {
        let orphans: Vec<u64> = self.orphans.keys().copied().filter(|hash| audit_bucket(*hash) == bucket).collect();
        for hash in orphans {
            self.forget_orphan(hash);
        }
        let drained = self.blocks.take_part(bucket.into(), AUDIT_BUCKETS.into());
        let held: Vec<(u64, u8)> = drained
            .flat_map(|(hash, references)| levels(&references).map(|level| (hash, level)).collect::<Vec<_>>())
            .collect();
        held.iter().for_each(|block| self.left(*block, changes));
        held
    }

    /// Empties the store.
    pub fn drain(&mut self, changes: &mut Vec<Change>) {
        let held = std::mem::take(self).blocks;
        let held = held.iter().flat_map(|(hash, references)| levels(references).map(move |level| (hash, level, -1)));
        changes.extend(held);
    }
}

fn reference(count: &mut u8) -> Result<(), Full> {
    *count = count.checked_add(1).ok_or(Full::References)?;
    Ok(())
}
