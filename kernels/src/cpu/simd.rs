//! Vectors of f32 lanes: the few operations that the fast bodies are written in.
//!
//! Invariant: for one implementation every operation rounds in one fixed way, and [`Simd::sum4`] adds lanes in one
//! fixed order, so a body's result does not depend on how its work was cut.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod portable;

/// # Safety
/// Every method may be called only where the CPU has the implementer's instruction set, from a function that enables it
/// (`for_isa!`). Pointers need not be aligned and must be good for the values that the method names.
pub(crate) trait Simd: Copy {
    /// f32 lanes: 8 or 16.
    const LANES: usize;
    /// Tokens per register tile beside four weight rows: as many accumulators as the register file holds.
    const TOKENS: usize;
    type V: Copy;

    unsafe fn zero() -> Self::V;
    unsafe fn splat(value: f32) -> Self::V;
    /// Reads `LANES` f32.
    unsafe fn load(from: *const f32) -> Self::V;
    /// Writes `LANES` f32.
    unsafe fn store(to: *mut f32, value: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of each lane; `b` where either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller of each lane; `b` where either is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// 2 to the power of a lane that holds an integer in -126..=127.
    unsafe fn pow2(n: Self::V) -> Self::V;
    /// The sums of the lanes of four vectors.
    unsafe fn sum4(vectors: [Self::V; 4]) -> [f32; 4];

    /// Starts to fetch a cache line that will be read soon; any address is allowed.
    unsafe fn prefetch(from: *const u8);
    /// One little-endian f16, in all lanes.
    unsafe fn splat_f16(from: *const u8) -> Self::V;
    /// `LANES` little-endian f16.
    unsafe fn load_f16(from: *const u8) -> Self::V;
    /// `LANES` little-endian bfloat16.
    unsafe fn load_bf16(from: *const u8) -> Self::V;
    /// `LANES` signed bytes.
    unsafe fn load_i8(from: *const u8) -> Self::V;
    /// The low four bits of `LANES` bytes.
    unsafe fn low_nibbles(from: *const u8) -> Self::V;
    /// The high four bits of `LANES` bytes.
    unsafe fn high_nibbles(from: *const u8) -> Self::V;
}

/// e^x with a relative error below 2e-7 for -87.3 <= x <= 88.3; outside it the value at the bound. NaN stays NaN.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with few bits, so that `n * LN2_HIGH` is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // (e^r - 1 - r) / r^2 on |r| <= ln(2)/2, highest power first.
    const POLY: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // SAFETY: the caller's promise.
    unsafe {
        let x = S::min(S::splat(88.3), S::max(S::splat(-87.3), x));
        let n = S::fma(x, S::splat(std::f32::consts::LOG2_E), S::splat(ROUND));
        let n = S::sub(n, S::splat(ROUND));
        let r = S::fma(n, S::splat(-LN2_HIGH), x);
        let r = S::fma(n, S::splat(-LN2_LOW), r);
        let mut p = S::splat(POLY[0]);
        for coefficient in &POLY[1..] {
            p = S::fma(p, r, S::splat(*coefficient));
        }
        let y = S::add(S::fma(p, S::mul(r, r), r), S::splat(1.0));
        S::mul(y, S::pow2(n))
    }
}
