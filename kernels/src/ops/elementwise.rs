//! Sums, SwiGLU and GeGLU in place. Tolerances against the references: `add` and `scale` none (the same arithmetic);
//! `swiglu` and `geglu` abs 1e-6, eps 1e-5.

use crate::{
    cpu::{
        elementwise::{self, Span},
        for_isa,
        shared_out::SharedOut,
    },
    device::Device,
    error::KernelError,
    ops::SMALL_TASK_VALUES,
    tensor::check,
};

/// `x += y`.
pub fn add(device: &Device, x: &mut [f32], y: &[f32]) -> Result<(), KernelError> {
    check("add", "values", y.len(), x.len())?;
    let isa = device.isa();
    spans(device, x, y, &|span| for_isa!(isa, elementwise::add, span, &Span<'_>));
    Ok(())
}

/// `gate = gate * sigmoid(gate) * up`.
pub fn swiglu(device: &Device, gate: &mut [f32], up: &[f32]) -> Result<(), KernelError> {
    check("swiglu", "values", up.len(), gate.len())?;
    let isa = device.isa();
    spans(device, gate, up, &|span| for_isa!(isa, elementwise::swiglu, span, &Span<'_>));
    Ok(())
}

/// `gate = gelu(gate) * up`, with the tanh form of GELU: `x / 2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x³)))`.
pub fn geglu(device: &Device, gate: &mut [f32], up: &[f32]) -> Result<(), KernelError> {
    check("geglu", "values", up.len(), gate.len())?;
    let isa = device.isa();
    spans(device, gate, up, &|span| for_isa!(isa, elementwise::geglu, span, &Span<'_>));
    Ok(())
}

/// `x *= factor`. Run by the caller's thread: it is meant for one matrix a pass.
pub fn scale(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|value| *value *= factor);
}

fn spans(device: &Device, out: &mut [f32], other: &[f32], body: &(dyn Fn(&Span<'_>) + Sync)) {
    let len = out.len();
    let out = SharedOut::new(out);
    device.parallel(len.div_ceil(SMALL_TASK_VALUES), &|index| {
        let from = index * SMALL_TASK_VALUES;
        body(&Span { out: &out, other, from, len: SMALL_TASK_VALUES.min(len - from) });
    });
}
