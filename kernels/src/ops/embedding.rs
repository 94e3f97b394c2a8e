//! Rows of a stored table as f32: exact, so no tolerance. One decoded row a token.

use crate::{
    cpu::{
        embedding::{self, GatherTask},
        for_isa,
        shared_out::SharedOut,
    },
    device::Device,
    error::KernelError,
    ops::rows_per_task,
    tensor::{Weight, check},
};

/// `out` row `i` = row `rows[i]` of `table`; `out` has `rows.len() × table.cols` values; stored and packed tables
/// give the same bits. Columns: a multiple of 16.
pub fn gather<'a>(
    device: &Device,
    table: impl Into<Weight<'a>>,
    rows: &[u32],
    out: &mut [f32],
) -> Result<(), KernelError> {
    let table = table.into();
    let cols = table.cols();
    check("gather", "columns modulo 16", cols % 16, 0)?;
    check("gather", "output values", out.len(), rows.len().saturating_mul(cols))?;
    if let Some(row) = rows.iter().find(|row| **row as usize >= table.rows()) {
        let expected = table.rows().saturating_sub(1);
        return Err(KernelError::Shape { op: "gather", what: "row number", got: *row as usize, expected });
    }
    let (out, per_task, isa) = (SharedOut::new(out), rows_per_task(cols), device.isa());
    device.parallel(rows.len().div_ceil(per_task), &|index| {
        let from = index * per_task;
        let rows = &rows[from..(from + per_task).min(rows.len())];
        let task = GatherTask { table, rows, from, out: &out };
        for_isa!(isa, embedding::run, &task, &GatherTask<'_>)
    });
    Ok(())
}
