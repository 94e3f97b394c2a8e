//! Second part of the funnel: what was known of each block of a prompt, and who held it, when the request was decided.
//!
//! Rows meet by block hash. An answer waits `settle_epochs`, so that what happened before the decision and was told after
//! it counts. Which blocks are held is the cache index's word, by epoch; block rows only date it (`holders`). The model of
//! a block is that of its instance, of which every worker is told.
//!
//! Invariant: an answer is a function of the rows of the epochs up to it, and not of their order. A block was seen if
//! another request asked for it before (by decision time, then id) for the same model, or an instance of the model stored it.
//! Cost: one map access per block row, change or ask; an answer costs the block's holders. No history is kept beyond
//! twice `settle_epochs`, so cost does not grow with it.
//! State: that of `seen` (blocks seen) and of `holders` (recent changes); the asks of `settle_epochs`; the model of at most
//! [`MAX_INSTANCES`] instances, beyond which an instance's model is not known.
use std::collections::BTreeMap;

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};

use super::{
    BlocksHeld, FunnelConfig,
    gather::Ask,
    holders::Holders,
    rows::{BlockChange, BlockRow, ServesRow},
    seen::SeenBlocks,
};
use crate::{
    IntMap,
    cache_index::CacheKey,
    epochs::{Closed, EpochFold},
    refused::{Input, Refusal, Refused},
};

/// The model of an instance that is not known; its blocks count for every model.
pub const ANY_MODEL: u32 = u32::MAX;
/// Instances whose model is remembered.
pub const MAX_INSTANCES: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum LookupRow {
    /// For one of the workers.
    Serves {
        worker: u64,
        row: ServesRow,
    },
    Dated(BlockRow),
    /// The cache index's set changed.
    Changed {
        key: CacheKey,
        diff: i64,
    },
    Ask(Ask),
}

/// The answer for one block.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Found {
    pub request: u128,
    pub prompt: u16,
    pub index: u32,
    pub chosen: Option<u32>,
    /// Asked for or stored before.
    pub is_seen: bool,
    /// Stored before, somewhere.
    pub is_stored: bool,
    /// Instances that held it and the fastest level each had it at, by instance.
    pub holders: Vec<(u32, u8)>,
}

pub(crate) struct LookupFold {
    config: FunnelConfig,
    seen: SeenBlocks,
    holders: Holders,
    /// When each instance was last told to serve a model, and which.
    models: IntMap<u32, (i64, u32)>,
    /// Asks by the epoch in which they are answered.
    asks: BTreeMap<u64, Vec<Ask>>,
    /// When, by the rows of the epoch, an instance dropped a block: the latest time told.
    dropped: IntMap<CacheKey, i64>,
    scratch: Vec<u32>,
}

impl LookupFold {
    pub(crate) fn new(config: FunnelConfig, held: BlocksHeld) -> Self {
        Self {
            config,
            seen: SeenBlocks::new(config.max_hashes),
            holders: Holders::new(config, held),
            models: IntMap::default(),
            asks: BTreeMap::new(),
            dropped: IntMap::default(),
            scratch: Vec::new(),
        }
    }

    /// Of what was told of an instance, the latest counts.
    fn serves(&mut self, row: &ServesRow) {
        let told = (row.at_us, row.model);
        if self.models.len() < MAX_INSTANCES || self.models.contains_key(&row.instance) {
            self.models.entry(row.instance).and_modify(|known| *known = told.max(*known)).or_insert(told);
        }
    }

    fn model(&self, instance: u32) -> u32 {
        self.models.get(&instance).map_or(ANY_MODEL, |(_, model)| *model)
    }

    fn dated(&mut self, row: &BlockRow, epoch: u64) {
        match row.change {
            BlockChange::Stored => {
                let model = self.model(row.instance);
                self.seen.stored((row.hash, model), row.at_us);
                self.holders.stored(row, epoch);
            }
            BlockChange::Removed => {
                let latest = self.dropped.entry((row.hash, row.instance, row.level)).or_insert(row.at_us);
                *latest = row.at_us.max(*latest);
            }
        }
    }

    fn ask(&mut self, ask: &Ask, epoch: u64) {
        self.seen.asked((ask.hash, ask.model), (ask.at_us, ask.request as u64));
        self.asks.entry(epoch + self.config.settle_epochs).or_default().push(*ask);
    }

    fn answer(&mut self, ask: &Ask, epoch: u64) -> Found {
        let mut holders = Vec::new();
        self.holders.at((ask.hash, ask.at_us), epoch, (&mut holders, &mut self.scratch));
        holders.retain(|(instance, _)| [ask.model, ANY_MODEL].contains(&self.model(*instance)));
        holders.sort_unstable();
        holders.dedup_by_key(|(instance, _)| *instance);
        let was_stored = |model| self.seen.was_stored_by((ask.hash, model), ask.at_us);
        let is_stored = !holders.is_empty() || was_stored(ask.model) || was_stored(ANY_MODEL);
        let by = (ask.at_us, ask.request as u64);
        let is_seen = is_stored || self.seen.was_asked_before((ask.hash, ask.model), by);
        let Ask { request, prompt, index, chosen, .. } = *ask;
        Found { request, prompt, index, chosen, is_seen, is_stored, holders }
    }

    fn report(&mut self, epoch: u64, refused: &mut Vec<Refused>) {
        let (hashes, holders) = (self.config.max_hashes as u64, self.config.max_holders as u64);
        let (forgotten, left_out) = (self.seen.take_forgotten(), self.holders.take_left_out());
        for (rows, max_entries) in [(forgotten, hashes), (left_out, holders)] {
            if rows > 0 {
                let (input, reason) = (Input::Funnel, Refusal::EntriesFull { max_entries });
                refused.push(Refused { epoch, input, instance: None, subject: 0, rows, reason });
            }
        }
    }
}

fn refusal(epoch: u64, row: &LookupRow) -> Option<Refused> {
    let (instance, subject, reason) = match row {
        LookupRow::Dated(row) => (row.instance, row.hash, row.check().err()?),
        // Each worker has it; the first one says so.
        LookupRow::Serves { worker: 0, row } => (row.instance, row.model.into(), row.check().err()?),
        _ => return None,
    };
    Some(Refused { epoch, input: Input::Funnel, instance: Some(instance), subject, rows: 1, reason })
}

impl EpochFold for LookupFold {
    type Row = LookupRow;
    type Out = Found;
    const NAME: &'static str = "FunnelLookup";

    fn route(row: &LookupRow) -> u64 {
        match row {
            LookupRow::Serves { worker, .. } => *worker,
            LookupRow::Dated(row) => row.hash.hashed(),
            LookupRow::Changed { key, .. } => key.0.hashed(),
            LookupRow::Ask(ask) => ask.hash.hashed(),
        }
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<LookupRow>, closed: &mut Closed<Found>) {
        closed.refused.extend(rows.iter().filter_map(|row| refusal(epoch, row)));
        // Models, then dates, then changes of the index, then asks; within each the order does not matter.
        for row in rows.iter() {
            if let LookupRow::Serves { row, .. } = row
                && row.check().is_ok()
            {
                self.serves(row);
            }
        }
        for row in rows.iter() {
            if let LookupRow::Dated(row) = row
                && row.check().is_ok()
            {
                self.dated(row, epoch);
            }
        }
        for row in rows.iter() {
            if let LookupRow::Changed { key, diff } = row {
                self.holders.change(*key, *diff, (epoch, self.dropped.get(key).copied()));
            }
        }
        self.dropped.clear();
        self.holders.changed(epoch);
        for row in rows.iter() {
            if let LookupRow::Ask(ask) = row {
                self.ask(ask, epoch);
            }
        }
        while let Some(due) = self.asks.first_entry().filter(|entry| *entry.key() <= epoch) {
            let asks = due.remove();
            closed.out.extend(asks.iter().map(|ask| self.answer(ask, epoch)));
        }
        self.holders.sweep(epoch);
        self.report(epoch, &mut closed.refused);
    }

    fn wake_at(&self) -> Option<u64> {
        self.asks.keys().next().copied()
    }
}
