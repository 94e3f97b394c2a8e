//! Data types of weights as they lie in a GGUF file: blocks of a fixed number of weights in a fixed number of bytes.
//!
//! Invariant: a row is a whole number of blocks; nothing here allocates.

/// How the weights of one row are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    /// 32 weights: f16 scale, 4-bit values less 8.
    Q4_0,
    /// 32 weights: f16 scale, f16 minimum, 4-bit values.
    Q4_1,
    /// 32 weights: f16 scale, 5-bit values less 16.
    Q5_0,
    /// 32 weights: f16 scale, f16 minimum, 5-bit values.
    Q5_1,
    /// 32 weights: f16 scale, 8-bit values.
    Q8_0,
    /// 256 weights in 8 groups: 4-bit values, 6-bit scales and minimums.
    Q4K,
    /// 256 weights in 8 groups: 5-bit values, 6-bit scales and minimums.
    Q5K,
    /// 256 weights in 16 groups: 6-bit values, 8-bit scales.
    Q6K,
    /// 32 weights: f16 scale, 4-bit places in a table of 16 signed values.
    Iq4Nl,
}

impl Dtype {
    pub const ALL: [Dtype; 12] = [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q5_1,
        Dtype::Q8_0,
        Dtype::Q4K,
        Dtype::Q5K,
        Dtype::Q6K,
        Dtype::Iq4Nl,
    ];

    /// Weights in a block.
    pub const fn block_len(self) -> usize {
        match self {
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => 1,
            Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q8_0 | Dtype::Iq4Nl => 32,
            Dtype::Q4K | Dtype::Q5K | Dtype::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::Q4_0 | Dtype::Iq4Nl => 18,
            Dtype::Q4_1 => 20,
            Dtype::Q5_0 => 22,
            Dtype::Q5_1 => 24,
            Dtype::Q8_0 => 34,
            Dtype::Q4K => 144,
            Dtype::Q5K => 176,
            Dtype::Q6K => 210,
        }
    }

    /// Bytes of a row of `cols` weights. `None` if `cols` is no whole number of blocks, or on overflow.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The name GGUF tools print.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::Q4_0 => "Q4_0",
            Dtype::Q4_1 => "Q4_1",
            Dtype::Q5_0 => "Q5_0",
            Dtype::Q5_1 => "Q5_1",
            Dtype::Q8_0 => "Q8_0",
            Dtype::Q4K => "Q4_K",
            Dtype::Q5K => "Q5_K",
            Dtype::Q6K => "Q6_K",
            Dtype::Iq4Nl => "IQ4_NL",
        }
    }
}
