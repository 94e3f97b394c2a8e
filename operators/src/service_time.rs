//! How long prefill and decode take on instances of one shape, learnt online from their steps, with uncertainty and with
//! the predictor's own error (A4, B1).
//!
//! Two fits: a step that prefills takes base + per prompt token + per prompt token and token of context + per sequence
//! that decodes beside it; one that only decodes takes base + per sequence + per token of context. No part of a prediction
//! is below zero, even if its coefficient is ([`LinearFit::rising`]). Invariant: each step of
//! an instance counts once, in the order of instances and their steps within an epoch, so any number of workers learns the
//! same to the last bit; each step is predicted, and the prediction scored, before it is learnt.
//! Cost: O(n log n) per epoch in its steps; per step the inversion of a matrix of at most 4 × 4. State: about 1 KiB per
//! shape, at most `max_shapes` per worker (at the bound steps of further shapes are refused), and 32 bytes per instance,
//! at most [`INSTANCES_MAX`] per shape (at the bound the one silent for longest is forgotten: if it comes back, its steps
//! of long ago could count again).
use std::collections::BTreeMap;

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};
use timely::dataflow::StreamVec;

use crate::{
    epochs::{Closed, EpochFold, fold_epochs},
    least_squares::{LeastSquares, LinearFit},
    prediction::Prediction,
    prediction_error::{Claim, ErrorMeter, PredictionError},
    refused::{Input, Refusal, Refused},
    rows::StepRow,
};

/// Instances of one shape whose latest step is remembered.
pub const INSTANCES_MAX: usize = 4096;
/// Bring columns to like sizes: prompt tokens, tokens of context, sequences.
const PREFILL_TOKENS: f64 = 256.0;
const CONTEXT_TOKENS: f64 = 4096.0;
const SEQUENCES: f64 = 16.0;

/// Bounds and learning of [`ServiceTimes`].
#[derive(Clone, Copy, Debug)]
pub struct ServiceTimeConfig {
    /// Shapes held per worker. At the bound: steps of further shapes are refused.
    pub max_shapes: usize,
    /// What a step's weight is multiplied by with each later step of its kind; within 0.5..=1.
    pub forgetting: f64,
    /// Steps of a kind before it is predicted; at least 1.
    pub min_samples: u64,
}

impl Default for ServiceTimeConfig {
    fn default() -> Self {
        Self { max_shapes: 256, forgetting: 0.9995, min_samples: 16 }
    }
}

/// Prefill to predict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillWork {
    /// Prompt tokens to compute.
    pub uncached_tokens: u32,
    /// Prompt tokens whose KV is there already.
    pub cached_tokens: u32,
    /// Sequences that decode meanwhile.
    pub beside: u32,
}

/// Decoding to predict: `tokens` steps of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeWork {
    /// Tokens that one sequence generates.
    pub tokens: u32,
    /// Sequences in the batch, that one included.
    pub sequences: u32,
    /// Live context over all of them when it starts.
    pub context_tokens: u64,
}

/// What is known of one shape: a snapshot to predict from.
///
/// ```
/// use operators::{DecodeWork, LinearFit, PrefillWork, ServiceTime};
///
/// let known = |coefficients| LinearFit { samples: 100, coefficients, covariance: [[0.0; 4]; 4], noise: 1e-6 };
/// let time = ServiceTime {
///     // 5 ms a step and 20 ms per 256 prompt tokens, in chunks of at most 512.
///     prefill: Some(known([0.005, 0.020, 0.0, 0.0])),
///     decode: None,
///     chunk_tokens: 512,
/// };
/// let seconds = time.prefill(&PrefillWork { uncached_tokens: 1024, ..PrefillWork::default() }).unwrap();
/// assert!((seconds.mean - (2.0 * 0.005 + 4.0 * 0.020)).abs() < 1e-12);
/// assert!(seconds.within(0.1) > 0.99 && seconds.within(0.08) < 0.01);
/// assert_eq!(time.decode(&DecodeWork::default()), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct ServiceTime {
    /// Seconds by step, 256 prompt tokens, those times 4096 tokens of context, and 16 sequences beside.
    pub prefill: Option<LinearFit<4>>,
    /// Seconds by step, 16 sequences, and 16 sequences times 4096 tokens of context each.
    pub decode: Option<LinearFit<3>>,
    /// Most prompt tokens that one step has prefilled: longer prompts take several steps.
    pub chunk_tokens: u32,
}

impl ServiceTime {
    /// Seconds from the first step of a prompt to its last; `None` while too little was seen.
    pub fn prefill(&self, work: &PrefillWork) -> Option<Prediction> {
        let fit = self.prefill.as_ref()?.rising();
        let (tokens, chunk) = (f64::from(work.uncached_tokens), f64::from(self.chunk_tokens.max(1)));
        let (whole, cached) = ((tokens / chunk).floor(), f64::from(work.cached_tokens));
        let rest = tokens - whole * chunk;
        let steps = whole + if rest > 0.0 { 1.0 } else { 0.0 };
        // Chunk i has i chunks and the cached part as its context when it ends.
        let context = chunk * (whole * cached + chunk * whole * (whole + 1.0) / 2.0) + rest * (cached + tokens);
        let columns = [
            steps,
            tokens / PREFILL_TOKENS,
            context / PREFILL_TOKENS / CONTEXT_TOKENS,
            steps * f64::from(work.beside) / SEQUENCES,
        ];
        Some(fit.predict(&columns, steps))
    }

    /// Seconds in which the batch generates its tokens; `None` while too little was seen.
    pub fn decode(&self, work: &DecodeWork) -> Option<Prediction> {
        let fit = self.decode.as_ref()?.rising();
        let (steps, sequences) = (f64::from(work.tokens), f64::from(work.sequences));
        // Each step adds a token of context per sequence.
        let context = steps * work.context_tokens as f64 + sequences * steps * (steps - 1.0).max(0.0) / 2.0;
        let columns = [steps, steps * sequences / SEQUENCES, context / SEQUENCES / CONTEXT_TOKENS];
        Some(fit.predict(&columns, steps))
    }

    /// Seconds of a whole request, without waiting; `None` while too little was seen of either part.
    pub fn request(&self, prefill: &PrefillWork, decode: &DecodeWork) -> Option<Prediction> {
        Some(self.prefill(prefill)?.plus(&self.decode(decode)?))
    }
}

/// What a step teaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Lesson {
    Prefill([f64; 4]),
    Decode([f64; 3]),
}

/// The columns and the seconds of a step; `None` if it computed nothing or took no time.
pub(crate) fn lesson(row: &StepRow) -> Option<(Lesson, f64)> {
    let (prefill, sequences) =
        (f64::from(row.prefill_tokens) / PREFILL_TOKENS, f64::from(row.decode_tokens) / SEQUENCES);
    let context = row.context_tokens as f64 / f64::from(row.running.max(1)) / CONTEXT_TOKENS;
    let lesson = match (row.prefill_tokens, row.decode_tokens) {
        (0, 0) => return None,
        (0, _) => Lesson::Decode([1.0, sequences, row.context_tokens as f64 / SEQUENCES / CONTEXT_TOKENS]),
        _ => Lesson::Prefill([1.0, prefill, prefill * context, sequences]),
    };
    (row.step_us > 0).then(|| (lesson, row.step_us as f64 / 1e6))
}

/// One shape as of an epoch in which it stepped.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct ServiceTimeRow {
    pub epoch: u64,
    pub shape: u32,
    pub time: ServiceTime,
    /// Errors in the length of a step that prefills, seconds.
    pub prefill_error: PredictionError,
    /// Errors in the length of a step that only decodes, seconds.
    pub decode_error: PredictionError,
}

/// What [`ServiceTimes::service_time`] gives.
pub struct ServiceTimeStreams<'scope> {
    pub rows: StreamVec<'scope, u64, ServiceTimeRow>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Learns service times.
///
/// ```
/// use operators::{DecodeWork, ServiceTimeConfig, ServiceTimes, StepRow};
/// use timely::dataflow::operators::{Capture, ToStream, capture::Event};
///
/// // Steps of 2 ms and 100 µs per sequence.
/// let steps: Vec<_> = (1..=40u32)
///     .map(|step| {
///         let decode_tokens = 1 + step % 7;
///         let (step_us, step) = (2000 + 100 * u64::from(decode_tokens), step.into());
///         StepRow { step, decode_tokens, step_us, running: decode_tokens, context_tokens: 900, ..StepRow::default() }
///     })
///     .collect();
/// let rows = timely::example(|scope| {
///     let steps = steps.to_stream(scope).container::<Vec<_>>();
///     steps.service_time(ServiceTimeConfig::default()).rows.capture()
/// });
/// let rows: Vec<_> = rows
///     .try_iter()
///     .flat_map(|event| match event {
///         Event::Messages(_, rows) => rows,
///         Event::Progress(_) => Vec::new(),
///     })
///     .collect();
/// let row = rows[0];
/// let work = DecodeWork { tokens: 10, sequences: 4, context_tokens: 900 };
/// assert!((row.time.decode(&work).unwrap().mean - 0.024).abs() < 1e-4);
/// assert!(row.decode_error.samples > 0 && row.decode_error.mape < 1e-3);
/// ```
pub trait ServiceTimes<'scope> {
    /// Folds step rows, exchanged by shape, into one row per shape and epoch in which it stepped.
    fn service_time(self, config: ServiceTimeConfig) -> ServiceTimeStreams<'scope>;
}

impl<'scope> ServiceTimes<'scope> for StreamVec<'scope, u64, StepRow> {
    fn service_time(self, config: ServiceTimeConfig) -> ServiceTimeStreams<'scope> {
        let (rows, refused) = fold_epochs(self, ServiceTimeFold { config, shapes: BTreeMap::new() });
        ServiceTimeStreams { rows, refused }
    }
}

/// Learner of one shape.
struct Shape {
    prefill: (LeastSquares<4>, ErrorMeter),
    decode: (LeastSquares<3>, ErrorMeter),
    chunk_tokens: u32,
    /// Incarnation and step learnt last by instance, and the epoch in which.
    latest: BTreeMap<u32, (u64, u64, u64)>,
}

/// Least time a relative error is taken of, seconds.
const LEAST_SECONDS: f64 = 1e-6;

impl Shape {
    fn new(config: &ServiceTimeConfig) -> Self {
        let (forgetting, min_samples) = (config.forgetting.clamp(0.5, 1.0), config.min_samples);
        let meter = || ErrorMeter::new(forgetting, LEAST_SECONDS);
        Self {
            prefill: (LeastSquares::new(forgetting, min_samples), meter()),
            decode: (LeastSquares::new(forgetting, min_samples), meter()),
            chunk_tokens: 0,
            latest: BTreeMap::new(),
        }
    }

    /// False if the step was learnt before.
    fn is_new(&mut self, row: &StepRow, epoch: u64) -> bool {
        let known = self.latest.get(&row.instance);
        if known.is_some_and(|(incarnation, step, _)| (row.epoch, row.step) <= (*incarnation, *step)) {
            return false;
        }
        if known.is_none() && self.latest.len() >= INSTANCES_MAX {
            let silent = self.latest.iter().min_by_key(|(id, (.., heard))| (*heard, **id)).map(|(id, _)| *id);
            silent.map(|id| self.latest.remove(&id));
        }
        self.latest.insert(row.instance, (row.epoch, row.step, epoch));
        true
    }

    /// True if the step taught anything.
    fn learn(&mut self, row: &StepRow, epoch: u64) -> bool {
        if !self.is_new(row, epoch) {
            return false;
        }
        let Some((lesson, seconds)) = lesson(row) else { return false };
        self.chunk_tokens = self.chunk_tokens.max(row.prefill_tokens);
        let (claim, meter) = match lesson {
            Lesson::Prefill(columns) => (self.prefill.0.learn(&columns, seconds), &mut self.prefill.1),
            Lesson::Decode(columns) => (self.decode.0.learn(&columns, seconds), &mut self.decode.1),
        };
        if let Some(claim) = claim {
            meter.score(&Claim { mean: claim.mean.max(0.0), interval: claim.interval_90() }, seconds);
        }
        true
    }

    fn row(&self, epoch: u64, shape: u32) -> ServiceTimeRow {
        ServiceTimeRow {
            epoch,
            shape,
            time: ServiceTime {
                prefill: self.prefill.0.fit(),
                decode: self.decode.0.fit(),
                chunk_tokens: self.chunk_tokens,
            },
            prefill_error: self.prefill.1.error(),
            decode_error: self.decode.1.error(),
        }
    }
}

struct ServiceTimeFold {
    config: ServiceTimeConfig,
    shapes: BTreeMap<u32, Shape>,
}

impl EpochFold for ServiceTimeFold {
    type Row = StepRow;
    type Out = ServiceTimeRow;
    const NAME: &'static str = "ServiceTime";

    fn route(row: &StepRow) -> u64 {
        row.shape.hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<StepRow>, closed: &mut Closed<ServiceTimeRow>) {
        // Malformed rows are reported by `instance_state`, which reads the same stream.
        rows.retain(|row| row.check().is_ok());
        rows.sort_unstable_by(|a, b| a.shape.cmp(&b.shape).then_with(|| a.cmp(b)));
        for group in rows.chunk_by(|a, b| a.shape == b.shape) {
            let shape = group[0].shape;
            if !self.shapes.contains_key(&shape) && self.shapes.len() >= self.config.max_shapes {
                let (rows, reason) =
                    (group.len() as u64, Refusal::KeysFull { max_keys: self.config.max_shapes as u64 });
                let (input, subject) = (Input::Steps, shape.into());
                closed.refused.push(Refused { epoch, input, instance: None, subject, rows, reason });
                continue;
            }
            let state = self.shapes.entry(shape).or_insert_with(|| Shape::new(&self.config));
            let taught = group.iter().filter(|row| state.learn(row, epoch)).count();
            if taught > 0 {
                closed.out.push(state.row(epoch, shape));
            }
        }
    }
}
