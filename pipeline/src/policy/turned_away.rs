//! What a start costs those who are turned away while it runs (SPEC A4: where not all can be served, those that are most cheaply
//! served are).
//!
//! While an engine has time for all, a long request costs nobody anything. Once requests are refused, each start takes engine time
//! that would have served others: as many as come to its instance while it runs and need no more than it takes, the cheapest first.
//! That number is its price, in requests; one of the size of those refused costs about one, a long one many. It is the shadow price
//! of an engine second in the linear program that serves the most requests; what is served by shortest processing time is its answer.
//!
//! A start with half a chance serves half a request, so it is the price over the chance that is bounded (`outlook`).
//! Only those of its own tier and better ones count: nobody waits for the sake of a worse one.
//!
//! Who comes is told from who was refused in the time before: in as long as it will stay, but at least [`LATELY_MIN`] and at most
//! [`LATELY_MAX`]. So once nobody is refused any more, the price is gone as fast as that.
//!
//! Invariants: where nobody was refused lately the price is 0; more refusals or more engine time never lower it. O(n log n) in what is
//! remembered. State: the last [`REMEMBERED`] refusals.

use std::collections::VecDeque;

use crate::{ids::Micros, policy::Tier};

/// Refusals remembered.
pub const REMEMBERED: usize = 64;
/// Seconds of which refusals tell who will come.
pub const LATELY_MIN: f64 = 2.0;
pub const LATELY_MAX: f64 = 10.0;

/// A request that was refused since its deadline could not be met beside others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refused {
    pub at: Micros,
    pub tier: Tier,
    /// Of the engine, that it would have taken.
    pub engine_seconds: f64,
}

impl Refused {
    fn is_within(&self, now: Micros, seconds: f64) -> bool {
        (now - self.at) as f64 / 1e6 <= seconds
    }
}

/// See the file's header.
#[derive(Debug, Clone, Default)]
pub struct TurnedAway(VecDeque<Refused>);

impl TurnedAway {
    pub fn refused(&mut self, refused: Refused) {
        if !(refused.engine_seconds.is_finite() && refused.engine_seconds > 0.0) {
            return;
        }
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(refused);
    }

    /// Who was refused lately.
    pub fn lately(&self, now: Micros) -> Rejects {
        let mut lately: Vec<Refused> = self.0.iter().filter(|one| one.is_within(now, LATELY_MAX)).copied().collect();
        lately.sort_by(|a, b| a.engine_seconds.total_cmp(&b.engine_seconds));
        // Of a full memory only what came after its oldest is known.
        let oldest = self.0.front().filter(|one| self.0.len() == REMEMBERED && one.is_within(now, LATELY_MAX));
        Rejects { since: oldest.map(|one| one.at), lately }
    }
}

/// Requests refused lately.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rejects {
    /// Who was refused before is not among them; `None`: all are that were refused in [`LATELY_MAX`].
    pub since: Option<Micros>,
    /// The cheapest first.
    pub lately: Vec<Refused>,
}

/// What a newcomer takes of an instance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Takes {
    /// Those of a worse tier do not count.
    pub tier: Tier,
    /// Of the engine.
    pub engine_seconds: f64,
    /// From its start to its end.
    pub stay_seconds: f64,
    /// Instances that share what comes.
    pub instances: usize,
}

impl Rejects {
    /// Requests that will be refused for it.
    pub fn price(&self, now: Micros, takes: &Takes) -> f64 {
        let known = self.since.map_or(LATELY_MAX, |since| ((now - since).max(1)) as f64 / 1e6);
        let span = takes.stay_seconds.clamp(LATELY_MIN, LATELY_MAX).min(known);
        // How many like each will come to its instance meanwhile.
        let each = takes.stay_seconds / span / takes.instances.max(1) as f64;
        let (mut price, mut left) = (0.0, takes.engine_seconds);
        for one in self.lately.iter().filter(|one| one.tier >= takes.tier && one.is_within(now, span)) {
            let part = (left / one.engine_seconds).min(each);
            price += part;
            left -= part * one.engine_seconds;
            if part < each {
                break;
            }
        }
        price
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: i64 = 1_000_000;

    fn of(refused: &[(i64, f64)]) -> TurnedAway {
        let mut away = TurnedAway::default();
        refused.iter().for_each(|(at, engine_seconds)| {
            away.refused(Refused { at: *at, tier: Tier::Medium, engine_seconds: *engine_seconds })
        });
        away
    }

    /// Scenario: ten short and ten long requests refused in two seconds, over two instances; a newcomer that stays one second. It
    /// takes half of a short one, one, all short ones that come and half a long one, more than all. Then it stays longer than is
    /// looked back; nobody was refused lately; nobody ever was.
    /// Guarantees: a half; one; three; no more than come; nothing; nothing.
    #[test]
    fn the_cheapest_come_first() {
        let mut all: Vec<(i64, f64)> = (0..10).map(|number| (number * SECOND / 5, 0.5)).collect();
        all.extend((0..10).map(|number| (number * SECOND / 5, 0.1)));
        let away = of(&all);
        let price = |engine_seconds: f64, stay_seconds: f64, now: i64| {
            away.lately(now).price(now, &Takes { tier: Tier::Medium, engine_seconds, stay_seconds, instances: 2 })
        };
        let near = |price: f64, expected: f64| assert!((price - expected).abs() < 1e-9, "{price} and {expected}");
        near(price(0.05, 1.0, 2 * SECOND), 0.5);
        near(price(0.1, 1.0, 2 * SECOND), 1.0);
        near(price(0.5, 1.0, 2 * SECOND), 3.0);
        near(price(9.0, 1.0, 2 * SECOND), 5.0);
        near(price(90.0, 20.0, 2 * SECOND), 20.0);
        near(price(9.0, 1.0, 5 * SECOND), 0.0);
        near(price(9.0, 4.0, 5 * SECOND), 5.0);
        near(price(9.0, 4.0, 20 * SECOND), 0.0);
        near(
            TurnedAway::default()
                .lately(0)
                .price(0, &Takes { tier: Tier::Low, engine_seconds: 1.0, stay_seconds: 1.0, instances: 1 }),
            0.0,
        );
    }

    proptest! {
        /// Scenario: any refusals and any newcomer.
        /// Guarantees: the price is the best that a plain search finds for so much engine time; it grows with work, falls with
        /// instances, and is nothing for a better tier than theirs.
        #[test]
        fn the_price_is_the_best_use(
            refused in prop::collection::vec((0i64..30 * SECOND, 0.01f64..2.0), 0..100), seconds in 0.0f64..5.0,
            more in 0.0f64..5.0, stay in 0.0f64..15.0, instances in 1usize..4,
        ) {
            let mut times = refused;
            times.sort_by_key(|(at, _)| *at);
            let away = of(&times);
            let now = 31 * SECOND;
            let takes = Takes { tier: Tier::Medium, engine_seconds: seconds, stay_seconds: stay, instances };
            let price = away.lately(now).price(now, &takes);
            let kept = &times[times.len().saturating_sub(REMEMBERED)..];
            let ago = |at: i64| (now - at) as f64 / 1e6;
            let mut span = stay.clamp(2.0, 10.0);
            if kept.len() == REMEMBERED {
                span = span.min(ago(kept[0].0));
            }
            let lately: Vec<f64> = kept.iter().filter(|(at, _)| ago(*at) <= span).map(|(_, seconds)| *seconds).collect();
            let each = stay / span / instances as f64;
            // A threshold on size: all below it, and of those at it what fits.
            let best = lately.iter().map(|most| {
                let below: f64 = lately.iter().filter(|one| *one < most).map(|one| one * each).sum();
                let count = lately.iter().filter(|one| *one < most).count() as f64 * each;
                let at = lately.iter().filter(|one| *one == most).count() as f64 * each;
                if below > seconds { 0.0 } else { count + at.min((seconds - below) / most) }
            }).fold(0.0, f64::max);
            prop_assert!((price - best).abs() < 1e-6, "{} and {}", price, best);
            let with = |takes: Takes| away.lately(now).price(now, &takes);
            prop_assert!(with(Takes { engine_seconds: seconds + more, ..takes }) >= price - 1e-9, "more work");
            prop_assert_eq!(with(Takes { tier: Tier::High, ..takes }), 0.0, "a better tier");
            prop_assert!(with(Takes { instances: instances + 1, ..takes }) <= price + 1e-9, "more to share it");
        }
    }
}
