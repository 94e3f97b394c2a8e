//! A predicted quantity: its mean, its variance, and what follows from them if errors are normal (A4).
//!
//! Invariant: a quantile of a quantity that cannot be below zero is not below zero. Cost: O(1); a quantile takes 60 steps
//! of bisection. State: none.
use std::f64::consts::SQRT_2;

use serde::{Deserialize, Serialize};

/// How many standard deviations the 90 % interval reaches to either side.
pub const Z_90: f64 = 1.644_853_626_951_472_7;

/// A quantity that is not known yet and not below zero: seconds, tokens, arrivals.
///
/// ```
/// use operators::Prediction;
///
/// let run_time = Prediction { mean: 2.0, variance: 0.25 };
/// assert!((run_time.within(2.5) - 0.8413).abs() < 1e-4);
/// assert!((run_time.quantile(0.8413) - 2.5).abs() < 1e-3);
/// let both = run_time.plus(&run_time);
/// assert_eq!((both.mean, both.variance), (4.0, 0.5));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Prediction {
    pub mean: f64,
    pub variance: f64,
}

impl Prediction {
    /// Probability that the quantity is at most `bound`.
    pub fn within(&self, bound: f64) -> f64 {
        if self.variance <= 0.0 {
            return if self.mean <= bound { 1.0 } else { 0.0 };
        }
        0.5 * libm::erfc(-(bound - self.mean) / (self.variance.sqrt() * SQRT_2))
    }

    /// The value that the quantity is within with probability `share`, which is above 0 and below 1.
    pub fn quantile(&self, share: f64) -> f64 {
        let (mut low, mut high) = (-9.0, 9.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            let reached = 0.5 * libm::erfc(-middle / SQRT_2);
            if reached < share { low = middle } else { high = middle }
        }
        (self.mean + high * self.variance.max(0.0).sqrt()).max(0.0)
    }

    /// The interval that holds the quantity nine times in ten.
    pub fn interval_90(&self) -> (f64, f64) {
        let reach = Z_90 * self.variance.max(0.0).sqrt();
        ((self.mean - reach).max(0.0), (self.mean + reach).max(0.0))
    }

    /// The sum of two quantities whose errors have nothing to do with each other.
    pub fn plus(&self, other: &Self) -> Self {
        Self { mean: self.mean + other.mean, variance: self.variance + other.variance }
    }
}
