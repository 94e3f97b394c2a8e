//! Second part of the funnel: what was known of each block of a prompt, and who held it, when the request was decided.
//!
//! Rows meet by block hash. An answer waits `settle_epochs`, so that what happened before the decision and was told after
//! it counts. Which blocks are held is the cache index's word, by epoch; block rows only date it, so that a block is held
//! *from the time* its instance stored it *to the time* it dropped it. What is not dated came always, or went at once.
//!
//! Invariant: an answer is a function of the rows of the epochs up to it, and not of their order. A block was seen if
//! another request asked for it before (by decision time, then id) for the same model, or an instance of the model stored it.
//! Cost: one map access per block row, change or ask; an answer costs the block's holders. No history is kept beyond
//! `settle_epochs`, so cost does not grow with it.
//! State: 48 bytes and map slack per block seen, at most `max_hashes` (at the bound the one not asked for longest is
//! forgotten, which understates the potential); 40 bytes per holder, at most `max_holders` (at the bound a new holder is
//! left out, which understates what is present); the asks of `settle_epochs`.
use std::collections::{BTreeMap, VecDeque};

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};

use super::{
    FunnelConfig,
    gather::Ask,
    rows::{BlockChange, BlockRow},
};
use crate::{
    IntMap,
    cache_index::CacheKey,
    epochs::{Closed, EpochFold},
    refused::{Input, Refusal, Refused},
};

/// The model of an instance that is not known; its blocks count for every model.
pub const ANY_MODEL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum LookupRow {
    Dated(BlockRow),
    /// The cache index's set changed.
    Changed {
        key: CacheKey,
        diff: i64,
    },
    Ask(Ask),
}

impl LookupRow {
    fn hash(&self) -> u64 {
        match self {
            Self::Dated(row) => row.hash,
            Self::Changed { key, .. } => key.0,
            Self::Ask(ask) => ask.hash,
        }
    }
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

/// When a block of a model was first asked for and first stored.
struct Seen {
    asked: Option<(i64, u64)>,
    stored_us: Option<i64>,
    /// Asked for since it was last looked at for forgetting.
    is_fresh: bool,
}

#[derive(Clone, Copy)]
enum Hold {
    /// Said to be stored in this epoch, not in the index yet.
    Pending {
        epoch: u64,
    },
    Held,
    /// Left the index in this epoch; dropped at that time.
    Gone {
        epoch: u64,
        until_us: i64,
    },
}

#[derive(Clone, Copy)]
struct Holder {
    instance: u32,
    level: u8,
    model: u32,
    since_us: i64,
    hold: Hold,
}

impl Holder {
    fn is_live(&self, key: CacheKey) -> bool {
        self.instance == key.1 && self.level == key.2 && !matches!(self.hold, Hold::Gone { .. })
    }

    fn held_at(&self, at_us: i64, model: u32, oldest: u64) -> bool {
        let is_of = self.model == model || self.model == ANY_MODEL;
        let is_until = match self.hold {
            Hold::Pending { .. } => false,
            Hold::Held => true,
            Hold::Gone { epoch, until_us } => epoch >= oldest && at_us < until_us,
        };
        is_of && is_until && self.since_us <= at_us
    }
}

pub(crate) struct LookupFold {
    config: FunnelConfig,
    seen: IntMap<(u64, u32), Seen>,
    /// Keys of `seen`, in the order in which they may be forgotten.
    order: VecDeque<(u64, u32)>,
    holders: IntMap<u64, Vec<Holder>>,
    holder_count: usize,
    /// Hashes whose holders may need sweeping, by epoch.
    sweep: VecDeque<(u64, u64)>,
    /// Asks by the epoch in which they are answered.
    asks: BTreeMap<u64, Vec<Ask>>,
    forgotten: u64,
    left_out: u64,
}

impl LookupFold {
    pub(crate) fn new(config: FunnelConfig) -> Self {
        Self {
            config,
            seen: IntMap::default(),
            order: VecDeque::new(),
            holders: IntMap::default(),
            holder_count: 0,
            sweep: VecDeque::new(),
            asks: BTreeMap::new(),
            forgotten: 0,
            left_out: 0,
        }
    }

    fn seen(&mut self, hash: u64, model: u32) -> &mut Seen {
        let key = (hash, model);
        if !self.seen.contains_key(&key) {
            while self.seen.len() >= self.config.max_hashes.max(1) {
                let Some(oldest) = self.order.pop_front() else { break };
                match self.seen.get_mut(&oldest).filter(|seen| seen.is_fresh) {
                    Some(seen) => {
                        seen.is_fresh = false;
                        self.order.push_back(oldest);
                    }
                    None => {
                        self.seen.remove(&oldest);
                        self.forgotten += 1;
                    }
                }
            }
            self.order.push_back(key);
        }
        self.seen.entry(key).or_insert(Seen { asked: None, stored_us: None, is_fresh: false })
    }

    fn ask(&mut self, ask: &Ask, epoch: u64) {
        let seen = self.seen(ask.hash, ask.model);
        let asked = (ask.at_us, ask.request as u64);
        seen.asked = Some(seen.asked.map_or(asked, |first| first.min(asked)));
        seen.is_fresh = true;
        self.asks.entry(epoch + self.config.settle_epochs).or_default().push(*ask);
    }

    fn stored(&mut self, row: &BlockRow, epoch: u64) {
        let seen = self.seen(row.hash, row.model);
        seen.stored_us = Some(seen.stored_us.map_or(row.at_us, |first| first.min(row.at_us)));
        let pending = Hold::Pending { epoch };
        let holders = self.holders.entry(row.hash).or_default();
        match holders.iter_mut().find(|holder| holder.is_live((row.hash, row.instance, row.level))) {
            Some(holder) => match holder.hold {
                Hold::Pending { epoch: told } if told == epoch => {
                    let earliest = (holder.since_us, holder.model).min((row.at_us, row.model));
                    (holder.since_us, holder.model) = earliest;
                }
                Hold::Pending { .. } => {
                    (holder.since_us, holder.model, holder.hold) = (row.at_us, row.model, pending);
                }
                _ => return,
            },
            None => {
                let (instance, level, model) = (row.instance, row.level, row.model);
                self.hold(row.hash, Holder { instance, level, model, since_us: row.at_us, hold: pending });
            }
        }
        self.sweep.push_back((epoch, row.hash));
    }

    fn hold(&mut self, hash: u64, holder: Holder) {
        if self.holder_count >= self.config.max_holders {
            self.left_out += 1;
            return;
        }
        self.holder_count += 1;
        self.holders.entry(hash).or_default().push(holder);
    }

    /// The index's set gained or lost `key`. `until_us`: when its instance dropped it.
    fn change(&mut self, key: CacheKey, diff: i64, (epoch, until_us): (u64, Option<i64>)) {
        let oldest = epoch.saturating_sub(self.config.settle_epochs);
        let known = self.holders.get_mut(&key.0).and_then(|holders| holders.iter_mut().find(|h| h.is_live(key)));
        match (known, diff > 0) {
            (Some(holder), true) => {
                if let Hold::Pending { epoch: told } = holder.hold
                    && told < oldest
                {
                    (holder.since_us, holder.model) = (i64::MIN, ANY_MODEL);
                }
                holder.hold = Hold::Held;
            }
            (Some(holder), false) => {
                holder.hold = Hold::Gone { epoch, until_us: until_us.unwrap_or(i64::MIN) };
                self.sweep.push_back((epoch, key.0));
            }
            (None, true) => {
                let (hash, instance, level) = key;
                self.hold(hash, Holder { instance, level, model: ANY_MODEL, since_us: i64::MIN, hold: Hold::Held });
            }
            (None, false) => {}
        }
    }

    fn answer(&self, ask: &Ask, oldest: u64) -> Found {
        let mut holders: Vec<(u32, u8)> = Vec::new();
        for holder in self.holders.get(&ask.hash).map_or(&[][..], Vec::as_slice) {
            if holder.held_at(ask.at_us, ask.model, oldest) {
                holders.push((holder.instance, holder.level));
            }
        }
        holders.sort_unstable();
        holders.dedup_by_key(|(instance, _)| *instance);
        let seen = self.seen.get(&(ask.hash, ask.model));
        let stored =
            [seen, self.seen.get(&(ask.hash, ANY_MODEL))].into_iter().flatten().filter_map(|seen| seen.stored_us);
        let is_stored = !holders.is_empty() || stored.min().is_some_and(|at_us| at_us <= ask.at_us);
        let asked = seen.and_then(|seen| seen.asked);
        let is_seen = is_stored || asked.is_some_and(|first| first < (ask.at_us, ask.request as u64));
        let Ask { request, prompt, index, chosen, .. } = *ask;
        Found { request, prompt, index, chosen, is_seen, is_stored, holders }
    }

    /// Drops what was pending or gone for too long to count.
    fn sweep(&mut self, oldest: u64) {
        while let Some((_, hash)) = self.sweep.pop_front_if(|(epoch, _)| *epoch < oldest) {
            let Some(holders) = self.holders.get_mut(&hash) else { continue };
            let before = holders.len();
            holders.retain(|holder| match holder.hold {
                Hold::Held => true,
                Hold::Pending { epoch } | Hold::Gone { epoch, .. } => epoch >= oldest,
            });
            self.holder_count -= before - holders.len();
            if holders.is_empty() {
                self.holders.remove(&hash);
            }
        }
    }

    fn report(&mut self, epoch: u64, refused: &mut Vec<Refused>) {
        let (hashes, holders) = (self.config.max_hashes as u64, self.config.max_holders as u64);
        for (rows, max_entries) in [(&mut self.forgotten, hashes), (&mut self.left_out, holders)] {
            let rows = std::mem::take(rows);
            if rows > 0 {
                let (input, reason) = (Input::Funnel, Refusal::EntriesFull { max_entries });
                refused.push(Refused { epoch, input, instance: None, subject: 0, rows, reason });
            }
        }
    }
}

/// When, by the rows of one epoch, an instance dropped a block: the latest time told.
fn dropped(rows: &[LookupRow]) -> IntMap<CacheKey, i64> {
    let mut dropped = IntMap::default();
    for row in rows {
        if let LookupRow::Dated(row) = row
            && row.change == BlockChange::Removed
        {
            let latest = dropped.entry((row.hash, row.instance, row.level)).or_insert(row.at_us);
            *latest = row.at_us.max(*latest);
        }
    }
    dropped
}

impl EpochFold for LookupFold {
    type Row = LookupRow;
    type Out = Found;
    const NAME: &'static str = "FunnelLookup";

    fn route(row: &LookupRow) -> u64 {
        row.hash().hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<LookupRow>, closed: &mut Closed<Found>) {
        rows.retain(|row| {
            let LookupRow::Dated(row) = row else { return true };
            let checked = row.check();
            closed.refused.extend(checked.err().map(|reason| Refused {
                epoch,
                input: Input::Funnel,
                instance: Some(row.instance),
                subject: row.hash,
                rows: 1,
                reason,
            }));
            checked.is_ok()
        });
        // Dates, then changes of the index, then asks; within each the order does not matter.
        for row in rows.iter() {
            if let LookupRow::Dated(row) = row
                && row.change == BlockChange::Stored
            {
                self.stored(row, epoch);
            }
        }
        let dropped = dropped(rows);
        for row in rows.iter() {
            if let LookupRow::Changed { key, diff } = row {
                self.change(*key, *diff, (epoch, dropped.get(key).copied()));
            }
        }
        for row in rows.iter() {
            if let LookupRow::Ask(ask) = row {
                self.ask(ask, epoch);
            }
        }
        let oldest = epoch.saturating_sub(self.config.settle_epochs);
        while let Some(due) = self.asks.first_entry().filter(|entry| *entry.key() <= epoch) {
            let asks = due.remove();
            closed.out.extend(asks.iter().map(|ask| self.answer(ask, oldest)));
        }
        self.sweep(oldest);
        self.report(epoch, &mut closed.refused);
    }

    fn wake_at(&self) -> Option<u64> {
        self.asks.keys().next().copied()
    }
}
