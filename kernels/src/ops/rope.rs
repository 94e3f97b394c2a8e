//! Rotary position embedding. Tolerance against `reference::rope`: abs 1e-6, eps 1e-5.
//!
//! Angles are computed once a batch and shared by all layers: `rows × pairs` cosines and sines (f32).

use crate::{
    cpu::{
        for_isa,
        rope::{self, RopeTask},
        shared_out::SharedOut,
    },
    device::Device,
    error::KernelError,
    ops::rows_per_task,
    tensor::check,
};

/// Which two values of a head make a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(0, 1), (2, 3) …`: Llama files, whose query and key rows are stored permuted for it ("NORM").
    Interleaved,
    /// `(0, n/2), (1, n/2 + 1) …` of the rotated part ("NEOX").
    Halves,
}

/// How heads lie in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopeLayout {
    pub heads: usize,
    pub head_dim: usize,
    pub style: RopeStyle,
}

/// Cosines and sines of a batch's positions.
#[derive(Debug, Clone, Default)]
pub struct RopeAngles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairs: usize,
}

impl RopeAngles {
    /// Fills in one row of angles for each position: `position * frequency`, in f32 as the models were trained, its
    /// cosine and sine in f64. `frequencies` has one entry a pair.
    pub fn fill(&mut self, frequencies: &[f32], positions: impl Iterator<Item = usize>) {
        self.pairs = frequencies.len();
        self.cos.clear();
        self.sin.clear();
        for position in positions {
            for frequency in frequencies {
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                self.cos.push(cos as f32);
                self.sin.push(sin as f32);
            }
        }
    }

    /// Pairs rotated in a head.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Positions filled in.
    pub fn rows(&self) -> usize {
        self.cos.len() / self.pairs.max(1)
    }

    /// Cosines and sines of row `index`; panics if it is out of range.
    pub fn row(&self, index: usize) -> (&[f32], &[f32]) {
        let range = index * self.pairs..(index + 1) * self.pairs;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// Rotates every head of every row of `x` in place; `x` is `angles.rows() × heads × head_dim`. Values of a head past
/// `2 * pairs` are left as they are.
pub fn rope(device: &Device, layout: RopeLayout, angles: &RopeAngles, x: &mut [f32]) -> Result<(), KernelError> {
    let cols = layout.heads * layout.head_dim;
    check("rope", "values", x.len(), angles.rows().saturating_mul(cols))?;
    if 2 * angles.pairs > layout.head_dim {
        let expected = layout.head_dim / 2;
        return Err(KernelError::Shape { op: "rope", what: "pairs", got: angles.pairs, expected });
    }
    let (x, per_task, isa) = (SharedOut::new(x), rows_per_task(cols), device.isa());
    device.parallel(angles.rows().div_ceil(per_task), &|index| {
        let from = index * per_task;
        let rows = per_task.min(angles.rows() - from);
        let task = RopeTask { layout, angles, x: &x, from, rows };
        for_isa!(isa, rope::run, &task, &RopeTask<'_>)
    });
    Ok(())
}
