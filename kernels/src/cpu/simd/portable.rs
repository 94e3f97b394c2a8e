//! Eight lanes in plain Rust; the compiler vectorises them with what the target's baseline has.

use super::Simd;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

const LANES: usize = 8;

#[inline(always)]
fn each(f: impl FnMut(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

#[inline(always)]
fn half(low: u8, high: u8) -> f32 {
    half::f16::from_le_bytes([low, high]).to_f32()
}

impl Simd for Portable {
    const LANES: usize = LANES;
    const TOKENS: usize = 2;
    type V = [f32; LANES];

    #[inline(always)]
    unsafe fn zero() -> Self::V {
        [0.0; LANES]
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(value) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        each(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        each(|lane| a[lane] - b[lane])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        each(|lane| a[lane] * b[lane])
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        each(|lane| a[lane] / b[lane])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        each(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        each(|lane| if a[lane] < b[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::V) -> Self::V {
        each(|lane| f32::from_bits(((n[lane] as i32).wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn sum4(vectors: [Self::V; 4]) -> [f32; 4] {
        vectors.map(|v| {
            let four: [f32; 4] = std::array::from_fn(|lane| v[lane] + v[lane + 4]);
            (four[0] + four[1]) + (four[2] + four[3])
        })
    }

    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}
    #[inline(always)]
    unsafe fn splat_f16(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (two bytes).
        let bytes = unsafe { from.cast::<[u8; 2]>().read_unaligned() };
        [half(bytes[0], bytes[1]); LANES]
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (`LANES` halves).
        let bytes = unsafe { from.cast::<[u8; 2 * LANES]>().read_unaligned() };
        each(|lane| half(bytes[2 * lane], bytes[2 * lane + 1]))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (`LANES` bfloat16).
        let bytes = unsafe { from.cast::<[u8; 2 * LANES]>().read_unaligned() };
        each(|lane| f32::from_bits(u32::from_le_bytes([0, 0, bytes[2 * lane], bytes[2 * lane + 1]])))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (`LANES` bytes).
        let bytes = unsafe { from.cast::<[i8; LANES]>().read_unaligned() };
        each(|lane| f32::from(bytes[lane]))
    }
    #[inline(always)]
    unsafe fn low_nibbles(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (`LANES` bytes).
        let bytes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        each(|lane| f32::from(bytes[lane] & 15))
    }
    #[inline(always)]
    unsafe fn high_nibbles(from: *const u8) -> Self::V {
        // SAFETY: the caller's promise (`LANES` bytes).
        let bytes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        each(|lane| f32::from(bytes[lane] >> 4))
    }
}
