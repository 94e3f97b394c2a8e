//! Rotary position embedding in place, head by head. The compiler vectorises the plain loops; the cost is one pass over
//! queries and keys.

use super::{shared_out::SharedOut, simd::Simd};
use crate::ops::rope::{RopeAngles, RopeLayout, RopeStyle};

/// Rows `from..from + rows` of a rotation.
pub(crate) struct RopeTask<'a> {
    pub(crate) layout: RopeLayout,
    pub(crate) angles: &'a RopeAngles,
    pub(crate) x: &'a SharedOut<'a>,
    pub(crate) from: usize,
    pub(crate) rows: usize,
}

/// # Safety
/// As for [`Simd`]; the rows exist and are this task's alone.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(_: S, task: &RopeTask<'_>) {
    let RopeLayout { heads, head_dim, style } = task.layout;
    let pairs = task.angles.pairs();
    for row in task.from..task.from + task.rows {
        let (cos, sin) = task.angles.row(row);
        // SAFETY: the caller's promise.
        let x = unsafe { task.x.part(row * heads * head_dim, heads * head_dim) };
        for head in x.chunks_exact_mut(head_dim) {
            match style {
                RopeStyle::Interleaved => {
                    for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                        let (a, b) = (pair[0], pair[1]);
                        pair[0] = a * cos - b * sin;
                        pair[1] = a * sin + b * cos;
                    }
                }
                RopeStyle::Halves => {
                    let (low, high) = head.split_at_mut(pairs);
                    for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                        let (x, y) = (*a, *b);
                        *a = x * cos - y * sin;
                        *b = x * sin + y * cos;
                    }
                }
            }
        }
    }
}
