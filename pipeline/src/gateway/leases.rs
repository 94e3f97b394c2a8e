//! Leases: the tokens that a gateway has in flight on an instance (DESIGN §7 rules 1, 2 and 4).
//!
//! A lease reserves tokens at dispatch, atomically, and is given back when its guard drops; only the gateway writes it. What an
//! engine reports beyond the leases, again and again, takes room too, and no lost report gives it back.
//! Invariants: leased tokens are the sum of the guards that live; no reservation goes beyond the bound, unless nothing is
//! leased. Cost: a few atomic operations, and a place in the order of load. State: a few numbers an incarnation.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use super::{
    claims::{Claimed, Claims, Due},
    load_order::LoadOrder,
};
use crate::{ids::InstanceId, policy::Borrowed};

/// Reports in a row that must say that an engine holds more than was leased.
pub const REPORTS: usize = 3;

/// Tokens and requests in flight on one incarnation.
#[derive(Debug, Default)]
pub struct Leases {
    tokens: AtomicU64,
    requests: AtomicU32,
    /// Of the requests, those let through to see.
    trials: AtomicU32,
    /// Tokens that the engine reports beyond those leased; only a later report lowers it (DESIGN §7 rule 4).
    beyond: AtomicU64,
    /// The last reports' excess, oldest first.
    excess: Mutex<VecDeque<u64>>,
    /// Of the tokens' work, what belongs to other buckets by the plan under which it came.
    borrowed: AtomicU64,
    /// What the leases' requests ask of its time.
    pub claims: Arc<Claims>,
    /// Set by the directory the entry is put into.
    home: OnceLock<Home>,
}

/// The directory that is told of leases.
#[derive(Clone)]
pub(super) struct Home {
    pub(super) instance: InstanceId,
    /// Rung when a lease comes back.
    pub(super) freed: Arc<Notify>,
    pub(super) order: Weak<LoadOrder>,
}

impl Home {
    fn moved(&self, leases: &Leases) {
        if let Some(order) = self.order.upgrade() {
            order.moved(self.instance, leases);
        }
    }
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Home({})", self.instance)
    }
}

impl Leases {
    /// They are those of an entry of this directory. An entry that is put again with the same leases has the same home.
    pub(super) fn live_in(&self, home: Home) {
        let _ = self.home.set(home);
    }

    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Acquire)
    }

    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::Acquire)
    }

    /// Nothing is leased but for what is let through to see, which goes behind all others.
    pub fn are_idle(&self) -> bool {
        self.requests() <= self.trials.load(Ordering::Acquire)
    }

    /// Tokens that take room: those leased, and what the engine holds beyond them.
    pub fn counted(&self) -> u64 {
        self.tokens().saturating_add(self.beyond.load(Ordering::Acquire))
    }

    /// The engine reports so many tokens in flight. Reports lag behind leases, so what counts is the least excess of
    /// [`REPORTS`] reports in a row.
    pub fn reported(&self, in_flight: u64) {
        let mut excess = self.excess.lock().unwrap_or_else(PoisonError::into_inner);
        excess.push_back(in_flight.saturating_sub(self.tokens()));
        if excess.len() > REPORTS {
            excess.pop_front();
        }
        if excess.len() == REPORTS {
            self.beyond.store(excess.iter().copied().min().unwrap_or(0), Ordering::Release);
        }
    }

    /// Work of other buckets in flight.
    pub fn borrowed(&self) -> u64 {
        self.borrowed.load(Ordering::Acquire)
    }

    /// Reserves `tokens` if the sum of all that [counts](Self::counted) stays within `max`, or if nothing is leased (so that one
    /// large request can always run). The guard gives them back.
    pub fn reserve(self: &Arc<Self>, tokens: u64, max: u64) -> Option<Lease> {
        let max = max.saturating_sub(self.beyond.load(Ordering::Acquire));
        let taken = self.tokens.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
            (held == 0 || held.saturating_add(tokens) <= max).then_some(held.saturating_add(tokens))
        });
        taken.ok()?;
        self.requests.fetch_add(1, Ordering::AcqRel);
        if let Some(home) = self.home.get() {
            home.moved(self);
        }
        Some(Lease { leases: self.clone(), tokens, borrowed: 0, claimed: None, is_trial: AtomicBool::new(false) })
    }
}

impl Lease {
    /// Counts foreign work with it, if the instance's budget has room; else the lease is given back.
    pub fn borrowing(mut self, borrowed: Option<Borrowed>) -> Option<Lease> {
        let Some(Borrowed { tokens, tokens_max }) = borrowed else { return Some(self) };
        let taken = self.leases.borrowed.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
            held.checked_add(tokens).filter(|sum| *sum <= tokens_max)
        });
        taken.ok()?;
        self.borrowed = tokens;
        Some(self)
    }

    /// With what its request asks of the instance's time. `prompt_tokens`: to be computed there.
    pub fn claiming(mut self, due: Option<Due>, prompt_tokens: u32) -> Lease {
        self.claimed = due.map(|due| self.leases.claims.enter(due, prompt_tokens));
        self
    }

    /// Its request is one that is let through to see.
    pub fn for_a_trial(&self) {
        if !self.is_trial.swap(true, Ordering::AcqRel) {
            self.leases.trials.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// So many tokens of its request came.
    pub fn drew(&self, tokens: u32) {
        if let Some(claimed) = &self.claimed {
            claimed.drew(tokens);
        }
    }
}

/// A reservation; dropping it gives the tokens back, once.
#[derive(Debug)]
pub struct Lease {
    leases: Arc<Leases>,
    tokens: u64,
    borrowed: u64,
    claimed: Option<Claimed>,
    is_trial: AtomicBool,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.trials.fetch_sub(u32::from(*self.is_trial.get_mut()), Ordering::AcqRel);
        self.leases.tokens.fetch_sub(self.tokens, Ordering::AcqRel);
        self.leases.requests.fetch_sub(1, Ordering::AcqRel);
        self.leases.borrowed.fetch_sub(self.borrowed, Ordering::AcqRel);
        self.claimed = None;
        if let Some(home) = self.leases.home.get() {
            home.moved(&self.leases);
            home.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Scenario: an engine reports more than is leased, first once, then steadily; then its reports stop, then it reports less.
    /// Guarantees: the larger counts once it is no lag; silence gives nothing back; only a lower report does.
    #[test]
    fn reports_only_take_room_and_silence_gives_none_back() {
        let leases = Arc::new(Leases::default());
        let own = leases.reserve(100, 1000).unwrap();
        leases.reported(900);
        leases.reported(100);
        leases.reported(150);
        assert_eq!(leases.counted(), 100, "an excess that did not last is a lag");
        for _ in 0..REPORTS {
            leases.reported(900);
        }
        assert_eq!((leases.counted(), leases.tokens()), (900, 100));
        assert!(leases.reserve(101, 1000).is_none() && leases.reserve(100, 1000).is_some());
        drop(own);
        assert_eq!(leases.counted(), 800, "what was the engine's own stays");
        leases.reported(0);
        assert_eq!(leases.counted(), 0);
    }

    /// Scenario: a request is let through to see, another starts beside it; the first ends, the other ends.
    /// Guarantees: what is let through to see, twice said, is nothing that runs.
    #[test]
    fn a_trial_leaves_an_instance_idle() {
        let leases = Arc::new(Leases::default());
        let trial = leases.reserve(100, 1000).unwrap();
        assert!(!leases.are_idle());
        trial.for_a_trial();
        trial.for_a_trial();
        assert!(leases.are_idle());
        let other = leases.reserve(100, 1000).unwrap();
        assert!(!leases.are_idle());
        drop(trial);
        assert!(!leases.are_idle());
        drop(other);
        assert!(leases.are_idle());
    }

    proptest! {
        /// Scenario: reservations, returns and reports in any order, from four threads' worth of guards.
        /// Guarantees: leased tokens are the sum of the guards that live; no reservation goes beyond the bound that the
        /// reports leave, unless nothing else is leased; what counts is never less than what is leased.
        #[test]
        fn accounts_are_exact(acts in prop::collection::vec((0u8..3, 1u64..400, 0u64..2000), 1..200)) {
            let leases = Arc::new(Leases::default());
            let mut held: Vec<(u64, Lease)> = Vec::new();
            for (act, tokens, reported) in acts {
                match act {
                    0 => {
                        let (leased, counted) = (leases.tokens(), leases.counted());
                        match leases.reserve(tokens, 1000) {
                            Some(lease) => {
                                prop_assert!(leased == 0 || counted + tokens <= 1000);
                                held.push((tokens, lease));
                            }
                            None => prop_assert!(leased > 0 && counted + tokens > 1000),
                        }
                    }
                    1 if !held.is_empty() => drop(held.swap_remove(tokens as usize % held.len())),
                    _ => leases.reported(reported),
                }
                prop_assert_eq!(leases.tokens(), held.iter().map(|(tokens, _)| tokens).sum::<u64>());
                prop_assert_eq!(leases.requests() as usize, held.len());
                prop_assert!(leases.counted() >= leases.tokens());
            }
        }
    }
}
