//! How long a step takes, learnt from the steps before it, and from that how much of a prompt one step may compute
//! (SPEC B7: chunked prefill).
//!
//! A long chunk holds up everybody in the batch, and whoever arrives while it runs: with a bound on the time of a step
//! the chunk follows from the machine, not from a number of tokens that suits one machine only. Sarathi-Serve bounds
//! chunks so that decodes keep their pace; here the bound is a time and the tokens are learnt.
//!
//! A step takes base + per decoding sequence + per prompt token: recursive least squares, older steps fading.
//! Invariants: a function of what it was told; nothing is bounded before [`STEPS_MIN`] steps with prompts were seen; a
//! chunk is never bounded to fewer than [`CHUNK_MIN`] tokens. Cost: O(1) a step. State: twelve numbers.

use crate::{Micros, step::StepStats};

/// Steps with prompt tokens before their time is known.
const STEPS_MIN: u32 = 8;
/// A chunk may have this many tokens however slow its step is.
pub(crate) const CHUNK_MIN: usize = 16;
/// What a step's weight is multiplied by with each later one.
const FORGETTING: f64 = 0.995;
/// Bring columns to like sizes.
const SEQUENCES: f64 = 16.0;
const TOKENS: f64 = 256.0;
/// Nothing is known at first: a variance far above any coefficient's, in ms².
const PRIOR_VARIANCE: f64 = 1e6;
/// A column that does not move keeps its uncertainty here.
const VARIANCE_MAX: f64 = 1e8;

/// See the file's header.
#[derive(Debug, Clone)]
pub(crate) struct StepPace {
    /// Milliseconds of a step, of 16 sequences that decode, of 256 prompt tokens.
    coefficients: [f64; 3],
    covariance: [[f64; 3]; 3],
    with_prompts: u32,
}

impl Default for StepPace {
    fn default() -> Self {
        let mut covariance = [[0.0; 3]; 3];
        for (place, row) in covariance.iter_mut().enumerate() {
            row[place] = PRIOR_VARIANCE;
        }
        Self { coefficients: [0.0; 3], covariance, with_prompts: 0 }
    }
}

impl StepPace {
    /// A step of these figures took so long.
    pub fn learn(&mut self, stats: &StepStats, us: Micros) {
        if us <= 0 || stats.prefill_tokens + stats.decode_tokens == 0 {
            return;
        }
        self.with_prompts = self.with_prompts.saturating_add(u32::from(stats.prefill_tokens > 0));
        let decoding = f64::from(stats.decode_tokens + stats.proposed_tokens);
        let columns = [1.0, decoding / SEQUENCES, f64::from(stats.prefill_tokens) / TOKENS];
        let spread = self.covariance.map(|row| dot(&row, &columns));
        let gain = 1.0 / (FORGETTING + dot(&columns, &spread));
        let error = us as f64 / 1e3 - dot(&self.coefficients, &columns);
        for row in 0..3 {
            self.coefficients[row] += spread[row] * gain * error;
            for column in 0..3 {
                let next = (self.covariance[row][column] - spread[row] * spread[column] * gain) / FORGETTING;
                self.covariance[row][column] = next.clamp(-VARIANCE_MAX, VARIANCE_MAX);
            }
        }
    }

    /// Microseconds of a step without prompts in which so many sequences decode; `None`: not known.
    pub fn decode_us(&self, decoding: usize) -> Option<Micros> {
        (self.with_prompts >= STEPS_MIN).then(|| (self.decode_ms(decoding) * 1e3) as Micros)
    }

    fn decode_ms(&self, decoding: usize) -> f64 {
        let [base, sequences, _] = self.coefficients;
        base.max(0.0) + sequences.max(0.0) * decoding as f64 / SEQUENCES
    }

    /// Whether a chunk of a prompt beside so many decoding sequences stays within the time; so, too, where that is not known.
    pub fn has_room_for_prompts(&self, decoding: usize, within: Micros) -> bool {
        self.unbounded_tokens(decoding, within).is_none_or(|tokens| tokens >= CHUNK_MIN as f64)
    }

    /// Prompt tokens for which a step beside so many decoding sequences stays within the time; `None`: not known.
    pub fn prompt_tokens(&self, decoding: usize, within: Micros) -> Option<usize> {
        self.unbounded_tokens(decoding, within).map(|tokens| (tokens.max(0.0) as usize).max(CHUNK_MIN))
    }

    fn unbounded_tokens(&self, decoding: usize, within: Micros) -> Option<f64> {
        let [.., tokens] = self.coefficients;
        if self.with_prompts < STEPS_MIN || tokens <= 0.0 {
            return None;
        }
        Some((within as f64 / 1e3 - self.decode_ms(decoding)) / tokens * TOKENS)
    }
}

fn dot(left: &[f64; 3], right: &[f64; 3]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(prefill_tokens: u32, decode_tokens: u32) -> StepStats {
        StepStats { prefill_tokens, decode_tokens, ..StepStats::default() }
    }

    /// 4 ms a step, 0.5 ms a sequence, 0.5 ms a prompt token; and half as fast from a step on.
    fn taught(steps: u32, slow_from: u32) -> StepPace {
        let mut pace = StepPace::default();
        for step in 0..steps {
            let (prefill, decode) = (step * 37 % 300, step % 11);
            let factor = if step >= slow_from { 2 } else { 1 };
            pace.learn(&stats(prefill, decode), Micros::from((4_000 + 500 * (decode + prefill)) * factor));
        }
        pace
    }

    /// Scenario: steps of all sizes, a bound of 100 ms, and a machine that becomes half as fast.
    /// Guarantees: the tokens that fit are those of the true cost, beside few and many; they follow the machine.
    #[test]
    fn tokens_that_fit_are_learnt() {
        let pace = taught(200, u32::MAX);
        for (decoding, expected) in [(0, 192), (16, 176), (64, 128)] {
            let found = pace.prompt_tokens(decoding, 100_000).unwrap();
            assert!(found.abs_diff(expected) <= 1, "{found} tokens beside {decoding}, {expected} fit");
        }
        let found = taught(2_000, 200).prompt_tokens(0, 100_000).unwrap();
        assert!(found.abs_diff(92) <= 2, "{found} tokens at half the speed");
    }

    /// Scenario: too few steps; steps that cost nothing; a bound below what decoding alone takes; a long time in which
    /// only one kind of step is seen.
    /// Guarantees: nothing is said without evidence, a prompt always gets on, and silence of a kind spoils nothing.
    #[test]
    fn nothing_is_bounded_without_evidence() {
        assert_eq!(taught(STEPS_MIN, u32::MAX).prompt_tokens(0, 100_000), None);
        let mut idle = StepPace::default();
        (0..100).for_each(|_| idle.learn(&stats(0, 0), 1_000));
        assert_eq!(idle.prompt_tokens(0, 100_000), None);
        assert_eq!(taught(200, u32::MAX).prompt_tokens(64, 1_000), Some(CHUNK_MIN));
        let mut pace = taught(200, u32::MAX);
        (0..100_000).for_each(|_| pace.learn(&stats(0, 4), 6_000));
        let found = pace.prompt_tokens(4, 100_000).unwrap();
        assert!(found.abs_diff(188) <= 10, "{found} tokens after a long time without prompts");
    }
}
