//! Decodes some rows of a table. A packed row is put back into its stored order first: one scratch row a task.

use super::{decode::decode_row, shared_out::SharedOut, simd::Simd};
use crate::tensor::Weight;

/// Output rows `from..from + rows.len()`.
pub(crate) struct GatherTask<'a> {
    pub(crate) table: Weight<'a>,
    pub(crate) rows: &'a [u32],
    pub(crate) from: usize,
    pub(crate) out: &'a SharedOut<'a>,
}

/// # Safety
/// As for [`Simd`]; the rows exist, columns are a multiple of 16, output rows are this task's alone.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(_: S, task: &GatherTask<'_>) {
    let (dtype, cols) = (task.table.dtype(), task.table.cols());
    let mut scratch = Vec::new();
    for (index, row) in task.rows.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let out = task.out.part((task.from + index) * cols, cols);
            let stored = match task.table {
                Weight::Stored(table) => table.row(*row as usize),
                Weight::Packed(table) => {
                    table.stored_row(*row as usize, &mut scratch);
                    &scratch
                }
            };
            decode_row::<S>(dtype, stored, out);
        }
    }
}
