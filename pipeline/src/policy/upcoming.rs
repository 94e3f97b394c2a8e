//! What is likely to come while a request runs, and what that request would cost it (SPEC A4: a request takes no slot at the
//! price of another's deadline).
//!
//! The deadlines of those that come are not known yet, but what came lately is: how much time each had, and what it needed.
//! A batch in which those could not have made it is too large for those that will come. So a newcomer's price is the number
//! of them that will come to its instance while it runs, and be late there since the batch is as large as it is with it:
//! those that it alone makes late, or its part of those that the whole batch does, whichever is more (else a batch that
//! is much too large would cost nothing). What takes long costs more than what is over soon; so, where not all can be served,
//! those that are most cheaply served are.
//!
//! Invariants: what could not make it alone is nobody's price; more crowd, a longer stay or more arrivals never lower a price.
//! O(n log m) in what is remembered and the prompts there. State: the last [`REMEMBERED`] arrivals with stated deadlines.

use std::collections::VecDeque;

use crate::{ids::Micros, policy::Pace};

/// Arrivals remembered.
pub const REMEMBERED: usize = 64;
/// Fewer say nothing.
const LEAST: usize = 16;
/// An arrival longer ago says nothing of what comes next.
const LATELY: Micros = 60_000_000;

/// A request that came with a deadline of its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Came {
    pub at: Micros,
    /// From its arrival to when it was due.
    pub budget_seconds: f64,
    /// What its prompt took, as predicted.
    pub prefill_seconds: f64,
    /// Tokens expected of each of its sequences.
    pub tokens: u32,
}

/// A newcomer, where it would be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stay {
    /// Sequences that run there already, and how many it has.
    pub running: u32,
    pub more: u32,
    /// For how long.
    pub seconds: f64,
    /// One step of a single sequence.
    pub alone_step_seconds: f64,
    /// Instances that share what comes.
    pub instances: usize,
}

impl Stay {
    /// Its part of so many steps.
    pub fn decode_seconds(&self, tokens: u32, step_seconds: f64) -> f64 {
        let all = f64::from(self.running.saturating_add(self.more).max(1));
        f64::from(tokens) * step_seconds * f64::from(self.more) / all
    }
}

/// See the file's header.
#[derive(Debug, Clone, Default)]
pub struct Upcoming(VecDeque<Came>);

impl Upcoming {
    pub fn came(&mut self, came: Came) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(came);
    }

    /// Requests that will be late by this stay. Nothing, where too little came lately.
    pub fn price(&self, now: Micros, pace: &Pace, stay: &Stay) -> f64 {
        let lately = || self.0.iter().filter(|came| now - came.at <= LATELY);
        let (count, Some(oldest)) = (lately().count(), lately().next()) else { return 0.0 };
        if count < LEAST {
            return 0.0;
        }
        let slack = |came: &Came, queued: f64, step: f64| {
            came.budget_seconds - queued - came.prefill_seconds - f64::from(came.tokens) * step
        };
        let queued = |came: &Came| pace.prompts.seconds(now + micros(came.budget_seconds));
        let (mut by_it, mut by_all) = (0u32, 0u32);
        for came in lately() {
            let is_late = slack(came, queued(came), pace.next_step_seconds) < 0.0;
            if !is_late || slack(came, 0.0, stay.alone_step_seconds) < 0.0 {
                continue;
            }
            by_all += 1;
            by_it += u32::from(slack(came, queued(came), pace.step_seconds) >= 0.0);
        }
        let part = f64::from(stay.more) / f64::from(stay.running.saturating_add(stay.more).max(1));
        let lost = f64::from(by_it).max(f64::from(by_all) * part);
        let seconds = ((now - oldest.at) as f64 / 1e6).max(f64::EPSILON);
        lost / seconds / stay.instances.max(1) as f64 * stay.seconds
    }
}

fn micros(seconds: f64) -> Micros {
    (seconds * 1e6) as Micros
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{PromptDue, PromptQueue};

    const SECOND: i64 = 1_000_000;
    const PACE: fn() -> Pace =
        || Pace { step_seconds: 0.02, next_step_seconds: 0.022, prompts: PromptQueue::default() };
    const STAY: Stay = Stay { running: 9, more: 1, seconds: 2.0, alone_step_seconds: 0.005, instances: 2 };

    /// Four requests a second for ten seconds, of ten tokens, that have this long.
    fn of(budget_seconds: f64) -> Upcoming {
        let mut upcoming = Upcoming::default();
        for number in 0..40 {
            upcoming.came(Came { at: number * SECOND / 4, budget_seconds, prefill_seconds: 0.1, tokens: 10 });
        }
        upcoming
    }

    fn price(budget_seconds: f64, pace: &Pace, stay: &Stay) -> f64 {
        of(budget_seconds).price(10 * SECOND, pace, stay)
    }

    /// Scenario: four requests a second over two instances; a newcomer stays for two seconds, so four come beside it. They
    /// have plenty of time; just too little with it; too little in this batch anyway; too little even alone. Then fewer than
    /// say anything, and all long ago.
    /// Guarantees: nothing; all four; a tenth of them, as it is one of ten; nothing; nothing; nothing.
    #[test]
    fn what_it_costs() {
        assert_eq!(price(9.0, &PACE(), &STAY), 0.0);
        assert!((price(0.31, &PACE(), &STAY) - 4.0).abs() < 1e-9);
        assert!((price(0.25, &PACE(), &STAY) - 0.4).abs() < 1e-9);
        assert_eq!(price(0.14, &PACE(), &STAY), 0.0);
        let mut few = Upcoming::default();
        few.0.extend(of(0.31).0.iter().take(LEAST - 1));
        assert_eq!(few.price(10 * SECOND, &PACE(), &STAY), 0.0);
        assert_eq!(of(0.31).price(100 * SECOND, &PACE(), &STAY), 0.0);
    }

    proptest! {
        /// Scenario: any arrivals, paces and stays.
        /// Guarantees: the price is never negative, never more than all that come, and never falls with a longer stay, a
        /// slower batch or fewer instances; no more arrivals are held than the bound says.
        #[test]
        fn more_never_costs_less(
            came in prop::collection::vec((0i64..30 * SECOND, 0.0f64..2.0, 0.0f64..0.5, 1u32..60), 0..100),
            step in 0.001f64..0.05, longer in 0.0f64..0.02, more in 0.0f64..0.02, running in 0u32..30, seconds in 0.0f64..9.0,
        ) {
            let mut upcoming = Upcoming::default();
            let mut times: Vec<_> = came.clone();
            times.sort_by_key(|(at, ..)| *at);
            for (at, budget_seconds, prefill_seconds, tokens) in times {
                upcoming.came(Came { at, budget_seconds, prefill_seconds, tokens });
            }
            prop_assert!(upcoming.0.len() <= REMEMBERED);
            let prompts = PromptQueue::new(vec![PromptDue { due: 32 * SECOND, tokens: 50 }], 0.001);
            let pace = Pace { step_seconds: step, next_step_seconds: step + longer, prompts };
            let stay = Stay { running, more: 1, seconds, alone_step_seconds: step.min(0.005), instances: 2 };
            let price = |pace: &Pace, stay: &Stay| upcoming.price(31 * SECOND, pace, stay);
            let plain = price(&pace, &stay);
            prop_assert!(plain >= 0.0 && plain <= REMEMBERED as f64 * seconds);
            let longer = Stay { seconds: seconds + 1.0, ..stay };
            prop_assert!(price(&pace, &longer) >= plain);
            let alone = Stay { instances: 1, ..stay };
            prop_assert!(price(&pace, &alone) >= plain);
            let slower = Pace { next_step_seconds: pace.next_step_seconds + more, ..pace.clone() };
            prop_assert!(price(&slower, &stay) >= plain);
        }
    }
}
