//! Weights in the order that the int8 bodies read: 16 rows interleaved, see [`geometry`].
//!
//! Invariant: a packed matrix has exactly the weights of the stored one, bit for bit ([`PackedMatrix::stored_row`] gives
//! the stored bytes back); rows are filled up to a multiple of 16 with zeros, which no result shows. The order is one for
//! every instruction set, so a matrix may be packed on one device and used on another.
//!
//! Cost: memory as stored (Q4_K 2.8 % more: its 6-bit scales become bytes); packing is one pass over the bytes.

pub(crate) mod geometry;
mod units;

use crate::{cpu::aligned::AlignedBytes, dtype::Dtype, error::KernelError, tensor::WeightMatrix};
use geometry::{Geometry, ROWS};

/// A matrix packed at load. Owns its bytes.
#[derive(Clone)]
pub struct PackedMatrix {
    dtype: Dtype,
    rows: usize,
    cols: usize,
    geometry: Geometry,
    bytes: AlignedBytes,
}

impl std::fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedMatrix")
            .field("dtype", &self.dtype)
            .field("rows", &self.rows)
            .field("cols", &self.cols)
            .finish_non_exhaustive()
    }
}

impl PackedMatrix {
    /// True for the layouts that have a packed order: the quantised ones.
    pub fn can_pack(dtype: Dtype) -> bool {
        Geometry::of(dtype).is_some()
    }

    /// Packs a matrix; [`KernelError::Dtype`] for a layout that has no packed order.
    pub fn new(stored: &WeightMatrix<'_>) -> Result<Self, KernelError> {
        let (dtype, rows, cols) = (stored.dtype, stored.rows, stored.cols);
        let Some(geometry) = Geometry::of(dtype) else {
            return Err(KernelError::Dtype { op: "pack", dtype: dtype.name() });
        };
        let len = rows.div_ceil(ROWS).saturating_mul(geometry.group_bytes(cols));
        let mut packed = Self { dtype, rows, cols, geometry, bytes: AlignedBytes::zeroed(len) };
        let units = cols / dtype.block_len();
        for group in 0..packed.groups() {
            let from = group * geometry.group_bytes(cols);
            let out = &mut packed.bytes.bytes_mut()[from..from + geometry.group_bytes(cols)];
            for (unit, out) in out.chunks_exact_mut(geometry.unit_bytes()).enumerate() {
                for row in group * ROWS..((group + 1) * ROWS).min(rows) {
                    let index = row * units + unit;
                    let block = &stored.bytes[index * dtype.block_bytes()..][..dtype.block_bytes()];
                    units::pack(dtype, block, out, row % ROWS);
                }
            }
        }
        Ok(packed)
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of the whole matrix, padding included.
    pub fn len_bytes(&self) -> usize {
        self.bytes.bytes().len()
    }

    /// Bits of a value: 4, 5, 6 or 8.
    pub(crate) fn bits(&self) -> usize {
        self.geometry.bits
    }

    /// Groups of 16 rows, the last one filled up.
    pub(crate) fn groups(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    /// Bytes of group `index`; panics if it is out of range.
    pub(crate) fn group(&self, index: usize) -> &[u8] {
        let len = self.geometry.group_bytes(self.cols);
        &self.bytes.bytes()[index * len..(index + 1) * len]
    }

    /// Row `index` as it was stored, over the previous contents of `out`; panics if it is out of range.
    pub fn stored_row(&self, index: usize, out: &mut Vec<u8>) {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        out.clear();
        for unit in self.group(index / ROWS).chunks_exact(self.geometry.unit_bytes()) {
            let from = out.len();
            out.resize(from + self.dtype.block_bytes(), 0);
            units::unpack(self.dtype, unit, index % ROWS, &mut out[from..]);
        }
    }
}
