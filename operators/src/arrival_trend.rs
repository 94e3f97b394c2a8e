//! Arrivals per model and period, as level + trend + season, with a forecast at a horizon and the forecasts' own errors
//! (A5).
//!
//! A period is a fixed number of epochs; one without arrivals counts as zero, from a model's first on. Invariant: a row is
//! a function of the counts of the model's periods; each forecast was made before its period was learnt, and is scored
//! when it ends: one period ahead, and `horizon` ahead.
//! Cost: O(1) per arrival; per period and model a forecast at each horizon and a copy of the season.
//! State: per model 8 bytes per period of a season (twice, with the snapshot) and `horizon` forecasts; at most
//! `max_models` models per worker (at the bound arrivals of further models are refused). A model without arrivals for
//! `forget_periods` is forgotten.
use std::collections::{BTreeMap, VecDeque};

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};
use timely::dataflow::{StreamVec, operators::vec::Map};

use crate::{
    epochs::{Closed, EpochFold, fold_epochs},
    holt_winters::{HoltWinters, Trend, TrendGains},
    prediction::Prediction,
    prediction_error::{Claim, ErrorMeter, PredictionError},
    refused::{Input, Refusal, Refused},
    rows::TrafficRow,
};

/// Periods, learning and bounds of [`ArrivalTrend`].
#[derive(Clone, Copy, Debug)]
pub struct ArrivalTrendConfig {
    /// Epochs in a period; at least 1.
    pub period_epochs: u64,
    /// Periods in a season; 0 for none.
    pub season_periods: usize,
    /// Periods ahead of the second forecast; at least 1.
    pub horizon: u32,
    pub gains: TrendGains,
    /// What an error's weight is multiplied by with each later one; within 0.5..=1.
    pub forgetting: f64,
    /// Models held per worker. At the bound: arrivals of further models are refused.
    pub max_models: usize,
    /// Periods without arrivals after which a model is forgotten.
    pub forget_periods: u64,
}

impl Default for ArrivalTrendConfig {
    /// Periods of ten seconds at epochs of 100 ms, seasons of a day, a horizon of a minute, forgotten after a week.
    fn default() -> Self {
        Self {
            period_epochs: 100,
            season_periods: 8640,
            horizon: 6,
            gains: TrendGains::default(),
            forgetting: 0.99,
            max_models: 256,
            forget_periods: 7 * 8640,
        }
    }
}

/// One model at the end of a period.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct ArrivalTrendRow {
    /// The last epoch of the period.
    pub epoch: u64,
    pub model: u32,
    /// Arrivals in the period.
    pub arrivals: u64,
    pub trend: Trend,
    /// Arrivals in the period `horizon` ahead.
    pub ahead: Prediction,
    /// Errors of forecasts one period ahead, arrivals.
    pub next_error: PredictionError,
    /// Errors of forecasts `horizon` periods ahead, arrivals.
    pub ahead_error: PredictionError,
}

/// What [`ArrivalTrend::arrival_trend`] gives.
pub struct ArrivalTrends<'scope> {
    pub rows: StreamVec<'scope, u64, ArrivalTrendRow>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Learns the trend of arrivals.
///
/// ```
/// use operators::{ArrivalTrend, ArrivalTrendConfig, ArrivedRow, TrafficRow};
/// use timely::dataflow::{InputHandleVec, operators::{Capture, Probe, capture::Event}};
///
/// let config = ArrivalTrendConfig { period_epochs: 1, season_periods: 0, ..ArrivalTrendConfig::default() };
/// let rows = timely::execute_directly(move |worker| {
///     let mut input = InputHandleVec::<u64, TrafficRow>::new();
///     let (rows, probe) = worker.dataflow(|scope| {
///         let trend = input.to_stream(scope).arrival_trend(config);
///         let (probe, rows) = trend.rows.probe();
///         (rows.capture(), probe)
///     });
///     // Ten arrivals in each period.
///     for epoch in 0..20 {
///         input.advance_to(epoch);
///         (0..10).for_each(|_| input.send(TrafficRow::Arrived(ArrivedRow::default())));
///     }
///     input.advance_to(20);
///     worker.step_while(|| probe.less_than(&19));
///     rows
/// });
/// let rows: Vec<_> = rows
///     .try_iter()
///     .flat_map(|event| match event {
///         Event::Messages(_, rows) => rows,
///         Event::Progress(_) => Vec::new(),
///     })
///     .collect();
/// let last = rows.last().unwrap();
/// assert_eq!((last.epoch, last.arrivals, last.ahead.mean), (19, 10, 10.0));
/// assert_eq!((last.next_error.samples, last.next_error.mape), (19, 0.0));
/// ```
pub trait ArrivalTrend<'scope> {
    /// Folds arrivals, exchanged by model, into one row per model and period.
    fn arrival_trend(self, config: ArrivalTrendConfig) -> ArrivalTrends<'scope>;
}

impl<'scope> ArrivalTrend<'scope> for StreamVec<'scope, u64, TrafficRow> {
    fn arrival_trend(self, config: ArrivalTrendConfig) -> ArrivalTrends<'scope> {
        let arrivals = self.flat_map(|row| match row {
            TrafficRow::Arrived(row) => Some(row.model),
            TrafficRow::Finished(_) => None,
        });
        let (rows, refused) = fold_epochs(arrivals, ArrivalTrendFold::new(config));
        ArrivalTrends { rows, refused }
    }
}

struct Model {
    /// Arrivals in the current period.
    count: u64,
    /// Periods without arrivals up to the last one.
    silent: u64,
    learner: HoltWinters,
    /// Forecast of the current period, and of the current and later ones made `horizon` before each.
    next: Option<Prediction>,
    ahead: VecDeque<Prediction>,
    next_meter: ErrorMeter,
    ahead_meter: ErrorMeter,
}

/// Least count a relative error is taken of.
const LEAST_COUNT: f64 = 1.0;

impl Model {
    fn new(config: &ArrivalTrendConfig) -> Self {
        let meter = || ErrorMeter::new(config.forgetting.clamp(0.5, 1.0), LEAST_COUNT);
        Self {
            count: 0,
            silent: 0,
            learner: HoltWinters::new(config.gains, config.season_periods),
            next: None,
            ahead: VecDeque::new(),
            next_meter: meter(),
            ahead_meter: meter(),
        }
    }

    /// Ends the period that ends with `epoch`.
    fn end_period(&mut self, (epoch, model): (u64, u32), horizon: u32) -> ArrivalTrendRow {
        let arrivals = std::mem::take(&mut self.count);
        self.silent = if arrivals == 0 { self.silent + 1 } else { 0 };
        let claim = |made: Prediction| Claim { mean: made.mean, interval: made.interval_90() };
        if let Some(made) = self.next.take() {
            self.next_meter.score(&claim(made), arrivals as f64);
        }
        if self.ahead.len() == horizon as usize
            && let Some(made) = self.ahead.pop_front()
        {
            self.ahead_meter.score(&claim(made), arrivals as f64);
        }
        self.learner.learn(arrivals as f64);
        let trend = self.learner.trend();
        let ahead = trend.forecast(horizon);
        self.next = Some(trend.forecast(1));
        self.ahead.push_back(ahead);
        let (next_error, ahead_error) = (self.next_meter.error(), self.ahead_meter.error());
        ArrivalTrendRow { epoch, model, arrivals, trend, ahead, next_error, ahead_error }
    }
}

struct ArrivalTrendFold {
    config: ArrivalTrendConfig,
    /// Index of the current period.
    period: u64,
    models: BTreeMap<u32, Model>,
}

impl ArrivalTrendFold {
    fn new(config: ArrivalTrendConfig) -> Self {
        let (period_epochs, horizon) = (config.period_epochs.max(1), config.horizon.max(1));
        Self { config: ArrivalTrendConfig { period_epochs, horizon, ..config }, period: 0, models: BTreeMap::new() }
    }

    fn last_epoch_of_period(&self) -> u64 {
        self.period.saturating_mul(self.config.period_epochs).saturating_add(self.config.period_epochs - 1)
    }
}

impl EpochFold for ArrivalTrendFold {
    type Row = u32;
    type Out = ArrivalTrendRow;
    const NAME: &'static str = "ArrivalTrend";

    fn route(model: &u32) -> u64 {
        model.hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<u32>, closed: &mut Closed<ArrivalTrendRow>) {
        if self.models.is_empty() {
            self.period = epoch / self.config.period_epochs;
        }
        debug_assert_eq!(self.period, epoch / self.config.period_epochs, "each period's end is a wake-up");
        rows.sort_unstable();
        for group in rows.chunk_by(|a, b| a == b) {
            let (model, count) = (group[0], group.len() as u64);
            if !self.models.contains_key(&model) && self.models.len() >= self.config.max_models {
                let reason = Refusal::KeysFull { max_keys: self.config.max_models as u64 };
                let (input, subject) = (Input::Traffic, u64::from(model) << 8);
                closed.refused.push(Refused { epoch, input, instance: None, subject, rows: count, reason });
                continue;
            }
            self.models.entry(model).or_insert_with(|| Model::new(&self.config)).count += count;
        }
        if epoch == self.last_epoch_of_period() {
            let ArrivalTrendConfig { horizon, forget_periods, .. } = self.config;
            let rows = self.models.iter_mut().map(|(model, state)| state.end_period((epoch, *model), horizon));
            closed.out.extend(rows);
            self.models.retain(|_, state| state.silent < forget_periods.max(1));
            self.period += 1;
        }
    }

    fn wake_at(&self) -> Option<u64> {
        (!self.models.is_empty()).then(|| self.last_epoch_of_period())
    }
}
