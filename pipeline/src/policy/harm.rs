//! What a request that comes to an instance does to those that run there: how many of them would miss their deadlines by
//! it, that would have made them (SPEC A4: a request takes no slot at the price of another's deadline).
//!
//! An engine shares its steps among all that run. So each further sequence makes every step longer, and each further prompt
//! holds up those that are due after it; a batch that is let in as far as its memory goes can have everybody late. What
//! runs is known by when it is due and how many tokens it lacks; steps are predicted from the learnt service times.
//!
//! A request of the instance lacks `tokens_left` steps and what prompts are queued before. The newcomer's prompt counts
//! against those due after it only: engines compute prompts in the order they are due, in chunks that leave the
//! others' pace (`prefill_step_time`). Who would be late anyway is not harmed.
//! Invariants: nobody is harmed by a newcomer that takes no time; more work never harms fewer. Linear in what runs, no state.

use crate::ids::Micros;

/// A request that runs on an instance, as far as its deadline goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// By when it must be whole.
    pub due: Micros,
    /// Tokens of one of its sequences that are still to come.
    pub tokens_left: u32,
}

/// What an instance takes for its work, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// One step of its batch as it is.
    pub step_seconds: f64,
    /// The same with the newcomer in it.
    pub next_step_seconds: f64,
    /// Prompts queued there.
    pub queue_seconds: f64,
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
        (claim.due - now) as f64 / 1e6 - pace.queue_seconds - f64::from(claim.tokens_left) * step_seconds
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

    const PACE: Pace = Pace { step_seconds: 0.01, next_step_seconds: 0.011, queue_seconds: 0.1 };

    /// Scenario: claims of 100 tokens at 10 ms a step, 11 ms with the newcomer, behind 0.1 s of prompts: they need 1.1 s,
    /// and 1.2 s then. The newcomer's prompt takes 0.3 s.
    /// Guarantees: late anyway, made late by the longer step, by the prompt of one due before it only, not at all.
    #[test]
    fn who_is_harmed() {
        let harmed = |claim_due_ms: i64, due_ms: i64| {
            let claims = [Claim { due: claim_due_ms * 1000, tokens_left: 100 }];
            harms(&claims, 0, &PACE, &Newcomer { due: due_ms * 1000, prefill_seconds: 0.3 })
        };
        assert_eq!(harmed(1_050, 9_000), 0, "late anyway");
        assert_eq!(harmed(1_150, 9_000), 1, "each step is longer");
        assert_eq!(harmed(1_300, 9_000), 0, "the newcomer's prompt waits for it");
        assert_eq!(harmed(1_300, 1_200), 1, "the newcomer's prompt goes first");
        assert_eq!(harmed(1_600, 1_200), 0, "there is time for both");
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
            let pace = Pace { step_seconds: step, next_step_seconds: step + longer, queue_seconds: 0.05 };
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
            let nothing = Pace { next_step_seconds: step, ..pace };
            prop_assert_eq!(harms(&claims, 0, &nothing, &Newcomer { due, prefill_seconds: 0.0 }), 0);
        }
    }
}
