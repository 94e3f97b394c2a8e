//! Why the slowest requests of a window were slow, in three steps: queue share, iteration spikes, bandwidth (D4).
//!
//! 1. *Queue share*: of the slowest hundredth's latency, how much passed in the gateway's queue, and up to the first token
//!    beyond that and what computing the prompt should have taken. Above `queue_share_most`: scheduling.
//! 2. *Iteration spikes*: steps longer than `spike_ratio` times what the fit says for their content, and by at least
//!    `spike_least_us`. What they took beyond the fit is above `spike_share_most` of all step time: paging, remote access.
//! 3. *Bandwidth*: steps that only decode against the fit of base + per sequence + per token of context. Their length is
//!    above `decode_ratio_most` of the prediction: memory is slower than it used to be.
//!
//! Invariant: a window is judged by the fits as they were when it began, so what goes wrong in a window cannot explain
//! itself away; each step of an instance's highest incarnation counts once. A first window has no fits and judges no step.
//! Cost: O(n log n) per epoch in its rows, two fits per instance and window. State: per model `max_slow` requests of 80
//! bytes, per instance two regressions of 150 bytes. Bounds per worker: `max_models` (rows of further models are refused),
//! `max_instances` per model (the one silent for longest is forgotten and learns anew), `max_slow` (further slow requests
//! of a window are not looked at).
mod rows;

use std::collections::{BTreeMap, BTreeSet};

use differential_dataflow::Hashable;
use timely::dataflow::StreamVec;

pub use rows::{DiagnosedRequest, DiagnosedStep, DiagnosisInput, DiagnosisRow, Verdict, WorstStep};

use crate::{
    epochs::{Closed, EpochFold, fold_epochs},
    refused::{Input, Refusal, Refused},
    step_regression::{StepFit, StepRegression},
};

/// Windows, thresholds and bounds of [`Diagnosis`]. Shares and ratios are in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct DiagnosisConfig {
    /// Epochs in a window; at least 1.
    pub window_epochs: u64,
    pub queue_share_most: u64,
    pub spike_ratio: u64,
    pub spike_least_us: u64,
    pub spike_share_most: u64,
    pub decode_ratio_most: u64,
    /// What a step's weight is multiplied by with each later step; within 0.5..=1.
    pub forgetting: f64,
    /// Steps before there is a fit; at least 1.
    pub min_samples: u64,
    /// Slow requests looked at per model and window; at least 1.
    pub max_slow: usize,
    /// Instances learnt from per model; at least 1.
    pub max_instances: usize,
    pub max_models: usize,
}

impl Default for DiagnosisConfig {
    fn default() -> Self {
        Self {
            window_epochs: 100,
            queue_share_most: 400,
            spike_ratio: 2000,
            spike_least_us: 5000,
            spike_share_most: 100,
            decode_ratio_most: 1250,
            forgetting: 0.9995,
            min_samples: 64,
            max_slow: 256,
            max_instances: 4096,
            max_models: 256,
        }
    }
}

/// What [`Diagnosis::diagnosis`] gives.
pub struct Diagnoses<'scope> {
    pub rows: StreamVec<'scope, u64, DiagnosisRow>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Explains the slowest requests.
///
/// ```
/// use operators::{DiagnosedRequest, Diagnosis, DiagnosisConfig, DiagnosisInput, Verdict};
/// use timely::dataflow::operators::{Capture, ToStream, capture::Extract};
///
/// // Of two requests the slower one waited for nine tenths of its time.
/// let request = |request, total_us, queue_us| {
///     let (ttft_us, instance, computed_tokens) = (None, None, 100);
///     DiagnosisInput::Request(DiagnosedRequest { model: 0, total_us, request, queue_us, ttft_us, instance, computed_tokens })
/// };
/// let rows = vec![request(1, 5_000, 0), request(2, 100_000, 90_000)];
/// let rows = timely::example(|scope| {
///     let config = DiagnosisConfig { window_epochs: 1, ..DiagnosisConfig::default() };
///     rows.to_stream(scope).container::<Vec<_>>().diagnosis(config).rows.capture()
/// });
/// let row = rows.extract()[0].1[0];
/// assert_eq!((row.verdict, row.queue_share, row.worst[0]), (Verdict::Scheduling, Some(900), Some(2)));
/// ```
pub trait Diagnosis<'scope> {
    /// Folds steps and ended requests, exchanged by model, into one row per model and window in which it had some.
    fn diagnosis(self, config: DiagnosisConfig) -> Diagnoses<'scope>;
}

impl<'scope> Diagnosis<'scope> for StreamVec<'scope, u64, DiagnosisInput> {
    fn diagnosis(self, config: DiagnosisConfig) -> Diagnoses<'scope> {
        let (rows, refused) = fold_epochs(self, DiagnosisFold::new(config));
        Diagnoses { rows, refused }
    }
}

/// What an instance's steps taught up to the beginning of the window.
#[derive(Clone, Copy, Default)]
struct Taught {
    /// By sequences that decode and prompt tokens.
    content: Option<StepFit>,
    /// Steps that only decode: by sequences and tokens of context.
    decode: Option<StepFit>,
    prefill_tokens_per_s: Option<u64>,
}

struct Instance {
    incarnation: u64,
    step: u64,
    heard: u64,
    content: StepRegression,
    decode: StepRegression,
    taught: Taught,
}

impl Instance {
    fn new(incarnation: u64, forgetting: f64) -> Self {
        let regression = || StepRegression::new(forgetting.clamp(0.5, 1.0));
        let (content, decode) = (regression(), regression());
        Self { incarnation, step: 0, heard: 0, content, decode, taught: Taught::default() }
    }

    fn learn(&mut self, row: &DiagnosedStep) {
        self.content.learn(row.decode_tokens, row.prefill_tokens, row.step_us);
        if row.prefill_tokens == 0 {
            self.decode.learn(row.decode_tokens, row.context_tokens, row.step_us);
        }
    }

    fn teach(&mut self, min_samples: u64) {
        self.taught = Taught {
            content: self.content.fit(min_samples),
            decode: self.decode.fit(min_samples),
            prefill_tokens_per_s: self.content.prefill_tokens_per_s(),
        };
    }
}

/// Sums of a window over judged steps.
#[derive(Default)]
struct Steps {
    steps: u64,
    steps_us: u64,
    spikes: u64,
    spikes_us: u64,
    spikes_paged: u64,
    decodes: u64,
    decodes_us: u64,
    decodes_predicted_us: u64,
    context_us: u64,
    worst: Option<WorstStep>,
}

impl Steps {
    fn judge(&mut self, row: &DiagnosedStep, taught: &Taught, config: &DiagnosisConfig) {
        let Some(content) = taught.content.filter(|_| row.decode_tokens > 0 || row.prefill_tokens > 0) else { return };
        let predicted_us = content.predict_ns(row.decode_tokens.into(), row.prefill_tokens.into()) / 1000;
        self.steps += 1;
        self.steps_us += row.step_us;
        let excess_us = row.step_us.saturating_sub(predicted_us);
        let is_long = row.step_us.saturating_mul(1000) > predicted_us.saturating_mul(config.spike_ratio);
        if is_long && excess_us >= config.spike_least_us {
            self.spikes += 1;
            self.spikes_us += excess_us;
            self.spikes_paged += u64::from(row.paged_blocks > 0);
            let DiagnosedStep { instance, epoch, step, step_us, .. } = *row;
            self.worst = self.worst.max(Some(WorstStep { excess_us, instance, epoch, step, step_us }));
            return;
        }
        let Some(decode) = taught.decode.filter(|_| row.prefill_tokens == 0) else { return };
        let predicted_ns = decode.predict_ns(row.decode_tokens.into(), row.context_tokens.into());
        let without_ns = decode.predict_ns(row.decode_tokens.into(), 0);
        self.decodes += 1;
        self.decodes_us += row.step_us;
        self.decodes_predicted_us += predicted_ns / 1000;
        self.context_us += (predicted_ns - without_ns) / 1000;
    }
}

#[derive(Default)]
struct Model {
    is_active: bool,
    requests: u64,
    slowest: BTreeSet<DiagnosedRequest>,
    steps: Steps,
    instances: BTreeMap<u32, Instance>,
}

impl Model {
    fn request(&mut self, row: &DiagnosedRequest, max_slow: usize) {
        self.requests += 1;
        self.slowest.insert(*row);
        if self.slowest.len() > max_slow {
            self.slowest.pop_first();
        }
    }

    fn step(&mut self, row: &DiagnosedStep, epoch: u64, config: &DiagnosisConfig) {
        if !self.instances.contains_key(&row.instance) && self.instances.len() >= config.max_instances.max(1) {
            let silent = self.instances.iter().min_by_key(|(id, instance)| (instance.heard, **id)).map(|(id, _)| *id);
            silent.map(|id| self.instances.remove(&id));
        }
        let new = || Instance::new(row.epoch, config.forgetting);
        let instance = self.instances.entry(row.instance).or_insert_with(new);
        if row.epoch > instance.incarnation {
            *instance = new();
        }
        if row.epoch < instance.incarnation || row.step <= instance.step {
            return;
        }
        (instance.step, instance.heard) = (row.step, epoch);
        self.steps.judge(row, &instance.taught, config);
        instance.learn(row);
    }

    /// Time a request spent in its instance's queue: up to the first token, less what computing the prompt takes.
    fn wait_us(&self, row: &DiagnosedRequest) -> u64 {
        let instance = row.instance.and_then(|id| self.instances.get(&id));
        let rate = instance.and_then(|instance| instance.taught.prefill_tokens_per_s).filter(|rate| *rate > 0);
        let Some((ttft_us, rate)) = row.ttft_us.zip(rate) else { return 0 };
        let compute_us = u64::from(row.computed_tokens) * 1_000_000 / rate;
        ttft_us.min(row.total_us).saturating_sub(row.queue_us).saturating_sub(compute_us)
    }

    /// The window's row; then the window begins anew, with what was learnt in this one.
    fn end_window(&mut self, (model, epoch, from_epoch): (u32, u64, u64), config: &DiagnosisConfig) -> DiagnosisRow {
        let count = self.requests.div_ceil(100).min(self.slowest.len() as u64);
        let slow: Vec<DiagnosedRequest> = self.slowest.iter().rev().take(count as usize).copied().collect();
        let sum = |of: &dyn Fn(&DiagnosedRequest) -> u64| slow.iter().map(of).sum::<u64>();
        let (total, queue) = (sum(&|row| row.total_us), sum(&|row| row.queue_us));
        let wait = sum(&|row| self.wait_us(row));
        let steps = std::mem::take(&mut self.steps);
        let mut row = DiagnosisRow {
            epoch,
            model,
            from_epoch,
            verdict: Verdict::Clear,
            requests: self.requests,
            slow_requests: count,
            slow_from_us: slow.last().map_or(0, |row| row.total_us),
            slow_total_us: total,
            slow_queue_us: queue,
            slow_wait_us: wait,
            queue_share: share(queue + wait, total),
            steps: steps.steps,
            steps_us: steps.steps_us,
            spikes: steps.spikes,
            spikes_us: steps.spikes_us,
            spikes_paged: steps.spikes_paged,
            spike_share: share(steps.spikes_us, steps.steps_us),
            decodes: steps.decodes,
            decodes_us: steps.decodes_us,
            decodes_predicted_us: steps.decodes_predicted_us,
            context_us: steps.context_us,
            decode_ratio: share(steps.decodes_us, steps.decodes_predicted_us),
            worst: std::array::from_fn(|place| slow.get(place).map(|row| row.request)),
            worst_step: steps.worst,
        };
        row.verdict = verdict(&row, config);
        (self.requests, self.is_active) = (0, false);
        self.slowest.clear();
        self.instances.values_mut().for_each(|instance| instance.teach(config.min_samples));
        row
    }
}

fn share(part: u64, whole: u64) -> Option<u64> {
    part.saturating_mul(1000).checked_div(whole)
}

fn verdict(row: &DiagnosisRow, config: &DiagnosisConfig) -> Verdict {
    let above = |value: Option<u64>, most: u64| value.is_some_and(|value| value > most);
    if above(row.queue_share, config.queue_share_most) {
        Verdict::Scheduling
    } else if above(row.spike_share, config.spike_share_most) {
        Verdict::IterationSpikes
    } else if above(row.decode_ratio, config.decode_ratio_most) {
        Verdict::Bandwidth
    } else if row.requests == 0 || row.steps == 0 {
        Verdict::TooLittle
    } else {
        Verdict::Clear
    }
}

pub(crate) struct DiagnosisFold {
    config: DiagnosisConfig,
    models: BTreeMap<u32, Model>,
    /// The last epoch of the window in which something came, if there is one.
    ends: Option<u64>,
}

impl DiagnosisFold {
    pub(crate) fn new(config: DiagnosisConfig) -> Self {
        let (window_epochs, max_slow) = (config.window_epochs.max(1), config.max_slow.max(1));
        Self { config: DiagnosisConfig { window_epochs, max_slow, ..config }, models: BTreeMap::new(), ends: None }
    }
}

impl EpochFold for DiagnosisFold {
    type Row = DiagnosisInput;
    type Out = DiagnosisRow;
    const NAME: &'static str = "Diagnosis";

    fn route(row: &DiagnosisInput) -> u64 {
        row.model().hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<DiagnosisInput>, closed: &mut Closed<DiagnosisRow>) {
        rows.sort_unstable_by_key(|row| (row.model(), *row));
        let from_epoch = epoch / self.config.window_epochs * self.config.window_epochs;
        let last = from_epoch + self.config.window_epochs - 1;
        for row in rows.iter() {
            let (key, max_models) = (row.model(), self.config.max_models);
            let is_full = !self.models.contains_key(&key) && self.models.len() >= max_models;
            let full = is_full.then_some(Refusal::KeysFull { max_keys: max_models as u64 });
            if let Some(reason) = row.check().err().or(full) {
                let (input, subject) = (Input::Diagnosis, key.into());
                closed.refused.push(Refused { epoch, input, instance: None, subject, rows: 1, reason });
                continue;
            }
            let model = self.models.entry(key).or_default();
            (model.is_active, self.ends) = (true, Some(last));
            match row {
                DiagnosisInput::Step(row) => model.step(row, epoch, &self.config),
                DiagnosisInput::Request(row) => model.request(row, self.config.max_slow),
            }
        }
        if self.ends == Some(epoch) {
            for (key, model) in self.models.iter_mut().filter(|(_, model)| model.is_active) {
                closed.out.push(model.end_window((*key, epoch, from_epoch), &self.config));
            }
            self.ends = None;
        }
    }

    fn wake_at(&self) -> Option<u64> {
        self.ends
    }
}
