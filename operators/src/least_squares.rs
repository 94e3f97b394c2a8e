//! Linear least squares with forgetting, learnt one sample at a time, with the uncertainty of what it predicts.
//!
//! Recursive least squares in its information form: the weighted squares are kept and inverted when asked, which is the
//! same estimate and cannot blow up while inputs do not vary. Invariant: after n samples the fit minimises the squared
//! error over all of them, sample i weighted `forgetting^(n - i)`, plus [`RIDGE`] times the total weight times the
//! squared coefficients: that only decides between fits the data cannot tell apart. The noise is the mean, weighted alike,
//! of each sample's squared error before it was learnt over its predicted variance in units of noise.
//! A sample that is far off what was predicted of it is learnt as one that is as far off as one may be ([`DEVIATIONS_MAX`],
//! [`TIMES_MAX`]; winsorizing): a machine that stood still once for a second says nothing of the next thousand steps, whose noise it would
//! be for as long. A world that has changed is still followed: by three times what was predicted with each sample's weight, and by a
//! noise that grows meanwhile.
//! Cost: per sample N² sums and one inversion of an N × N matrix. State: N² + N + 5 numbers.
use serde::{Deserialize, Serialize};

use crate::prediction::Prediction;

/// Share of the total weight added to the diagonal; columns should be scaled to about 1.
pub const RIDGE: f64 = 1e-8;
/// A sample is learnt as at most so many standard deviations off what was predicted of it …
pub(crate) const DEVIATIONS_MAX: f64 = 8.0;
/// … or so many times that, whichever is more.
pub(crate) const TIMES_MAX: f64 = 3.0;

/// What was learnt, to predict from.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct LinearFit<const N: usize> {
    pub samples: u64,
    #[serde(with = "crate::on_the_wire::numbers")]
    pub coefficients: [f64; N],
    /// Covariance of the coefficients, in units of `noise`.
    #[serde(with = "crate::on_the_wire::matrix")]
    pub covariance: [[f64; N]; N],
    /// Variance of one sample around the fit.
    pub noise: f64,
}

impl<const N: usize> LinearFit<N> {
    /// The sum of `draws` samples whose columns add up to `columns`.
    pub fn predict(&self, columns: &[f64; N], draws: f64) -> Prediction {
        Prediction { mean: dot(&self.coefficients, columns), variance: self.noise * (draws + self.spread(columns)) }
    }

    /// The same with no coefficient below zero: for columns far from what was learnt, where a slope that is negative by
    /// noise alone would eat up all the others.
    pub fn rising(&self) -> Self {
        Self { coefficients: self.coefficients.map(|coefficient| coefficient.max(0.0)), ..*self }
    }

    fn spread(&self, columns: &[f64; N]) -> f64 {
        self.covariance.iter().zip(columns).map(|(row, column)| column * dot(row, columns)).sum::<f64>().max(0.0)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct LeastSquares<const N: usize> {
    forgetting: f64,
    min_samples: u64,
    samples: u64,
    weight: f64,
    squares: [[f64; N]; N],
    products: [f64; N],
    /// Weighted squared errors in units of noise, and their weight.
    noise: (f64, f64),
}

impl<const N: usize> LeastSquares<N> {
    /// `min_samples`: samples before there is a fit.
    pub fn new(forgetting: f64, min_samples: u64) -> Self {
        Self {
            forgetting,
            min_samples: min_samples.max(1),
            samples: 0,
            weight: 0.0,
            squares: [[0.0; N]; N],
            products: [0.0; N],
            noise: (0.0, 0.0),
        }
    }

    /// Learns one sample; gives what was predicted of it, if there was a fit with a noise.
    pub fn learn(&mut self, columns: &[f64; N], value: f64) -> Option<Prediction> {
        let before = self.solve();
        let predicted = before.map(|fit| fit.predict(columns, 1.0)).filter(|_| self.noise.1 > 0.0);
        let value = predicted.as_ref().map_or(value, |predicted| believed(value, predicted));
        if let Some(fit) = before {
            let error = value - dot(&fit.coefficients, columns);
            let (squares, weight) = self.noise;
            let now = error * error / (1.0 + fit.spread(columns));
            self.noise = (squares * self.forgetting + now, weight * self.forgetting + 1.0);
        }
        self.samples += 1;
        self.weight = self.weight * self.forgetting + 1.0;
        for (row, column) in columns.iter().enumerate() {
            for (sum, other) in self.squares[row].iter_mut().zip(columns) {
                *sum = *sum * self.forgetting + column * other;
            }
            self.products[row] = self.products[row] * self.forgetting + column * value;
        }
        predicted
    }

    /// The fit; `None` before there are `min_samples` samples and one more to tell the noise.
    pub fn fit(&self) -> Option<LinearFit<N>> {
        self.solve().filter(|_| self.noise.1 > 0.0)
    }

    fn solve(&self) -> Option<LinearFit<N>> {
        if self.samples < self.min_samples {
            return None;
        }
        let mut system = self.squares;
        (0..N).for_each(|place| system[place][place] += RIDGE * self.weight);
        let covariance = invert(system)?;
        let (squares, weight) = self.noise;
        Some(LinearFit {
            samples: self.samples,
            coefficients: covariance.map(|row| dot(&row, &self.products)),
            covariance,
            noise: if weight > 0.0 { squares / weight } else { 0.0 },
        })
    }
}

/// The value, or the nearest to it that is not too far off.
fn believed(value: f64, predicted: &Prediction) -> f64 {
    let reach = (DEVIATIONS_MAX * predicted.variance.sqrt()).max(TIMES_MAX * predicted.mean.abs());
    if value > predicted.mean + reach {
        predicted.mean + reach
    } else if value < predicted.mean - reach {
        predicted.mean - reach
    } else {
        value
    }
}

fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The inverse of a symmetric positive definite matrix; `None` if it is not one as far as numbers can tell.
fn invert<const N: usize>(mut system: [[f64; N]; N]) -> Option<[[f64; N]; N]> {
    let mut inverse = [[0.0; N]; N];
    (0..N).for_each(|place| inverse[place][place] = 1.0);
    for pivot in 0..N {
        let head = system[pivot][pivot];
        if head.is_nan() || head <= 0.0 {
            return None;
        }
        system[pivot].iter_mut().chain(&mut inverse[pivot]).for_each(|value| *value /= head);
        let (line, line_of_inverse) = (system[pivot], inverse[pivot]);
        for row in (0..N).filter(|row| *row != pivot) {
            let factor = system[row][pivot];
            for column in 0..N {
                system[row][column] -= factor * line[column];
                inverse[row][column] -= factor * line_of_inverse[column];
            }
        }
    }
    inverse.iter().flatten().all(|value| value.is_finite()).then_some(inverse)
}
