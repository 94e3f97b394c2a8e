//! The twin of `instance_state`: every step kept, rates summed and the fit solved over all of them anew.
//!
//! Invariant: the same rules as the operator. The fit is found by solving each support with pivoting and keeping the one
//! of least weighted squared error, computed step by step. Cost: O(all steps) per call. State: all steps, unbounded.
use std::collections::BTreeMap;

use crate::{
    InstanceState, InstanceStateConfig, StepFit, StepRow,
    step_regression::{as_fit, ridge, sample},
};

/// See the module.
pub struct SlowInstanceState {
    config: InstanceStateConfig,
    /// Steps of the highest incarnation, in order.
    steps: BTreeMap<u32, Vec<StepRow>>,
}

impl SlowInstanceState {
    pub fn new(config: InstanceStateConfig) -> Self {
        Self { config, steps: BTreeMap::new() }
    }

    /// Folds one epoch; gives the rows of the instances that changed, by instance.
    pub fn epoch(&mut self, epoch: u64, rows: &[StepRow]) -> Vec<InstanceState> {
        let mut rows: Vec<StepRow> = rows.iter().copied().filter(|row| row.check().is_ok()).collect();
        rows.sort();
        let mut changed = Vec::new();
        for row in rows {
            let steps = self.steps.entry(row.instance).or_default();
            let last = steps.last().map(|last| (last.epoch, last.step));
            if last.is_some_and(|last| (row.epoch, row.step) <= last) {
                continue;
            }
            if last.is_some_and(|(incarnation, _)| incarnation < row.epoch) {
                steps.clear();
            }
            steps.push(row);
            changed.push(row.instance);
        }
        changed.dedup();
        changed.into_iter().map(|instance| self.state(epoch, &self.steps[&instance])).collect()
    }

    fn state(&self, epoch: u64, steps: &[StepRow]) -> InstanceState {
        let mut now_us = 0;
        let ends: Vec<(i64, u64)> = steps
            .iter()
            .map(|step| {
                now_us = step.at_us.max(now_us);
                (now_us, u64::from(step.decode_tokens))
            })
            .collect();
        let recent = ends.iter().filter(|(end, _)| *end > now_us - 1_000_000);
        InstanceState {
            epoch,
            step: steps[steps.len() - 1],
            tokens_per_s: recent.map(|(_, tokens)| tokens).sum(),
            prefill_tokens_per_s: self.prefill_speed(steps),
            fit: self.fit(steps),
        }
    }

    fn prefill_speed(&self, steps: &[StepRow]) -> Option<u64> {
        let samples =
            steps.iter().filter(|step| step.prefill_tokens > 0).filter_map(|step| Some((step, sample(step)?.1)));
        let samples: Vec<(f64, f64)> = samples.map(|(step, seconds)| (step.prefill_tokens.into(), seconds)).collect();
        let weigh = |at: usize| self.config.forgetting.powi((samples.len() - 1 - at) as i32);
        let squares: f64 = samples.iter().enumerate().map(|(at, (tokens, _))| weigh(at) * tokens * tokens).sum();
        let products: f64 =
            samples.iter().enumerate().map(|(at, (tokens, seconds))| weigh(at) * tokens * seconds).sum();
        (!samples.is_empty()).then(|| (squares / products).round() as u64)
    }

    fn fit(&self, steps: &[StepRow]) -> Option<StepFit> {
        let samples: Vec<([f64; 3], f64)> = steps.iter().filter_map(sample).collect();
        if samples.is_empty() || (samples.len() as u64) < self.config.min_samples {
            return None;
        }
        let weights: Vec<f64> =
            (0..samples.len()).map(|at| self.config.forgetting.powi((samples.len() - 1 - at) as i32)).collect();
        let penalty = ridge() * weights.iter().sum::<f64>();
        let error = |fit: &[f64; 3]| -> f64 {
            let miss = |(x, y): &([f64; 3], f64)| (y - x[0] * fit[0] - x[1] * fit[1] - x[2] * fit[2]).powi(2);
            let misses: f64 = samples.iter().zip(&weights).map(|(sample, weight)| weight * miss(sample)).sum();
            misses + penalty * fit.iter().map(|value| value * value).sum::<f64>()
        };
        let mut fits = vec![[0.0; 3]];
        for support in [[0, 3, 3], [1, 3, 3], [2, 3, 3], [0, 1, 3], [0, 2, 3], [1, 2, 3], [0, 1, 2]] {
            let support: Vec<usize> = support.into_iter().filter(|column| *column < 3).collect();
            fits.extend(solve(&samples, &weights, (&support, penalty)));
        }
        let best = fits.into_iter().min_by(|a, b| error(a).total_cmp(&error(b)))?;
        Some(as_fit(samples.len() as u64, best))
    }
}

/// Weighted least squares on some columns, by elimination with row exchanges; `None` if singular or below zero.
fn solve(samples: &[([f64; 3], f64)], weights: &[f64], how: (&[usize], f64)) -> Option<[f64; 3]> {
    let (support, penalty) = how;
    let size = support.len();
    let mut system = vec![vec![0.0; size + 1]; size];
    for ((x, y), weight) in samples.iter().zip(weights) {
        for (row, at) in support.iter().enumerate() {
            for (column, to) in support.iter().enumerate() {
                system[row][column] += weight * x[*at] * x[*to];
            }
            system[row][size] += weight * x[*at] * y;
        }
    }
    (0..size).for_each(|row| system[row][row] += penalty);
    for pivot in 0..size {
        let largest = (pivot..size).max_by(|a, b| system[*a][pivot].abs().total_cmp(&system[*b][pivot].abs()))?;
        system.swap(pivot, largest);
        let head = system[pivot].clone();
        if head[pivot] == 0.0 {
            return None;
        }
        for (row, line) in system.iter_mut().enumerate().filter(|(row, _)| *row != pivot) {
            let factor = line[pivot] / head[pivot];
            line.iter_mut().zip(&head).for_each(|(value, above)| *value -= factor * above);
            debug_assert!(row < size);
        }
    }
    let mut fit = [0.0; 3];
    for (row, column) in support.iter().enumerate() {
        fit[*column] = system[row][size] / system[row][row];
    }
    fit.iter().all(|value| *value >= 0.0 && value.is_finite()).then_some(fit)
}
