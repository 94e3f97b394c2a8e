//! Activations as int8: blocks of 32 with one f32 scale and what the zero points and minimums of weights need.
//!
//! Rule (the judge's copy is [`crate::reference::int8`]): `scale = max|x| / 127`, `q = round(x · 127 / max|x|)`, ties to
//! even; a block of zeros has scale 0. A NaN or an infinity makes the scale of its block one, and so reaches the result.
//! Cost: 1.5 bytes a value.

/// Values that share a scale.
pub(crate) const BLOCK: usize = 32;

/// 32 activations.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ActivationBlock {
    pub(crate) values: [i8; BLOCK],
    pub(crate) scale: f32,
    /// `scale · sum of values`, then the same for either half.
    pub(crate) sum: f32,
    pub(crate) halves: [f32; 2],
}

/// Where the parts of a block lie, for bodies that read it by pointer.
pub(crate) const BLOCK_BYTES: usize = size_of::<ActivationBlock>();
pub(crate) const SCALE_AT: usize = std::mem::offset_of!(ActivationBlock, scale);
pub(crate) const SUM_AT: usize = std::mem::offset_of!(ActivationBlock, sum);
pub(crate) const HALVES_AT: usize = std::mem::offset_of!(ActivationBlock, halves);

impl ActivationBlock {
    pub(crate) const ZERO: Self = Self { values: [0; BLOCK], scale: 0.0, sum: 0.0, halves: [0.0; 2] };

    /// Plain Rust that the compiler turns into vectors of whatever instruction set its caller enables.
    #[inline(always)]
    pub(crate) fn new(x: &[f32; BLOCK]) -> Self {
        // Adding 1.5 · 2^23 leaves the nearest integer in the low bits, ties to even.
        const ROUND: f32 = 12_582_912.0;
        // As integers, so that NaN is the largest of all.
        let mut largest = 0;
        for value in x {
            largest = (value.to_bits() & 0x7FFF_FFFF).max(largest);
        }
        let largest = f32::from_bits(largest);
        let scale = largest / 127.0;
        let to_int = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let mut values = [0; BLOCK];
        for (value, x) in values.iter_mut().zip(x) {
            *value = (x * to_int + ROUND).to_bits() as i8;
        }
        let mut sums = [0i32; 2];
        for index in 0..BLOCK / 2 {
            sums[0] += i32::from(values[index]);
            sums[1] += i32::from(values[index + BLOCK / 2]);
        }
        let halves = [scale * sums[0] as f32, scale * sums[1] as f32];
        Self { values, scale, sum: scale * (sums[0] + sums[1]) as f32, halves }
    }
}

/// Quantises whole blocks; `out` has a block for every 32 of `x`.
#[inline(always)]
pub(crate) fn quantise(x: &[f32], out: &mut [ActivationBlock]) {
    let (blocks, rest) = x.as_chunks::<BLOCK>();
    debug_assert!(rest.is_empty() && blocks.len() == out.len());
    for (x, out) in blocks.iter().zip(out) {
        *out = ActivationBlock::new(x);
    }
}
