//! The twin of `least_squares` and `prediction_error`: every sample kept, every fit solved over all of them anew.
//!
//! Invariant: the same weights, ridge, noise, bounds of what is believed, and scores, said as sums over the list. Systems are solved by elimination with
//! row exchanges. Cost: a fit per sample, each over all before it. State: all samples, unbounded.
use crate::{
    least_squares::{DEVIATIONS_MAX, RIDGE, TIMES_MAX},
    prediction_error::PredictionError,
};

/// One sample, and what was predicted of it before it was learnt.
#[derive(Clone, Debug)]
struct Sample {
    columns: Vec<f64>,
    value: f64,
    /// The value as it is learnt: not too far off what was predicted.
    believed: f64,
    /// Squared error in units of noise.
    noise: Option<f64>,
    /// Mean and variance.
    predicted: Option<(f64, f64)>,
}

/// A fit by the twin.
#[derive(Clone, Debug)]
pub struct SlowFit {
    pub coefficients: Vec<f64>,
    pub covariance: Vec<Vec<f64>>,
    pub noise: f64,
}

impl SlowFit {
    fn spread(&self, columns: &[f64]) -> f64 {
        let size = columns.len();
        let mut spread = 0.0;
        for row in 0..size {
            for column in 0..size {
                spread += columns[row] * self.covariance[row][column] * columns[column];
            }
        }
        spread.max(0.0)
    }

    /// Mean and variance of the sum of `draws` samples whose columns add up to `columns`.
    pub fn predict(&self, columns: &[f64], draws: f64) -> (f64, f64) {
        let mean = self.coefficients.iter().zip(columns).map(|(a, b)| a * b).sum();
        (mean, self.noise * (draws + self.spread(columns)))
    }
}

/// See the module.
pub struct SlowLeastSquares {
    forgetting: f64,
    min_samples: u64,
    /// Least actual value a relative error is taken of.
    least: f64,
    samples: Vec<Sample>,
}

impl SlowLeastSquares {
    pub fn new(forgetting: f64, min_samples: u64, least: f64) -> Self {
        Self { forgetting, min_samples, least, samples: Vec::new() }
    }

    pub fn samples(&self) -> u64 {
        self.samples.len() as u64
    }

    pub fn learn(&mut self, columns: &[f64], value: f64) {
        let fit = self.solve();
        let is_known = self.samples.iter().any(|sample| sample.noise.is_some());
        let predicted = fit.as_ref().filter(|_| is_known).map(|fit| fit.predict(columns, 1.0));
        let believed = match predicted {
            None => value,
            Some((mean, variance)) => {
                let farthest = f64::max(DEVIATIONS_MAX * variance.sqrt(), TIMES_MAX * mean.abs());
                mean + (value - mean).signum() * (value - mean).abs().min(farthest)
            }
        };
        let error = fit.as_ref().map(|fit| (fit.predict(columns, 1.0).0 - believed, fit.spread(columns)));
        let noise = error.map(|(error, spread)| error * error / (1.0 + spread));
        self.samples.push(Sample { columns: columns.to_vec(), value, believed, noise, predicted });
    }

    /// `None` before there are enough samples to tell fit and noise.
    pub fn fit(&self) -> Option<SlowFit> {
        self.solve().filter(|_| self.samples.iter().any(|sample| sample.noise.is_some()))
    }

    fn solve(&self) -> Option<SlowFit> {
        if self.samples() < self.min_samples.max(1) {
            return None;
        }
        let size = self.samples[0].columns.len();
        let weight = |age: usize| self.forgetting.powi(age as i32);
        let ages = || self.samples.iter().rev().enumerate();
        let ridge = RIDGE * ages().map(|(age, _)| weight(age)).sum::<f64>();
        let mut squares = vec![vec![0.0; size]; size];
        let mut products = vec![0.0; size];
        for (age, sample) in ages() {
            for (row, value) in sample.columns.iter().enumerate() {
                for (square, other) in squares[row].iter_mut().zip(&sample.columns) {
                    *square += weight(age) * value * other;
                }
                products[row] += weight(age) * value * sample.believed;
            }
        }
        (0..size).for_each(|place| squares[place][place] += ridge);
        let covariance = inverse(squares)?;
        let coefficients = covariance.iter().map(|row| row.iter().zip(&products).map(|(a, b)| a * b).sum()).collect();
        let scored = || ages_of_scored(&self.samples).map(|(age, sample)| (weight(age), sample.noise.unwrap_or(0.0)));
        let total: f64 = scored().map(|(weight, _)| weight).sum();
        let noise = scored().map(|(weight, noise)| weight * noise).sum::<f64>();
        Some(SlowFit { coefficients, covariance, noise: if total > 0.0 { noise / total } else { 0.0 } })
    }

    /// The errors of all predictions made.
    pub fn error(&self) -> PredictionError {
        let made: Vec<_> = self.samples.iter().filter_map(|sample| Some((sample.predicted?, sample.value))).collect();
        let scores: Vec<_> = made
            .iter()
            .map(|((mean, variance), actual)| {
                let reach = crate::prediction::Z_90 * variance.sqrt();
                ((*mean).max(0.0) - actual, (mean - reach).max(0.0)..=(mean + reach).max(0.0), *actual)
            })
            .collect();
        slow_error(self.forgetting, self.least, &scores)
    }
}

/// Scored samples with the number of scored ones after them.
fn ages_of_scored(samples: &[Sample]) -> impl Iterator<Item = (usize, &Sample)> {
    samples.iter().rev().filter(|sample| sample.noise.is_some()).enumerate()
}

/// The errors of predictions in order: each its error, its 90 % interval and the actual value.
pub fn slow_error(
    forgetting: f64,
    least: f64,
    scores: &[(f64, std::ops::RangeInclusive<f64>, f64)],
) -> PredictionError {
    let (mut bias, mut mape, mut inside, mut total) = (0.0, 0.0, 0.0, 0.0);
    for (age, (error, interval, actual)) in scores.iter().rev().enumerate() {
        let weight = forgetting.powi(age as i32);
        total += weight;
        bias += weight * error;
        mape += weight * error.abs() / actual.abs().max(least);
        inside += if interval.contains(actual) { weight } else { 0.0 };
    }
    if scores.is_empty() {
        return PredictionError::default();
    }
    let samples = scores.len() as u64;
    PredictionError { samples, bias: bias / total, mape: mape / total, coverage_90: inside / total }
}

/// By elimination with row exchanges.
fn inverse(mut system: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let size = system.len();
    for (place, row) in system.iter_mut().enumerate() {
        row.extend((0..size).map(|column| if column == place { 1.0 } else { 0.0 }));
    }
    for pivot in 0..size {
        let largest = (pivot..size).max_by(|a, b| system[*a][pivot].abs().total_cmp(&system[*b][pivot].abs()))?;
        system.swap(pivot, largest);
        let head = system[pivot].clone();
        if head[pivot] == 0.0 {
            return None;
        }
        for (row, line) in system.iter_mut().enumerate() {
            let factor = if row == pivot { 1.0 - 1.0 / head[pivot] } else { line[pivot] / head[pivot] };
            line.iter_mut().zip(&head).for_each(|(value, above)| *value -= factor * above);
        }
    }
    Some(system.into_iter().map(|row| row[size..].to_vec()).collect())
}
