//! The twin of `arrival_trend`: all counts kept, the whole recursion run again from the first period at each period's end.
//!
//! Invariant: the same recursion, written with one list per part and the season looked up a season back; variances as sums
//! over the horizon. Cost: O(periods × horizon) per period's end. State: all counts, unbounded.
use std::collections::BTreeMap;

use super::least_squares::slow_error;
use crate::{ArrivalTrendConfig, PredictionError, TrafficRow};

/// See the module.
pub struct SlowArrivalTrend {
    config: ArrivalTrendConfig,
    /// Counts per period since each model's first.
    counts: BTreeMap<u32, Vec<u64>>,
}

/// What the twin knows of a model at the end of a period.
#[derive(Debug)]
pub struct SlowTrend {
    pub model: u32,
    pub arrivals: u64,
    pub level: f64,
    pub slope: f64,
    pub noise: f64,
    /// Mean and variance one period ahead, and at the horizon.
    pub next: (f64, f64),
    pub ahead: (f64, f64),
    pub next_error: PredictionError,
    pub ahead_error: PredictionError,
}

/// The parts after each period.
#[derive(Default)]
struct Parts {
    level: Vec<f64>,
    slope: Vec<f64>,
    season: Vec<f64>,
    errors: Vec<f64>,
}

impl SlowArrivalTrend {
    pub fn new(config: ArrivalTrendConfig) -> Self {
        Self { config, counts: BTreeMap::new() }
    }

    /// Folds one epoch; must be called for every epoch from the first, with no rows too. Gives its rows, by model.
    pub fn epoch(&mut self, epoch: u64, rows: &[TrafficRow]) -> Vec<SlowTrend> {
        for row in rows {
            if let TrafficRow::Arrived(row) = row {
                let counts = self.counts.entry(row.model).or_insert_with(|| vec![0]);
                *counts.last_mut().expect("invariant: a known model has a current period") += 1;
            }
        }
        if !(epoch + 1).is_multiple_of(self.config.period_epochs) {
            return Vec::new();
        }
        let rows = self.counts.iter().map(|(model, counts)| self.row(*model, counts)).collect();
        let forget = self.config.forget_periods as usize;
        self.counts
            .retain(|_, counts| counts.len() < forget || counts.iter().rev().take(forget).any(|count| *count > 0));
        self.counts.values_mut().for_each(|counts| counts.push(0));
        rows
    }

    fn parts(&self, counts: &[u64]) -> Parts {
        let gains = self.config.gains;
        let season_periods = self.config.season_periods;
        let mut parts = Parts::default();
        for (at, count) in counts.iter().enumerate() {
            let back = at.checked_sub(season_periods).filter(|_| season_periods > 0);
            let before = back.map_or(0.0, |back| parts.season[back]);
            if at == 0 {
                parts.level.push(*count as f64);
                parts.slope.push(0.0);
                parts.season.push(0.0);
                continue;
            }
            let base = parts.level[at - 1] + gains.damping * parts.slope[at - 1];
            let error = *count as f64 - base - before;
            parts.level.push(base + gains.level * error);
            parts.slope.push(gains.damping * parts.slope[at - 1] + gains.level * gains.slope * error);
            let follows = if season_periods > 0 { gains.season * (1.0 - gains.level) * error } else { 0.0 };
            parts.season.push(before + follows);
            parts.errors.push(error);
        }
        parts
    }

    /// Mean and variance of the period `ahead` after the last of `counts`.
    fn forecast(&self, counts: &[u64], ahead: usize) -> (f64, f64) {
        let (gains, periods) = (self.config.gains, self.config.season_periods);
        let parts = self.parts(counts);
        let last = counts.len() - 1;
        let damped = |steps: usize| (1..=steps).map(|step| gains.damping.powi(step as i32)).sum::<f64>();
        let mut season = 0.0;
        if periods > 0 {
            // The last time that this place of the season came by.
            let mut place = last + ahead;
            while place > last {
                match place.checked_sub(periods) {
                    Some(earlier) => place = earlier,
                    None => break,
                }
            }
            season = if place <= last { parts.season[place] } else { 0.0 };
        }
        let mean = (parts.level[last] + damped(ahead) * parts.slope[last] + season).max(0.0);
        let reach = |back: usize| {
            let of_season =
                if periods > 0 && back.is_multiple_of(periods) { gains.season * (1.0 - gains.level) } else { 0.0 };
            gains.level + gains.level * gains.slope * damped(back) + of_season
        };
        let spread = 1.0 + (1..ahead).map(|back| reach(back).powi(2)).sum::<f64>();
        (mean, (self.noise(&parts.errors) * spread).max(mean))
    }

    fn noise(&self, errors: &[f64]) -> f64 {
        let weight = |age: usize| self.config.gains.forgetting.powi(age as i32);
        let total: f64 = (0..errors.len()).map(weight).sum();
        let squares: f64 = errors.iter().rev().enumerate().map(|(age, error)| weight(age) * error * error).sum();
        if errors.is_empty() { 0.0 } else { squares / total }
    }

    fn row(&self, model: u32, counts: &[u64]) -> SlowTrend {
        let parts = self.parts(counts);
        let horizon = self.config.horizon as usize;
        let error = |ahead: usize| {
            let scores = (ahead..counts.len()).map(|at| {
                let (mean, variance) = self.forecast(&counts[..=at - ahead], ahead);
                let reach = crate::prediction::Z_90 * variance.sqrt();
                let actual = counts[at] as f64;
                (mean - actual, (mean - reach).max(0.0)..=(mean + reach).max(0.0), actual)
            });
            slow_error(self.config.forgetting, 1.0, &scores.collect::<Vec<_>>())
        };
        SlowTrend {
            model,
            arrivals: counts[counts.len() - 1],
            level: parts.level[counts.len() - 1],
            slope: parts.slope[counts.len() - 1],
            noise: self.noise(&parts.errors),
            next: self.forecast(counts, 1),
            ahead: self.forecast(counts, horizon),
            next_error: error(1),
            ahead_error: error(horizon),
        }
    }
}
