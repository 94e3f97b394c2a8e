//! Order of what waits for a dispatch slot (SPEC A3, first version): weighted fair between tiers by tokens, arrival order
//! inside a tier, and an aging bound.
//!
//! Each tier has a *tag*: the tokens it was served, divided by its weight. The waiting tier with the lowest tag goes next
//! and its tag grows by what it took; a tier that had nothing waiting starts again at the tag now being served, so that it
//! cannot save up. What waited `aging` goes before everything else, oldest first, so nothing starves. Tags are kept as
//! exact integers (tokens × the product of the other tiers' weights).
//!
//! Bounds: `requests_max` and `tokens_max`; at either, [`FairQueue::push`] gives the item back. A request larger than
//! `tokens_max` is taken by an empty queue, so that it can ever run. Time: O(1) to look and pop, O(waiting) to remove.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, require},
    ids::Micros,
    policy::{ThrottleStep, Tier},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierWeights {
    pub high: u32,
    pub medium: u32,
    pub low: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    pub requests_max: usize,
    pub tokens_max: u64,
    pub weights: TierWeights,
    #[serde(with = "humantime_serde")]
    pub wait_max: Duration,
    #[serde(with = "humantime_serde")]
    pub aging: Duration,
}

impl QueueConfig {
    /// Has a queue with this load room for one more entry of `tokens`?
    pub fn has_room(&self, load: QueueLoad, tokens: u64) -> bool {
        let sum = load.tokens.saturating_add(tokens);
        load.requests < self.requests_max && (load.requests == 0 || sum <= self.tokens_max)
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        require(
            (1..=1_000_000).contains(&self.requests_max),
            "policy.queue.requests_max",
            self.requests_max,
            "1 to 1000000",
        )?;
        require(self.tokens_max >= 1, "policy.queue.tokens_max", self.tokens_max, "at least 1")?;
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

/// Names one waiting entry; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Something that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting<T> {
    pub tier: Tier,
    /// Tokens it will hold when dispatched.
    pub tokens: u64,
    /// Arrival; not before the arrival of what was pushed earlier.
    pub since: Micros,
    pub item: T,
}

/// What waits, in requests and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueLoad {
    pub requests: usize,
    pub tokens: u64,
}

#[derive(Debug)]
struct Lane<T> {
    tag: u128,
    /// Tag growth per token.
    pace: u128,
    entries: VecDeque<(Ticket, Waiting<T>)>,
}

/// The queue; a plain data structure without clock or lock.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// High, Medium, Low: ties go to the better tier.
    lanes: [Lane<T>; 3],
    /// Tag of the entry popped last.
    served: u128,
    load: QueueLoad,
    next_ticket: u64,
    config: QueueConfig,
    aging_us: i64,
}

fn lane_of(tier: Tier) -> usize {
    match tier {
        Tier::High => 0,
        Tier::Medium => 1,
        Tier::Low => 2,
    }
}

impl<T> FairQueue<T> {
    /// An empty queue. `config` is valid.
    pub fn new(config: &QueueConfig) -> Self {
        let w = config.weights;
        let pace = |a: u32, b: u32| u128::from(a) * u128::from(b);
        let lane = |pace| Lane { tag: 0, pace, entries: VecDeque::new() };
        Self {
            lanes: [lane(pace(w.medium, w.low)), lane(pace(w.high, w.low)), lane(pace(w.high, w.medium))],
            served: 0,
            load: QueueLoad::default(),
            next_ticket: 0,
            config: config.clone(),
            aging_us: i64::try_from(config.aging.as_micros()).unwrap_or(i64::MAX),
        }
    }

    pub fn load(&self) -> QueueLoad {
        self.load
    }

    /// Puts an entry at its tier's end, or gives it back at a bound.
    pub fn push(&mut self, waiting: Waiting<T>) -> Result<Ticket, Waiting<T>> {
        if !self.config.has_room(self.load, waiting.tokens) {
            return Err(waiting);
        }
        let tokens = self.load.tokens.saturating_add(waiting.tokens);
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let served = self.served;
        let lane = &mut self.lanes[lane_of(waiting.tier)];
        if lane.entries.is_empty() {
            lane.tag = lane.tag.max(served);
        }
        lane.entries.push_back((ticket, waiting));
        self.load = QueueLoad { requests: self.load.requests + 1, tokens };
        Ok(ticket)
    }

    /// The entry that goes next, if anything waits. From step `ShapeBatch` on, Low goes only when nothing else waits or it
    /// has aged.
    pub fn peek(&self, now: Micros, step: ThrottleStep) -> Option<(Ticket, &Waiting<T>)> {
        let lane = self.next_lane(now, step)?;
        self.lanes[lane].entries.front().map(|(ticket, waiting)| (*ticket, waiting))
    }

    /// The heads of the tiers in the order in which they would go: where the first waits for something that the next does
    /// not need, the next may go. A tier that is held back has none.
    pub fn heads(&self, now: Micros, step: ThrottleStep) -> Vec<(Ticket, &Waiting<T>)> {
        let Some(first) = self.next_lane(now, step) else { return Vec::new() };
        let is_low_held = step >= ThrottleStep::ShapeBatch;
        let mut others: Vec<usize> = (0..self.lanes.len()).filter(|lane| *lane != first).collect();
        others.retain(|lane| !(is_low_held && *lane == lane_of(Tier::Low)));
        others.sort_by_key(|lane| (self.lanes[*lane].tag, *lane));
        let order = std::iter::once(first).chain(others);
        order.filter_map(|lane| self.lanes[lane].entries.front().map(|(ticket, head)| (*ticket, head))).collect()
    }

    /// Takes the head of a tier, if it is still there; accounts are as for [`pop`](Self::pop).
    pub fn pop_head(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let is_head = |lane: &Lane<T>| lane.entries.front().is_some_and(|(head, _)| *head == ticket);
        let lane = self.lanes.iter().position(is_head)?;
        self.take_from(lane)
    }

    /// Takes the entry that [`peek`](Self::peek) shows.
    pub fn pop(&mut self, now: Micros, step: ThrottleStep) -> Option<Waiting<T>> {
        let index = self.next_lane(now, step)?;
        self.take_from(index)
    }

    fn take_from(&mut self, index: usize) -> Option<Waiting<T>> {
        let lane = &mut self.lanes[index];
        let (_, waiting) = lane.entries.pop_front()?;
        self.served = self.served.max(lane.tag);
        lane.tag += u128::from(waiting.tokens) * lane.pace;
        self.forget(waiting.tokens);
        Some(waiting)
    }

    /// Takes out an entry wherever it is: its client left, or it waited too long. `None` if it is gone already.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let (lane, index) = self.lanes.iter().enumerate().find_map(|(lane, entries)| {
            entries.entries.binary_search_by_key(&ticket, |(held, _)| *held).ok().map(|index| (lane, index))
        })?;
        let (_, waiting) = self.lanes[lane].entries.remove(index)?;
        self.forget(waiting.tokens);
        Some(waiting)
    }

    fn forget(&mut self, tokens: u64) {
        self.load.requests -= 1;
        self.load.tokens -= tokens;
    }

    fn next_lane(&self, now: Micros, step: ThrottleStep) -> Option<usize> {
        let heads = || {
            self.lanes
                .iter()
                .enumerate()
                .filter_map(|(index, lane)| lane.entries.front().map(|(ticket, head)| (index, lane, *ticket, head)))
        };
        let aged = heads()
            .filter(|(_, _, _, head)| now.saturating_sub(head.since) >= self.aging_us)
            .min_by_key(|(_, _, ticket, _)| *ticket);
        if let Some((index, ..)) = aged {
            return Some(index);
        }
        let is_low_held = step >= ThrottleStep::ShapeBatch && heads().any(|(index, ..)| index != 2);
        heads()
            .filter(|(index, ..)| !(is_low_held && *index == 2))
            .min_by_key(|(index, lane, ..)| (lane.tag, *index))
            .map(|(index, ..)| index)
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
