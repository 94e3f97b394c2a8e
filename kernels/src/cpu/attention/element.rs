//! What a page holds: f32, or f16 widened as it is loaded. Nothing is kept.

use half::{f16, slice::HalfFloatSliceExt};

use crate::cpu::simd::Simd;

/// The largest finite f16: what lies beyond is stored as this, so that one large key does not turn a sequence into NaN.
const LARGEST_F16: f32 = 65504.0;

pub(crate) trait Element: Copy + Sync {
    /// Rounds 16 values to nearest, ties to even; finite values stay finite, NaN stays NaN.
    fn round(values: &[f32; 16]) -> [Self; 16];
    fn widen(self) -> f32;
    /// Reads `LANES` elements.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn load<S: Simd>(from: *const Self) -> S::V;
}

impl Element for f32 {
    fn round(values: &[f32; 16]) -> [Self; 16] {
        *values
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load(from) }
    }
}

impl Element for f16 {
    fn round(values: &[f32; 16]) -> [Self; 16] {
        let mut out = [f16::ZERO; 16];
        out.convert_from_f32_slice(&values.map(|value| value.clamp(-LARGEST_F16, LARGEST_F16)));
        out
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::V {
        // SAFETY: the caller's promise; an f16 is its two bytes.
        unsafe { S::load_f16(from.cast()) }
    }
}
