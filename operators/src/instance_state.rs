//! The latest figures of each instance and what its steps teach: step length by content, prefill speed, generation rate
//! (B1, D4).
//!
//! Invariant: an instance's row is that of its highest incarnation's latest step; estimates are over the steps of that
//! incarnation in order, each once. A step at or below one already folded changes nothing.
//! Cost: O(n log n) per epoch in its rows; per row one 3×3 update; one fit per instance and epoch in which it stepped.
//! State: about 300 bytes per instance, and 16 per step of the last second, at most `RECENT_STEPS` of them (at that
//! bound a step is merged with the newest one, so that the rate stays right and only ages more coarsely); at most
//! `max_instances` instances per worker (at the bound the one silent for longest is dropped and reported).
use std::collections::{BTreeMap, VecDeque};

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};
use timely::dataflow::StreamVec;

use crate::{
    epochs::{Closed, EpochFold, fold_epochs},
    refused::{Input, Refusal, Refused},
    rows::StepRow,
    step_regression::{StepFit, StepRegression},
};

/// Steps of the last second held apart.
const RECENT_STEPS: usize = 1024;
/// What "the last second" is, microseconds.
const RATE_WINDOW_US: i64 = 1_000_000;

/// Bounds and learning of [`InstanceStates`].
#[derive(Clone, Copy, Debug)]
pub struct InstanceStateConfig {
    /// Instances held per worker; at least 1. At the bound: the one silent for longest is dropped and reported.
    pub max_instances: usize,
    /// What a step's weight is multiplied by with each later step; within 0.5..=1.
    pub forgetting: f64,
    /// Steps before there is a fit; at least 1.
    pub min_samples: u64,
}

impl Default for InstanceStateConfig {
    fn default() -> Self {
        Self { max_instances: 4096, forgetting: 0.995, min_samples: 8 }
    }
}

/// One instance as of its latest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InstanceState {
    /// The dataflow epoch in which it changed.
    pub epoch: u64,
    /// The latest step's row as it came.
    pub step: StepRow,
    /// Tokens generated within the second up to the latest step's end. It does not fall while no step comes: compare
    /// `step.at_us` with the present.
    pub tokens_per_s: u64,
    /// Prompt tokens per second in steps that prefill; `None` before the first.
    pub prefill_tokens_per_s: Option<u64>,
    /// `None` until enough steps were seen.
    pub fit: Option<StepFit>,
}

/// What [`InstanceStates::instance_state`] gives.
pub struct InstanceStreams<'scope> {
    pub rows: StreamVec<'scope, u64, InstanceState>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Keeps the state of instances.
///
/// ```
/// use operators::{InstanceStateConfig, InstanceStates, StepRow};
/// use timely::dataflow::operators::{Capture, ToStream, capture::Extract};
///
/// // Steps of 2 ms, 100 µs per sequence and 10 µs per prompt token.
/// let steps: Vec<_> = (1..=40u32)
///     .map(|step| {
///         let (decode_tokens, prefill_tokens) = (step % 7, step % 3 * 64);
///         let step_us = 2000 + 100 * u64::from(decode_tokens) + 10 * u64::from(prefill_tokens);
///         let (step, at_us) = (u64::from(step), i64::from(step) * 10_000);
///         StepRow {
///             instance: 3, epoch: 1, step, at_us, running: 7, waiting: 0, queued_prefill_tokens: 0,
///             context_tokens: 900, blocks_used: 5, blocks_cached: 2, blocks_total: 10,
///             prefill_tokens, decode_tokens, step_us, ..StepRow::default()
///         }
///     })
///     .collect();
/// let rows = timely::example(|scope| {
///     let steps = steps.to_stream(scope).container::<Vec<_>>();
///     steps.instance_state(InstanceStateConfig::default()).rows.capture()
/// });
/// let state = rows.extract()[0].1[0];
/// assert_eq!(state.step.step, 40);
/// assert!(state.fit.unwrap().per_sequence_ns.abs_diff(100_000) < 100);
/// ```
pub trait InstanceStates<'scope> {
    /// Folds step rows, exchanged by instance, into one row per instance and epoch in which it stepped.
    fn instance_state(self, config: InstanceStateConfig) -> InstanceStreams<'scope>;
}

impl<'scope> InstanceStates<'scope> for StreamVec<'scope, u64, StepRow> {
    fn instance_state(self, config: InstanceStateConfig) -> InstanceStreams<'scope> {
        let (rows, refused) = fold_epochs(self, InstanceFold::new(config));
        InstanceStreams { rows, refused }
    }
}

struct Instance {
    latest: StepRow,
    heard: u64,
    /// Ends of steps never go back here: a clock set back counts as standing still.
    now_us: i64,
    /// `(end, tokens generated)` of the last second's steps.
    recent: VecDeque<(i64, u64)>,
    regression: StepRegression,
}

impl Instance {
    fn new(row: &StepRow, config: &InstanceStateConfig) -> Self {
        Self {
            latest: *row,
            heard: 0,
            now_us: row.at_us,
            recent: VecDeque::new(),
            regression: StepRegression::new(config.forgetting.clamp(0.5, 1.0)),
        }
    }

    fn fold(&mut self, row: &StepRow) {
        self.latest = *row;
        self.regression.add(row);
        self.now_us = self.now_us.max(row.at_us);
        while self.recent.front().is_some_and(|(at_us, _)| *at_us <= self.now_us - RATE_WINDOW_US) {
            self.recent.pop_front();
        }
        let tokens = u64::from(row.decode_tokens);
        let full = self.recent.len() >= RECENT_STEPS;
        match self.recent.back_mut().filter(|_| full) {
            Some(newest) => *newest = (self.now_us, newest.1 + tokens),
            None => self.recent.push_back((self.now_us, tokens)),
        }
    }

    fn state(&self, epoch: u64, min_samples: u64) -> InstanceState {
        InstanceState {
            epoch,
            step: self.latest,
            tokens_per_s: self.recent.iter().map(|(_, tokens)| tokens).sum(),
            prefill_tokens_per_s: self.regression.prefill_tokens_per_s(),
            fit: self.regression.fit(min_samples),
        }
    }
}

pub(crate) struct InstanceFold {
    config: InstanceStateConfig,
    instances: BTreeMap<u32, Instance>,
}

impl InstanceFold {
    pub(crate) fn new(config: InstanceStateConfig) -> Self {
        Self { config, instances: BTreeMap::new() }
    }

    fn drop_silent(&mut self, epoch: u64, refused: &mut Vec<Refused>) {
        let max_instances = self.config.max_instances.max(1);
        while self.instances.len() >= max_instances {
            let silent = self.instances.iter().min_by_key(|(id, state)| (state.heard, **id)).map(|(id, _)| *id);
            let Some(id) = silent else { return };
            self.instances.remove(&id);
            refused.push(Refused {
                epoch,
                input: Input::Steps,
                instance: Some(id),
                subject: 0,
                rows: 1,
                reason: Refusal::InstancesFull { max_instances: max_instances as u64 },
            });
        }
    }

    /// All rows of one instance in one epoch, sorted by incarnation and step; each has passed its check.
    fn fold_instance(&mut self, epoch: u64, rows: &[StepRow], closed: &mut Closed<InstanceState>) {
        let instance = rows[0].instance;
        let mut known = self.instances.remove(&instance);
        if known.is_none() {
            self.drop_silent(epoch, &mut closed.refused);
        }
        let mut changed = false;
        for group in rows.chunk_by(|a, b| a.epoch == b.epoch) {
            let got = group[0].epoch;
            let current = known.as_ref().map_or(got, |state| state.latest.epoch);
            if got < current {
                let (rows, reason) = (group.len() as u64, Refusal::StaleIncarnation { current, got });
                let (input, instance) = (Input::Steps, Some(instance));
                closed.refused.push(Refused { epoch, input, instance, subject: group[0].step, rows, reason });
                continue;
            }
            let mut state = known.take().filter(|state| state.latest.epoch == got);
            for row in group {
                if state.as_ref().is_some_and(|state| row.step <= state.latest.step) {
                    continue;
                }
                state.get_or_insert_with(|| Instance::new(row, &self.config)).fold(row);
                changed = true;
            }
            known = state;
        }
        let Some(mut state) = known else { return };
        state.heard = epoch;
        if changed {
            closed.out.push(state.state(epoch, self.config.min_samples));
        }
        self.instances.insert(instance, state);
    }
}

impl EpochFold for InstanceFold {
    type Row = StepRow;
    type Out = InstanceState;
    const NAME: &'static str = "InstanceState";

    fn route(row: &StepRow) -> u64 {
        row.instance.hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<StepRow>, closed: &mut Closed<InstanceState>) {
        rows.retain(|row| {
            let checked = row.check();
            if let Err(reason) = checked {
                let (input, instance) = (Input::Steps, Some(row.instance));
                closed.refused.push(Refused { epoch, input, instance, subject: row.step, rows: 1, reason });
            }
            checked.is_ok()
        });
        rows.sort_unstable();
        for group in rows.chunk_by(|a, b| a.instance == b.instance) {
            self.fold_instance(epoch, group, closed);
        }
    }
}
