//! What a model thinks of a text: the log-probability of each token, and how far models agree (SPEC D1: the quality of a
//! quantised variant is measured, not believed).
//!
//! A text longer than the window is read in windows that overlap: each starts `stride` tokens after the last, and only what no
//! window scored before is scored, so that all tokens but the first ones have at least `window - stride` tokens of context and
//! each counts once. The first token of a text is not scored: nothing predicts it.
//!
//! Invariant: tokens go through the runner as prompts do (chunks, pages, the same arithmetic), so what is measured is what is
//! served. Log-probabilities and sums are in f64. Cost: each token is computed about `window / stride` times, each scored one
//! has its logits read once a model. Memory: the logits of [`CHUNK`] tokens a model.

use std::ops::Range;

use kernels::ops::logits::{argmax, log_sum_exp};

use crate::{
    request::SequenceId,
    runner::{Batch, BatchLogits, BatchSlot, ModelRunner, RunnerError},
};

/// Most tokens whose logits are held at once.
pub const CHUNK: usize = 32;

/// How a text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Tokens a window; at least 2, and no more than the runners' pages hold.
    pub window: usize,
    /// Tokens from one window's start to the next one's; 1 to `window - 1`.
    pub stride: usize,
}

/// Why a text was not read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LikelihoodError {
    #[error("{field} is {value}; it must be {expected}")]
    Bound { field: &'static str, value: usize, expected: String },
    #[error("the logits that predict token {position} hold {what}; a model must give finite numbers")]
    NotFinite { position: usize, what: f64 },
    #[error(transparent)]
    Runner(#[from] RunnerError),
}

/// Mean of numbers and how sure it is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moments {
    pub count: u64,
    sum: f64,
    squares: f64,
}

impl Moments {
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// NaN for no numbers.
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Standard error of the mean, as if the numbers were independent (tokens of a text are nearly). NaN below two.
    pub fn standard_error(&self) -> f64 {
        let count = self.count as f64;
        let variance = (self.squares - self.sum * self.sum / count) / (count - 1.0);
        (variance.max(0.0) / count).sqrt()
    }
}

/// What one model makes of a text, and how far it agrees with the first model.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Agreement {
    /// Negative log-likelihood a token, in nats.
    pub nll: Moments,
    /// Kullback-Leibler divergence from the first model's distribution to this one's, in nats.
    pub divergence: Moments,
    /// Tokens for which both think the same one likeliest.
    pub same_best: u64,
}

impl Agreement {
    pub fn perplexity(&self) -> f64 {
        self.nll.mean().exp()
    }

    /// Standard error of the perplexity.
    pub fn perplexity_error(&self) -> f64 {
        self.perplexity() * self.nll.standard_error()
    }

    /// Share of tokens for which both think the same one likeliest.
    pub fn same_best_share(&self) -> f64 {
        self.same_best as f64 / self.nll.count as f64
    }
}

/// Log-probability of each token of `text` but the first.
pub fn log_likelihood(
    runner: &mut dyn ModelRunner,
    text: &[u32],
    windows: Windows,
) -> Result<Vec<f64>, LikelihoodError> {
    let mut scores = Vec::with_capacity(text.len().saturating_sub(1));
    walk(&mut [runner], text, windows, &mut |position, rows| {
        scores.push(score(position, rows[0], text)?);
        Ok(())
    })?;
    Ok(scores)
}

/// Reads `text` with all models side by side; the first is what the others are compared with. `seen` is told how many tokens
/// are scored so far.
pub fn compare(
    models: &mut [&mut dyn ModelRunner],
    text: &[u32],
    windows: Windows,
    seen: &mut dyn FnMut(usize),
) -> Result<Vec<Agreement>, LikelihoodError> {
    let mut agreements = vec![Agreement::default(); models.len()];
    walk(models, text, windows, &mut |position, rows| {
        for (agreement, row) in agreements.iter_mut().zip(rows) {
            agreement.nll.add(-score(position, row, text)?);
            agreement.divergence.add(divergence(rows[0], row));
            agreement.same_best += u64::from(argmax(row) == argmax(rows[0]));
        }
        seen(position);
        Ok(())
    })?;
    Ok(agreements)
}

fn score(position: usize, row: &[f32], text: &[u32]) -> Result<f64, LikelihoodError> {
    let score = f64::from(row[text[position] as usize]) - log_sum_exp(row);
    match score.is_finite() {
        true => Ok(score),
        false => Err(LikelihoodError::NotFinite { position, what: score }),
    }
}

/// `sum p log(p / q)` over the vocabulary.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (sum_p, sum_q) = (log_sum_exp(p), log_sum_exp(q));
    let terms = p.iter().zip(q).map(|(p, q)| {
        let (log_p, log_q) = (f64::from(*p) - sum_p, f64::from(*q) - sum_q);
        log_p.exp() * (log_p - log_q)
    });
    terms.sum::<f64>().max(0.0)
}

/// Takes a token's position in the text and each model's logits for it.
type Each<'a> = dyn FnMut(usize, &[&[f32]]) -> Result<(), LikelihoodError> + 'a;

/// Hands the logits that predict each token but the first to `each`, once, in order.
fn walk(
    models: &mut [&mut dyn ModelRunner],
    text: &[u32],
    windows: Windows,
    each: &mut Each<'_>,
) -> Result<(), LikelihoodError> {
    check(models, text, windows)?;
    // Of the text; what lies before it is scored.
    let mut scored = 1;
    let mut start = 0;
    while scored < text.len() {
        let window = &text[start..text.len().min(start + windows.window)];
        // Logits after token `i` of the window predict token `i + 1`; nobody needs those after the last.
        let first = scored - start - 1;
        for chunk in chunks(0..first) {
            for model in models.iter_mut() {
                read(*model, window, (chunk.clone(), false))?;
            }
        }
        for chunk in chunks(first..window.len() - 1) {
            let logits: Vec<BatchLogits> =
                models.iter_mut().map(|model| read(*model, window, (chunk.clone(), true))).collect::<Result<_, _>>()?;
            for (row, token) in chunk.enumerate() {
                let rows: Vec<&[f32]> = logits.iter().map(|logits| logits.row(row)).collect();
                each(start + token + 1, &rows)?;
            }
            models.iter_mut().zip(logits).for_each(|(model, logits)| model.recycle(logits));
        }
        scored = start + window.len();
        start += windows.stride;
    }
    Ok(())
}

fn chunks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(CHUNK).map(move |from| from..end.min(from + CHUNK))
}

/// Computes tokens `chunk` of the window, in the model's first pages; the logits of each if they are wanted.
fn read(
    model: &mut dyn ModelRunner,
    window: &[u32],
    (chunk, wants_logits): (Range<usize>, bool),
) -> Result<BatchLogits, RunnerError> {
    let pages = chunk.end.div_ceil(model.shape().block_size);
    let slot = BatchSlot {
        sequence: SequenceId(0),
        tokens: window[chunk.clone()].to_vec(),
        position: chunk.start,
        blocks: (0..pages as u32).collect(),
        wants_logits,
        proposed: if wants_logits { chunk.len() - 1 } else { 0 },
    };
    model.submit(&Batch { slots: vec![slot] })?;
    model.collect()
}

fn check(models: &[&mut dyn ModelRunner], text: &[u32], windows: Windows) -> Result<(), LikelihoodError> {
    let room = |model: &&mut dyn ModelRunner| {
        let shape = model.shape();
        shape.context.min(shape.blocks.saturating_mul(shape.block_size))
    };
    let most = models.iter().map(room).min().unwrap_or(0);
    let vocab = models.iter().map(|model| model.shape().vocab).min().unwrap_or(0);
    let bound = |field, value, expected: String| Err(LikelihoodError::Bound { field, value, expected });
    if !(2..=most).contains(&windows.window) {
        return bound("window", windows.window, format!("2 to {most} tokens, what context and pages hold"));
    }
    if !(1..windows.window).contains(&windows.stride) {
        return bound("stride", windows.stride, format!("1 to {} tokens, less than the window", windows.window - 1));
    }
    if models.iter().any(|model| model.shape().vocab != vocab) {
        return bound("vocabulary", vocab, "the same for all models".to_owned());
    }
    if text.len() < 2 {
        return bound("text", text.len(), "at least 2 tokens".to_owned());
    }
    match text.iter().find(|token| **token as usize >= vocab) {
        Some(token) => bound("token", *token as usize, format!("below the vocabulary of {vocab}")),
        None => Ok(()),
    }
}
