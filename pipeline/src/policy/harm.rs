//! What a request that comes to an instance does to those that run there: how many of them would miss their deadlines by
//! it, that would have made them (SPEC A4: a request takes no slot at the price of another's deadline).
//!
//! An engine shares its steps among all that run. So each further sequence makes every step longer, and each further prompt
//! holds up those that are due after it; a batch that is let in as far as its memory goes can have everybody late. What
//! runs is known by when it is due and how many tokens it lacks; steps are predicted from the learnt service times.
//!
//! A request of the instance lacks `tokens_left` steps and what prompts are to be computed before: those due before it, its own
//! included. So the newcomer's prompt counts against those due after it only: engines compute prompts in the order they
//! are due, in chunks that leave the others' pace (`prefill_step_time`). Who would be late anyway is not harmed.
//! Invariants: nobody is harmed by a newcomer that takes no time; more work never harms fewer. O(n log n) in what runs, no state.

use crate::{ids::Micros, policy::PromptDue};

/// A request that runs on an instance, as far as its deadline goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// By when it must be whole.
    pub due: Micros,
    /// Tokens of one of its sequences that are still to come.
    pub tokens_left: u32,
}

/// Prompts that an instance has to compute: in the order in which they are due, whoever came first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptQueue {
    /// By when each is due, and the seconds of it and of all before it.
    until: Vec<(Micros, f64)>,
}

impl PromptQueue {
    /// `token_seconds`: what a token of a prompt takes.
    pub fn new(mut prompts: Vec<PromptDue>, token_seconds: f64) -> PromptQueue {
        prompts.sort_unstable_by_key(|prompt| prompt.due);
        let seconds = prompts.into_iter().scan(0.0, |sum, prompt| {
            *sum += f64::from(prompt.tokens) * token_seconds;
            Some((prompt.due, *sum))
        });
        PromptQueue { until: seconds.collect() }
    }

    /// So many seconds before everybody: of an engine that computes prompts in another order.
    pub fn before_all(seconds: f64) -> PromptQueue {
        PromptQueue { until: vec![(Micros::MIN, seconds)] }
    }

    /// Seconds of the prompts due until then.
    pub fn seconds(&self, due: Micros) -> f64 {
        let count = self.until.partition_point(|(other, _)| *other <= due);
        self.until[..count].last().map_or(0.0, |(_, seconds)| *seconds)
    }
}

/// What an instance takes for its work, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    /// One step of its batch as it is.
    pub step_seconds: f64,
    /// The same with the newcomer in it.
    pub next_step_seconds: f64,
    pub prompts: PromptQueue,
}

/// The request that may come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Newcomer {
    pub due: Micros,
    /// What its prompt takes there.
    pub prefill_seconds: f64,
}

/// Claims that the newcomer would make late.
pub fn harms(claims: &[Claim], now: Micros, pace: &Pace, newcomer: &Newcomer) -> usize {
    let slack = |claim: &Claim, step_seconds: f64| {
        let left = (claim.due - now) as f64 / 1e6;
        left - pace.prompts.seconds(claim.due) - f64::from(claim.tokens_left) * step_seconds
    };
    let is_harmed = |claim: &&Claim| {
        let own = if claim.due >= newcomer.due { newcomer.prefill_seconds } else { 0.0 };
        slack(claim, pace.step_seconds) >= 0.0 && slack(claim, pace.next_step_seconds) < own
    };
    claims.iter().filter(is_harmed).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One prompt of 100 ms that is due at once.
    fn pace(step_seconds: f64, next_step_seconds: f64, token_seconds: f64) -> Pace {
        let prompts = PromptQueue::new(vec![PromptDue { due: 0, tokens: 100 }], token_seconds);
        Pace { step_seconds, next_step_seconds, prompts }
    }

    /// Scenario: claims of 100 tokens at 10 ms a step, 11 ms with the newcomer, behind 0.1 s of prompts: they need 1.1 s,
    /// and 1.2 s then. The newcomer's prompt takes 0.3 s.
    /// Guarantees: late anyway, made late by the longer step, by the prompt of one due before it only, not at all.
    #[test]
    fn who_is_harmed() {
        let harmed = |claim_due_ms: i64, due_ms: i64| {
            let claims = [Claim { due: claim_due_ms * 1000, tokens_left: 100 }];
            harms(&claims, 0, &pace(0.01, 0.011, 0.001), &Newcomer { due: due_ms * 1000, prefill_seconds: 0.3 })
        };
        assert_eq!(harmed(1_050, 9_000), 0, "late anyway");
        assert_eq!(harmed(1_150, 9_000), 1, "each step is longer");
        assert_eq!(harmed(1_300, 9_000), 0, "the newcomer's prompt waits for it");
        assert_eq!(harmed(1_300, 1_200), 1, "the newcomer's prompt goes first");
        assert_eq!(harmed(1_600, 1_200), 0, "there is time for both");
    }

    /// Scenario: three prompts, told out of order.
    /// Guarantees: what is due by then goes before, whoever came first.
    #[test]
    fn prompts_go_in_the_order_they_are_due() {
        let of = |due, tokens| PromptDue { due, tokens };
        let queue = PromptQueue::new(vec![of(30, 300), of(10, 100), of(20, 200)], 0.5);
        assert_eq!([9, 10, 25, 30].map(|due| queue.seconds(due)), [0.0, 50.0, 150.0, 300.0]);
        assert_eq!((PromptQueue::default().seconds(9), PromptQueue::before_all(3.0).seconds(-9)), (0.0, 3.0));
    }

    proptest! {
        /// Scenario: any claims, any newcomer, and one with more work that is due sooner.
        /// Guarantees: as many as a plain recount of who is in time before and not after; more work never harms fewer; one
        /// that takes nothing harms nobody.
        #[test]
        fn harm_is_a_recount(
            claims in prop::collection::vec((0i64..5_000_000, 0u32..300), 0..20),
            due in 0i64..5_000_000, sooner in 0i64..1_000_000,
            prefill in 0.0f64..2.0, more in 0.0f64..1.0, step in 0.001f64..0.02, longer in 0.0f64..0.01,
        ) {
            let claims: Vec<Claim> = claims.into_iter().map(|(due, tokens_left)| Claim { due, tokens_left }).collect();
            let next = step + longer;
            let pace = pace(step, next, 0.0005);
            let newcomer = Newcomer { due, prefill_seconds: prefill };
            let mut expected = 0;
            for claim in &claims {
                let needs = |step: f64| 0.05 + f64::from(claim.tokens_left) * step;
                let prompt = if claim.due < due { 0.0 } else { prefill };
                let left = claim.due as f64 / 1e6;
                if left - needs(step) >= 0.0 && left - needs(step + longer) < prompt {
                    expected += 1;
                }
            }
            let found = harms(&claims, 0, &pace, &newcomer);
            prop_assert!(found.abs_diff(expected) <= 1, "{} harmed, {} by the recount", found, expected);
            let heavier = Newcomer { due: due - sooner, prefill_seconds: prefill + more };
            prop_assert!(harms(&claims, 0, &pace, &heavier) >= found);
            let nothing = Pace { next_step_seconds: step, ..pace.clone() };
            prop_assert_eq!(harms(&claims, 0, &nothing, &Newcomer { due, prefill_seconds: 0.0 }), 0);
        }
    }
}
