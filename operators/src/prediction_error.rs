//! How well a predictor predicts, by its own past: each prediction was made before the outcome was learnt (A4).
//!
//! Invariant: figures are means over all outcomes scored, outcome i of n weighted `forgetting^(n - i)`.
//! Cost: O(1) per outcome. State: five numbers.
use serde::{Deserialize, Serialize};

/// Errors of a predictor, lately. All figures are 0 before the first outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct PredictionError {
    /// Outcomes scored since the start.
    pub samples: u64,
    /// Mean of predicted less actual, in the unit of the quantity: above zero where too much is predicted.
    pub bias: f64,
    /// Mean absolute error as a share of the actual value.
    pub mape: f64,
    /// Share of outcomes inside the predicted 90 % interval.
    pub coverage_90: f64,
}

/// What was predicted of an outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub mean: f64,
    /// The 90 % interval.
    pub interval: (f64, f64),
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct ErrorMeter {
    forgetting: f64,
    /// Least actual value a relative error is taken of: a share of nothing says nothing.
    least: f64,
    samples: u64,
    weight: f64,
    /// Weighted sums of error, relative error and hits.
    sums: [f64; 3],
}

impl ErrorMeter {
    pub fn new(forgetting: f64, least: f64) -> Self {
        Self { forgetting, least, samples: 0, weight: 0.0, sums: [0.0; 3] }
    }

    pub fn score(&mut self, claim: &Claim, actual: f64) {
        let error = claim.mean - actual;
        let is_inside = claim.interval.0 <= actual && actual <= claim.interval.1;
        self.samples += 1;
        self.weight = self.weight * self.forgetting + 1.0;
        let now = [error, error.abs() / actual.abs().max(self.least), if is_inside { 1.0 } else { 0.0 }];
        for (sum, now) in self.sums.iter_mut().zip(now) {
            *sum = *sum * self.forgetting + now;
        }
    }

    pub fn error(&self) -> PredictionError {
        if self.samples == 0 {
            return PredictionError::default();
        }
        let [bias, mape, coverage_90] = self.sums.map(|sum| sum / self.weight);
        PredictionError { samples: self.samples, bias, mape, coverage_90 }
    }
}
