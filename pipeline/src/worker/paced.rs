//! A simulated engine that takes its modelled time, for tests of processes and for trying Evenkeel without a model file.
//!
//! [`Paced`] waits in `collect` until the inner runner's modelled time, times a factor, has passed, so that streams have
//! gaps between their tokens as a real engine's have. Invariant: tokens do not depend on the factor.
//! Cost: one sleep a step. State: none beyond the inner runner's.

use std::{
    thread,
    time::{Duration, Instant},
};

use engine::{
    runner::{Batch, BatchLogits, ModelRunner, RunnerError, RunnerShape},
    stop::TokenBytes,
};

/// See the file's header.
pub struct Paced<R> {
    inner: R,
    factor: f64,
    submitted: Instant,
}

impl<R: ModelRunner> Paced<R> {
    /// `factor` 1.0 is the modelled time, 0.0 no wait at all.
    pub fn new(inner: R, factor: f64) -> Self {
        Paced { inner, factor, submitted: Instant::now() }
    }
}

impl<R: ModelRunner> ModelRunner for Paced<R> {
    fn shape(&self) -> RunnerShape {
        self.inner.shape()
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError> {
        self.submitted = Instant::now();
        self.inner.submit(batch)
    }

    fn collect(&mut self) -> Result<BatchLogits, RunnerError> {
        let logits = self.inner.collect()?;
        let modelled_us = logits.modelled_us.unwrap_or(0).max(0) as f64 * self.factor.max(0.0);
        let due = Duration::from_micros(modelled_us as u64);
        if let Some(rest) = due.checked_sub(self.submitted.elapsed()).filter(|rest| !rest.is_zero()) {
            thread::sleep(rest);
        }
        Ok(logits)
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.inner.copy_blocks(pairs)
    }

    fn recycle(&mut self, logits: BatchLogits) {
        self.inner.recycle(logits);
    }

    fn provide_l2(&mut self, blocks: usize) -> Result<(), RunnerError> {
        self.inner.provide_l2(blocks)
    }

    fn swap_out(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.inner.swap_out(pairs)
    }

    fn swap_in(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.inner.swap_in(pairs)
    }
}

/// Texts of a simulated model's tokens: token 17 is " t17".
pub struct NumberedTokens(Vec<Vec<u8>>);

impl NumberedTokens {
    pub fn new(vocab: usize) -> Self {
        NumberedTokens((0..vocab).map(|token| format!(" t{token}").into_bytes()).collect())
    }
}

impl TokenBytes for NumberedTokens {
    fn token_bytes(&self, token: u32) -> &[u8] {
        self.0.get(token as usize).map(Vec::as_slice).unwrap_or_default()
    }
}
