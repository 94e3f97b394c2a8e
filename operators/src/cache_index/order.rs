//! The order of one instance's events: what comes too early waits, what comes again is let go.
//!
//! Invariant: events are handed out in `seq` order, each once; over a hole only by `Cleared` (nothing before it matters)
//! or by giving up, which is told. Cost: one map access per event that waits. State: the events that wait; their number
//! is bounded by the caller.
use std::collections::BTreeMap;

use crate::rows::KvChange;

/// See the module.
pub(super) struct Order {
    next_seq: u64,
    waiting: BTreeMap<u64, KvChange>,
    /// The first missing event and the epoch in which it was first missed.
    hole: Option<(u64, u64)>,
}

/// What to do with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is the next: fold it, then [`Order::next`] until there is none.
    Now,
    /// It came before, or waits already.
    Known,
    /// It comes too early.
    Early,
}

impl Default for Order {
    fn default() -> Self {
        Self { next_seq: 1, waiting: BTreeMap::new(), hole: None }
    }
}

impl Order {
    pub fn turn(&mut self, seq: u64, event: &KvChange) -> Turn {
        if seq < self.next_seq || self.waiting.contains_key(&seq) {
            return Turn::Known;
        }
        if seq > self.next_seq && *event != KvChange::Cleared {
            return Turn::Early;
        }
        self.waiting = self.waiting.split_off(&seq);
        self.next_seq = seq + 1;
        Turn::Now
    }

    /// Keeps an early event until its turn.
    pub fn wait(&mut self, seq: u64, event: KvChange) {
        self.waiting.insert(seq, event);
    }

    /// The next event among those that wait, if it is its turn.
    pub fn next(&mut self) -> Option<(u64, KvChange)> {
        let entry = self.waiting.first_entry().filter(|entry| *entry.key() == self.next_seq)?;
        self.next_seq += 1;
        Some(entry.remove_entry())
    }

    /// Gives the first hole up; says which events are missing for good.
    pub fn skip_hole(&mut self) -> Option<(u64, u64)> {
        let first = *self.waiting.first_key_value()?.0;
        let missing = (self.next_seq, first - 1);
        self.next_seq = first;
        Some(missing)
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The missing events before the first that waits.
    pub fn hole(&self) -> Option<(u64, u64)> {
        self.waiting.first_key_value().map(|(first, _)| (self.next_seq, first - 1))
    }

    /// The epoch since which the first missing event is missed, as of the last [`hole_since`](Self::hole_since).
    pub fn since(&self) -> Option<u64> {
        self.hole.map(|(_, since)| since)
    }

    /// Called once per epoch. The epoch since which the hole is there, and whether it is new.
    pub fn hole_since(&mut self, epoch: u64) -> Option<(u64, bool)> {
        let from = self.hole()?.0;
        match self.hole {
            Some((known, since)) if known == from => Some((since, false)),
            _ => {
                self.hole = Some((from, epoch));
                Some((epoch, true))
            }
        }
    }
}
