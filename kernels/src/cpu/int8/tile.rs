//! The register tile: some vectors of rows times `T` tokens, over a range of blocks.
//!
//! Invariant: for a row and a token each block adds `int sum · (row scale · token scale)` and then
//! `offset · token sum` to one f32, blocks in order: the bits depend neither on what else is in the tile nor on where
//! the range is cut.

// Arrays of `R` by `T` registers are walked side by side; `zip` would hide which.
#![allow(clippy::needless_range_loop)]

use super::{
    activations::{BLOCK_BYTES, HALVES_AT, SCALE_AT, SUM_AT},
    lanes::Lanes,
    layouts::{Layout, Spot},
};

/// The first of `T` tokens' blocks, and the bytes from one token to the next.
#[derive(Clone, Copy)]
pub(crate) struct Tokens {
    pub(crate) first: *const u8,
    pub(crate) stride: usize,
}

/// Accumulators `[vector][token]`.
pub(crate) type Sums<V, const R: usize, const T: usize> = [[V; T]; R];

/// Steps that [`Lanes::Sum`] takes before it must be drained.
const fn depth(bits: usize) -> usize {
    match bits {
        4 => 8,
        5 => 4,
        _ => 2,
    }
}

/// Adds `blocks` blocks of the group at `weights`, rows from `lane`.
///
/// # Safety
/// As for [`Layout`]; the tokens have `blocks` blocks.
#[inline(always)]
pub(crate) unsafe fn run<S: Lanes, L: Layout, const R: usize, const T: usize>(
    weights: (*const u8, usize),
    tokens: Tokens,
    blocks: usize,
    sums: &mut Sums<S::V, R, T>,
) {
    let (group, lane) = weights;
    // SAFETY: the caller's promise: every pointer stays in its row of `blocks` blocks.
    unsafe {
        for block in 0..blocks {
            let spot = L::spot(group, block);
            let x = Tokens { first: tokens.first.add(block * BLOCK_BYTES), stride: tokens.stride };
            part::<S, L, R, T>((spot, lane), x, 0, sums);
            if L::PARTS == 2 {
                part::<S, L, R, T>((spot, lane), x, 1, sums);
            }
        }
    }
}

/// Adds the part of a block that shares a scale.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn part<S: Lanes, L: Layout, const R: usize, const T: usize>(
    at: (Spot, usize),
    x: Tokens,
    part: usize,
    sums: &mut Sums<S::V, R, T>,
) {
    let (spot, lane) = at;
    let sum_at = if L::PARTS == 1 { SUM_AT } else { HALVES_AT + 4 * part };
    // SAFETY: the caller's promise; steps stay below eight.
    unsafe {
        let ints = if L::BITS == 8 {
            wide::<S, L, R, T>(at, x)
        } else {
            let (steps, depth) = (8 / L::PARTS, depth(L::BITS));
            let mut ints = narrow::<S, L, R, T>(at, x, part * steps);
            if depth < steps {
                let more = narrow::<S, L, R, T>(at, x, part * steps + depth);
                for v in 0..R {
                    for t in 0..T {
                        ints[v][t] = S::ints_add(ints[v][t], more[v][t]);
                    }
                }
            }
            ints
        };
        for v in 0..R {
            let (scale, offset) = L::scales::<S>(spot, part, lane + v * S::LANES);
            for t in 0..T {
                let token = x.first.add(t * x.stride);
                let factor = S::mul(scale, S::splat(*token.add(SCALE_AT).cast::<f32>()));
                let sum = S::fma(S::ints_to_f32(ints[v][t]), factor, sums[v][t]);
                sums[v][t] = S::fma(offset, S::splat(*token.add(sum_at).cast::<f32>()), sum);
            }
        }
    }
}

/// Integer sums of as many steps as [`depth`] allows, from step `first`; weights of four to six bits.
///
/// Unrolled by hand, so that shifts are by constants.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn narrow<S: Lanes, L: Layout, const R: usize, const T: usize>(
    at: (Spot, usize),
    x: Tokens,
    first: usize,
) -> [[S::Ints; T]; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[S::sum_zero(); T]; R];
        narrow_step::<S, L, R, T>(at, x, first, &mut sums);
        narrow_step::<S, L, R, T>(at, x, first + 1, &mut sums);
        if depth(L::BITS) >= 4 {
            narrow_step::<S, L, R, T>(at, x, first + 2, &mut sums);
            narrow_step::<S, L, R, T>(at, x, first + 3, &mut sums);
        }
        if depth(L::BITS) == 8 {
            narrow_step::<S, L, R, T>(at, x, first + 4, &mut sums);
            narrow_step::<S, L, R, T>(at, x, first + 5, &mut sums);
            narrow_step::<S, L, R, T>(at, x, first + 6, &mut sums);
            narrow_step::<S, L, R, T>(at, x, first + 7, &mut sums);
        }
        let mut ints = [[S::ints_zero(); T]; R];
        for v in 0..R {
            for t in 0..T {
                ints[v][t] = S::sum_end(sums[v][t]);
            }
        }
        ints
    }
}

/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn narrow_step<S: Lanes, L: Layout, const R: usize, const T: usize>(
    (spot, lane): (Spot, usize),
    x: Tokens,
    step: usize,
    sums: &mut [[S::Sum; T]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut weights = [L::step::<S>(spot, step, lane); R];
        for v in 1..R {
            weights[v] = L::step::<S>(spot, step, lane + v * S::LANES);
        }
        for t in 0..T {
            let four = S::four(x.first.add(t * x.stride + 4 * step));
            for v in 0..R {
                sums[v][t] = S::sum_step(sums[v][t], weights[v], four);
            }
        }
        S::hold(sums.as_flattened_mut());
    }
}

/// Integer sums of a block, weights of eight bits.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn wide<S: Lanes, L: Layout, const R: usize, const T: usize>(at: (Spot, usize), x: Tokens) -> [[S::Ints; T]; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[S::wide_zero(); T]; R];
        wide_step::<S, L, R, T>(at, x, 0, &mut sums);
        wide_step::<S, L, R, T>(at, x, 1, &mut sums);
        wide_step::<S, L, R, T>(at, x, 2, &mut sums);
        wide_step::<S, L, R, T>(at, x, 3, &mut sums);
        wide_step::<S, L, R, T>(at, x, 4, &mut sums);
        wide_step::<S, L, R, T>(at, x, 5, &mut sums);
        wide_step::<S, L, R, T>(at, x, 6, &mut sums);
        wide_step::<S, L, R, T>(at, x, 7, &mut sums);
        let mut ints = [[S::ints_zero(); T]; R];
        for v in 0..R {
            for t in 0..T {
                ints[v][t] = S::wide_end(sums[v][t]);
            }
        }
        ints
    }
}

/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn wide_step<S: Lanes, L: Layout, const R: usize, const T: usize>(
    (spot, lane): (Spot, usize),
    x: Tokens,
    step: usize,
    sums: &mut [[S::Wide; T]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for v in 0..R {
            let weights = L::step::<S>(spot, step, lane + v * S::LANES);
            for t in 0..T {
                let four = S::four(x.first.add(t * x.stride + 4 * step));
                sums[v][t] = S::wide_step(sums[v][t], weights, four);
            }
        }
        S::hold_wide(sums.as_flattened_mut());
    }
}
