//! The twin of `service_time`: all steps of a shape kept, refitted from the first to the last after every epoch.
//!
//! Invariant: the same steps in the same order with the same columns, said over plain lists.
//! Cost: a fit per step, each over all before it. State: all steps, unbounded.
use std::collections::BTreeMap;

use super::least_squares::{SlowFit, SlowLeastSquares};
use crate::{PredictionError, ServiceTimeConfig, StepRow};

/// See the module.
pub struct SlowServiceTime {
    config: ServiceTimeConfig,
    shapes: BTreeMap<u32, SlowShape>,
}

struct SlowShape {
    steps: Vec<StepRow>,
    prefill: SlowLeastSquares,
    decode: SlowLeastSquares,
}

/// What the twin knows of a shape.
pub struct SlowServiceTimes {
    pub shape: u32,
    pub prefill: (u64, Option<SlowFit>, PredictionError),
    pub decode: (u64, Option<SlowFit>, PredictionError),
    pub chunk_tokens: u32,
}

impl SlowServiceTime {
    pub fn new(config: ServiceTimeConfig) -> Self {
        Self { config, shapes: BTreeMap::new() }
    }

    /// Folds one epoch; gives the shapes that learnt something, in order.
    pub fn epoch(&mut self, rows: &[StepRow]) -> Vec<SlowServiceTimes> {
        let mut rows: Vec<StepRow> = rows.iter().copied().filter(|row| row.check().is_ok()).collect();
        rows.sort();
        let mut changed = Vec::new();
        for row in rows {
            let ServiceTimeConfig { forgetting, min_samples, .. } = self.config;
            let learner = || SlowLeastSquares::new(forgetting, min_samples, 1e-6);
            let fresh = || SlowShape { steps: Vec::new(), prefill: learner(), decode: learner() };
            let shape = self.shapes.entry(row.shape).or_insert_with(fresh);
            let of_instance = shape.steps.iter().filter(|step| step.instance == row.instance);
            let latest = of_instance.map(|step| (step.epoch, step.step)).max();
            if latest.is_some_and(|latest| (row.epoch, row.step) <= latest) {
                continue;
            }
            shape.steps.push(row);
            let seconds = row.step_us as f64 / 1e6;
            let (prefill, decode) = (f64::from(row.prefill_tokens), f64::from(row.decode_tokens));
            let context = row.context_tokens as f64;
            if row.step_us == 0 || (row.prefill_tokens == 0 && row.decode_tokens == 0) {
                continue;
            }
            if row.prefill_tokens > 0 {
                let mean_context = context / f64::from(row.running).max(1.0);
                let columns = [1.0, prefill / 256.0, prefill / 256.0 * (mean_context / 4096.0), decode / 16.0];
                shape.prefill.learn(&columns, seconds);
            } else {
                shape.decode.learn(&[1.0, decode / 16.0, context / 16.0 / 4096.0], seconds);
            }
            changed.push(row.shape);
        }
        changed.sort();
        changed.dedup();
        changed.into_iter().map(|shape| self.times(shape)).collect()
    }

    fn times(&self, shape: u32) -> SlowServiceTimes {
        let SlowShape { steps, prefill, decode } = &self.shapes[&shape];
        let worked = steps.iter().filter(|step| step.step_us > 0);
        SlowServiceTimes {
            shape,
            prefill: (prefill.samples(), prefill.fit(), prefill.error()),
            decode: (decode.samples(), decode.fit(), decode.error()),
            chunk_tokens: worked.map(|step| step.prefill_tokens).max().unwrap_or(0),
        }
    }
}
