//! Integer lanes: what [`Simd`] needs besides for int8 dot products. A vector holds four weights (bytes) of each of
//! `LANES` rows; four activations of one token are broadcast against it.
//!
//! No step may saturate. Weights are unsigned; a [`Lanes::Sum`] takes weights of at most [`Lanes::steps`] bits' worth of
//! steps before it is drained, a [`Lanes::Wide`] takes eight steps of full bytes. Sums are exact integers, so every
//! implementation gives the same ones.

use super::activations::{self, ActivationBlock};
use crate::cpu::simd::Simd;

mod avx2;
mod avx512;
mod portable;

/// # Safety
/// As for [`Simd`].
pub(crate) trait Lanes: Simd {
    /// Vectors beside each other in a register tile, for weights of four bits.
    const NARROW: usize;
    /// Tokens in a register tile.
    const TILE: usize;
    /// `4 * LANES` weights.
    type Bytes: Copy;
    /// Four activations, in whatever way a step wants them.
    type Four: Copy;
    /// `LANES` 32-bit integers.
    type Ints: Copy;
    /// Partial sums of weights of 4 to 6 bits.
    type Sum: Copy;
    /// Partial sums of weights of 8 bits.
    type Wide: Copy;

    /// Quantises whole blocks; `out` has a block for every 32 of `x`.
    #[inline(always)]
    unsafe fn quantise(x: &[f32], out: &mut [ActivationBlock]) {
        activations::quantise(x, out);
    }

    unsafe fn bytes(from: *const u8) -> Self::Bytes;
    unsafe fn put(to: *mut u8, bytes: Self::Bytes);
    unsafe fn and(a: Self::Bytes, mask: u8) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts right (left if negative) without regard to the borders of bytes: to be masked.
    unsafe fn shift(a: Self::Bytes, bits: i32) -> Self::Bytes;
    /// `table[a]` of each byte; bytes are below 16.
    unsafe fn look_up(a: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    /// `LANES` unsigned bytes as f32.
    unsafe fn load_u8(from: *const u8) -> Self::V;

    unsafe fn four(from: *const u8) -> Self::Four;
    unsafe fn sum_zero() -> Self::Sum;
    unsafe fn sum_step(sum: Self::Sum, weights: Self::Bytes, x: Self::Four) -> Self::Sum;
    /// Does nothing to the sums, but makes the compiler take this step for all of them before the next. Left alone it
    /// goes step by step for one sum after the other and puts every broadcast into memory.
    #[inline(always)]
    unsafe fn hold(_sums: &mut [Self::Sum]) {}
    unsafe fn sum_end(sum: Self::Sum) -> Self::Ints;
    unsafe fn wide_zero() -> Self::Wide;
    unsafe fn wide_step(sum: Self::Wide, weights: Self::Bytes, x: Self::Four) -> Self::Wide;
    /// As [`Lanes::hold`].
    #[inline(always)]
    unsafe fn hold_wide(_sums: &mut [Self::Wide]) {}
    unsafe fn wide_end(sum: Self::Wide) -> Self::Ints;
    unsafe fn ints_zero() -> Self::Ints;
    unsafe fn ints_add(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Exact below 2^24; a block of 32 stays below 2^21.
    unsafe fn ints_to_f32(a: Self::Ints) -> Self::V;
}
