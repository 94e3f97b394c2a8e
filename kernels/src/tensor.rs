//! Views over memory that others own: weight matrices as stored, activation rows as f32. Nothing here allocates.
//!
//! Invariant: the number of bytes or values behind a view is exactly what its shape says; it is checked once, here.

use crate::{dtype::Dtype, error::KernelError, packed::PackedMatrix};

/// Activations: `rows × cols` f32, row-major, no gaps.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl<'a> Rows<'a> {
    /// `values.len()` must be a multiple of `cols`, and `cols` at least 1.
    pub fn new(values: &'a [f32], cols: usize) -> Result<Self, KernelError> {
        if cols == 0 {
            return Err(KernelError::Shape { op: "rows", what: "columns", got: 0, expected: 1 });
        }
        let rows = values.len() / cols;
        check("rows", "values", values.len(), rows * cols)?;
        Ok(Self { values, rows, cols })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `index`; panics if it is out of range.
    pub fn row(&self, index: usize) -> &'a [f32] {
        &self.values[index * self.cols..(index + 1) * self.cols]
    }
}

/// A weight matrix, `rows` outputs by `cols` inputs, as stored: row-major, each row a whole number of blocks.
#[derive(Debug, Clone, Copy)]
pub struct WeightMatrix<'a> {
    pub(crate) dtype: Dtype,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) bytes: &'a [u8],
}

impl<'a> WeightMatrix<'a> {
    /// `bytes` must be exactly `rows` rows of `cols` weights of `dtype`.
    pub fn new(dtype: Dtype, shape: [usize; 2], bytes: &'a [u8]) -> Result<Self, KernelError> {
        let [rows, cols] = shape;
        let row_bytes = dtype.row_bytes(cols).ok_or(KernelError::Shape {
            op: "weights",
            what: "columns",
            got: cols,
            expected: cols.next_multiple_of(dtype.block_len()),
        })?;
        check("weights", "bytes", bytes.len(), rows.saturating_mul(row_bytes))?;
        Ok(Self { dtype, rows, cols, bytes })
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

    /// Bytes of the whole matrix.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.cols).expect("invariant: checked in WeightMatrix::new")
    }

    /// Bytes of row `index`; panics if it is out of range.
    pub(crate) fn row(&self, index: usize) -> &'a [u8] {
        let row_bytes = self.row_bytes();
        &self.bytes[index * row_bytes..(index + 1) * row_bytes]
    }
}

/// A weight matrix in either order, and with it the arithmetic that a product uses.
#[derive(Debug, Clone, Copy)]
pub enum Weight<'a> {
    /// As in the file; activations stay f32.
    Stored(WeightMatrix<'a>),
    /// Packed at load; activations are rounded to int8.
    Packed(&'a PackedMatrix),
}

impl Weight<'_> {
    pub fn dtype(&self) -> Dtype {
        match self {
            Weight::Stored(matrix) => matrix.dtype,
            Weight::Packed(matrix) => matrix.dtype(),
        }
    }

    pub fn rows(&self) -> usize {
        match self {
            Weight::Stored(matrix) => matrix.rows,
            Weight::Packed(matrix) => matrix.rows(),
        }
    }

    pub fn cols(&self) -> usize {
        match self {
            Weight::Stored(matrix) => matrix.cols,
            Weight::Packed(matrix) => matrix.cols(),
        }
    }
}

impl<'a> From<WeightMatrix<'a>> for Weight<'a> {
    fn from(matrix: WeightMatrix<'a>) -> Self {
        Weight::Stored(matrix)
    }
}

impl<'a> From<&'a PackedMatrix> for Weight<'a> {
    fn from(matrix: &'a PackedMatrix) -> Self {
        Weight::Packed(matrix)
    }
}

/// `got == expected`, or a [`KernelError::Shape`] that says what did not agree.
pub(crate) fn check(op: &'static str, what: &'static str, got: usize, expected: usize) -> Result<(), KernelError> {
    if got == expected { Ok(()) } else { Err(KernelError::Shape { op, what, got, expected }) }
}
