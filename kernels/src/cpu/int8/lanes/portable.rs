//! Eight rows in plain Rust; sums are 32 bits wide, so nothing can saturate.

use super::Lanes;
use crate::cpu::simd::{Simd, portable::Portable};

const LANES: usize = Portable::LANES;
const BYTES: usize = 4 * LANES;

impl Lanes for Portable {
    const NARROW: usize = 1;
    const TILE: usize = 2;
    type Bytes = [u8; BYTES];
    type Four = [i16; 4];
    type Ints = [i32; LANES];
    type Sum = [i32; LANES];
    type Wide = [i32; LANES];

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::Bytes {
        // SAFETY: the caller's promise (32 bytes).
        unsafe { from.cast::<[u8; BYTES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn put(to: *mut u8, bytes: Self::Bytes) {
        // SAFETY: the caller's promise (32 bytes).
        unsafe { to.cast::<[u8; BYTES]>().write_unaligned(bytes) }
    }
    #[inline(always)]
    unsafe fn and(a: Self::Bytes, mask: u8) -> Self::Bytes {
        a.map(|byte| byte & mask)
    }
    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|index| a[index] | b[index])
    }
    #[inline(always)]
    unsafe fn shift(a: Self::Bytes, bits: i32) -> Self::Bytes {
        if bits < 0 { a.map(|byte| byte << -bits) } else { a.map(|byte| byte >> bits) }
    }
    #[inline(always)]
    unsafe fn look_up(a: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        a.map(|byte| table[usize::from(byte & 15)])
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (8 bytes).
        unsafe { from.cast::<[u8; LANES]>().read_unaligned() }.map(f32::from)
    }

    #[inline(always)]
    unsafe fn four(from: *const u8) -> Self::Four {
        // SAFETY: the caller's promise (4 bytes).
        unsafe { from.cast::<[i8; 4]>().read_unaligned() }.map(i16::from)
    }
    #[inline(always)]
    unsafe fn sum_zero() -> Self::Sum {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn sum_step(mut sum: Self::Sum, weights: Self::Bytes, x: Self::Four) -> Self::Sum {
        for (lane, sum) in sum.iter_mut().enumerate() {
            for k in 0..4 {
                *sum += i32::from(i16::from(weights[4 * lane + k])) * i32::from(x[k]);
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn sum_end(sum: Self::Sum) -> Self::Ints {
        sum
    }
    #[inline(always)]
    unsafe fn wide_zero() -> Self::Wide {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn wide_step(sum: Self::Wide, weights: Self::Bytes, x: Self::Four) -> Self::Wide {
        // SAFETY: the caller's promise; the sums of both widths are the same here.
        unsafe { Self::sum_step(sum, weights, x) }
    }
    #[inline(always)]
    unsafe fn wide_end(sum: Self::Wide) -> Self::Ints {
        sum
    }
    #[inline(always)]
    unsafe fn ints_zero() -> Self::Ints {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn ints_add(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    unsafe fn ints_to_f32(a: Self::Ints) -> Self::V {
        a.map(|value| value as f32)
    }
}
