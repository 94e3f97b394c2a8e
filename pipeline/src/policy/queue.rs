//! Order of what waits for a dispatch slot (SPEC A3, A4 d): weighted fair between tiers and, inside a tier, even between
//! tenants, both by tokens; the least slack first inside a tenant; an aging bound.
//!
//! Each tier has a *tag*: the tokens it was served, divided by its weight. The waiting tier with the lowest tag goes next and
//! its tag grows by what it took; a tier that had nothing waiting starts again at the lowest tag that waits, so that it cannot
//! save up. Tags are exact integers (tokens × the product of the other tiers' weights). Tenants: see `lane`.
//!
//! What waited `aging` goes before everything else, oldest first, as one grant in [`AGED_EVERY`] at most: so nothing starves,
//! and a queue in which all have waited that long is still shared by weight. An entry whose latest start has passed can no
//! longer make its deadline: it goes when nothing that can waits, oldest first; those that are not worth a start beside others, which
//! wait for an instance to be idle, after the rest, so that they hold up nobody, the newest first: it has the most time left.
//!
//! Bounds: `requests_max`, `tokens_max` and `bytes_max`; at any, [`FairQueue::push`] gives the item back. A request larger
//! than `tokens_max` or `bytes_max` is taken by an empty queue, so that it can ever run. Time: O(log n) each; looking at
//! heads costs that times [`HEADS_MAX`]. An entry becomes late once per latest start it is given, and not worth a start
//! once more.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use self::lane::Lane;
use crate::{
    config::{ConfigError, require},
    ids::{Micros, Name, micros},
    policy::{ThrottleStep, Tier},
};

mod lane;
mod profile;

pub use lane::IDLE_MAX;
pub use profile::{Ahead, QueueProfile, QueueStep, STEPS};

/// One grant in this many goes to what waited longest.
pub const AGED_EVERY: u32 = 4;
/// Most heads that are shown at once.
pub const HEADS_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierWeights {
    pub high: u32,
    pub medium: u32,
    pub low: u32,
}

/// As a number: the words of a size are rounded.
fn exact_bytes<S: serde::Serializer>(size: &ByteSize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(size.as_u64())
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    pub requests_max: usize,
    pub tokens_max: u64,
    #[serde(serialize_with = "exact_bytes")]
    pub bytes_max: ByteSize,
    pub weights: TierWeights,
    #[serde(with = "humantime_serde")]
    pub wait_max: Duration,
    #[serde(with = "humantime_serde")]
    pub aging: Duration,
}

impl QueueConfig {
    /// What came then has waited long enough to go before others.
    pub fn has_aged(&self, since: Micros, now: Micros) -> bool {
        now.saturating_sub(since) >= micros(self.aging)
    }

    /// Has a queue with this load room for one more entry of this size?
    pub fn has_room(&self, load: QueueLoad, size: EntrySize) -> bool {
        let after = load.with(size);
        let fits = after.tokens <= self.tokens_max && after.bytes <= self.bytes_max.as_u64();
        load.requests < self.requests_max && (load.requests == 0 || fits)
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        require(
            (1..=1_000_000).contains(&self.requests_max),
            "policy.queue.requests_max",
            self.requests_max,
            "1 to 1000000",
        )?;
        require(self.tokens_max >= 1, "policy.queue.tokens_max", self.tokens_max, "at least 1")?;
        require(self.bytes_max.as_u64() >= 1, "policy.queue.bytes_max", self.bytes_max, "at least 1B")?;
        let w = self.weights;
        let weights = format!("{{ high = {}, medium = {}, low = {} }}", w.high, w.medium, w.low);
        require(
            [w.high, w.medium, w.low].iter().all(|weight| (1..=1000).contains(weight)),
            "policy.queue.weights",
            &weights,
            "weights from 1 to 1000: no tier may starve",
        )?;
        require(w.high >= w.medium && w.medium >= w.low, "policy.queue.weights", &weights, "high >= medium >= low")?;
        let wait_max = format!("{:?}", self.wait_max);
        require(!self.wait_max.is_zero(), "policy.queue.wait_max", wait_max, "more than 0")?;
        require(
            self.aging <= self.wait_max,
            "policy.queue.aging",
            format!("{:?}", self.aging),
            "at most policy.queue.wait_max",
        )
    }
}

/// Names one waiting entry, in the order of arrival; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What an entry takes of the queue's room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntrySize {
    /// Tokens it will hold when dispatched.
    pub tokens: u64,
    /// Memory it holds while it waits.
    pub bytes: u64,
}

/// Something that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting<T> {
    pub tier: Tier,
    pub tenant: Name,
    pub size: EntrySize,
    /// Arrival; not before the arrival of what was pushed earlier.
    pub since: Micros,
    pub starts: Starts,
    pub item: T,
}

/// By when something must start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Starts {
    /// Latest start with which it can make its deadline; `None`: it has none, or nothing is predicted.
    pub start_by: Option<Micros>,
    /// Latest start that is worth it beside others, not before `start_by`; `None`: any is.
    pub worth_by: Option<Micros>,
    /// Latest start that is worth it where nothing runs; `None`: any is. The order does not mind it.
    pub alone_by: Option<Micros>,
    /// The same as `start_by` for its engine, whatever chance makes a start worth it here; `None`: as `start_by`.
    pub engine_by: Option<Micros>,
}

impl<T> Waiting<T> {
    fn slack(&self, ticket: Ticket) -> lane::Slack {
        (self.starts.start_by.unwrap_or(Micros::MAX), ticket)
    }
}

/// What waits, in requests, tokens and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueLoad {
    pub requests: usize,
    pub tokens: u64,
    pub bytes: u64,
}

impl QueueLoad {
    /// With one more entry.
    pub fn with(self, size: EntrySize) -> Self {
        Self {
            requests: self.requests.saturating_add(1),
            tokens: self.tokens.saturating_add(size.tokens),
            bytes: self.bytes.saturating_add(size.bytes),
        }
    }

    fn without(self, size: EntrySize) -> Self {
        Self { requests: self.requests - 1, tokens: self.tokens - size.tokens, bytes: self.bytes - size.bytes }
    }
}

/// The queue; a plain data structure without clock or lock.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// High, Medium, Low: ties go to the better tier. They hold those that are not late.
    lanes: [Lane; 3],
    entries: BTreeMap<Ticket, Waiting<T>>,
    /// Those that are not late, oldest first, and by latest start.
    punctual: BTreeSet<Ticket>,
    starts: BTreeSet<lane::Slack>,
    late: BTreeSet<Ticket>,
    /// Those of `late` that will not be worth a start, by when, and those that are not.
    worths: BTreeSet<lane::Slack>,
    hopeless: BTreeSet<Ticket>,
    /// Lowest tag of a tier that waited, as of the last service.
    floor: u128,
    /// Grants since one went to what waited longest.
    since_aged: u32,
    load: QueueLoad,
    next_ticket: u64,
    config: QueueConfig,
}

fn lane_of(tier: Tier) -> usize {
    usize::from(tier.number())
}

impl<T> FairQueue<T> {
    /// An empty queue. `config` is valid.
    pub fn new(config: &QueueConfig) -> Self {
        let w = config.weights;
        let pace = |a: u32, b: u32| u128::from(a) * u128::from(b);
        Self {
            lanes: [pace(w.medium, w.low), pace(w.high, w.low), pace(w.high, w.medium)].map(Lane::new),
            entries: BTreeMap::new(),
            punctual: BTreeSet::new(),
            starts: BTreeSet::new(),
            late: BTreeSet::new(),
            worths: BTreeSet::new(),
            hopeless: BTreeSet::new(),
            floor: 0,
            since_aged: AGED_EVERY,
            load: QueueLoad::default(),
            next_ticket: 0,
            config: config.clone(),
        }
    }

    pub fn load(&self) -> QueueLoad {
        self.load
    }

    /// Puts an entry in, or gives it back at a bound.
    pub fn push(&mut self, waiting: Waiting<T>) -> Result<Ticket, Waiting<T>> {
        if !self.config.has_room(self.load, waiting.size) {
            return Err(waiting);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.load = self.load.with(waiting.size);
        self.entries.insert(ticket, waiting);
        self.enter(ticket);
        Ok(ticket)
    }

    /// Changes the latest starts of an entry that still waits.
    pub fn retime(&mut self, ticket: Ticket, starts: Starts) {
        if self.entries.get(&ticket).is_none_or(|waiting| waiting.starts == starts) {
            return;
        }
        self.leave(ticket);
        if let Some(waiting) = self.entries.get_mut(&ticket) {
            waiting.starts = starts;
        }
        self.enter(ticket);
    }

    /// The entry that goes next, if anything waits. From step `ShapeBatch` on, Low goes only when nothing else waits or it
    /// has aged.
    pub fn peek(&mut self, now: Micros, step: ThrottleStep) -> Option<(Ticket, &Waiting<T>)> {
        let ticket = self.heads(now, step).first().map(|(ticket, _)| *ticket)?;
        self.entries.get(&ticket).map(|waiting| (ticket, waiting))
    }

    /// What would go next, in order: where the first waits for something that the next does not need, the next may go. One
    /// entry a tenant and tier, and at the end what is late and what is not worth a start. A tier that is held back has none.
    pub fn heads(&mut self, now: Micros, step: ThrottleStep) -> Vec<(Ticket, &Waiting<T>)> {
        self.settle(now);
        let aged =
            self.punctual.first().filter(|ticket| self.since_aged + 1 >= AGED_EVERY && self.is_aged(**ticket, now));
        let is_low_held = step >= ThrottleStep::ShapeBatch && self.lanes[..2].iter().any(|lane| !lane.is_empty());
        let open = if is_low_held { &self.lanes[..2] } else { &self.lanes[..] };
        let mut order: Vec<&Lane> = open.iter().filter(|lane| !lane.is_empty()).collect();
        order.sort_by_key(|lane| lane.tag);
        let by_weight = order.into_iter().flat_map(Lane::heads).filter(|ticket| Some(ticket) != aged);
        let heads = aged.copied().into_iter().chain(by_weight);
        let heads = heads.chain(self.late.first().copied()).chain(self.hopeless.last().copied());
        heads.take(HEADS_MAX).filter_map(|ticket| Some((ticket, self.entries.get(&ticket)?))).collect()
    }

    /// Takes an entry that goes now; it is charged to its tier and tenant. `None` if it is gone already.
    pub fn pop_head(&mut self, ticket: Ticket, now: Micros) -> Option<Waiting<T>> {
        let waiting = self.entries.get(&ticket)?;
        let is_by_age = self.punctual.first() == Some(&ticket) && self.is_aged(ticket, now);
        self.since_aged = if is_by_age { 0 } else { self.since_aged.saturating_add(1) };
        let waited = self.lanes.iter().filter(|lane| !lane.is_empty()).map(|lane| lane.tag).min();
        self.floor = self.floor.max(waited.unwrap_or(0));
        let lane = &mut self.lanes[lane_of(waiting.tier)];
        lane.tag = lane.tag.max(self.floor) + u128::from(waiting.size.tokens) * lane.pace;
        lane.charge(&waiting.tenant, waiting.size.tokens);
        self.remove(ticket)
    }

    /// Takes the entry that [`peek`](Self::peek) shows.
    pub fn pop(&mut self, now: Micros, step: ThrottleStep) -> Option<Waiting<T>> {
        let ticket = self.peek(now, step).map(|(ticket, _)| ticket)?;
        self.pop_head(ticket, now)
    }

    /// Takes out an entry without charging anybody: its client left, or it was refused. `None` if it is gone already.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        self.leave(ticket);
        let waiting = self.entries.remove(&ticket)?;
        self.load = self.load.without(waiting.size);
        Some(waiting)
    }

    fn is_aged(&self, ticket: Ticket, now: Micros) -> bool {
        self.entries.get(&ticket).is_some_and(|waiting| self.config.has_aged(waiting.since, now))
    }

    /// Entries whose latest start has passed become late, and later not worth a start.
    fn settle(&mut self, now: Micros) {
        while let Some((_, ticket)) = self.starts.first().copied().filter(|(start_by, _)| *start_by < now) {
            self.leave(ticket);
            self.late.insert(ticket);
            if let Some(worth_by) = self.entries.get(&ticket).and_then(|waiting| waiting.starts.worth_by) {
                self.worths.insert((worth_by, ticket));
            }
        }
        while let Some((_, ticket)) = self.worths.first().copied().filter(|(worth_by, _)| *worth_by < now) {
            self.worths.pop_first();
            self.late.remove(&ticket);
            self.hopeless.insert(ticket);
        }
    }

    fn enter(&mut self, ticket: Ticket) {
        let Some(waiting) = self.entries.get(&ticket) else { return };
        let (slack, lane) = (waiting.slack(ticket), &mut self.lanes[lane_of(waiting.tier)]);
        if lane.is_empty() {
            lane.tag = lane.tag.max(self.floor);
        }
        lane.insert(&waiting.tenant, slack);
        self.punctual.insert(ticket);
        if waiting.starts.start_by.is_some() {
            self.starts.insert(slack);
        }
    }

    fn leave(&mut self, ticket: Ticket) {
        let Some(waiting) = self.entries.get(&ticket) else { return };
        if self.hopeless.remove(&ticket) {
            return;
        }
        if self.late.remove(&ticket) {
            waiting.starts.worth_by.map(|worth_by| self.worths.remove(&(worth_by, ticket)));
            return;
        }
        let slack = waiting.slack(ticket);
        self.lanes[lane_of(waiting.tier)].remove(&waiting.tenant, slack);
        self.punctual.remove(&ticket);
        self.starts.remove(&slack);
    }
}

#[cfg(test)]
mod tests;
