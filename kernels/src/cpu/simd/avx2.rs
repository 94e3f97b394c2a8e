//! Eight lanes of AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use super::Simd;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2;

/// Adds the lanes of four vectors: pairs of neighbours, pairs of pairs, then the two halves.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn sum4(v: [__m256; 4]) -> [f32; 4] {
    // SAFETY: the caller's promise; the array has room for four f32.
    unsafe {
        let ab = _mm256_hadd_ps(v[0], v[1]);
        let cd = _mm256_hadd_ps(v[2], v[3]);
        let abcd = _mm256_hadd_ps(ab, cd);
        let sums = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
        let mut out = [0.0; 4];
        _mm_storeu_ps(out.as_mut_ptr(), sums);
        out
    }
}

/// Eight bytes, widened to 32 bits.
///
/// # Safety
/// The CPU has AVX2; `from` is good for 8 bytes.
#[inline(always)]
unsafe fn bytes(from: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())) }
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    const TOKENS: usize = 3;
    type V = __m256;

    #[inline(always)]
    unsafe fn zero() -> Self::V {
        // SAFETY: the caller's promise, here and below.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn sum4(vectors: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { sum4(vectors) }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: a prefetch faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_f16(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (two bytes).
        unsafe {
            let bits = i32::from(from.cast::<u16>().read_unaligned());
            _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (16 bytes).
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (16 bytes).
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (8 bytes).
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn low_nibbles(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (8 bytes).
        unsafe { _mm256_cvtepi32_ps(_mm256_and_si256(bytes(from), _mm256_set1_epi32(15))) }
    }
    #[inline(always)]
    unsafe fn high_nibbles(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (8 bytes).
        unsafe { _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(bytes(from))) }
    }
}
