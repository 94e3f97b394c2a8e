//! Which instance holds which block at which level, from the instances' KV events (C4).
//!
//! Invariant: for each instance the set is what its highest incarnation's events, in `seq` order, make of an empty
//! store. Rows of a lower incarnation are refused, duplicates change nothing, removing what is not held changes nothing.
//! A gap in `seq` is reported and marks the instance degraded until `Cleared` or a restart makes its content known again.
//! Within an epoch rows may come in any order; a row that comes in a later epoch than its successor is a gap, then a
//! duplicate.
//! Cost: per epoch O(n log n) in its rows, one map access per row; a clear or restart costs the blocks it drops.
//! Output is consolidated: ±1 per `(hash, instance, level)`, nothing for a block that came and went within the epoch.
//! State: 16 bytes per (instance, block) and map slack, at most `max_entries` (hash, level) pairs per worker (at the
//! bound the block is not added, which understates hits, and the instance is degraded), at most `max_instances`
//! instances (at the bound the one silent for longest is dropped with its blocks).
use std::collections::BTreeMap;

use differential_dataflow::{AsCollection, Hashable, VecCollection, consolidation::consolidate};
use serde::{Deserialize, Serialize};
use timely::dataflow::{StreamVec, operators::core::OkErr};

use crate::{
    IntMap,
    epochs::{Closed, EpochFold, fold_epochs},
    refused::{Input, Refusal, Refused},
    rows::{KvChange, KvRow},
};

/// A block at a level of an instance: `(hash, instance, level)`.
pub type CacheKey = (u64, u32, u8);

/// Bounds of [`CacheIndex`], per worker.
#[derive(Clone, Copy, Debug)]
pub struct CacheIndexConfig {
    /// (instance, hash, level) entries held. At the bound: the block is not added, its instance is degraded.
    pub max_entries: usize,
    /// Instances held; at least 1. At the bound: the one silent for longest is dropped and reported.
    pub max_instances: usize,
}

impl Default for CacheIndexConfig {
    fn default() -> Self {
        Self { max_entries: 1 << 22, max_instances: 4096 }
    }
}

/// How far an instance's part of the index can be trusted; one row whenever that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CacheHealth {
    pub epoch: u64,
    pub instance: u32,
    pub incarnation: u64,
    pub trust: CacheTrust,
}

/// See [`CacheHealth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CacheTrust {
    /// Every event of the incarnation was folded, or all since the last clear.
    Exact,
    /// Events were lost or did not fit: blocks may be missing or stale.
    Degraded,
    /// The instance was dropped from the index.
    Dropped,
}

/// What [`CacheIndex::cache_index`] gives.
pub struct CacheIndexes<'scope> {
    /// The set of `(hash, instance, level)`; differences are ±1 and consolidated.
    pub blocks: VecCollection<'scope, u64, CacheKey, isize>,
    pub health: StreamVec<'scope, u64, CacheHealth>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Keeps the global cache view.
///
/// ```
/// use operators::{CacheIndex, CacheIndexConfig, KvChange, KvRow};
/// use timely::dataflow::operators::{Capture, ToStream, capture::Extract};
///
/// let row = |epoch, seq, event| KvRow { instance: 4, epoch, seq, event };
/// let stored = |hash| KvChange::Stored { hash, parent: None, level: 1, tokens: 16 };
/// // The worker restarts: what its first incarnation held is gone.
/// let rows = vec![row(1, 1, stored(100)), row(1, 2, stored(101)), row(2, 1, stored(102))];
/// let blocks = timely::example(|scope| {
///     rows.to_stream(scope).container::<Vec<_>>().cache_index(CacheIndexConfig::default()).blocks.inner.capture()
/// });
/// assert_eq!(blocks.extract(), vec![(0, vec![((102, 4, 1), 0, 1)])]);
/// ```
pub trait CacheIndex<'scope> {
    /// Folds KV rows, exchanged by instance, into the set of blocks held.
    fn cache_index(self, config: CacheIndexConfig) -> CacheIndexes<'scope>;
}

impl<'scope> CacheIndex<'scope> for StreamVec<'scope, u64, KvRow> {
    fn cache_index(self, config: CacheIndexConfig) -> CacheIndexes<'scope> {
        let (changes, refused) = fold_epochs(self, CacheFold::new(config));
        let (blocks, health) = changes.ok_err::<Vec<_>, _, Vec<_>, _, _>(|change| match change {
            CacheChange::Block(key, epoch, diff) => Ok((key, epoch, diff)),
            CacheChange::Health(health) => Err(health),
        });
        CacheIndexes { blocks: blocks.as_collection(), health, refused }
    }
}

#[derive(Clone)]
pub(crate) enum CacheChange {
    Block(CacheKey, u64, isize),
    Health(CacheHealth),
}

struct Instance {
    incarnation: u64,
    next_seq: u64,
    trust: CacheTrust,
    /// The last epoch in which a row of this instance came.
    heard: u64,
    /// Block hash to the levels that hold it, one bit a level.
    blocks: IntMap<u64, u8>,
}

impl Instance {
    fn new(incarnation: u64, epoch: u64) -> Self {
        Self { incarnation, next_seq: 1, trust: CacheTrust::Exact, heard: epoch, blocks: IntMap::default() }
    }
}

pub(crate) struct CacheFold {
    config: CacheIndexConfig,
    instances: BTreeMap<u32, Instance>,
    entries: usize,
    changes: Vec<(CacheKey, isize)>,
}

impl CacheFold {
    pub(crate) fn new(config: CacheIndexConfig) -> Self {
        Self { config, instances: BTreeMap::new(), entries: 0, changes: Vec::new() }
    }

    /// Empties an instance's store.
    fn clear(&mut self, id: u32, state: &mut Instance) {
        for (hash, levels) in state.blocks.drain() {
            self.entries -= levels.count_ones() as usize;
            let held = (0..8).filter(|level| levels & (1 << level) != 0);
            self.changes.extend(held.map(|level| ((hash, id, level), -1)));
        }
        state.blocks.shrink_to_fit();
    }

    /// Makes room for one more instance; those heard from in this very epoch are dropped last.
    fn drop_silent(&mut self, epoch: u64, closed: &mut Closed<CacheChange>) {
        let max_instances = self.config.max_instances.max(1);
        while self.instances.len() >= max_instances {
            let silent = self.instances.iter().min_by_key(|(id, state)| (state.heard, **id)).map(|(id, _)| *id);
            let Some(id) = silent else { return };
            let Some(mut state) = self.instances.remove(&id) else { return };
            let dropped = state.blocks.values().map(|levels| u64::from(levels.count_ones())).sum::<u64>();
            self.clear(id, &mut state);
            closed.out.push(CacheChange::Health(CacheHealth {
                epoch,
                instance: id,
                incarnation: state.incarnation,
                trust: CacheTrust::Dropped,
            }));
            closed.refused.push(Refused {
                epoch,
                input: Input::Kv,
                instance: Some(id),
                subject: 0,
                rows: dropped.max(1),
                reason: Refusal::InstancesFull { max_instances: max_instances as u64 },
            });
        }
    }

    /// Adds a block, unless it does not fit.
    fn store(&mut self, key: CacheKey, state: &mut Instance) -> Result<(), Refusal> {
        let (hash, _, level) = key;
        let held = state.blocks.get(&hash).copied().unwrap_or(0);
        if held & (1 << level) != 0 {
            return Ok(());
        }
        if self.entries >= self.config.max_entries {
            return Err(Refusal::EntriesFull { max_entries: self.config.max_entries as u64 });
        }
        self.entries += 1;
        state.blocks.insert(hash, held | (1 << level));
        self.changes.push((key, 1));
        Ok(())
    }

    fn remove(&mut self, key: CacheKey, state: &mut Instance) {
        let (hash, _, level) = key;
        let Some(held) = state.blocks.get_mut(&hash).filter(|held| **held & (1 << level) != 0) else { return };
        *held &= !(1 << level);
        if *held == 0 {
            state.blocks.remove(&hash);
        }
        self.entries -= 1;
        self.changes.push((key, -1));
    }

    /// One row of the instance's current incarnation, in `seq` order.
    fn fold_row(&mut self, row: &KvRow, state: &mut Instance, mut refuse: impl FnMut(u64, Refusal)) {
        if row.seq < state.next_seq {
            return;
        }
        if row.seq > state.next_seq {
            let expected = state.next_seq;
            refuse(row.seq, Refusal::SequenceGap { incarnation: state.incarnation, expected, got: row.seq });
            state.trust = CacheTrust::Degraded;
        }
        state.next_seq = row.seq + 1;
        match row.event {
            KvChange::Stored { hash, level, .. } => {
                if let Err(full) = self.store((hash, row.instance, level), state) {
                    refuse(hash, full);
                    state.trust = CacheTrust::Degraded;
                }
            }
            KvChange::Hit { .. } => {}
            KvChange::Removed { hash, level } => self.remove((hash, row.instance, level), state),
            KvChange::Cleared => {
                self.clear(row.instance, state);
                state.trust = CacheTrust::Exact;
            }
        }
    }

    /// All rows of one instance in one epoch, sorted by incarnation and `seq`; each has passed its check.
    fn fold_instance(&mut self, epoch: u64, rows: &[KvRow], closed: &mut Closed<CacheChange>) {
        let instance = rows[0].instance;
        let before = self.instances.remove(&instance);
        if before.is_none() {
            self.drop_silent(epoch, closed);
        }
        let known = before.as_ref().map(|state| (state.incarnation, state.trust));
        let mut state = before.unwrap_or_else(|| Instance::new(rows[0].epoch, epoch));
        state.heard = epoch;
        let refused = |subject, rows, reason| Refused {
            epoch,
            input: Input::Kv,
            instance: Some(instance),
            subject,
            rows,
            reason,
        };
        for group in rows.chunk_by(|a, b| a.epoch == b.epoch) {
            let got = group[0].epoch;
            if got < state.incarnation {
                let reason = Refusal::StaleIncarnation { current: state.incarnation, got };
                closed.refused.push(refused(0, group.len() as u64, reason));
                continue;
            }
            if got > state.incarnation {
                self.clear(instance, &mut state);
                state = Instance::new(got, epoch);
            }
            for row in group {
                self.fold_row(row, &mut state, |subject, reason| closed.refused.push(refused(subject, 1, reason)));
            }
        }
        if known != Some((state.incarnation, state.trust)) {
            let (incarnation, trust) = (state.incarnation, state.trust);
            closed.out.push(CacheChange::Health(CacheHealth { epoch, instance, incarnation, trust }));
        }
        self.instances.insert(instance, state);
    }
}

impl EpochFold for CacheFold {
    type Row = KvRow;
    type Out = CacheChange;
    const NAME: &'static str = "CacheIndex";

    fn route(row: &KvRow) -> u64 {
        row.instance.hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<KvRow>, closed: &mut Closed<CacheChange>) {
        rows.retain(|row| {
            let checked = row.check();
            if let Err(reason) = checked {
                let instance = Some(row.instance);
                closed.refused.push(Refused { epoch, input: Input::Kv, instance, subject: row.seq, rows: 1, reason });
            }
            checked.is_ok()
        });
        rows.sort_unstable();
        for group in rows.chunk_by(|a, b| a.instance == b.instance) {
            self.fold_instance(epoch, group, closed);
        }
        consolidate(&mut self.changes);
        closed.out.extend(self.changes.drain(..).map(|(key, diff)| CacheChange::Block(key, epoch, diff)));
    }
}
