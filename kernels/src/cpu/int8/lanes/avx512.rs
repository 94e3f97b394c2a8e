//! Sixteen rows with AVX-512 VNNI: `vpdpbusd` multiplies bytes and adds four of them into 32 bits, never saturating.
//!
//! Entered only where the CPU has `avx512vnni` and `avx512bw` besides AVX-512F; see [`super::super::body_set`].

use std::arch::x86_64::*;

use super::Lanes;
use crate::cpu::{
    int8::activations::ActivationBlock,
    simd::{avx2::Avx2, avx512::Avx512},
};

impl Lanes for Avx512 {
    const NARROW: usize = 1;
    const TILE: usize = 8;
    type Bytes = __m512i;
    type Four = __m512i;
    type Ints = __m512i;
    type Sum = __m512i;
    type Wide = __m512i;

    #[inline(always)]
    unsafe fn quantise(x: &[f32], out: &mut [ActivationBlock]) {
        // SAFETY: the caller's promise; AVX-512 comes with AVX2.
        unsafe { <Avx2 as Lanes>::quantise(x, out) }
    }
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::Bytes {
        // SAFETY: the caller's promise (64 bytes), here and below.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn put(to: *mut u8, bytes: Self::Bytes) {
        // SAFETY: the caller's promise (64 bytes).
        unsafe { _mm512_storeu_si512(to.cast(), bytes) }
    }
    #[inline(always)]
    unsafe fn and(a: Self::Bytes, mask: u8) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8(mask as i8)) }
    }
    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shift(a: Self::Bytes, bits: i32) -> Self::Bytes {
        // SAFETY: the caller's promise. Counts are constants once the loops are unrolled.
        unsafe {
            match bits {
                0 => a,
                1.. => _mm512_srl_epi16(a, _mm_cvtsi32_si128(bits)),
                _ => _mm512_sll_epi16(a, _mm_cvtsi32_si128(-bits)),
            }
        }
    }
    #[inline(always)]
    unsafe fn look_up(a: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), a) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (16 bytes).
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn four(from: *const u8) -> Self::Four {
        // SAFETY: the caller's promise (4 bytes).
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn sum_zero() -> Self::Sum {
        // SAFETY: the caller's promise.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn sum_step(sum: Self::Sum, weights: Self::Bytes, x: Self::Four) -> Self::Sum {
        // SAFETY: the caller's promise.
        unsafe { _mm512_dpbusd_epi32(sum, weights, x) }
    }
    #[inline(always)]
    unsafe fn sum_end(sum: Self::Sum) -> Self::Ints {
        sum
    }
    #[inline(always)]
    unsafe fn wide_zero() -> Self::Wide {
        // SAFETY: the caller's promise.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn wide_step(sum: Self::Wide, weights: Self::Bytes, x: Self::Four) -> Self::Wide {
        // SAFETY: the caller's promise.
        unsafe { _mm512_dpbusd_epi32(sum, weights, x) }
    }
    #[inline(always)]
    unsafe fn wide_end(sum: Self::Wide) -> Self::Ints {
        sum
    }
    #[inline(always)]
    unsafe fn ints_zero() -> Self::Ints {
        // SAFETY: the caller's promise.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn ints_add(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        // SAFETY: the caller's promise.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn ints_to_f32(a: Self::Ints) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtepi32_ps(a) }
    }
}
