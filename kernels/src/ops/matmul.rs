//! Matrix products of one batch of activations with several weight matrices, in one launch.
//!
//! Tolerance against `reference::matmul`: `|a-b| <= 1e-5 * sum(|w*x|)` of the dot product (abs = that, eps = 0).
//! Bit-identical for any number of threads and any other rows in the batch. `cols` must be a multiple of 16.

use crate::{
    cpu::{
        for_isa,
        matmul::{self, FUSED_TOKENS, RowTask, TILE_FLOATS},
        shared_out::SharedOut,
    },
    device::Device,
    error::KernelError,
    tensor::{Rows, WeightMatrix, check},
};

const OP: &str = "matmul";

/// `out = x · weightᵀ + bias`.
pub struct Product<'a> {
    pub weight: WeightMatrix<'a>,
    /// `weight.rows` values, added to every row.
    pub bias: Option<&'a [f32]>,
    /// `x.rows × weight.rows`.
    pub out: &'a mut [f32],
}

/// Computes every product; all have the columns of `x`.
pub fn matmul(device: &Device, x: Rows<'_>, products: &mut [Product<'_>]) -> Result<(), KernelError> {
    for product in products.iter() {
        check(OP, "weight columns", product.weight.cols, x.cols)?;
        check(OP, "output values", product.out.len(), x.rows.saturating_mul(product.weight.rows))?;
        check(OP, "columns modulo 16", x.cols % 16, 0)?;
        if let Some(bias) = product.bias {
            check(OP, "bias values", bias.len(), product.weight.rows)?;
        }
    }
    if x.rows == 0 {
        return Ok(());
    }
    let total: usize = products.iter().map(|product| product.weight.rows).sum();
    let threads = device.threads();
    let per_task = rows_per_task(device, x, total);
    let outs: Vec<(WeightMatrix<'_>, Option<&[f32]>, SharedOut<'_>)> =
        products.iter_mut().map(|product| (product.weight, product.bias, SharedOut::new(&mut *product.out))).collect();
    let tasks: Vec<RowTask<'_>> = outs
        .iter()
        .flat_map(|(weight, bias, out)| {
            (0..weight.rows).step_by(per_task).map(move |from| RowTask {
                weight: *weight,
                from,
                rows: per_task.min(weight.rows - from),
                stride: per_task * threads,
                x: x.values,
                out,
                bias: *bias,
            })
        })
        .collect();
    let isa = device.isa();
    device.parallel(tasks.len(), &|index| for_isa!(isa, matmul::run, &tasks[index], &RowTask<'_>));
    Ok(())
}

/// Enough tasks for every thread to have a few, but rows enough that a task is worth its dispatch; a multiple of 4.
fn rows_per_task(device: &Device, x: Rows<'_>, total: usize) -> usize {
    let share = total.div_ceil(device.threads() * 4);
    let least = if x.rows <= FUSED_TOKENS { 16 * 1024 / x.cols } else { 8 };
    let most = if x.rows <= FUSED_TOKENS { total.next_multiple_of(4) } else { TILE_FLOATS / x.cols / 4 * 4 };
    share.max(least).next_multiple_of(4).min(most.max(4))
}
