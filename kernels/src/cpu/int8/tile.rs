//! The register tile: some vectors of rows times `T` tokens, over a range of blocks.
//!
//! Invariant: for a row and a token each block adds `int sum · (row scale · token scale)` and then
//! `offset · token sum` to one f32, blocks in order: the bits depend neither on what else is in the tile nor on where
//! the range is cut.

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
            for part in 0..L::PARTS {
                let ints = match L::BITS {
                    8 => wide::<S, L, R, T>((spot, lane), x),
                    _ => narrow::<S, L, R, T>((spot, lane), x, part),
                };
                let sum_at = if L::PARTS == 1 { SUM_AT } else { HALVES_AT + 4 * part };
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
    }
}

/// Integer sums of one part of a block, weights of four to six bits.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn narrow<S: Lanes, L: Layout, const R: usize, const T: usize>(
    (spot, lane): (Spot, usize),
    x: Tokens,
    part: usize,
) -> [[S::Ints; T]; R] {
    let (steps, depth) = (8 / L::PARTS, depth(L::BITS));
    // SAFETY: the caller's promise; steps stay below eight.
    unsafe {
        let mut ints = [[S::ints_zero(); T]; R];
        for from in (0..steps).step_by(depth) {
            let mut sums = [[S::sum_zero(); T]; R];
            for step in part * steps + from..part * steps + from + depth {
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
            }
            for v in 0..R {
                for t in 0..T {
                    ints[v][t] = S::ints_add(ints[v][t], S::sum_end(sums[v][t]));
                }
            }
        }
        ints
    }
}

/// Integer sums of a block, weights of eight bits.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn wide<S: Lanes, L: Layout, const R: usize, const T: usize>(
    (spot, lane): (Spot, usize),
    x: Tokens,
) -> [[S::Ints; T]; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[S::wide_zero(); T]; R];
        for step in 0..8 {
            for v in 0..R {
                let weights = L::step::<S>(spot, step, lane + v * S::LANES);
                for t in 0..T {
                    let four = S::four(x.first.add(t * x.stride + 4 * step));
                    sums[v][t] = S::wide_step(sums[v][t], weights, four);
                }
            }
        }
        let mut ints = [[S::ints_zero(); T]; R];
        for v in 0..R {
            for t in 0..T {
                ints[v][t] = S::wide_end(sums[v][t]);
            }
        }
        ints
    }
}
