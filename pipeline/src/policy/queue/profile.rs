//! What waits, tier by tier and by latest start, small enough to be an input of a policy: how much goes before a request
//! that has to start by some time.
//!
//! Invariant: sums are exact; where they lie in time is known to within one of [`STEPS`] steps. Tenants are left out: one
//! that has taken more than its share waits longer than is told here. Cost: O(waiting) to make, O(steps) to ask.
//! State: none.

use super::{FairQueue, TierWeights, Waiting, lane_of};
use crate::{ids::Micros, policy::Tier};

/// Steps of a tier.
pub const STEPS: usize = 12;

/// Tokens and requests that start no later than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueStep {
    pub start_by: Micros,
    pub tokens: u64,
    pub requests: u32,
}

/// See the file's header.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueProfile {
    /// High, Medium, Low: sums up to each step, by latest start.
    pub tiers: [Vec<QueueStep>; 3],
}

/// What goes before a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ahead {
    pub tokens: f64,
    pub requests: f64,
}

impl QueueProfile {
    /// The tokens that leave the queue before a request of this tier that has to start by then: those of its own tier that have
    /// to start earlier, and what other tiers get by their weights meanwhile, at most all they have.
    pub fn ahead(&self, tier: Tier, start_by: Micros, weights: &TierWeights) -> Ahead {
        let weights = [weights.high, weights.medium, weights.low].map(f64::from);
        let own = lane_of(tier);
        let before = self.tiers[own].iter().rev().find(|step| step.start_by < start_by);
        let (tokens, requests) = before.map_or((0.0, 0.0), |step| (step.tokens as f64, f64::from(step.requests)));
        let mut ahead = Ahead { tokens, requests };
        for (other, steps) in self.tiers.iter().enumerate().filter(|(other, _)| *other != own) {
            let Some(all) = steps.last().filter(|all| all.tokens > 0) else { continue };
            let share = (tokens * weights[other] / weights[own]).min(all.tokens as f64);
            ahead.tokens += share;
            ahead.requests += f64::from(all.requests) * share / all.tokens as f64;
        }
        ahead
    }
}

impl<T> FairQueue<T> {
    /// What waits and is not late.
    pub fn profile(&self) -> QueueProfile {
        let mut lists: [Vec<(Micros, u64)>; 3] = Default::default();
        for ticket in &self.punctual {
            if let Some(Waiting { tier, size, starts, .. }) = self.entries.get(ticket) {
                lists[lane_of(*tier)].push((starts.start_by.unwrap_or(Micros::MAX), size.tokens));
            }
        }
        QueueProfile { tiers: lists.map(steps) }
    }
}

fn steps(mut list: Vec<(Micros, u64)>) -> Vec<QueueStep> {
    list.sort_unstable_by_key(|(start_by, _)| *start_by);
    let every = list.len().div_ceil(STEPS).max(1);
    let (mut steps, mut tokens) = (Vec::with_capacity(STEPS), 0);
    for (place, (start_by, more)) in list.iter().enumerate() {
        tokens += more;
        let requests = place as u32 + 1;
        if (requests as usize).is_multiple_of(every) || requests as usize == list.len() {
            steps.push(QueueStep { start_by: *start_by, tokens, requests });
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{EntrySize, test_policy};

    /// Scenario: forty entries of one tier, ten of another, none of the third.
    /// Guarantees: few steps whose last holds everything; what goes before a request grows with its latest start, own tier
    /// in full and the other by its weight; a request that must start before all others has nothing before it.
    #[test]
    fn what_goes_before() {
        let mut queue = FairQueue::new(&test_policy().queue);
        for number in 0..50 {
            let tier = if number % 5 == 0 { Tier::Low } else { Tier::High };
            let size = EntrySize { tokens: 100, bytes: 0 };
            let start_by = Some(1000 + number);
            queue
                .push(Waiting {
                    tier,
                    tenant: "ann".into(),
                    size,
                    since: 0,
                    starts: crate::policy::Starts { start_by, ..Default::default() },
                    item: (),
                })
                .unwrap();
        }
        let profile = queue.profile();
        assert!(profile.tiers.iter().all(|steps| steps.len() <= STEPS + 1));
        assert_eq!(profile.tiers[0].last().map(|all| (all.tokens, all.requests)), Some((4000, 40)));
        let weights = test_policy().queue.weights;
        let tokens = |tier, start_by| profile.ahead(tier, start_by, &weights).tokens;
        assert_eq!(tokens(Tier::High, 1000), 0.0);
        assert_eq!(tokens(Tier::High, 2000), 4000.0 + 500.0, "Low gets an eighth");
        assert_eq!(tokens(Tier::Low, 2000), 1000.0 + 4000.0, "High would get eight times as much, and has four");
        assert!(tokens(Tier::High, 1020) > 0.0 && tokens(Tier::High, 1020) < tokens(Tier::High, 1040));
    }
}
