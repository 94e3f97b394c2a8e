//! RMS norm of rows. Tolerance against `reference::rms_norm`: abs 1e-6, eps 1e-5.

use crate::{
    cpu::{
        for_isa,
        rms_norm::{self, NormTask},
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
