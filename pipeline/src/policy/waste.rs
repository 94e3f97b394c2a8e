//! How much of the engines' time goes to answers that come too late, and what chance a start beside others needs then (SPEC A4).
//!
//! A request whose chance is middling may as well try while little is lost by it: below the engines' capacity it takes time from
//! nobody. In an overload each that misses has taken the time of one that would not have. How far that goes is counted: a request
//! that starts is expected to lose its time with the chance that it misses, and once it has ended what it lost is known. The chance
//! asked for grows from `worth_min` to `worth_max` as the share of time lost comes to `missed_max`; it is asked of a request of
//! mean size, and odds are asked in proportion to size: a short one that may be late risks little.
//!
//! Invariants: no loss, no demand; a share is of at least what one engine computes in [`SPAN_S`], so that one miss among few requests
//! says little. Cost: O(1). State: four numbers, and three for each request that runs, with its case.

use crate::{
    ids::Micros,
    policy::{DeadlineConfig, Met},
};

/// Seconds after which a start counts 1/e.
pub const SPAN_S: f64 = 10.0;
/// Sizes further from the mean than this many times are taken for that.
pub const SIZE_MAX: f64 = 4.0;

/// What a request that starts is expected to take of the engine, and to lose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Venture {
    pub at: Micros,
    /// Of the engine.
    pub seconds: f64,
    /// From 0 to 1; 1 if its answer is of use whenever it comes.
    pub chance: f64,
}

impl Venture {
    /// `None`: figures that are none.
    pub fn new(at: Micros, seconds: f64, chance: f64) -> Option<Venture> {
        let is_known = seconds.is_finite() && seconds >= 0.0 && (0.0..=1.0).contains(&chance);
        is_known.then_some(Venture { at, seconds, chance })
    }

    fn expected_loss(&self) -> f64 {
        self.seconds * (1.0 - self.chance)
    }
}

/// Engine seconds of requests that started, and what of them is lost: known where they have ended, else expected.
#[derive(Debug, Clone, Default)]
pub struct WasteMeter {
    at: Micros,
    requests: f64,
    seconds: f64,
    lost: f64,
}

impl WasteMeter {
    pub fn started(&mut self, venture: &Venture) {
        self.age(venture.at);
        self.requests += 1.0;
        self.seconds += venture.seconds;
        self.lost += venture.expected_loss();
    }

    /// A request that had started has ended.
    pub fn ended(&mut self, now: Micros, venture: &Venture, is_met: Met) {
        self.age(now);
        let loss = if is_met == Met::No { venture.seconds } else { 0.0 };
        self.lost = (self.lost + (loss - venture.expected_loss()) * kept(self.at - venture.at)).max(0.0);
    }

    /// From 0 to 1.
    pub fn missed_share(&self, now: Micros) -> f64 {
        let kept = kept(now - self.at);
        self.lost * kept / (self.seconds * kept).max(SPAN_S)
    }

    /// Of a request, in engine seconds; `None`: nothing has started lately.
    pub fn mean_seconds(&self) -> Option<f64> {
        (self.requests > 0.0 && self.seconds > 0.0).then(|| self.seconds / self.requests)
    }

    /// Of what was lost this share is still believed, from 0 to 1.
    pub fn fade(&mut self, kept: f64) {
        self.lost *= kept;
    }

    fn age(&mut self, now: Micros) {
        let kept = kept(now - self.at);
        (self.requests, self.seconds, self.lost) = (self.requests * kept, self.seconds * kept, self.lost * kept);
        self.at = self.at.max(now);
    }
}

fn kept(us: Micros) -> f64 {
    libm::exp(-(us.max(0) as f64) / 1e6 / SPAN_S)
}

/// The chance below which a start beside others is not worth it for a request of mean size, while such a share of the engines' time
/// is lost.
pub fn worth(missed_share: f64, config: &DeadlineConfig) -> f64 {
    between((config.worth_min, config.worth_max), missed_share, config)
}

/// The chance below which a start is not worth it where nothing runs either: that of a refusal, while nothing is lost, and that of a
/// start beside others once as much is lost as may be. What begins in vain on an idle instance holds up who comes next.
pub fn alone(missed_share: f64, refuse: f64, config: &DeadlineConfig) -> f64 {
    between((refuse, config.worth_max), missed_share, config)
}

fn between((least, most): (f64, f64), missed_share: f64, config: &DeadlineConfig) -> f64 {
    least + (missed_share / config.missed_max).clamp(0.0, 1.0) * (most - least)
}

/// The same for a request that takes so many engine seconds. Below 1 and above 0 if `worth` is.
pub fn worth_of(worth: f64, seconds: f64, mean_seconds: Option<f64>) -> f64 {
    let Some(mean) = mean_seconds.filter(|mean| *mean > 0.0 && seconds.is_finite()) else { return worth };
    let odds = worth / (1.0 - worth) * (seconds / mean).clamp(1.0 / SIZE_MAX, SIZE_MAX);
    odds / (1.0 + odds)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::test_policy;

    proptest! {
        /// Scenario: requests of any size and chance start at any times, some end, late or not; share and mean are asked for between.
        /// Guarantees: they equal those of a list of all starts, each weighed by its age, with what is known of its loss.
        #[test]
        fn the_share_is_that_of_a_list(
            steps in prop::collection::vec((0i64..4_000_000, 0.0f64..30.0, 0.0f64..=1.0, 0usize..50, 0i64..20_000_000), 1..40),
        ) {
            let (mut meter, mut now) = (WasteMeter::default(), 0);
            let mut list: Vec<(Venture, Option<Met>)> = Vec::new();
            for (gap, seconds, chance, choice, later) in steps {
                now += gap;
                let running: Vec<usize> = (0..list.len()).filter(|place| list[*place].1.is_none()).collect();
                match running.get(choice) {
                    Some(place) => {
                        let is_met = if chance > 0.5 { Met::Yes } else { Met::No };
                        meter.ended(now, &list[*place].0, is_met);
                        list[*place].1 = Some(is_met);
                    }
                    None => {
                        let venture = Venture::new(now, seconds, chance).unwrap();
                        meter.started(&venture);
                        list.push((venture, None));
                    }
                }
                let weight = |at: Micros, until: Micros| (-((until - at) as f64) / 1e7).exp();
                let all: f64 = list.iter().map(|(one, _)| one.seconds * weight(one.at, now + later)).sum();
                let loss = |(one, end): &(Venture, Option<Met>)| match end {
                    None => one.seconds * (1.0 - one.chance),
                    Some(Met::No) => one.seconds,
                    Some(Met::Yes) => 0.0,
                };
                let lost: f64 = list.iter().map(|one| loss(one) * weight(one.0.at, now + later)).sum();
                let share = meter.missed_share(now + later);
                prop_assert!((share - lost / all.max(SPAN_S)).abs() < 1e-9, "{} and {}", share, lost / all.max(SPAN_S));
                let count: f64 = list.iter().map(|(one, _)| weight(one.at, now)).sum();
                let mean = list.iter().map(|(one, _)| one.seconds * weight(one.at, now)).sum::<f64>() / count;
                prop_assert!((meter.mean_seconds().unwrap_or(0.0) - mean).abs() < 1e-9 * mean.max(1.0));
            }
        }
    }

    /// Scenario: nothing was lost, half of what may be, that, and more; requests of several sizes; figures that are no numbers.
    /// Guarantees: the chance asked for is the least, the middle, the most; odds grow with size, within bounds, and a request of mean
    /// size is asked for the chance itself; nonsense is no venture.
    #[test]
    fn the_chance_asked_for_grows_with_what_is_lost_and_with_size() {
        let config = &test_policy().deadline;
        let of = |share: f64| worth(share * config.missed_max, config);
        assert_eq!((of(0.0), of(1.0), of(50.0)), (config.worth_min, config.worth_max, config.worth_max));
        assert!((of(0.5) - (config.worth_min + config.worth_max) / 2.0).abs() < 1e-12);
        assert_eq!((alone(0.0, 0.05, config), alone(1.0, 0.05, config)), (0.05, config.worth_max));
        let odds = |seconds: f64| worth_of(0.8, seconds, Some(2.0)) / (1.0 - worth_of(0.8, seconds, Some(2.0)));
        for (seconds, expected) in [(2.0, 4.0), (1.0, 2.0), (4.0, 8.0), (0.0, 1.0), (1e9, 16.0)] {
            assert!((odds(seconds) - expected).abs() < 1e-9, "{seconds}: {}", odds(seconds));
        }
        assert_eq!((worth_of(0.8, 5.0, None), worth_of(0.8, f64::NAN, Some(1.0))), (0.8, 0.8));
        assert_eq!(WasteMeter::default().mean_seconds(), None);
        let wrong = [(f64::NAN, 0.5), (f64::INFINITY, 0.5), (-1.0, 0.5), (1.0, 1.5), (1.0, f64::NAN)];
        assert!(wrong.into_iter().all(|(seconds, chance)| Venture::new(0, seconds, chance).is_none()));
    }
}
