//! Our engine, as a worker builds it, measured by its steps.
//!
//! Invariant: the prefix cache is off, so each prompt is computed; every sequence runs to its length. Cost: the model
//! is mapped once a thread count, and KV memory is a worker's default.

use std::{path::Path, sync::Arc, time::Instant};

use anyhow::{bail, ensure};
use engine::{
    engine::Engine,
    model::Model,
    request::{FinishReason, GenerateRequest, Lane, SamplingParams, SequenceId, StopConditions},
};

use crate::worker::{
    model,
    options::{CacheMode, WorkerOptions},
};

const WARM_TOKENS: usize = 16;

/// See the file's header.
pub(super) struct OurEngine {
    engine: Engine,
    sequences: u64,
}

/// Bytes of the file's weights: what a decode step reads at most.
pub(super) fn weight_bytes(path: &Path) -> anyhow::Result<usize> {
    Ok(Model::load(path)?.weight_bytes())
}

impl OurEngine {
    /// Loads the model and runs it once, so that its pages are in memory.
    pub(super) fn load(path: &Path, threads: usize) -> anyhow::Result<Self> {
        let options = WorkerOptions {
            threads,
            prefix_cache: CacheMode::Off,
            ..WorkerOptions::for_model(path.display().to_string())
        };
        let mut ours = OurEngine { engine: model::build(&options)?, sequences: 0 };
        ours.prefill(WARM_TOKENS)?;
        Ok(ours)
    }

    /// Tokens a second from submitting a prompt of `tokens` to its first output token.
    pub(super) fn prefill(&mut self, tokens: usize) -> anyhow::Result<f64> {
        self.submit(tokens, 1)?;
        let started = Instant::now();
        while self.engine.has_work() {
            self.step()?;
        }
        Ok(tokens as f64 / started.elapsed().as_secs_f64())
    }

    /// Tokens a second over all of `sequences` that each generate `tokens` after their first one.
    pub(super) fn decode(&mut self, sequences: usize, tokens: usize) -> anyhow::Result<f64> {
        for _ in 0..sequences {
            self.submit(1, tokens + 1)?;
        }
        let mut drawn = 0;
        while drawn < sequences {
            drawn += self.step()?;
        }
        ensure!(drawn == sequences, "{sequences} prompts of one token were not computed in one step");
        let started = Instant::now();
        let mut generated = 0;
        while self.engine.has_work() {
            generated += self.step()?;
        }
        let seconds = started.elapsed().as_secs_f64();
        ensure!(generated == sequences * tokens, "{generated} tokens came; expected {}", sequences * tokens);
        Ok(generated as f64 / seconds)
    }

    /// One step; tokens that came out of it.
    fn step(&mut self) -> anyhow::Result<usize> {
        let report = self.engine.step(0);
        for finish in report.outputs.iter().filter_map(|output| output.finish.as_ref()) {
            if finish.reason != FinishReason::Length {
                bail!("a sequence ended with {:?}: {}", finish.reason, finish.error.as_deref().unwrap_or("no error"));
            }
        }
        Ok(report.outputs.iter().map(|output| output.tokens.len()).sum())
    }

    fn submit(&mut self, prompt: usize, max_tokens: usize) -> anyhow::Result<()> {
        self.sequences += 1;
        let (vocab, first) = (self.engine.shape().vocab as u64, self.sequences);
        let prompt: Arc<[u32]> = (0..prompt as u64).map(|n| ((first + n * 7919) % vocab) as u32).collect();
        let request = GenerateRequest {
            id: SequenceId(self.sequences),
            prompt,
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            stop: StopConditions { max_tokens: max_tokens as u32, ..StopConditions::default() },
            lane: Lane::L2,
            deadline: None,
            cache_salt: 0,
            sampling_offset: 0,
        };
        Ok(self.engine.submit(request, 0)?)
    }
}
