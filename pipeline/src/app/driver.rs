//! Drives an engine by its steps, without a gateway: for benches and for calibration.
//!
//! Invariant: every sequence runs to its length, and no two prompts share a block; an answer that ends otherwise is an error.
//! Cost: that of the steps. State: the engine's sequences.

use std::{collections::HashSet, time::Instant};

use anyhow::{bail, ensure};
use engine::{
    engine::Engine,
    request::{FinishReason, GenerateRequest, SequenceId},
};

/// See the file's header.
pub(super) struct Driver {
    engine: Engine,
    sequences: u64,
}

impl Driver {
    pub(super) fn new(engine: Engine) -> Self {
        Driver { engine, sequences: 0 }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Seconds from submitting a prompt of `tokens` to its first output token.
    pub(super) fn prefill_seconds(&mut self, tokens: usize) -> anyhow::Result<f64> {
        self.submit(tokens, 1)?;
        let started = Instant::now();
        while self.engine.has_work() {
            self.step()?;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Tokens a second over all of `sequences` that each generate `tokens` after their first one, from one token of context.
    pub(super) fn decode_speed(&mut self, sequences: usize, tokens: usize) -> anyhow::Result<f64> {
        for _ in 0..sequences {
            self.submit(1, tokens + 1)?;
        }
        self.run_until_all_drew(sequences)?;
        let started = Instant::now();
        let mut generated = 0;
        while self.engine.has_work() {
            generated += self.step()?;
        }
        let seconds = started.elapsed().as_secs_f64();
        ensure!(generated == sequences * tokens, "{generated} tokens came; expected {}", sequences * tokens);
        Ok(generated as f64 / seconds)
    }

    /// Median seconds of `steps` steps in which a sequence of each of the `prompts`' lengths decodes.
    pub(super) fn step_seconds(&mut self, prompts: &[usize], steps: usize) -> anyhow::Result<f64> {
        for prompt in prompts {
            // A prompt that waits for others to be computed goes on generating meanwhile.
            self.submit(*prompt, prompts.len() + steps + 2)?;
        }
        self.run_until_all_drew(prompts.len())?;
        let mut times = Vec::with_capacity(steps);
        for _ in 0..steps {
            let started = Instant::now();
            self.step()?;
            times.push(started.elapsed().as_secs_f64());
        }
        for id in 0..prompts.len() as u64 {
            self.engine.cancel(SequenceId(self.sequences - id));
        }
        while self.engine.has_work() {
            self.engine.step(0);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[steps / 2])
    }

    fn run_until_all_drew(&mut self, sequences: usize) -> anyhow::Result<()> {
        let mut drew = HashSet::new();
        while drew.len() < sequences {
            let report = self.engine.step(0);
            drew.extend(report.outputs.iter().filter(|output| !output.tokens.is_empty()).map(|output| output.sequence));
            ensure!(self.engine.has_work(), "sequences ended before all had begun");
        }
        Ok(())
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
        let prompt = prompt_tokens(self.sequences, prompt, self.engine.shape().vocab);
        let request = GenerateRequest::greedy(SequenceId(self.sequences), prompt, max_tokens as u32);
        Ok(self.engine.submit(request, 0)?)
    }
}

/// Token ids of a prompt; different for each `number`, so that nothing is found in a cache.
pub(super) fn prompt_tokens(number: u64, tokens: usize, vocab: usize) -> Vec<u32> {
    (0..tokens as u64).map(|n| ((number + n * 7919) % vocab as u64) as u32).collect()
}
