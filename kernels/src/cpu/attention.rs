//! Causal attention of a few query tokens over one KV head's pages.
//!
//! Three passes over the context: scores (the register tile of [`super::dot`], a block of keys against all query tokens
//! of the task, so that keys are read from memory once a task), softmax a row, weighted sum of values (a block of
//! values against all query tokens). Invariant: a query token's result uses the positions of its window up to its own
//! and no other, in position order, whatever other tokens are in the task. Cost: `4 * heads * head_dim * context` operations a token
//! (a window in place of the context where it is shorter); scratch: `tokens * heads * context` f32 a thread, kept between calls.

use std::{cell::RefCell, ops::Range};

use super::{
    decode::F32,
    dot::{Reach, dot4},
    elementwise::exp_and_sum,
    matmul::four_rows,
    shared_out::SharedOut,
    simd::Simd,
};
use crate::ops::attention::{AttentionShape, AttentionSlot};

thread_local! {
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Query tokens `from..from + tokens` of one slot, for the query heads of one KV head.
pub(crate) struct HeadTask<'a> {
    pub(crate) shape: &'a AttentionShape,
    pub(crate) slot: &'a AttentionSlot<'a>,
    pub(crate) queries: &'a [f32],
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    pub(crate) out: &'a SharedOut<'a>,
    pub(crate) kv_head: usize,
    /// First token, counted inside the slot.
    pub(crate) from: usize,
    pub(crate) tokens: usize,
}

impl HeadTask<'_> {
    fn group(&self) -> usize {
        self.shape.heads / self.shape.cache.kv_heads
    }

    /// Where query head `head` of the group lies for slot token `token`, in `queries` and `out` alike.
    fn at(&self, token: usize, head: usize) -> usize {
        let head = self.kv_head * self.group() + head;
        ((self.slot.first_row + token) * self.shape.heads + head) * self.shape.cache.head_dim
    }

    /// Positions that slot token `token` attends to.
    fn context(&self, token: usize) -> usize {
        self.slot.position + token + 1
    }

    /// The first position that slot token `token` attends to.
    fn first(&self, token: usize) -> usize {
        self.context(token).saturating_sub(self.shape.window)
    }

    /// Of block `block`, the places that token `token` attends to.
    fn visible(&self, token: usize, block: usize) -> Range<usize> {
        let block_size = self.shape.cache.block_size;
        let inside = |position: usize| position.saturating_sub(block * block_size).min(block_size);
        inside(self.first(token))..inside(self.context(token))
    }

    /// The first block that any token of the task attends to. A row of scores starts with its first position.
    fn first_block(&self) -> usize {
        self.first(self.from) / self.shape.cache.block_size
    }

    /// The position of the first score in a row.
    fn base(&self) -> usize {
        self.first_block() * self.shape.cache.block_size
    }

    /// Asks for the page after `block` while `block` is worked on: pages are scattered, so the hardware cannot guess
    /// it.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(&self, cache: &[f32], block: usize) {
        const LINE_FLOATS: usize = 16;
        let layout = &self.shape.cache;
        if block + 1 < self.block_count() {
            let base = layout.offset(self.slot.blocks[block + 1], self.kv_head);
            for line in cache[base..base + layout.block_size * layout.head_dim].chunks(LINE_FLOATS) {
                // SAFETY: the caller's promise.
                unsafe { S::prefetch(line.as_ptr().cast()) };
            }
        }
    }

    fn block_count(&self) -> usize {
        self.context(self.from + self.tokens - 1).div_ceil(self.shape.cache.block_size)
    }
}

/// # Safety
/// As for [`Simd`]; `ops::attention` has checked the shapes: `head_dim` is a multiple of 16, blocks exist.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(_: S, task: &HeadTask<'_>) {
    let group = task.group();
    let (base, stride) = (task.base(), task.context(task.from + task.tokens - 1) - task.base());
    let mut scores = SCORES.take();
    if scores.len() < task.tokens * group * stride {
        scores.resize(task.tokens * group * stride, 0.0);
    }
    // SAFETY: the caller's promise, for every call below.
    unsafe {
        for block in task.first_block()..task.block_count() {
            task.prefetch::<S>(task.keys, block);
            score_block::<S>(task, block, &mut scores, stride);
        }
        for token in 0..task.tokens {
            for head in 0..group {
                let row = (token * group + head) * stride;
                let (first, context) = (task.first(task.from + token), task.context(task.from + token));
                let attended = row + first - base..row + context - base;
                let sum = exp_and_sum::<S>(&mut scores[attended.clone()]);
                let at = task.at(task.from + token, head);
                task.out.part(at, task.shape.cache.head_dim).fill(0.0);
                // The weights are scaled here, once a position, instead of the sum at the end: one pass less over
                // `out`.
                let scale = 1.0 / sum;
                for weight in &mut scores[attended] {
                    *weight *= scale;
                }
            }
        }
        for block in task.first_block()..task.block_count() {
            task.prefetch::<S>(task.values, block);
            mix_block::<S>(task, block, &scores, stride);
        }
    }
    SCORES.set(scores);
}

/// Scores of block `block`'s keys for every token and head of the task; row `token * group + head` has `stride` places.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn score_block<S: Simd>(task: &HeadTask<'_>, block: usize, scores: &mut [f32], stride: usize) {
    let cache = &task.shape.cache;
    let group = task.group();
    let base = cache.offset(task.slot.blocks[block], task.kv_head);
    let keys = &task.keys[base..base + cache.block_size * cache.head_dim];
    for token in 0..task.tokens {
        let visible = task.visible(task.from + token, block);
        if visible.is_empty() {
            continue;
        }
        let keys = &keys[visible.start * cache.head_dim..visible.end * cache.head_dim];
        let mut head = 0;
        while head < group {
            let first = (token * group + head) * stride + block * cache.block_size + visible.start - task.base();
            let from = task.at(task.from + token, head);
            let place = (&task.queries[from..], &mut scores[first..], stride);
            // SAFETY: the caller's promise; heads `head..head + T` are in the group.
            unsafe {
                head += match (group - head, S::TOKENS) {
                    (1, _) => score_heads::<S, 1>(task, keys, place),
                    (2, _) | (_, 2) => score_heads::<S, 2>(task, keys, place),
                    _ => score_heads::<S, 3>(task, keys, place),
                };
            }
        }
    }
}

/// Some keys against `T` neighbouring heads; `place` is `(queries, scores, stride between the heads' scores)`. Gives
/// `T`.
///
/// # Safety
/// As for [`run`]; `keys` is a whole number of keys, queries hold `T` heads.
#[inline(always)]
unsafe fn score_heads<S: Simd, const T: usize>(
    task: &HeadTask<'_>,
    keys: &[f32],
    place: (&[f32], &mut [f32], usize),
) -> usize {
    let (head_dim, scale) = (task.shape.cache.head_dim, task.shape.scale);
    let (queries, scores, stride) = place;
    let queries = &queries[..T * head_dim];
    let mut heads = [queries.as_ptr(); T];
    for (t, head) in heads.iter_mut().enumerate() {
        *head = queries[t * head_dim..].as_ptr();
    }
    let (count, reach) = (keys.len() / head_dim, Reach { blocks: head_dim / 16, ahead: 0 });
    for key in (0..count).step_by(4) {
        let rows = four_rows(keys.as_ptr().cast(), 4 * head_dim, key, count);
        // SAFETY: the caller's promise; rows and heads hold `head_dim` f32 each.
        let sums = unsafe { dot4::<S, F32, T>(rows, heads, reach) };
        for (t, sum) in sums.iter().enumerate() {
            let scores = &mut scores[t * stride + key..];
            if key + 4 <= count {
                scores[..4].copy_from_slice(&[sum[0] * scale, sum[1] * scale, sum[2] * scale, sum[3] * scale]);
            } else {
                for (score, value) in scores[..count - key].iter_mut().zip(sum) {
                    *score = value * scale;
                }
            }
        }
    }
    T
}

/// Adds block `block`'s values, weighted, to the outputs of every token and head of the task.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn mix_block<S: Simd>(task: &HeadTask<'_>, block: usize, weights: &[f32], stride: usize) {
    let cache = &task.shape.cache;
    let group = task.group();
    let base = cache.offset(task.slot.blocks[block], task.kv_head);
    let values = &task.values[base..base + cache.block_size * cache.head_dim];
    for token in 0..task.tokens {
        let visible = task.visible(task.from + token, block);
        if visible.is_empty() {
            continue;
        }
        let values = &values[visible.start * cache.head_dim..];
        for head in 0..group {
            let from = (token * group + head) * stride + block * cache.block_size + visible.start - task.base();
            // SAFETY: this token and head are this task's alone.
            let out = unsafe { task.out.part(task.at(task.from + token, head), cache.head_dim) };
            // SAFETY: `values` has `visible.len()` rows of `head_dim`, a multiple of 16.
            unsafe { mix_row::<S>(&weights[from..from + visible.len()], values, out) };
        }
    }
}

/// `out += weights · values`, in the order of the weights.
///
/// # Safety
/// As for [`Simd`]; `out.len()` is a multiple of 16 and `values` holds `weights.len()` rows of that length.
#[inline(always)]
unsafe fn mix_row<S: Simd>(weights: &[f32], values: &[f32], out: &mut [f32]) {
    let mut at = 0;
    // SAFETY: vectors `at..` stay inside `out.len()`.
    unsafe {
        while at + 8 * S::LANES <= out.len() {
            mix_columns::<S, 8>(weights, values, out, at);
            at += 8 * S::LANES;
        }
        while at + 4 * S::LANES <= out.len() {
            mix_columns::<S, 4>(weights, values, out, at);
            at += 4 * S::LANES;
        }
        while at < out.len() {
            mix_columns::<S, 1>(weights, values, out, at);
            at += S::LANES;
        }
    }
}

/// Columns `at..at + N * LANES` of [`mix_row`].
///
/// # Safety
/// As for [`mix_row`].
#[inline(always)]
unsafe fn mix_columns<S: Simd, const N: usize>(weights: &[f32], values: &[f32], out: &mut [f32], at: usize) {
    let len = out.len();
    // SAFETY: the caller's promise.
    unsafe {
        let to = out.as_mut_ptr().add(at);
        let mut sums = [S::zero(); N];
        for (n, sum) in sums.iter_mut().enumerate() {
            *sum = S::load(to.add(n * S::LANES));
        }
        for (row, weight) in weights.iter().enumerate() {
            let (from, weight) = (values.as_ptr().add(row * len + at), S::splat(*weight));
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(weight, S::load(from.add(n * S::LANES)), *sum);
            }
        }
        for (n, sum) in sums.into_iter().enumerate() {
            S::store(to.add(n * S::LANES), sum);
        }
    }
}
