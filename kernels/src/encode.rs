//! f32 to stored weights: a row of a matrix in another data type. For models that are requantised as they are loaded.
//!
//! The quantised types are rounded as llama.cpp's reference quantisers do, so that figures can be compared: Q8_0 by the
//! largest magnitude of a block, Q4_0 by its largest value with the sign kept, so that this one is exact but for the scale.
//!
//! Invariant: what is encoded decodes to within half a step of the block (Q4_0: one step at the end of the scale opposite
//! to its largest value). Cost: one pass over the row, no state.

use half::f16;

use crate::{dtype::Dtype, error::KernelError};

/// Types that weights can be encoded in.
pub const ENCODED: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::Q8_0, Dtype::Q4_0];

/// Appends `row` to `out` in `dtype`.
///
/// Errors: a type that is not in [`ENCODED`], or a row that is no whole number of its blocks; nothing is appended then.
pub fn encode_row(dtype: Dtype, row: &[f32], out: &mut Vec<u8>) -> Result<(), KernelError> {
    if !row.len().is_multiple_of(dtype.block_len()) {
        let expected = row.len().next_multiple_of(dtype.block_len());
        return Err(KernelError::Shape { op: "encode", what: "columns", got: row.len(), expected });
    }
    match dtype {
        Dtype::F32 => row.iter().for_each(|value| out.extend(value.to_le_bytes())),
        Dtype::F16 => row.iter().for_each(|value| out.extend(f16::from_f32(*value).to_le_bytes())),
        Dtype::Q8_0 => row.chunks_exact(dtype.block_len()).for_each(|block| q8_0(block, out)),
        Dtype::Q4_0 => row.chunks_exact(dtype.block_len()).for_each(|block| q4_0(block, out)),
        other => return Err(KernelError::Dtype { op: "encode", dtype: other.name() }),
    }
    Ok(())
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

fn q8_0(block: &[f32], out: &mut Vec<u8>) {
    let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let scale = largest / 127.0;
    let inverse = inverse(scale);
    out.extend(f16::from_f32(scale).to_le_bytes());
    out.extend(block.iter().map(|value| (value * inverse).round() as i8 as u8));
}

fn q4_0(block: &[f32], out: &mut Vec<u8>) {
    let largest =
        block.iter().fold(0.0f32, |largest, value| if value.abs() > largest.abs() { *value } else { largest });
    let scale = largest / -8.0;
    let inverse = inverse(scale);
    out.extend(f16::from_f32(scale).to_le_bytes());
    let place = |value: f32| (value * inverse + 8.5).clamp(0.0, 15.0) as u8;
    let (low, high) = block.split_at(block.len() / 2);
    out.extend(low.iter().zip(high).map(|(low, high)| place(*low) | (place(*high) << 4)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: blocks whose bytes can be written down: zeros, one value, a ramp.
    /// Guarantees: the bytes are those of the layouts' definitions.
    #[test]
    fn small_blocks_have_the_bytes_of_the_definition() {
        let encode = |dtype, row: &[f32]| {
            let mut out = Vec::new();
            encode_row(dtype, row, &mut out).unwrap();
            out
        };
        assert_eq!(encode(Dtype::Q8_0, &[0.0; 32]), [0; 34]);
        let mut ramp = [0.0; 32];
        (ramp[0], ramp[1], ramp[16]) = (-127.0, 63.0, 2.0);
        let eight = encode(Dtype::Q8_0, &ramp);
        assert_eq!((&eight[..2], eight[2] as i8, eight[3], eight[18]), (&f16::ONE.to_le_bytes()[..], -127, 63, 2));
        let mut four = [0.0; 32];
        (four[0], four[1], four[16]) = (-8.0, 7.0, 3.0);
        let bytes = encode(Dtype::Q4_0, &four);
        assert_eq!((&bytes[..2], bytes[2], bytes[3]), (&f16::ONE.to_le_bytes()[..], 11 << 4, 8 << 4 | 15));
        assert_eq!(encode(Dtype::F16, &[1.0]), f16::ONE.to_le_bytes());
        assert_eq!(encode(Dtype::F32, &[1.5]), 1.5f32.to_le_bytes());
    }

    /// Scenario: a type without an encoder, and a row that is no whole number of blocks.
    /// Guarantees: both are refused by name and nothing is appended.
    #[test]
    fn what_cannot_be_encoded_is_refused() {
        let mut out = vec![7];
        let error = encode_row(Dtype::Q6K, &[0.0; 256], &mut out).unwrap_err();
        assert_eq!(error.to_string(), "encode: no kernel for data type Q6_K");
        let error = encode_row(Dtype::Q8_0, &[0.0; 33], &mut out).unwrap_err();
        assert_eq!(error.to_string(), "encode: columns is 33, expected 64");
        assert_eq!(out, [7]);
    }
}
