//! `out = left · right` in f32, with `right` in panels of [`PANEL`] columns: the register tile of attention.
//!
//! Invariant: each value of `out` is one chain of multiply-adds in depth order, so its bits do not depend on how many
//! rows are computed beside it. Cost: one vector load and one broadcast a multiply-add of a dozen; nothing is kept.

// Arrays of `R` by two registers are walked side by side; `zip` would hide which.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use crate::cpu::simd::Simd;

/// Columns of a panel.
pub(super) const PANEL: usize = 16;

/// Sizes: `left` is `rows ×` its stride, `out` too; a panel of `right` is `depth × PANEL`, `right.1` f32 from the next.
pub(super) struct Product<'a> {
    pub(super) left: (&'a [f32], usize),
    pub(super) right: (&'a [f32], usize),
    pub(super) out: (&'a mut [f32], usize),
    pub(super) rows: usize,
}

/// Computes the panels `panels` of `out`; `depth` says which of the depth counts for some rows and a panel. Where that is
/// none, `out` is left alone.
///
/// # Safety
/// As for [`Simd`]; panels exist, and depths lie inside `left`'s stride and `right`'s panels.
#[inline(always)]
pub(super) unsafe fn product<S: Simd>(
    mut product: Product<'_>,
    panels: Range<usize>,
    depth: impl Fn(Range<usize>, usize) -> Range<usize>,
) {
    for panel in panels {
        let mut row = 0;
        while row < product.rows {
            let left = product.rows - row;
            let count = match left {
                12.. if S::LANES == PANEL => 12,
                _ => left.min(6),
            };
            let depth = depth(row..row + count, panel);
            if !depth.is_empty() {
                let at = [row, panel];
                // SAFETY: the caller's promise; rows `row..row + count` exist.
                unsafe {
                    match count {
                        12 => tile::<S, 12>(&mut product, at, depth),
                        6 => tile::<S, 6>(&mut product, at, depth),
                        5 => tile::<S, 5>(&mut product, at, depth),
                        4 => tile::<S, 4>(&mut product, at, depth),
                        3 => tile::<S, 3>(&mut product, at, depth),
                        2 => tile::<S, 2>(&mut product, at, depth),
                        _ => tile::<S, 1>(&mut product, at, depth),
                    }
                }
            }
            row += count;
        }
    }
}

/// `R` rows of one panel; `at` is `[first row, panel]`.
///
/// # Safety
/// As for [`product`]; the rows exist.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize>(product: &mut Product<'_>, [row, panel]: [usize; 2], depth: Range<usize>) {
    let ((left, left_stride), (right, right_stride)) = (product.left, product.right);
    let (out, out_stride) = (&mut *product.out.0, product.out.1);
    let left = &left[row * left_stride..(row + R - 1) * left_stride + depth.end];
    let right = &right[panel * right_stride..panel * right_stride + depth.end * PANEL];
    let out = &mut out[row * out_stride + panel * PANEL..][..(R - 1) * out_stride + PANEL];
    let vectors = PANEL / S::LANES;
    // SAFETY: the slices above hold every place that is read or written.
    unsafe {
        let mut sums = [[S::zero(); 2]; R];
        let (mut left, mut right) = (left.as_ptr().add(depth.start), right.as_ptr().add(depth.start * PANEL));
        for _ in depth {
            let mut columns = [S::zero(); 2];
            for v in 0..vectors {
                columns[v] = S::load(right.add(v * S::LANES));
            }
            for r in 0..R {
                let factor = S::splat(*left.add(r * left_stride));
                for v in 0..vectors {
                    sums[r][v] = S::fma(factor, columns[v], sums[r][v]);
                }
            }
            left = left.add(1);
            right = right.add(PANEL);
        }
        for r in 0..R {
            for v in 0..vectors {
                S::store(out.as_mut_ptr().add(r * out_stride + v * S::LANES), sums[r][v]);
            }
        }
    }
}
