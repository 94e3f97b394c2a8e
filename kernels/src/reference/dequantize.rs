//! Stored weights to f32, one value at a time, straight from the layout's definition.

use half::{bf16, f16};

use crate::{dtype::Dtype, tensor::WeightMatrix};

/// Row `index` of a matrix as f32; panics if it is out of range.
pub fn row(weight: &WeightMatrix<'_>, index: usize) -> Vec<f32> {
    let mut out = vec![0.0; weight.cols];
    decode_row(weight.dtype, weight.row(index), &mut out);
    out
}

/// Decodes one stored row. Invariant: `bytes` is exactly one row of `out.len()` weights.
pub(crate) fn decode_row(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(dtype.row_bytes(out.len()), Some(bytes.len()), "invariant: one row of weights");
    let blocks = bytes.chunks_exact(dtype.block_bytes()).zip(out.chunks_exact_mut(dtype.block_len()));
    for (block, out) in blocks {
        decode_block(dtype, block, out);
    }
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

fn decode_block(dtype: Dtype, block: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        Dtype::F16 => out[0] = half(block),
        Dtype::Bf16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        Dtype::Q4_0 => {
            let scale = half(block);
            for (index, out) in out.iter_mut().enumerate() {
                *out = (f32::from(nibble(&block[2..], index)) - 8.0) * scale;
            }
        }
        Dtype::Q4_1 => {
            let (scale, least) = (half(block), half(&block[2..]));
            for (index, out) in out.iter_mut().enumerate() {
                *out = f32::from(nibble(&block[4..], index)) * scale + least;
            }
        }
        Dtype::Q5_0 => {
            let scale = half(block);
            for (index, out) in out.iter_mut().enumerate() {
                let value = nibble(&block[6..], index) | (fifth_bit(&block[2..], index) << 4);
                *out = (f32::from(value) - 16.0) * scale;
            }
        }
        Dtype::Q5_1 => {
            let (scale, least) = (half(block), half(&block[2..]));
            for (index, out) in out.iter_mut().enumerate() {
                let value = nibble(&block[8..], index) | (fifth_bit(&block[4..], index) << 4);
                *out = f32::from(value) * scale + least;
            }
        }
        Dtype::Q8_0 => {
            let scale = half(block);
            for (out, value) in out.iter_mut().zip(&block[2..]) {
                *out = f32::from(*value as i8) * scale;
            }
        }
        Dtype::Q4K => decode_scaled_twice(block, &block[16..], out, |_, _| 0),
        Dtype::Q5K => decode_scaled_twice(block, &block[48..], out, |group, at| (block[16 + at] >> group) & 1),
        Dtype::Q6K => decode_q6k(block, out),
        Dtype::Iq4Nl => {
            let scale = half(block);
            for (index, out) in out.iter_mut().enumerate() {
                *out = f32::from(IQ4_VALUES[usize::from(nibble(&block[2..], index))]) * scale;
            }
        }
    }
}

/// Value `index` of 32 in 16 bytes: the low nibbles first, then the high ones.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    if index < 16 { bytes[index] & 15 } else { bytes[index - 16] >> 4 }
}

/// Bit `index` of 32 little-endian bits.
fn fifth_bit(bytes: &[u8], index: usize) -> u8 {
    (bytes[index / 8] >> (index % 8)) & 1
}

/// What the 4-bit places of IQ4_NL stand for.
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Q4_K and Q5_K, 256 weights: scale, minimum, eight 6-bit `(scale, minimum)` in 12 bytes, then (in `low`) 4 times 64
/// nibbles in 32 bytes; `fifth(group, index)` is the bit above the nibble.
fn decode_scaled_twice(block: &[u8], low: &[u8], out: &mut [f32], fifth: impl Fn(usize, usize) -> u8) {
    let (scale, least) = (half(block), half(&block[2..]));
    let packed = &block[4..16];
    for group in 0..8 {
        let (d, m) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            (
                (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4),
                (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4),
            )
        };
        let (d, m) = (scale * f32::from(d), least * f32::from(m));
        let values = &low[group / 2 * 32..][..32];
        for (index, (out, byte)) in out[group * 32..][..32].iter_mut().zip(values).enumerate() {
            let value = if group % 2 == 0 { byte & 15 } else { byte >> 4 };
            *out = d * f32::from(value | (fifth(group, index) << 4)) - m;
        }
    }
}

/// 256 weights: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, one f16 scale.
fn decode_q6k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales, scale) = (&block[..128], &block[128..192], &block[192..208], half(&block[208..]));
    for half_block in 0..2 {
        for at in 0..32 {
            for quarter in 0..4 {
                let byte = low[half_block * 64 + quarter % 2 * 32 + at];
                let nibble = if quarter < 2 { byte & 15 } else { byte >> 4 };
                let pair = (high[half_block * 32 + at] >> (2 * quarter)) & 3;
                let value = f32::from(nibble | (pair << 4)) - 32.0;
                let index = half_block * 128 + quarter * 32 + at;
                out[index] = scale * f32::from(scales[index / 16] as i8) * value;
            }
        }
    }
}
