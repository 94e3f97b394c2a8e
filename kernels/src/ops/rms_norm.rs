//! RMS norm of rows. Tolerance against `reference::rms_norm`: abs 1e-6, eps 1e-5.

use crate::{
    cpu::{
        for_isa,
        rms_norm::{self, InPlaceTask, NormTask},
        shared_out::SharedOut,
    },
    device::Device,
    error::KernelError,
    ops::rows_per_task,
    tensor::{Rows, check},
};

/// What a norm learnt: a weight a column, and the epsilon added to the mean square.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm<'a> {
    pub weight: &'a [f32],
    pub eps: f32,
}

/// `out = x / sqrt(mean(x²) + eps) * weight`; `out` has the shape of `x`.
pub fn rms_norm(device: &Device, norm: RmsNorm<'_>, x: Rows<'_>, out: &mut [f32]) -> Result<(), KernelError> {
    check("rms_norm", "weight values", norm.weight.len(), x.cols)?;
    check("rms_norm", "output values", out.len(), x.values.len())?;
    let (out, per_task, isa) = (SharedOut::new(out), rows_per_task(x.cols), device.isa());
    device.parallel(x.rows.div_ceil(per_task), &|index| {
        let from = index * per_task;
        let rows = per_task.min(x.rows - from);
        let task = NormTask { x: x.values, weight: norm.weight, eps: norm.eps, out: &out, from, rows };
        for_isa!(isa, rms_norm::run, &task, &NormTask<'_>)
    });
    Ok(())
}

/// As [`rms_norm`], over `x` itself, whose rows are `norm.weight.len()` long. Rows may be heads: a `tokens × heads ×
/// head_dim` matrix with a weight of `head_dim` is normed head by head.
pub fn rms_norm_in_place(device: &Device, norm: RmsNorm<'_>, x: &mut [f32]) -> Result<(), KernelError> {
    let cols = norm.weight.len();
    check("rms_norm_in_place", "values modulo weight values", x.len() % cols.max(1), 0)?;
    if cols == 0 {
        return check("rms_norm_in_place", "values", x.len(), 0);
    }
    let rows = x.len() / cols;
    let (x, per_task, isa) = (SharedOut::new(x), rows_per_task(cols), device.isa());
    device.parallel(rows.div_ceil(per_task), &|index| {
        let from = index * per_task;
        let task = InPlaceTask { x: &x, weight: norm.weight, eps: norm.eps, from, rows: per_task.min(rows - from) };
        for_isa!(isa, rms_norm::run_in_place, &task, &InPlaceTask<'_>)
    });
    Ok(())
}
