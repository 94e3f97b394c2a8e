//! Where things lie in a packed matrix: the one description that the packer and the bodies share.
//!
//! A *group* is 16 rows. It is a row of *units* (32 columns, or the 256 of a K layout), each with the same bytes for all
//! 16 rows as the file has, in another order:
//!
//! | part | bytes | order |
//! |---|---|---|
//! | f16 scale, then f16 minimum where there is one | 32 each | by row |
//! | K: for each block of 32 columns its 6-bit scales and minimums, a byte each; Q6_K: for each 16 columns its scales | 32 a block | by row |
//! | for each block of 32 columns: its values | below | |
//!
//! Columns of a block go in eight steps of four. A step of a group is 64 bytes: row 0's four values, row 1's … row 15's.
//! Four bits: 4 × 64 bytes, low nibbles are steps 0..4, high ones steps 4..8. Fifth bit: 64 bytes more, bit `s` of byte
//! `i` belongs to byte `i` of step `s`. Fifth and sixth: 2 × 64 bytes, of which one holds four steps. Eight bits: 8 × 64.

use crate::dtype::Dtype;

/// Rows of a group.
pub(crate) const ROWS: usize = 16;
/// Columns of a block: those that share a scale, and the activations' scale.
pub(crate) const BLOCK: usize = 32;
/// Bytes of a step.
pub(crate) const STEP: usize = 64;
/// One 16-bit number a row.
pub(crate) const HALVES: usize = 2 * ROWS;

/// The sizes of a unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    /// Blocks of 32 columns.
    pub(crate) blocks: usize,
    /// Bytes before the values.
    pub(crate) head: usize,
    /// Bits of a stored value.
    pub(crate) bits: usize,
}

impl Geometry {
    /// Of the layouts that can be packed.
    pub(crate) const fn of(dtype: Dtype) -> Option<Self> {
        let (blocks, head, bits) = match dtype {
            Dtype::Q4_0 | Dtype::Iq4Nl => (1, HALVES, 4),
            Dtype::Q4_1 => (1, 2 * HALVES, 4),
            Dtype::Q5_0 => (1, HALVES, 5),
            Dtype::Q5_1 => (1, 2 * HALVES, 5),
            Dtype::Q8_0 => (1, HALVES, 8),
            Dtype::Q4K => (8, 2 * HALVES + 8 * 2 * ROWS, 4),
            Dtype::Q5K => (8, 2 * HALVES + 8 * 2 * ROWS, 5),
            Dtype::Q6K => (8, HALVES + 8 * 2 * ROWS, 6),
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => return None,
        };
        Some(Self { blocks, head, bits })
    }

    /// Bytes of the values of a block.
    pub(crate) const fn block_bytes(self) -> usize {
        self.bits * STEP
    }

    /// Bytes of a unit.
    pub(crate) const fn unit_bytes(self) -> usize {
        self.head + self.blocks * self.block_bytes()
    }

    /// Bytes of a group of `cols` columns, which are whole units.
    pub(crate) const fn group_bytes(self, cols: usize) -> usize {
        cols / (BLOCK * self.blocks) * self.unit_bytes()
    }
}
