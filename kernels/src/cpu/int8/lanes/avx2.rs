//! Eight rows with AVX2: `vpmaddubsw` multiplies and adds pairs into 16 bits.
//!
//! Why nothing saturates, with |x| <= 128: a pair of 4-bit weights is at most 15·128·2 = 3840, eight of them 30720; four
//! pairs of 5 bits 31744; two of 6 bits 32256; all below 32768. Bytes are split into two nibbles, each with sums of its
//! own, put together as `16 · high + low` in 32 bits.

use std::arch::{asm, x86_64::*};

use super::Lanes;
use crate::cpu::{
    int8::activations::{ActivationBlock, BLOCK},
    simd::avx2::Avx2,
};

/// Keeps four vectors in registers at this point.
///
/// # Safety
/// The CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn hold4(v: &mut [__m256i; 4]) {
    // SAFETY: the text is a comment; it reads and changes nothing.
    unsafe {
        asm!(
            "/* {0} {1} {2} {3} */",
            inout(ymm_reg) v[0], inout(ymm_reg) v[1], inout(ymm_reg) v[2], inout(ymm_reg) v[3],
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

/// Keeps eight vectors in registers at this point.
///
/// # Safety
/// The CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn hold8(v: &mut [__m256i; 8]) {
    // SAFETY: the text is a comment; it reads and changes nothing.
    unsafe {
        asm!(
            "/* {0} {1} {2} {3} {4} {5} {6} {7} */",
            inout(ymm_reg) v[0], inout(ymm_reg) v[1], inout(ymm_reg) v[2], inout(ymm_reg) v[3],
            inout(ymm_reg) v[4], inout(ymm_reg) v[5], inout(ymm_reg) v[6], inout(ymm_reg) v[7],
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

/// What [`ActivationBlock::new`] does, bit for bit where `x` is finite.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn quantise_block(x: &[f32; BLOCK], out: &mut ActivationBlock) {
    // SAFETY: the caller's promise; four vectors of eight are the block.
    unsafe {
        let from = x.as_ptr();
        let v = [
            _mm256_loadu_ps(from),
            _mm256_loadu_ps(from.add(8)),
            _mm256_loadu_ps(from.add(16)),
            _mm256_loadu_ps(from.add(24)),
        ];
        let mut largest = _mm256_setzero_si256();
        for v in v {
            let bits = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7FFF_FFFF));
            largest = _mm256_max_epi32(largest, bits);
        }
        let largest = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
        let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b01_00_11_10>(largest));
        let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b10_11_00_01>(largest));
        let largest = f32::from_bits(_mm_cvtsi128_si32(largest) as u32);
        let scale = largest / 127.0;
        let to_int = _mm256_set1_ps(if largest > 0.0 { 127.0 / largest } else { 0.0 });
        let mut ints = [_mm256_setzero_si256(); 4];
        for (int, v) in ints.iter_mut().zip(v) {
            *int = _mm256_cvtps_epi32(_mm256_mul_ps(v, to_int));
        }
        let halves = (_mm256_packs_epi32(ints[0], ints[1]), _mm256_packs_epi32(ints[2], ints[3]));
        // Packing goes by halves of vectors: back into order.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let values = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(halves.0, halves.1), order);
        _mm256_storeu_si256(out.values.as_mut_ptr().cast(), values);
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), values);
        let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        let sums = _mm256_hadd_epi32(fours, fours);
        let sums = _mm256_hadd_epi32(sums, sums);
        let low = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums));
        let high = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(sums));
        out.scale = scale;
        out.sum = scale * (low + high) as f32;
        out.halves = [scale * low as f32, scale * high as f32];
    }
}

impl Lanes for Avx2 {
    const NARROW: usize = 2;
    const TILE: usize = 4;
    type Bytes = __m256i;
    type Four = __m256i;
    type Ints = __m256i;
    type Sum = __m256i;
    type Wide = [__m256i; 2];

    #[inline(always)]
    unsafe fn quantise(x: &[f32], out: &mut [ActivationBlock]) {
        for (x, out) in x.as_chunks::<BLOCK>().0.iter().zip(out) {
            // SAFETY: the caller's promise.
            unsafe { quantise_block(x, out) };
        }
    }
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::Bytes {
        // SAFETY: the caller's promise (32 bytes), here and below.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn put(to: *mut u8, bytes: Self::Bytes) {
        // SAFETY: the caller's promise (32 bytes).
        unsafe { _mm256_storeu_si256(to.cast(), bytes) }
    }
    #[inline(always)]
    unsafe fn and(a: Self::Bytes, mask: u8) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { _mm256_and_si256(a, _mm256_set1_epi8(mask as i8)) }
    }
    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn shift(a: Self::Bytes, bits: i32) -> Self::Bytes {
        // SAFETY: the caller's promise. Counts are constants once the loops are unrolled.
        unsafe {
            match bits {
                0 => a,
                1.. => _mm256_srl_epi16(a, _mm_cvtsi32_si128(bits)),
                _ => _mm256_sll_epi16(a, _mm_cvtsi32_si128(-bits)),
            }
        }
    }
    #[inline(always)]
    unsafe fn look_up(a: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), a) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (8 bytes).
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn four(from: *const u8) -> Self::Four {
        // SAFETY: the caller's promise (4 bytes).
        unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn sum_zero() -> Self::Sum {
        // SAFETY: the caller's promise.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn sum_step(sum: Self::Sum, weights: Self::Bytes, x: Self::Four) -> Self::Sum {
        // SAFETY: the caller's promise.
        unsafe { _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, x)) }
    }
    #[inline(always)]
    unsafe fn hold(sums: &mut [Self::Sum]) {
        // SAFETY: the caller's promise.
        unsafe {
            if let Ok(eight) = sums.try_into() {
                hold8(eight);
            } else if let Ok(four) = sums.try_into() {
                hold4(four);
            }
        }
    }
    #[inline(always)]
    unsafe fn sum_end(sum: Self::Sum) -> Self::Ints {
        // SAFETY: the caller's promise.
        unsafe { _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) }
    }
    #[inline(always)]
    unsafe fn wide_zero() -> Self::Wide {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn wide_step(sum: Self::Wide, weights: Self::Bytes, x: Self::Four) -> Self::Wide {
        // SAFETY: the caller's promise. The split is the same for every token: the compiler does it once.
        unsafe {
            let (low, high) = (Self::and(weights, 15), Self::and(Self::shift(weights, 4), 15));
            [Self::sum_step(sum[0], low, x), Self::sum_step(sum[1], high, x)]
        }
    }
    #[inline(always)]
    unsafe fn hold_wide(sums: &mut [Self::Wide]) {
        // SAFETY: the caller's promise.
        unsafe { Self::hold(sums.as_flattened_mut()) }
    }
    #[inline(always)]
    unsafe fn wide_end(sum: Self::Wide) -> Self::Ints {
        // SAFETY: the caller's promise.
        unsafe {
            let high = _mm256_madd_epi16(sum[1], _mm256_set1_epi16(16));
            _mm256_add_epi32(Self::sum_end(sum[0]), high)
        }
    }
    #[inline(always)]
    unsafe fn ints_zero() -> Self::Ints {
        // SAFETY: the caller's promise.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn ints_add(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        // SAFETY: the caller's promise.
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn ints_to_f32(a: Self::Ints) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtepi32_ps(a) }
    }
}
