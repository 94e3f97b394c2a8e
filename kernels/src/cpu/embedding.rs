//! Decodes some rows of a table.

use super::{decode::decode_row, shared_out::SharedOut, simd::Simd};
use crate::tensor::WeightMatrix;

/// Output rows `from..from + rows.len()`.
pub(crate) struct GatherTask<'a> {
    pub(crate) table: WeightMatrix<'a>,
    pub(crate) rows: &'a [u32],
    pub(crate) from: usize,
    pub(crate) out: &'a SharedOut<'a>,
}

/// # Safety
/// As for [`Simd`]; the rows exist, columns are a multiple of 16, output rows are this task's alone.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(_: S, task: &GatherTask<'_>) {
    let cols = task.table.cols;
    for (index, row) in task.rows.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let out = task.out.part((task.from + index) * cols, cols);
            decode_row::<S>(task.table.dtype, task.table.row(*row as usize), out);
        }
    }
}
