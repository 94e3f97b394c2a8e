//! What a predicted chance is worth: how often requests that started with it made it (SPEC A4 c: "calibration").
//!
//! Predictions are learnt from how long requests took, and engines take their time where there is some: so a short chance is too
//! small a number, and a good one a little too large. Odds are corrected in logarithms, offset + slope x, fitted to what came true:
//! Platt's scaling, as a logistic regression that goes on with each outcome and lets older ones fade.
//!
//! Outcomes fade by what they say. One that was as good as certain says nothing new, so that a quiet hour does not wipe out what an
//! overload has shown. Of requests with next to no chance none starts, so nothing is learnt of those, and a flat fit must not make a hope of
//! them: from [`LEARNT_MIN`] down a chance falls with the one predicted.
//!
//! Where a machine stood still all that ran misses at once, however good its chance was. So outcomes of one moment, which have one cause,
//! count together as one, and [`EACH_SECOND`] a second at most; and a share of all ([`ODD_SHARE`]) is taken to be even odds whatever was
//! predicted, so that a certainty that missed says little (Copas, "Binary regression models for contaminated data", 1988).
//!
//! Invariants: without outcomes a chance stays what it is; a greater one never becomes the smaller one ([`SLOPE_MIN`]); 0 stays 0.
//! Cost: O(1). State: five sums and a time.

use super::learnt::counts;
use crate::{ids::Micros, policy::Met};

/// What the fit begins with weighs as much as outcomes with this sum of p (1 - p), at log odds of 1.
const PRIOR_WEIGHT: f64 = 3.0;
/// An outcome at even odds leaves this share of those before it.
const FORGETTING: f64 = 0.98;
/// Outcomes that those of one second count as, at most.
const EACH_SECOND: f64 = 3.0;
/// Of outcomes that chances have nothing to do with.
const ODD_SHARE: f64 = 0.07;
/// A chance is never taken for nearer to 0 or 1 than this.
const CHANCE_MIN: f64 = 1e-4;
/// Smaller ones are corrected by the same factor as this one.
const LEARNT_MIN: f64 = 0.02;
pub const SLOPE_MIN: f64 = 0.1;
pub const SLOPE_MAX: f64 = 2.0;
/// Odds are never moved by more than this, in logarithms.
pub const OFFSET_MAX: f64 = 3.0;

/// Log odds that came true: offset + slope times those predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    pub offset: f64,
    pub slope: f64,
}

impl Default for Calibration {
    /// Chances are what they say.
    fn default() -> Self {
        Self { offset: 0.0, slope: 1.0 }
    }
}

impl Calibration {
    /// `None`: figures that are none, or out of bounds.
    pub fn new(offset: f64, slope: f64) -> Option<Calibration> {
        let is_bounded = (SLOPE_MIN..=SLOPE_MAX).contains(&slope) && offset.abs() <= OFFSET_MAX;
        is_bounded.then_some(Calibration { offset, slope })
    }

    /// The chance, from 0 to 1, that a predicted one turned out to be.
    pub fn of(&self, predicted: f64) -> f64 {
        if *self == Calibration::default() || predicted <= 0.0 {
            return predicted;
        }
        let corrected = chance_of(self.offset + self.slope * log_odds(predicted.max(LEARNT_MIN)));
        corrected * (predicted / LEARNT_MIN).min(1.0)
    }
}

fn log_odds(chance: f64) -> f64 {
    let chance = chance.clamp(CHANCE_MIN, 1.0 - CHANCE_MIN);
    libm::log(chance / (1.0 - chance))
}

fn chance_of(log_odds: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-log_odds))
}

/// How the logarithm of an outcome's likelihood grows with the log odds of its chance, and how fast that falls on average: with no odd
/// outcomes the error and p (1 - p).
fn says(chance: f64, is_met: Met) -> (f64, f64) {
    let growth = (1.0 - ODD_SHARE) * chance * (1.0 - chance);
    let met = ODD_SHARE / 2.0 + (1.0 - ODD_SHARE) * chance;
    let error = if is_met == Met::Yes { growth / met } else { -growth / (1.0 - met) };
    (error, growth * growth / (met * (1.0 - met)))
}

/// Learns a [`Calibration`].
#[derive(Debug, Clone, Default)]
pub struct CalibrationMeter {
    /// Of the weights: their sum, and that of weight times x and x squared.
    weights: [f64; 3],
    /// Weight times the log odds that an outcome speaks for, and the same times x.
    spoken: [f64; 2],
    calibration: Calibration,
    /// When the last outcome came.
    last: Option<Micros>,
}

impl CalibrationMeter {
    /// A request that started with this chance, as it was predicted, has ended now.
    pub fn learn(&mut self, now: Micros, predicted: f64, is_met: Met) {
        if !(0.0..=1.0).contains(&predicted) {
            return;
        }
        let counts = counts(&mut self.last, now, EACH_SECOND);
        let x = log_odds(predicted);
        let now = self.calibration.offset + self.calibration.slope * x;
        let chance = chance_of(now);
        let (error, weight) = says(chance, is_met);
        let (error, weight) = (counts * error, counts * weight);
        // A quarter is the most that a weight comes to.
        let kept = 1.0 - (1.0 - FORGETTING) * 4.0 * weight;
        // Newton's step for logistic regression: the log odds that the outcome speaks for, seen from here.
        let speaks = weight * now + error;
        for (sum, added) in self.weights.iter_mut().zip([weight, weight * x, weight * x * x]) {
            *sum = *sum * kept + added;
        }
        for (sum, added) in self.spoken.iter_mut().zip([speaks, speaks * x]) {
            *sum = *sum * kept + added;
        }
        self.calibration = self.solve();
    }

    pub fn calibration(&self) -> Calibration {
        self.calibration
    }

    /// Of what was learnt this share stays, from 0 to 1.
    pub fn fade(&mut self, kept: f64) {
        self.weights.iter_mut().chain(&mut self.spoken).for_each(|sum| *sum *= kept);
        self.calibration = self.solve();
    }

    /// Least squares with what it began with: offset 0, slope 1.
    fn solve(&self) -> Calibration {
        let [weight, first, second] = self.weights;
        let (weight, second) = (weight + PRIOR_WEIGHT, second + PRIOR_WEIGHT);
        let (level, tilt) = (self.spoken[0], self.spoken[1] + PRIOR_WEIGHT);
        let determinant = weight * second - first * first;
        let offset = (second * level - first * tilt) / determinant;
        let slope = (weight * tilt - first * level) / determinant;
        Calibration { offset: offset.clamp(-OFFSET_MAX, OFFSET_MAX), slope: slope.clamp(SLOPE_MIN, SLOPE_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What makes the outcomes of a list most likely, with the prior: found by many small steps.
    fn fit(outcomes: &[(f64, bool)]) -> Calibration {
        let (mut offset, mut slope) = (0.0, 1.0);
        for _ in 0..20_000 {
            let (mut level, mut tilt) = (-PRIOR_WEIGHT * offset, -PRIOR_WEIGHT * (slope - 1.0));
            for (predicted, is_met) in outcomes {
                let x = log_odds(*predicted);
                let chance = chance_of(offset + slope * x);
                let of = |chance: f64| if *is_met { chance } else { 1.0 - chance };
                let odd = ODD_SHARE / (1.0 - ODD_SHARE) / 2.0;
                // Of the two ways in which it may have come, the share of the one by its chance.
                let by_chance = of(chance) / (of(chance) + odd);
                let error = by_chance * (f64::from(u8::from(*is_met)) - chance);
                level += error;
                tilt += error * x;
            }
            offset += 2e-3 * level;
            slope += 2e-3 * tilt;
        }
        Calibration { offset, slope }
    }

    /// Outcomes of a world in which odds are as given, spread evenly: no randomness but a low-discrepancy sequence.
    fn world(offset: f64, slope: f64, count: usize) -> impl Iterator<Item = (f64, bool)> {
        (1..=count).map(move |number| {
            let even = |step: f64| (number as f64 * step).fract();
            let predicted = 0.05 + 0.93 * even(0.754_877_666_246_692_7);
            (predicted, even(0.569_840_290_998_053_2) < chance_of(offset + slope * log_odds(predicted)))
        })
    }

    /// Outcomes one a second.
    fn learn(meter: &mut CalibrationMeter, outcomes: impl IntoIterator<Item = (f64, bool)>) {
        for (predicted, is_met) in outcomes {
            meter.learn(meter.last.unwrap_or(0) + 1_000_000, predicted, met(is_met));
        }
    }

    fn met(is_met: bool) -> Met {
        if is_met { Met::Yes } else { Met::No }
    }

    /// Scenario: forty outcomes in three worlds, learnt one by one and all at once.
    /// Guarantees: the running fit is near the fit of the list, though it looked at each outcome once.
    #[test]
    fn the_fit_is_that_of_a_list() {
        for (offset, slope) in [(0.0, 1.0), (1.6, 0.57), (-1.0, 1.3)] {
            let outcomes: Vec<_> = world(offset, slope, 40).collect();
            let mut meter = CalibrationMeter::default();
            learn(&mut meter, outcomes.iter().copied());
            let (found, expected) = (meter.calibration(), fit(&outcomes));
            for predicted in [0.1, 0.3, 0.5, 0.7, 0.9] {
                let off = found.of(predicted) - expected.of(predicted);
                assert!(off.abs() < 0.06, "{predicted}: {found:?} and {expected:?} in {offset} + {slope} x");
            }
        }
    }

    /// Scenario: engines that make of three in ten eight, and of 0.95 0.97; then a world in which chances hold.
    /// Guarantees: what came true is told, over some hundred outcomes within a few points, and forgotten once it is so no more.
    #[test]
    fn what_came_true_is_told_and_fades() {
        const CHANCES: [f64; 3] = [0.3, 0.6, 0.95];
        let mut meter = CalibrationMeter::default();
        // What was told on average, but for the first hundred outcomes.
        let mut told = |(offset, slope): (f64, f64)| {
            let mut sums = [0.0; 3];
            for (number, outcome) in world(offset, slope, 1_000).enumerate() {
                learn(&mut meter, [outcome]);
                let told = CHANCES.map(|chance| meter.calibration().of(chance) / 900.0);
                sums.iter_mut().zip(told).for_each(|(sum, told)| *sum += if number < 100 { 0.0 } else { told });
            }
            sums
        };
        for ((offset, slope), expected) in [((1.9, 0.6), [0.80, 0.90, 0.975]), ((0.0, 1.0), CHANCES)] {
            for (told, expected) in told((offset, slope)).into_iter().zip(expected) {
                assert!((told - expected).abs() < 0.05, "{told}, not {expected}, in {offset} + {slope} x");
            }
        }
    }

    /// Scenario: what was learnt in an overload, then ten thousand that were certain to make it and did.
    /// Guarantees: they do not wipe it out.
    #[test]
    fn certainties_teach_little() {
        let mut meter = CalibrationMeter::default();
        learn(&mut meter, world(1.6, 0.57, 300));
        let before = meter.calibration().of(0.4);
        learn(&mut meter, (0..10_000).map(|_| (1.0, true)));
        let after = meter.calibration().of(0.4);
        assert!((before - after).abs() < 0.12, "{before} and {after}");
    }

    /// Scenario: an overload in which chances hold, thirty outcomes a second; the machine stands still for three seconds, and all forty that ran,
    /// good chances all, miss within a tenth of a second.
    /// Guarantees: what is as good as certain is told to be so.
    #[test]
    fn a_moment_in_which_all_miss_says_little_of_those_to_come() {
        let mut meter = CalibrationMeter::default();
        let mut now = 0;
        // Those that start in an overload have good chances.
        for (predicted, is_met) in world(0.0, 1.0, 6_000).filter(|(predicted, _)| *predicted > 0.8) {
            now += 33_000;
            meter.learn(now, predicted, met(is_met));
        }
        let before = [0.9, 0.99].map(|chance| meter.calibration().of(chance));
        now += 3_000_000;
        for number in 0..40 {
            meter.learn(now + 2_500 * number, 0.95 + 0.00125 * number as f64, Met::No);
        }
        let after = [0.9, 0.99].map(|chance| meter.calibration().of(chance));
        assert!(after[0] > 0.8 && after[1] > 0.95, "{before:?}, then {after:?}");
    }

    /// Scenario: outcomes of a world in which chances do not hold; half of what was learnt fades, then nearly all.
    /// Guarantees: what is told comes nearer to what is predicted, and then is that.
    #[test]
    fn what_fades_is_what_was_learnt() {
        let mut meter = CalibrationMeter::default();
        learn(&mut meter, world(-1.5, 0.3, 400));
        let off = |meter: &CalibrationMeter| (meter.calibration().of(0.95) - 0.95).abs();
        let learnt = off(&meter);
        meter.fade(0.05);
        let faded = off(&meter);
        meter.fade(1e-6);
        assert!(learnt > 0.3 && faded < 0.8 * learnt && off(&meter) < 1e-3, "{learnt}, {faded}, {}", off(&meter));
    }

    /// Scenario: outcomes that have nothing to do with chances, so that the fit is flat and high; a chance that time has taken away.
    /// Guarantees: what has next to no chance is told to have none.
    #[test]
    fn a_flat_fit_makes_no_hope_of_nothing() {
        let flat = Calibration::new(OFFSET_MAX, SLOPE_MIN).expect("its bounds");
        assert!(flat.of(0.4) > 0.9);
        for predicted in [1e-3, 1e-4, 1e-9, 1e-300] {
            assert!(flat.of(predicted) <= 50.0 * predicted, "{} of {predicted}", flat.of(predicted));
        }
    }

    proptest! {
        /// Scenario: any outcomes, nonsense among them.
        /// Guarantees: chances stay between 0 and 1, in their order, and what is recorded of a fit gives the fit.
        #[test]
        fn chances_keep_their_order(
            outcomes in prop::collection::vec((
                prop_oneof![0.0f64..=1.0, Just(f64::NAN), Just(7.0)], any::<bool>(), prop_oneof![Just(0), -1_000i64..2_000_000]
            ), 0..200),
            (less, more) in (0.0f64..=1.0, 0.0f64..=1.0).prop_map(|(one, other)| (one.min(other), one.max(other))),
        ) {
            let mut meter = CalibrationMeter::default();
            let mut now = 0;
            for (predicted, is_met, gap) in outcomes {
                now += gap;
                meter.learn(now, predicted, met(is_met));
                if gap == 0 {
                    meter.fade(0.9);
                }
            }
            let found = meter.calibration();
            prop_assert!((0.0..=1.0).contains(&found.of(less)) && found.of(less) <= found.of(more), "{:?}", found);
            prop_assert_eq!(Calibration::new(found.offset, found.slope), Some(found));
            prop_assert_eq!(CalibrationMeter::default().calibration().of(less), less);
        }
    }
}
