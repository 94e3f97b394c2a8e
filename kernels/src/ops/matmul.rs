//! Matrix products of one batch of activations with several weight matrices, in one launch.
//!
//! The order of the weights chooses the arithmetic. Tolerance, with `terms = sum(|w*x|)` of the dot product:
//! * stored ([`Weight::Stored`]), activations in f32: `|a-b| <= 1e-5 * terms` of `reference::matmul`;
//! * packed ([`Weight::Packed`]), activations in int8: `|a-b| <= 1e-6 * sum(|w|) * max|x|` of `reference::matmul` on
//!   [`reference::int8::rounded`](crate::reference::int8::rounded) activations. Rounding itself moves an activation by at
//!   most 1/254 of the largest of its block of 32: about 0.4 % of a result's root mean square.
//!
//! Bit-identical for any number of threads and any other rows in the batch. `cols` must be a multiple of 16 (stored) or
//! 32 (packed, as its layouts are). Cost beside the products: packed weights need 1.5 bytes an activation, kept by the
//! calling thread between calls at the size of the largest batch.

use std::cell::RefCell;

use crate::{
    cpu::{
        for_isa,
        int8::{
            self, GroupTask, QuantiseTask,
            activations::{ActivationBlock, BLOCK},
            for_body_set,
        },
        matmul::{self, FUSED_TOKENS, RowTask, TILE_FLOATS},
        shared_out::SharedOut,
    },
    device::Device,
    error::KernelError,
    packed::geometry::ROWS,
    tensor::{Rows, Weight, check},
};

const OP: &str = "matmul";
/// Multiply-adds that a task of packed weights should at least have.
const SMALL_TASK: usize = 128 * 1024;

thread_local! {
    static ACTIVATIONS: RefCell<Vec<ActivationBlock>> = const { RefCell::new(Vec::new()) };
}

/// `out = x · weightᵀ + bias`.
pub struct Product<'a> {
    pub weight: Weight<'a>,
    /// `weight.rows` values, added to every row.
    pub bias: Option<&'a [f32]>,
    /// `x.rows × weight.rows`.
    pub out: &'a mut [f32],
}

/// Computes every product; all have the columns of `x`.
pub fn matmul(device: &Device, x: Rows<'_>, products: &mut [Product<'_>]) -> Result<(), KernelError> {
    for product in products.iter() {
        check(OP, "weight columns", product.weight.cols(), x.cols)?;
        check(OP, "output values", product.out.len(), x.rows.saturating_mul(product.weight.rows()))?;
        check(OP, "columns modulo 16", x.cols % 16, 0)?;
        if let Some(bias) = product.bias {
            check(OP, "bias values", bias.len(), product.weight.rows())?;
        }
    }
    if x.rows == 0 {
        return Ok(());
    }
    let mut quantised = ACTIVATIONS.take();
    if products.iter().any(|product| matches!(product.weight, Weight::Packed(_))) {
        quantise(device, x, &mut quantised);
    }
    let parts: Vec<Part<'_>> = products
        .iter_mut()
        .map(|product| Part { weight: product.weight, bias: product.bias, out: SharedOut::new(&mut *product.out) })
        .collect();
    let tasks = plan(device, x, &quantised, &parts);
    let (isa, body_set) = (device.isa(), int8::body_set(device.isa()));
    device.parallel(tasks.len(), &|index| match &tasks[index] {
        Task::Stored(task) => for_isa!(isa, matmul::run, task, &RowTask<'_>),
        Task::Packed(task) => int8::run_task(body_set, task),
    });
    drop(tasks);
    ACTIVATIONS.set(quantised);
    Ok(())
}

/// A product whose output is shared by tasks.
struct Part<'a> {
    weight: Weight<'a>,
    bias: Option<&'a [f32]>,
    out: SharedOut<'a>,
}

enum Task<'a> {
    Stored(RowTask<'a>),
    Packed(GroupTask<'a>),
}

/// Cuts every product by rows.
fn plan<'a>(device: &Device, x: Rows<'a>, quantised: &'a [ActivationBlock], parts: &'a [Part<'a>]) -> Vec<Task<'a>> {
    let total: usize = parts.iter().map(|part| part.weight.rows()).sum();
    let (per_task, groups) = (rows_per_task(device, x, total), groups_per_task(device, x, total));
    let mut tasks = Vec::new();
    for Part { weight, bias, out } in parts {
        match *weight {
            Weight::Stored(weight) => tasks.extend((0..weight.rows).step_by(per_task).map(|from| {
                let (rows, stride) = (per_task.min(weight.rows - from), per_task * device.threads());
                Task::Stored(RowTask { weight, from, rows, stride, x: x.values, out, bias: *bias })
            })),
            Weight::Packed(weight) => tasks.extend((0..weight.groups()).step_by(groups).map(|from| {
                let groups = from..(from + groups).min(weight.groups());
                Task::Packed(GroupTask { weight, groups, x: quantised, out, bias: *bias })
            })),
        }
    }
    tasks
}

/// Rounds `x` to int8, on all threads if it is worth a launch of its own.
fn quantise(device: &Device, x: Rows<'_>, out: &mut Vec<ActivationBlock>) {
    /// Values that one task rounds.
    const VALUES: usize = 16 * 1024;
    out.resize(x.values.len() / BLOCK, ActivationBlock::ZERO);
    let (body_set, out) = (int8::body_set(device.isa()), SharedOut::new(out));
    device.parallel(x.values.len().div_ceil(VALUES), &|index| {
        let from = index * VALUES;
        let x = &x.values[from..(from + VALUES).min(x.values.len())];
        let task = QuantiseTask { x, from: from / BLOCK, out: &out };
        for_body_set!(body_set, int8::quantise, &task, &QuantiseTask<'_>)
    });
}

/// Enough tasks for every thread to have a few, but rows enough that a task is worth its dispatch; a multiple of 4.
fn rows_per_task(device: &Device, x: Rows<'_>, total: usize) -> usize {
    let share = total.div_ceil(device.threads() * 4);
    let least = if x.rows <= FUSED_TOKENS { 16 * 1024 / x.cols } else { 8 };
    let most = if x.rows <= FUSED_TOKENS { total.next_multiple_of(4) } else { TILE_FLOATS / x.cols / 4 * 4 };
    share.max(least).next_multiple_of(4).min(most.max(4))
}

/// The same for packed weights, in groups of 16 rows.
fn groups_per_task(device: &Device, x: Rows<'_>, total: usize) -> usize {
    let share = total.div_ceil(ROWS).div_ceil(device.threads() * 8);
    let least = SMALL_TASK.div_ceil(ROWS * x.cols * x.rows);
    share.max(least).max(1)
}
