//! How long answers become, learnt online per model × tier × tenant's class × class of prompt length, with the length
//! still to come while an answer runs, and with the predictor's own error (A4).
//!
//! Each answer also teaches a curve of its model alone, which predicts for groups that have seen fewer than `min_samples`
//! answers. Invariant: answers teach in the order of their rows within an epoch, so any number of workers learns the same to
//! the last bit; each is scored against what was known before its epoch. An answer that was cut off is scored against where it
//! was cut: more than that was not possible.
//! Cost: O(n log n) per epoch in its rows; O(1) per answer; per changed group and epoch two curves,
//! O(bins) each.
//! State: per group a histogram (`length_histogram`: 2 KiB for answers up to 4096 tokens); at most `max_groups` groups per
//! worker (at the bound answers of a new group teach their model only, and are reported), at most `max_models` models
//! (at the bound answers of a new model are refused).
use std::collections::BTreeMap;

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};
use timely::dataflow::{StreamVec, operators::vec::Map};

use crate::{
    epochs::{Closed, EpochFold, fold_epochs},
    length_histogram::{LengthHistogram, LengthModel, LengthPrediction},
    prediction_error::{Claim, ErrorMeter, PredictionError},
    refused::{Input, Refusal, Refused},
    rows::{End, FinishedRow, TrafficRow},
};

/// First prompt length of each class.
pub const PROMPT_CLASSES: [u32; 6] = [0, 128, 512, 2048, 8192, 32_768];

/// The class of a prompt's length: a place in [`PROMPT_CLASSES`].
pub fn prompt_class(prompt_tokens: u32) -> u8 {
    (PROMPT_CLASSES.partition_point(|from| *from <= prompt_tokens) - 1) as u8
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LengthGroup {
    pub tier: u8,
    pub tenant_class: u8,
    pub prompt_class: u8,
}

/// Whose answers: a group's, or all of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LengthKey {
    pub model: u32,
    /// `None`: all requests of the model.
    pub group: Option<LengthGroup>,
}

/// Bounds and learning of [`OutputLength`].
#[derive(Clone, Copy, Debug)]
pub struct OutputLengthConfig {
    /// Groups held per worker. At the bound: answers of new groups teach their model only, and are reported.
    pub max_groups: usize,
    /// Models held per worker. At the bound: answers of new models are refused.
    pub max_models: usize,
    /// What an answer's weight is multiplied by with each later one; within 0.5..=1.
    pub forgetting: f64,
    /// Answers before a group predicts for itself; at least 1.
    pub min_samples: u64,
}

impl Default for OutputLengthConfig {
    fn default() -> Self {
        Self { max_groups: 4096, max_models: 1024, forgetting: 0.999, min_samples: 30 }
    }
}

/// One group, or model, as of an epoch in which answers ended.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct OutputLengthRow {
    pub epoch: u64,
    pub key: LengthKey,
    pub lengths: LengthModel,
    /// Errors in the length of an answer as predicted when it arrives, tokens.
    pub error: PredictionError,
}

/// The latest rows by key: a snapshot to predict from.
///
/// ```
/// use std::collections::BTreeMap;
/// use operators::output_length::predict;
///
/// // Nothing was seen yet.
/// assert_eq!(predict(&BTreeMap::new(), (0, operators::LengthGroup { tier: 1, tenant_class: 2, prompt_class: 0 }), 0), None);
/// ```
///
/// `so_far`: tokens that are out. A group that has seen too little is predicted as its model.
pub fn predict(
    rows: &BTreeMap<LengthKey, OutputLengthRow>,
    (model, group): (u32, LengthGroup),
    so_far: u32,
) -> Option<LengthPrediction> {
    let of = |group| rows.get(&LengthKey { model, group });
    let own = of(Some(group)).filter(|row| row.lengths.samples >= MIN_SAMPLES);
    own.or_else(|| of(None)).and_then(|row| row.lengths.predict(so_far))
}

/// Answers before [`predict`] takes a group's own curve.
pub const MIN_SAMPLES: u64 = 30;

/// What [`OutputLength::output_length`] gives.
pub struct OutputLengths<'scope> {
    pub rows: StreamVec<'scope, u64, OutputLengthRow>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Learns output lengths.
///
/// ```
/// use operators::{FinishedRow, OutputLength, OutputLengthConfig, TrafficRow};
/// use timely::dataflow::operators::{Capture, ToStream, capture::Event};
///
/// // Half of the answers are 10 tokens long, half 200.
/// let rows: Vec<_> = (0..100)
///     .map(|n| TrafficRow::Finished(FinishedRow { output_tokens: [10, 200][n % 2], ..FinishedRow::default() }))
///     .collect();
/// let rows = timely::example(|scope| {
///     let rows = rows.to_stream(scope).container::<Vec<_>>();
///     rows.output_length(OutputLengthConfig::default()).rows.capture()
/// });
/// let rows: Vec<_> = rows
///     .try_iter()
///     .flat_map(|event| match event {
///         Event::Messages(_, rows) => rows,
///         Event::Progress(_) => Vec::new(),
///     })
///     .collect();
/// let lengths = &rows[0].lengths;
/// assert_eq!(lengths.quantile(0, 0.4), Some(10));
/// // An answer that has 50 tokens is one of the long ones.
/// assert!(lengths.predict(50).unwrap().p05 >= 192);
/// ```
pub trait OutputLength<'scope> {
    /// Folds ends of requests, exchanged by model, into one row per group and model, and epoch in which answers ended.
    fn output_length(self, config: OutputLengthConfig) -> OutputLengths<'scope>;
}

impl<'scope> OutputLength<'scope> for StreamVec<'scope, u64, TrafficRow> {
    fn output_length(self, config: OutputLengthConfig) -> OutputLengths<'scope> {
        let answers = self.flat_map(|row| match row {
            TrafficRow::Finished(row) => Some(row),
            TrafficRow::Arrived(_) => None,
        });
        let fold = OutputLengthFold { config, curves: BTreeMap::new(), groups: 0 };
        let (rows, refused) = fold_epochs(answers, fold);
        OutputLengths { rows, refused }
    }
}

struct Curve {
    histogram: LengthHistogram,
    meter: ErrorMeter,
}

struct OutputLengthFold {
    config: OutputLengthConfig,
    curves: BTreeMap<LengthKey, Curve>,
    /// Curves that are of a group.
    groups: usize,
}

impl OutputLengthFold {
    /// Whether there is a curve under `key`, which is made if there is room.
    fn has(&mut self, key: LengthKey) -> bool {
        if self.curves.contains_key(&key) {
            return true;
        }
        let (held, most) = match key.group {
            Some(_) => (self.groups, self.config.max_groups),
            None => (self.curves.len() - self.groups, self.config.max_models),
        };
        if held >= most {
            return false;
        }
        let forgetting = self.config.forgetting.clamp(0.5, 1.0);
        self.groups += usize::from(key.group.is_some());
        self.curves.insert(
            key,
            Curve { histogram: LengthHistogram::new(forgetting), meter: ErrorMeter::new(forgetting, 1.0) },
        );
        true
    }

    /// What is predicted of an answer of the first of `keys`, which are a group's and its model's.
    fn predict(&self, keys: [LengthKey; 2]) -> Option<LengthPrediction> {
        let known = |key: &&LengthKey| {
            let samples = self.curves.get(key).map_or(0, |curve| curve.histogram.samples());
            samples >= self.config.min_samples.max(1)
        };
        self.curves.get(keys.iter().find(known)?)?.histogram.model().predict(0)
    }

    /// Learns one answer of which `length` was predicted.
    fn learn(&mut self, row: &FinishedRow, length: Option<&LengthPrediction>) {
        let claim = length.map(|length| claim(length, row));
        for key in keys(row) {
            let Some(curve) = self.curves.get_mut(&key) else { continue };
            if let Some(claim) = &claim {
                curve.meter.score(claim, row.output_tokens.into());
            }
            curve.histogram.learn(row.output_tokens, row.end);
        }
    }
}

/// An answer that was cut off could not become longer than it is.
fn claim(length: &LengthPrediction, row: &FinishedRow) -> Claim {
    let most = if row.end == End::Capped { f64::from(row.output_tokens) } else { f64::MAX };
    let interval = ((length.p05 as f64).min(most), (length.p95 as f64).min(most));
    Claim { mean: length.mean.min(most), interval }
}

/// The group's key and the model's.
fn keys(row: &FinishedRow) -> [LengthKey; 2] {
    let FinishedRow { model, tier, tenant_class, prompt_tokens, .. } = *row;
    let group = LengthGroup { tier, tenant_class, prompt_class: prompt_class(prompt_tokens) };
    [Some(group), None].map(|group| LengthKey { model, group })
}

impl EpochFold for OutputLengthFold {
    type Row = FinishedRow;
    type Out = OutputLengthRow;
    const NAME: &'static str = "OutputLength";

    fn route(row: &FinishedRow) -> u64 {
        row.model.hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<FinishedRow>, closed: &mut Closed<OutputLengthRow>) {
        // Malformed rows are reported by `request_distribution`, which reads the same stream.
        rows.retain(|row| TrafficRow::Finished(*row).check().is_ok());
        rows.sort_unstable();
        let mut predicted = BTreeMap::<LengthKey, Option<LengthPrediction>>::new();
        for row in rows.iter() {
            let [own, whole] = keys(row);
            predicted.entry(own).or_insert_with(|| self.predict([own, whole]));
        }
        let mut full = BTreeMap::<LengthKey, u64>::new();
        for row in rows.iter() {
            let [own, whole] = keys(row);
            if !self.has(whole) {
                *full.entry(whole).or_default() += 1;
                continue;
            }
            if !self.has(own) {
                *full.entry(own).or_default() += 1;
            }
            self.learn(row, predicted.get(&own).and_then(Option::as_ref));
        }
        // Keys that were refused have no curve and are passed over.
        let mut taught: Vec<LengthKey> = predicted.keys().copied().collect();
        taught.extend(predicted.keys().map(|key| LengthKey { group: None, ..*key }));
        taught.sort_unstable();
        taught.dedup();
        closed.out.extend(taught.into_iter().filter_map(|key| {
            let curve = self.curves.get(&key)?;
            let (lengths, error) = (curve.histogram.model(), curve.meter.error());
            Some(OutputLengthRow { epoch, key, lengths, error })
        }));
        closed.refused.extend(full.into_iter().map(|(key, rows)| {
            let max_keys = if key.group.is_some() { self.config.max_groups } else { self.config.max_models } as u64;
            let subject = u64::from(key.model) << 8 | key.group.map_or(0, |group| group.tier.into());
            let (input, reason) = (Input::Traffic, Refusal::KeysFull { max_keys });
            Refused { epoch, input, instance: None, subject, rows, reason }
        }));
    }
}
