//! Logits to tokens.
//!
//! Order: repetition penalty, frequency and presence penalty, logit bias, the grammar's mask, temperature, top-k, top-p,
//! min-p, draw. So a bias can't bring back what the mask forbids, and top-k counts allowed tokens only. Log-probabilities are the log-softmax of the logits as the model gave them, before all of that.
//!
//! The draw inverts the cumulative distribution of the kept tokens in order of token id, at a number that depends only
//! on the seed and on the index of the token in the output. So a request gives the same tokens in any batch and after
//! any preemption.
//!
//! Invariant: NaN, +inf, or nothing but -inf among the logits is an error and never a token. -inf alone marks a token
//! that can't be drawn.
//!
//! Cost: O(vocab) time; top-k adds O(k log k), top-p O(n log n) in the n best tokens that reach it (found by growing n
//! eightfold). Memory: 16 bytes a vocabulary entry, reused from call to call.

use std::cmp::Ordering;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{grammar::TokenMask, request::SamplingParams, step::TokenLogprob, token_history::TokenHistory};

/// Logits that no token can be drawn from.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    #[error("the logit of token {token} is {value}; the model must give finite numbers")]
    NotFinite { token: usize, value: f32 },
    #[error("no token has a logit above -inf")]
    NothingToDraw,
}

/// What decides about one draw besides the logits.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    pub params: &'a SamplingParams,
    pub history: &'a TokenHistory,
    /// Index of the token in the output, from 0.
    pub index: usize,
}

/// A token, and its log-probability if the request asked for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    pub token: u32,
    pub logprob: Option<TokenLogprob>,
}

/// Scratch space; holds nothing from one call to the next.
#[derive(Debug, Default)]
pub struct Sampler {
    adjusted: Vec<f32>,
    weights: Vec<f64>,
    kept: Vec<u32>,
}

impl Sampler {
    /// Draws one token from `logits` (one value a vocabulary entry).
    pub fn sample(&mut self, logits: &[f32], draw: &Draw<'_>) -> Result<Sampled, SampleError> {
        self.sample_masked(logits, draw, None)
    }

    /// Draws one token that `mask` allows; its log-probability is the model's, before the mask.
    pub fn sample_masked(
        &mut self,
        logits: &[f32],
        draw: &Draw<'_>,
        mask: Option<&TokenMask>,
    ) -> Result<Sampled, SampleError> {
        let best = highest(logits)?;
        let params = draw.params;
        let token = if mask.is_none() && draw.history.is_empty() && params.logit_bias.is_empty() {
            choose((logits, best), draw, (&mut self.weights, &mut self.kept))
        } else {
            self.adjusted.clear();
            self.adjusted.extend_from_slice(logits);
            penalise(&mut self.adjusted, draw);
            if let Some(mask) = mask {
                mask.apply(&mut self.adjusted);
            }
            let best = highest(&self.adjusted)?;
            choose((&self.adjusted, best), draw, (&mut self.weights, &mut self.kept))
        };
        let logprob = params.logprobs.map(|top| describe(logits, token, usize::from(top)));
        Ok(Sampled { token, logprob })
    }
}

/// The uniform number in `[0, 1)` for the `index`-th token of a request with this seed.
pub fn uniform(seed: u64, index: usize) -> f64 {
    let bits = xxh3_64_with_seed(&(index as u64).to_le_bytes(), seed);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Best first; equal logits by lower id.
fn by_rank(logits: &[f32]) -> impl Fn(&u32, &u32) -> Ordering + '_ {
    |a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b))
}

/// Index of the highest logit, the lowest among equals. Two passes that the compiler can vectorise: the maximum by lanes
/// (NaN and +inf turn a lane's check positive), then the place of it.
fn highest(logits: &[f32]) -> Result<usize, SampleError> {
    const LANES: usize = 16;
    let (blocks, tail) = logits.as_chunks::<LANES>();
    let (mut best, mut bad) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    for block in blocks {
        for ((best, bad), value) in best.iter_mut().zip(&mut bad).zip(block) {
            *best = if *value > *best { *value } else { *best };
            *bad |= value.is_nan() | (*value == f32::INFINITY);
        }
    }
    let max = best.iter().chain(tail).copied().fold(f32::NEG_INFINITY, f32::max);
    if bad.contains(&true) || tail.iter().any(|value| value.is_nan() || *value == f32::INFINITY) {
        let token = logits.iter().position(|value| value.is_nan() || *value == f32::INFINITY).unwrap_or(0);
        return Err(SampleError::NotFinite { token, value: logits[token] });
    }
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NothingToDraw);
    }
    let block = blocks.iter().position(|block| block.iter().fold(false, |found, value| found | (*value == max)));
    let from = block.unwrap_or(blocks.len()) * LANES;
    let inside = logits[from..].iter().position(|value| *value == max);
    inside.map(|inside| from + inside).ok_or(SampleError::NothingToDraw)
}

fn penalise(logits: &mut [f32], draw: &Draw<'_>) {
    let params = draw.params;
    for (token, seen) in draw.history.iter() {
        let Some(logit) = logits.get_mut(token as usize) else { continue };
        let repetition = params.repetition_penalty;
        *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
        if seen.generated > 0 {
            *logit -= params.frequency_penalty * seen.generated as f32 + params.presence_penalty;
        }
    }
    for (token, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit += bias;
        }
    }
}

/// Draws from `logits`, whose highest is at `best`.
fn choose((logits, best): (&[f32], usize), draw: &Draw<'_>, scratch: (&mut Vec<f64>, &mut Vec<u32>)) -> u32 {
    if draw.params.temperature == 0.0 {
        return best as u32;
    }
    let (weights, kept) = scratch;
    let (peak, temperature) = (f64::from(logits[best]), f64::from(draw.params.temperature));
    weights.clear();
    weights.extend(logits.iter().map(|logit| ((f64::from(*logit) - peak) / temperature).exp()));
    kept.clear();
    kept.extend(0..logits.len() as u32);
    keep_top_k(logits, draw.params.top_k, kept);
    keep_top_p((logits, weights), f64::from(draw.params.top_p), kept);
    if draw.params.min_p > 0.0 {
        kept.retain(|token| weights[*token as usize] >= f64::from(draw.params.min_p));
    }
    kept.sort_unstable();
    invert(weights, kept, uniform(draw.params.seed, draw.index)).unwrap_or(best as u32)
}

fn keep_top_k(logits: &[f32], top_k: Option<u32>, kept: &mut Vec<u32>) {
    let Some(k) = top_k.map(|k| k as usize).filter(|k| (1..kept.len()).contains(k)) else { return };
    kept.select_nth_unstable_by(k - 1, by_rank(logits));
    kept.truncate(k);
}

/// Keeps the smallest set of best tokens whose share reaches `top_p`; at least one.
fn keep_top_p((logits, weights): (&[f32], &[f64]), top_p: f64, kept: &mut Vec<u32>) {
    if top_p >= 1.0 {
        return;
    }
    let target = top_p * kept.iter().map(|token| weights[*token as usize]).sum::<f64>();
    let mut sorted = 128;
    loop {
        if sorted < kept.len() {
            kept.select_nth_unstable_by(sorted - 1, by_rank(logits));
        }
        let candidates = sorted.min(kept.len());
        kept[..candidates].sort_unstable_by(by_rank(logits));
        let mut share = 0.0;
        for (count, token) in kept[..candidates].iter().enumerate() {
            share += weights[*token as usize];
            if share >= target {
                kept.truncate(count + 1);
                return;
            }
        }
        if candidates == kept.len() {
            return;
        }
        sorted *= 8;
    }
}

/// The token at which the running sum first passes `u` of the whole; `None` if nothing has weight.
fn invert(weights: &[f64], kept: &[u32], u: f64) -> Option<u32> {
    let target = u * kept.iter().map(|token| weights[*token as usize]).sum::<f64>();
    let mut sum = 0.0;
    let mut last = None;
    for token in kept {
        let weight = weights[*token as usize];
        if weight > 0.0 {
            sum += weight;
            last = Some(*token);
            if sum > target {
                break;
            }
        }
    }
    last
}

/// Log-softmax of `token` and of the `top` best; entries of -inf are left out of `top`.
fn describe(logits: &[f32], token: u32, top: usize) -> TokenLogprob {
    let peak = logits.iter().fold(f32::NEG_INFINITY, |best, logit| best.max(*logit));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - f64::from(peak)).exp()).sum();
    let log_sum = sum.ln();
    let logprob = |token: u32| (f64::from(logits[token as usize]) - f64::from(peak) - log_sum) as f32;
    let mut best: Vec<u32> =
        (0..logits.len() as u32).filter(|token| logits[*token as usize] > f32::NEG_INFINITY).collect();
    if top == 0 {
        best.clear();
    } else if top < best.len() {
        best.select_nth_unstable_by(top - 1, by_rank(logits));
        best.truncate(top);
    }
    best.sort_unstable_by(by_rank(logits));
    TokenLogprob {
        token,
        logprob: logprob(token),
        top: best.into_iter().map(|token| (token, logprob(token))).collect(),
    }
}
