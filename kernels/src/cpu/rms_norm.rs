//! `out = x / sqrt(mean(x²) + eps) * weight`, row by row. Memory-bound.

use super::{shared_out::SharedOut, simd::Simd};

/// Rows `from..from + rows` of an RMS norm.
pub(crate) struct NormTask<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) out: &'a SharedOut<'a>,
    pub(crate) from: usize,
    pub(crate) rows: usize,
}

/// # Safety
/// As for [`Simd`]; the rows exist in `x` and `out` and are this task's alone.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(_: S, task: &NormTask<'_>) {
    let cols = task.weight.len();
    for row in task.from..task.from + task.rows {
        let x = &task.x[row * cols..(row + 1) * cols];
        // SAFETY: the caller's promise.
        let out = unsafe { task.out.part(row * cols, cols) };
        // SAFETY: as for this function.
        let squares = unsafe { sum_of_squares::<S>(x) };
        let scale = 1.0 / (squares / cols as f32 + task.eps).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(task.weight) {
            *out = x * scale * weight;
        }
    }
}

/// Rows `from..from + rows` of an RMS norm of a matrix over itself.
pub(crate) struct InPlaceTask<'a> {
    pub(crate) x: &'a SharedOut<'a>,
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) from: usize,
    pub(crate) rows: usize,
}

/// # Safety
/// As for [`Simd`]; the rows exist and are this task's alone.
#[inline(always)]
pub(crate) unsafe fn run_in_place<S: Simd>(_: S, task: &InPlaceTask<'_>) {
    let cols = task.weight.len();
    for row in task.from..task.from + task.rows {
        // SAFETY: the caller's promise.
        let x = unsafe { task.x.part(row * cols, cols) };
        // SAFETY: as for this function.
        let squares = unsafe { sum_of_squares::<S>(x) };
        let scale = 1.0 / (squares / cols as f32 + task.eps).sqrt();
        for (x, weight) in x.iter_mut().zip(task.weight) {
            *x = *x * scale * weight;
        }
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn sum_of_squares<S: Simd>(x: &[f32]) -> f32 {
    let whole = x.len() - x.len() % S::LANES;
    // SAFETY: whole vectors stay inside `x`.
    let lanes = unsafe {
        let mut sum = S::zero();
        for at in (0..whole).step_by(S::LANES) {
            let value = S::load(x.as_ptr().add(at));
            sum = S::fma(value, value, sum);
        }
        S::sum4([sum, S::zero(), S::zero(), S::zero()])[0]
    };
    x[whole..].iter().fold(lanes, |sum, value| value * value + sum)
}
