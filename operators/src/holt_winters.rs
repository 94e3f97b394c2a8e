//! Level + damped trend + season of a count per period, learnt one period at a time, with a forecast interval at any
//! horizon (A5).
//!
//! Additive Holt-Winters in its error-correction form. With e the error of the forecast one period ahead:
//! `level' = level + damping · slope + α e`, `slope' = damping · slope + αβ e`, `season' = season + γ (1 - α) e`.
//! Invariant: the forecast's variance at a horizon is that of the model itself, from the one-period errors seen, and never
//! below that of a Poisson count of the forecast's mean. Cost: O(1) per period; a forecast costs its horizon, a snapshot a
//! copy of the season. State: 8 bytes per period of a season and about ten numbers.
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::prediction::Prediction;

/// How fast each part follows.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct TrendGains {
    /// α: within 0..=1.
    pub level: f64,
    /// β: within 0..=1.
    pub slope: f64,
    /// γ: within 0..=1.
    pub season: f64,
    /// What a slope is multiplied by with each period ahead; within 0..=1.
    pub damping: f64,
    /// What a squared error's weight is multiplied by with each later one; within 0.5..=1.
    pub forgetting: f64,
}

impl Default for TrendGains {
    fn default() -> Self {
        Self { level: 0.3, slope: 0.1, season: 0.2, damping: 0.95, forgetting: 0.98 }
    }
}

/// What was learnt, to forecast from. Copies share the season.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Trend {
    pub gains: TrendGains,
    /// Count per period without season, as of the last period.
    pub level: f64,
    /// Its growth per period.
    pub slope: f64,
    /// Deviation of each period of a season; empty where there is none.
    #[serde(with = "crate::on_the_wire::shared")]
    pub season: Arc<[f64]>,
    /// Place in the season of the next period.
    pub place: usize,
    /// Variance of the forecast one period ahead.
    pub noise: f64,
    /// Periods learnt.
    pub samples: u64,
}

impl Trend {
    /// The count in the period `ahead` periods from the last one learnt; 1 is the next.
    ///
    /// ```
    /// use operators::holt_winters::{Trend, TrendGains};
    ///
    /// let gains = TrendGains { damping: 0.5, ..TrendGains::default() };
    /// let season = vec![0.0, 8.0].into();
    /// let trend = Trend { gains, level: 100.0, slope: 4.0, season, place: 0, noise: 0.0, samples: 50 };
    /// assert_eq!(trend.forecast(1).mean, 100.0 + 2.0);
    /// assert_eq!(trend.forecast(2).mean, 100.0 + 2.0 + 1.0 + 8.0);
    /// ```
    pub fn forecast(&self, ahead: u32) -> Prediction {
        let ahead = ahead.max(1);
        let periods = self.season.len();
        let place = (self.place + ahead as usize - 1) % periods.max(1);
        let deviation = self.season.get(place).copied().unwrap_or(0.0);
        let (growth, spread) = ahead_of(&self.gains, periods, ahead);
        let mean = (self.level + growth * self.slope + deviation).max(0.0);
        Prediction { mean, variance: (self.noise * spread).max(mean) }
    }
}

/// What the slope adds up to over `ahead` periods, and the variance in units of noise.
fn ahead_of(gains: &TrendGains, periods: usize, ahead: u32) -> (f64, f64) {
    let (mut damped, mut growth, mut spread) = (1.0, 0.0, 1.0);
    for back in 0..ahead as usize {
        if back > 0 {
            // What the error of the period `back` before the one forecast does to the forecast.
            let is_same_season = periods > 0 && back.is_multiple_of(periods);
            let of_season = if is_same_season { gains.season * (1.0 - gains.level) } else { 0.0 };
            spread += (gains.level * (1.0 + gains.slope * growth) + of_season).powi(2);
        }
        damped *= gains.damping;
        growth += damped;
    }
    (growth, spread)
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct HoltWinters {
    gains: TrendGains,
    level: f64,
    slope: f64,
    season: Vec<f64>,
    place: usize,
    samples: u64,
    /// Weighted squared errors, and their weight.
    noise: (f64, f64),
}

impl HoltWinters {
    /// `season`: periods in a season; 0 for none.
    pub fn new(gains: TrendGains, season: usize) -> Self {
        Self { gains, level: 0.0, slope: 0.0, season: vec![0.0; season], place: 0, samples: 0, noise: (0.0, 0.0) }
    }

    pub fn learn(&mut self, count: f64) {
        let TrendGains { level, slope, season, damping, forgetting } = self.gains;
        if self.samples == 0 {
            self.level = count;
        } else {
            let of_season = self.season.get_mut(self.place);
            let base = self.level + damping * self.slope;
            let error = count - base - of_season.as_ref().map_or(0.0, |deviation| **deviation);
            self.level = base + level * error;
            self.slope = damping * self.slope + level * slope * error;
            if let Some(deviation) = of_season {
                *deviation += season * (1.0 - level) * error;
            }
            self.noise = (self.noise.0 * forgetting + error * error, self.noise.1 * forgetting + 1.0);
        }
        self.samples += 1;
        self.place = (self.place + 1) % self.season.len().max(1);
    }

    pub fn trend(&self) -> Trend {
        Trend {
            gains: self.gains,
            level: self.level,
            slope: self.slope,
            season: self.season.as_slice().into(),
            place: self.place,
            noise: if self.noise.1 > 0.0 { self.noise.0 / self.noise.1 } else { 0.0 },
            samples: self.samples,
        }
    }
}
