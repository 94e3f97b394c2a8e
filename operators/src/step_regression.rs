//! How long a step takes, learnt online: seconds = base + per sequence decoded + per prompt token prefilled, by least
//! squares with forgetting, no coefficient below zero (B1).
//!
//! Invariant: after n steps the fit is the non-negative one of least squared error over all steps, step i weighted
//! `forgetting^(n - i)`, with a ridge so small that it only decides between fits the data cannot tell apart.
//! Cost: per step one update of a 3×3 matrix; a fit solves at most seven systems of at most three unknowns.
//! State: 17 numbers.
use serde::{Deserialize, Serialize};

use crate::rows::StepRow;

/// Brings the columns to like sizes: sequences are counted in 16s, prompt tokens in 256s.
const SCALE: [f64; 3] = [1.0, 16.0, 256.0];
/// Share of the total weight added to the diagonal.
const RIDGE: f64 = 1e-8;

/// A step's length by what was in it, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepFit {
    /// Steps seen.
    pub samples: u64,
    pub base_ns: u64,
    pub per_sequence_ns: u64,
    pub per_prefill_token_ns: u64,
}

impl StepFit {
    /// Predicted length of a step that decodes `sequences` and prefills `prefill_tokens`, nanoseconds.
    pub fn predict_ns(&self, sequences: u64, prefill_tokens: u64) -> u64 {
        let decode = self.per_sequence_ns.saturating_mul(sequences);
        let prefill = self.per_prefill_token_ns.saturating_mul(prefill_tokens);
        self.base_ns.saturating_add(decode).saturating_add(prefill)
    }
}

/// The columns and the seconds of a step; `None` if it computed nothing or took no time.
pub(crate) fn sample(row: &StepRow) -> Option<([f64; 3], f64)> {
    content(row.decode_tokens, row.prefill_tokens, row.step_us)
}

fn content(decode_tokens: u32, prefill_tokens: u32, step_us: u64) -> Option<([f64; 3], f64)> {
    let idle = decode_tokens == 0 && prefill_tokens == 0;
    let columns = [1.0, f64::from(decode_tokens) / SCALE[1], f64::from(prefill_tokens) / SCALE[2]];
    (!idle && step_us > 0).then(|| (columns, step_us as f64 / 1e6))
}

/// Coefficients of scaled columns, seconds, as a fit.
pub(crate) fn as_fit(samples: u64, coefficients: [f64; 3]) -> StepFit {
    let ns = |place: usize| (coefficients[place] / SCALE[place] * 1e9).round() as u64;
    StepFit { samples, base_ns: ns(0), per_sequence_ns: ns(1), per_prefill_token_ns: ns(2) }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct StepRegression {
    forgetting: f64,
    samples: u64,
    weight: f64,
    squares: [[f64; 3]; 3],
    products: [f64; 3],
    /// Over steps that prefilled: sum of seconds × tokens, and of tokens².
    prefill: (f64, f64),
}

impl StepRegression {
    pub fn new(forgetting: f64) -> Self {
        Self { forgetting, samples: 0, weight: 0.0, squares: [[0.0; 3]; 3], products: [0.0; 3], prefill: (0.0, 0.0) }
    }

    pub fn add(&mut self, row: &StepRow) {
        self.learn(row.decode_tokens, row.prefill_tokens, row.step_us);
    }

    /// One step by its content.
    pub fn learn(&mut self, decode_tokens: u32, prefill_tokens: u32, step_us: u64) {
        let Some((columns, seconds)) = content(decode_tokens, prefill_tokens, step_us) else { return };
        self.samples += 1;
        self.weight = self.weight * self.forgetting + 1.0;
        for (at, column) in columns.iter().enumerate() {
            for (to, other) in columns.iter().enumerate() {
                self.squares[at][to] = self.squares[at][to] * self.forgetting + column * other;
            }
            self.products[at] = self.products[at] * self.forgetting + column * seconds;
        }
        if prefill_tokens > 0 {
            let tokens = f64::from(prefill_tokens);
            self.prefill.0 = self.prefill.0 * self.forgetting + seconds * tokens;
            self.prefill.1 = self.prefill.1 * self.forgetting + tokens * tokens;
        }
    }

    /// Prompt tokens per second in steps that prefill, whatever else is in them: the slope through the origin of step
    /// seconds over prompt tokens. `None` before the first such step.
    pub fn prefill_tokens_per_s(&self) -> Option<u64> {
        let (by_seconds, by_tokens) = self.prefill;
        (by_seconds > 0.0).then(|| (by_tokens / by_seconds).round() as u64)
    }

    /// The fit; `None` before `min_samples` steps.
    pub fn fit(&self, min_samples: u64) -> Option<StepFit> {
        if self.samples < min_samples.max(1) {
            return None;
        }
        // The best non-negative fit is the unconstrained one on its own support: try each support, keep the best.
        let (mut best, mut best_gain) = ([0.0; 3], 0.0);
        for support in 1u8..8 {
            let Some(coefficients) = self.solve(support) else { continue };
            let gain: f64 = (0..3).map(|place| coefficients[place] * self.products[place]).sum();
            if gain > best_gain {
                (best, best_gain) = (coefficients, gain);
            }
        }
        Some(as_fit(self.samples, best))
    }

    /// Least squares on the columns in `support` (one bit a column); `None` if a coefficient falls below zero.
    fn solve(&self, support: u8) -> Option<[f64; 3]> {
        let places: Vec<usize> = (0..3).filter(|place| support & (1 << place) != 0).collect();
        let mut system = [[0.0; 4]; 3];
        for (row, at) in places.iter().enumerate() {
            for (column, to) in places.iter().enumerate() {
                system[row][column] = self.squares[*at][*to];
            }
            system[row][row] += RIDGE * self.weight;
            system[row][3] = self.products[*at];
        }
        let solved = eliminate(&mut system, places.len())?;
        let mut coefficients = [0.0; 3];
        for (value, place) in solved.iter().zip(&places) {
            coefficients[*place] = *value;
        }
        coefficients.iter().all(|value| *value >= 0.0 && value.is_finite()).then_some(coefficients)
    }
}

/// Solves a symmetric positive definite system of `size` rows, right-hand side in column 3; `None` if it is singular.
fn eliminate(system: &mut [[f64; 4]; 3], size: usize) -> Option<[f64; 3]> {
    for pivot in 0..size {
        if system[pivot][pivot] <= 0.0 {
            return None;
        }
        let (upper, lower) = system.split_at_mut(pivot + 1);
        let head = &upper[pivot];
        for row in lower.iter_mut().take(size - pivot - 1) {
            let factor = row[pivot] / head[pivot];
            row.iter_mut().zip(head).for_each(|(value, above)| *value -= factor * above);
        }
    }
    let mut solved = [0.0; 3];
    for row in (0..size).rev() {
        let known: f64 = (row + 1..size).map(|column| system[row][column] * solved[column]).sum();
        solved[row] = (system[row][3] - known) / system[row][row];
    }
    Some(solved)
}

/// Share of the total weight added to the diagonal, for the twin.
pub(crate) fn ridge() -> f64 {
    RIDGE
}
