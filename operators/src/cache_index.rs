//! Which instance holds which block at which level, from the instances' KV events (C4).
//!
//! Invariant: for each instance the set is what its highest incarnation's events, in `seq` order, make of an empty store
//! (`store` has the rules). Rows of a lower incarnation are refused, duplicates change nothing, removing what is not
//! held changes nothing. Rows that come before their predecessors wait for them (`order`), within an epoch and over
//! epochs; for a hole the events are asked for again, and for one that nobody fills, everything the instance holds. A row that jumps
//! over more than `max_jump` events is refused, and everything asked for, lest a forged one hides those that follow. An
//! instance says from time to time what it holds, in sums; a sum that differs is *drift*: the blocks behind it are
//! listed anew. [`CacheHealth`] says how far each instance can be trusted, and why, whenever that changes.
//! An instance whose incarnation has ended (`KvChange::Gone`) leaves with all it held.
//! The incarnation must be known: foreign wires have none, and whoever decodes them has to infer it.
//! Cost: per epoch O(n log n) in its rows, two map accesses per row; a clear, a restart or the listing of a sum costs
//! the blocks of the instance. Output is consolidated: ±1 per `(hash, instance, level)`, nothing for a block that came
//! and went within the epoch.
//! State: 17 bytes per (instance, block) and map slack, at most `max_entries` (hash, level) pairs per worker (at the
//! bound the block is not added, which understates hits, and the instance is approximate), at most `max_orphans` blocks
//! without their parent (the same), at most `max_waiting` rows before a hole (the instance's rows are folded without
//! what is missing), at most `max_instances` instances (the one silent for longest is dropped with its blocks).
mod close;
mod instance;
mod order;
mod report;
mod store;

use differential_dataflow::{AsCollection, VecCollection};
use serde::{Deserialize, Serialize};
use timely::dataflow::{StreamVec, operators::core::OkErr};

pub(crate) use self::close::CacheFold;
pub use self::{
    report::{CacheAudit, CacheCause, CacheHealth, CacheTrust, ReplayRequest, ReplayWant},
    store::{AUDIT_BUCKETS, MAX_REFERENCES, audit_bucket, audit_weight},
};
use crate::{epochs::fold_epochs, refused::Refused, rows::KvRow};

/// A block at a level of an instance: `(hash, instance, level)`.
pub type CacheKey = (u64, u32, u8);

/// Bounds of [`CacheIndex`], per worker.
#[derive(Clone, Copy, Debug)]
pub struct CacheIndexConfig {
    /// (instance, hash, level) entries held. At the bound: the block is not added, its instance is approximate.
    pub max_entries: usize,
    /// Blocks whose parent was never seen. At the bound: the block is left out, its instance is approximate.
    pub max_orphans: usize,
    /// Rows that wait for their predecessors. At the bound: those of the instance that would wait are folded without.
    pub max_waiting: usize,
    /// Instances held; at least 1. At the bound: the one silent for longest is dropped and reported.
    pub max_instances: usize,
    /// Epochs after which a request that was not answered is made again.
    pub ask_again_epochs: u64,
    /// Epochs that rows wait for their predecessors. Then they are folded without.
    pub patience_epochs: u64,
    /// Most events that may be missing before one. Beyond: the row is refused and everything asked for, unless more of them
    /// come in a row.
    pub max_jump: u64,
}

impl Default for CacheIndexConfig {
    fn default() -> Self {
        Self {
            max_entries: 1 << 22,
            max_orphans: 1 << 16,
            max_waiting: 1 << 16,
            max_instances: 4096,
            ask_again_epochs: 10,
            patience_epochs: 30,
            max_jump: 1 << 20,
        }
    }
}

/// What [`CacheIndex::cache_index`] gives.
pub struct CacheIndexes<'scope> {
    /// The set of `(hash, instance, level)`; differences are ±1 and consolidated.
    pub blocks: VecCollection<'scope, u64, CacheKey, isize>,
    /// Health, audits and requests.
    pub reports: StreamVec<'scope, u64, CacheReport>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// What the index says of itself, in one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CacheReport {
    Health(CacheHealth),
    Audit(CacheAudit),
    Replay(ReplayRequest),
}

impl CacheReport {
    /// The dataflow epoch it belongs to.
    pub fn epoch(&self) -> u64 {
        match self {
            Self::Health(health) => health.epoch,
            Self::Audit(audit) => audit.epoch,
            Self::Replay(request) => request.epoch,
        }
    }
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
        let (blocks, reports) = changes.ok_err::<Vec<_>, _, Vec<_>, _, _>(|change| match change {
            CacheChange::Block(key, epoch, diff) => Ok((key, epoch, diff)),
            CacheChange::Report(report) => Err(report),
        });
        CacheIndexes { blocks: blocks.as_collection(), reports, refused }
    }
}

#[derive(Clone)]
pub(crate) enum CacheChange {
    Block(CacheKey, u64, isize),
    Report(CacheReport),
}
