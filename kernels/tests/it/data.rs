//! Random inputs. Everything comes from a seed (xorshift), so that a proptest case is one number plus shapes.

use half::f16;
use kernels::Dtype;

/// A small generator; good enough to fill matrices.
pub struct Source(u64);

impl Source {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Uniform in -1..1.
    pub fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn values(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.value()).collect()
    }
}

/// Bytes of a random matrix: any quantised values, finite scales.
pub fn weights(dtype: Dtype, shape: [usize; 2], source: &mut Source) -> Vec<u8> {
    let [rows, cols] = shape;
    let mut bytes = Vec::with_capacity(rows * dtype.row_bytes(cols).unwrap());
    for _ in 0..rows * cols / dtype.block_len() {
        let start = bytes.len();
        bytes.extend((0..dtype.block_bytes()).map(|_| (source.bits() >> 32) as u8));
        let block = &mut bytes[start..];
        let mut scale = |at: usize, source: &mut Source| {
            block[at..at + 2].copy_from_slice(&f16::from_f32(source.value() * 0.1).to_le_bytes());
        };
        match dtype {
            Dtype::F32 => block.copy_from_slice(&source.value().to_le_bytes()),
            Dtype::F16 => scale(0, source),
            Dtype::Bf16 => block.copy_from_slice(&half::bf16::from_f32(source.value()).to_le_bytes()),
            Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 | Dtype::Iq4Nl => scale(0, source),
            Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => {
                scale(0, source);
                scale(2, source);
            }
            Dtype::Q6K => scale(208, source),
        }
    }
    bytes
}

/// `|a-b| <= abs + eps*|b|` for every pair.
pub fn close(got: &[f32], want: &[f32], (abs, eps): (f32, f32)) -> Result<(), String> {
    assert_eq!(got.len(), want.len());
    for (index, (a, b)) in got.iter().zip(want).enumerate() {
        // Written so that a NaN is not near.
        let near = (a - b).abs() <= abs + eps * b.abs();
        if !near {
            return Err(format!("value {index}: {a} instead of {b}"));
        }
    }
    Ok(())
}
