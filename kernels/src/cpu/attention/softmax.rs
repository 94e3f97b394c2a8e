//! Softmax tile by tile: weights relative to the tile's own maximum, and the merging of tiles.
//!
//! Invariant: a row's results depend on that row's visible scores alone. Merging is in tile order, so parts computed by
//! several threads and merged later have the bits of those merged at once. Cost: about 15 instructions a vector of
//! scores. Nothing is kept.

use std::ops::Range;

use crate::cpu::{
    elementwise::exp_and_sum,
    simd::{Simd, exp},
};

/// f32 of one row of one tile: `head_dim` weighted values, the maximum, the sum.
pub(crate) fn part_floats(head_dim: usize) -> usize {
    head_dim + 2
}

/// Turns a row's visible scores into `e^(score - maximum)` and all others into 0; gives `[maximum, sum]`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn weights<S: Simd>(scores: &mut [f32], visible: Range<usize>) -> [f32; 2] {
    scores[..visible.start].fill(0.0);
    scores[visible.end..].fill(0.0);
    if visible.is_empty() {
        return [f32::NEG_INFINITY, 0.0];
    }
    // SAFETY: the caller's promise.
    unsafe { exp_and_sum::<S>(&mut scores[visible]) }
}

/// Adds a tile to those before it; each is `(weighted values, [maximum, sum])`. A tile that the row does not see (its sum
/// is 0) changes nothing.
///
/// # Safety
/// As for [`Simd`]; both rows have the same length, a multiple of 16.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(sofar: (&mut [f32], &mut [f32; 2]), tile: (&[f32], [f32; 2])) {
    let ((values, state), (more, [tile_max, tile_sum])) = (sofar, tile);
    if tile_sum == 0.0 {
        return;
    }
    if state[1] == 0.0 {
        values.copy_from_slice(more);
        *state = [tile_max, tile_sum];
        return;
    }
    let max = state[0].max(tile_max);
    let mut factors = [0.0f32; 16];
    (factors[0], factors[1]) = (state[0] - max, tile_max - max);
    // SAFETY: the caller's promise; `LANES` is at most 16.
    unsafe {
        let powers = exp::<S>(S::load(factors.as_ptr()));
        S::store(factors.as_mut_ptr(), powers);
        let (old, new) = (S::splat(factors[0]), S::splat(factors[1]));
        for at in (0..values.len()).step_by(S::LANES) {
            let to = values.as_mut_ptr().add(at);
            S::store(to, S::fma(S::load(to), old, S::mul(S::load(more.as_ptr().add(at)), new)));
        }
    }
    *state = [max, state[1] * factors[0] + tile_sum * factors[1]];
}

/// The result of a row: its weighted values over the sum.
pub(super) fn divide(values: &[f32], [_, sum]: [f32; 2], out: &mut [f32]) {
    let scale = 1.0 / sum;
    for (out, value) in out.iter_mut().zip(values) {
        *out = value * scale;
    }
}
