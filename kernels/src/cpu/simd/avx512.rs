//! Sixteen lanes of AVX-512F.

use std::arch::x86_64::*;

use super::{Simd, avx2};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512;

/// Sixteen bytes, widened to 32 bits.
///
/// # Safety
/// The CPU has AVX-512F; `from` is good for 16 bytes.
#[inline(always)]
unsafe fn bytes(from: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
}

/// The upper eight lanes added to the lower eight.
///
/// # Safety
/// The CPU has AVX-512F.
#[inline(always)]
unsafe fn halves(v: __m512) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
        _mm256_add_ps(_mm512_castps512_ps256(v), high)
    }
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    const TOKENS: usize = 6;
    type V = __m512;

    #[inline(always)]
    unsafe fn zero() -> Self::V {
        // SAFETY: the caller's promise, here and below.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn sum4(vectors: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: the caller's promise; AVX-512F implies AVX2.
        unsafe {
            let [a, b, c, d] = vectors;
            avx2::sum4([halves(a), halves(b), halves(c), halves(d)])
        }
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
            _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (32 bytes).
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (32 bytes).
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (16 bytes).
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn low_nibbles(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (16 bytes).
        unsafe { _mm512_cvtepi32_ps(_mm512_and_si512(bytes(from), _mm512_set1_epi32(15))) }
    }
    #[inline(always)]
    unsafe fn high_nibbles(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (16 bytes).
        unsafe { _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(bytes(from))) }
    }
}
