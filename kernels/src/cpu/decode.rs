//! Stored weights to f32 lanes: one type per layout that has a fast decoder, and a whole-row decoder for every layout.
//!
//! Invariant: a weight decodes to the same bits wherever it is decoded, so that the two matmul bodies agree. Cost of a
//! fast decoder: three to four instructions a vector; of the others (5-bit and K layouts): a scalar loop.

use super::simd::Simd;
use crate::{dtype::Dtype, reference::dequantize::decode_row as decode_row_plain};

/// A layout decoded vector by vector. `LEN` is a multiple of every `LANES`.
///
/// # Safety
/// Methods: as for [`Simd`]; `block` is good for `BYTES` bytes and `index < LEN / LANES`.
pub(crate) trait Decode {
    /// Weights per block.
    const LEN: usize;
    /// Bytes per block.
    const BYTES: usize;
    /// What a block's vectors share: `(scale, offset)`, or zeros.
    unsafe fn head<S: Simd>(block: *const u8) -> (S::V, S::V);
    /// Weights `index * LANES ..` of the block.
    unsafe fn vector<S: Simd>(block: *const u8, head: (S::V, S::V), index: usize) -> S::V;
}

macro_rules! float_layout {
    ($(#[$doc:meta])* $name:ident, $bytes:expr, $load:ident) => {
        $(#[$doc])*
        pub(crate) struct $name;
        impl Decode for $name {
            const LEN: usize = 16;
            const BYTES: usize = 16 * $bytes;
            #[inline(always)]
            unsafe fn head<S: Simd>(_block: *const u8) -> (S::V, S::V) {
                // SAFETY: the caller's promise.
                unsafe { (S::zero(), S::zero()) }
            }
            #[inline(always)]
            unsafe fn vector<S: Simd>(block: *const u8, _head: (S::V, S::V), index: usize) -> S::V {
                // SAFETY: the caller's promise: `index` lies in the block.
                unsafe { S::$load(block.add(index * S::LANES * $bytes).cast()) }
            }
        }
    };
}
float_layout!(
    /// 16 f32.
    F32, 4, load
);
float_layout!(
    /// 16 f16.
    F16, 2, load_f16
);
float_layout!(
    /// 16 bfloat16.
    Bf16, 2, load_bf16
);

/// Vector `index` of sixteen bytes of nibbles: the low ones are weights 0..16, the high ones 16..32.
///
/// # Safety
/// As for [`Decode`]; `nibbles` is good for 16 bytes.
#[inline(always)]
unsafe fn nibbles<S: Simd>(nibbles: *const u8, index: usize) -> S::V {
    let half = 16 / S::LANES;
    // SAFETY: `(index % half) * LANES + LANES <= 16`.
    unsafe {
        if index < half {
            S::low_nibbles(nibbles.add(index * S::LANES))
        } else {
            S::high_nibbles(nibbles.add((index - half) * S::LANES))
        }
    }
}

/// `d * (q - 8)`, exact in f32.
pub(crate) struct Q4_0;
impl Decode for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;
    #[inline(always)]
    unsafe fn head<S: Simd>(block: *const u8) -> (S::V, S::V) {
        // SAFETY: the caller's promise: the block starts with an f16.
        unsafe {
            let scale = S::splat_f16(block);
            (scale, S::mul(scale, S::splat(-8.0)))
        }
    }
    #[inline(always)]
    unsafe fn vector<S: Simd>(block: *const u8, head: (S::V, S::V), index: usize) -> S::V {
        // SAFETY: the caller's promise: 16 bytes follow the scale.
        unsafe { S::fma(nibbles::<S>(block.add(2), index), head.0, head.1) }
    }
}

/// `d * q + m`; the product is exact in f32, the sum is rounded once.
pub(crate) struct Q4_1;
impl Decode for Q4_1 {
    const LEN: usize = 32;
    const BYTES: usize = 20;
    #[inline(always)]
    unsafe fn head<S: Simd>(block: *const u8) -> (S::V, S::V) {
        // SAFETY: the caller's promise: the block starts with two f16.
        unsafe { (S::splat_f16(block), S::splat_f16(block.add(2))) }
    }
    #[inline(always)]
    unsafe fn vector<S: Simd>(block: *const u8, head: (S::V, S::V), index: usize) -> S::V {
        // SAFETY: the caller's promise: 16 bytes follow scale and minimum.
        unsafe { S::fma(nibbles::<S>(block.add(4), index), head.0, head.1) }
    }
}

/// `d * q`, exact in f32.
pub(crate) struct Q8_0;
impl Decode for Q8_0 {
    const LEN: usize = 32;
    const BYTES: usize = 34;
    #[inline(always)]
    unsafe fn head<S: Simd>(block: *const u8) -> (S::V, S::V) {
        // SAFETY: the caller's promise: the block starts with an f16.
        unsafe { (S::splat_f16(block), S::zero()) }
    }
    #[inline(always)]
    unsafe fn vector<S: Simd>(block: *const u8, head: (S::V, S::V), index: usize) -> S::V {
        // SAFETY: the caller's promise: 32 bytes follow the scale.
        unsafe { S::mul(S::load_i8(block.add(2 + index * S::LANES)), head.0) }
    }
}

/// Decodes `out.len()` weights with a fast decoder.
///
/// # Safety
/// As for [`Simd`]; `row` holds exactly `out.len() / LEN` blocks.
#[inline(always)]
unsafe fn decode_blocks<S: Simd, D: Decode>(row: &[u8], out: &mut [f32]) {
    debug_assert_eq!(row.len() / D::BYTES, out.len() / D::LEN);
    for block in 0..out.len() / D::LEN {
        // SAFETY: block `block` is inside `row`, and its weights are inside `out`.
        unsafe {
            let from = row.as_ptr().add(block * D::BYTES);
            let to = out.as_mut_ptr().add(block * D::LEN);
            let head = D::head::<S>(from);
            for index in 0..D::LEN / S::LANES {
                S::store(to.add(index * S::LANES), D::vector::<S>(from, head, index));
            }
        }
    }
}

/// Decodes a row of any layout. `out.len()` is a multiple of 16.
///
/// # Safety
/// As for [`Simd`]; `row` is exactly one row of `out.len()` weights of `dtype`.
#[inline(always)]
pub(crate) unsafe fn decode_row<S: Simd>(dtype: Dtype, row: &[u8], out: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            Dtype::F32 => decode_blocks::<S, F32>(row, out),
            Dtype::F16 => decode_blocks::<S, F16>(row, out),
            Dtype::Bf16 => decode_blocks::<S, Bf16>(row, out),
            Dtype::Q4_0 => decode_blocks::<S, Q4_0>(row, out),
            Dtype::Q4_1 => decode_blocks::<S, Q4_1>(row, out),
            Dtype::Q8_0 => decode_blocks::<S, Q8_0>(row, out),
            Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K | Dtype::Q6K | Dtype::Iq4Nl => {
                decode_row_plain(dtype, row, out)
            }
        }
    }
}
