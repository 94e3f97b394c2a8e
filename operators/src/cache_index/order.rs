//! The order of one instance's events: what comes too early waits, what comes again is let go.
//!
//! Invariant: events are handed out in `seq` order, each once; over a hole only by `Cleared` (nothing before it matters)
//! or by giving up, which is told. An event that comes more than `max_jump` too early is not taken for the next one of its
//! instance: a row that was forged or garbled must not hide all those that follow. [`PROBATION`] such events in a row, each
//! the next of the last, are: then everything between was lost (RFC 3550, A.1, has the same rule). Cost: one map access per event that waits. State: the events that wait; their number
//! is bounded by the caller.
use std::collections::BTreeMap;

use crate::rows::KvChange;

/// See the module.
pub(super) struct Order {
    next_seq: u64,
    waiting: BTreeMap<u64, KvChange>,
    /// The first missing event and the epoch in which it was first missed.
    hole: Option<(u64, u64)>,
    /// The event after the last that was too far ahead, and how many came in a row.
    far: Option<(u64, u32)>,
}

/// Events in a row that are too far ahead before they are believed.
pub const PROBATION: u32 = 16;

/// What to do with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is the next: fold it, then [`Order::next`] until there is none.
    Now,
    /// It came before, or waits already.
    Known,
    /// It comes too early.
    Early,
    /// It comes so early that it is not believed.
    Far,
    /// It comes so early, but so did those before it: what is missing before it is lost.
    Resumed,
}

impl Default for Order {
    fn default() -> Self {
        Self { next_seq: 1, waiting: BTreeMap::new(), hole: None, far: None }
    }
}

impl Order {
    pub fn turn(&mut self, (seq, event): (u64, &KvChange), max_jump: u64) -> Turn {
        if seq < self.next_seq || self.waiting.contains_key(&seq) {
            return Turn::Known;
        }
        // Who has told nothing yet may begin anywhere with all that it holds.
        let is_beginning = self.next_seq == 1 && self.waiting.is_empty() && *event == KvChange::Cleared;
        if seq - self.next_seq > max_jump && !is_beginning {
            let run = self.far.filter(|(next, _)| *next == seq).map_or(1, |(_, run)| run + 1);
            self.far = (run < PROBATION).then_some((seq + 1, run));
            return if run < PROBATION { Turn::Far } else { Turn::Resumed };
        }
        self.far = None;
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

    /// The event that should come next.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
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
