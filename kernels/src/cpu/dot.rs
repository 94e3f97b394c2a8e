//! The register tile: dot products of four rows of weights with up to six rows of activations.
//!
//! Invariant: each dot product has one vector of partial sums, advanced in index order and added up by
//! [`Simd::sum4`]; its bits do not depend on how many others are computed beside it, nor on whether the weights were
//! decoded here or before. Matmul with one token, matmul with many and attention scores all come through here.

use super::{decode::Decode, simd::Simd};

/// How far a tile runs: `blocks` blocks, and how many bytes ahead of them weights are fetched (0: they are in a cache).
///
/// Rows of small models are too short (some hundred bytes) for the hardware to see four streams and run ahead of them.
#[derive(Clone, Copy)]
pub(crate) struct Reach {
    pub(crate) blocks: usize,
    pub(crate) ahead: usize,
}

/// Dot products of four stored rows with `T` activation rows; `[token][row]`.
///
/// # Safety
/// As for [`Simd`]; each of `weights` is good for `reach.blocks * D::BYTES` bytes, each of `tokens` for
/// `reach.blocks * D::LEN` f32.
#[inline(always)]
pub(crate) unsafe fn dot4<S: Simd, D: Decode, const T: usize>(
    weights: [*const u8; 4],
    tokens: [*const f32; T],
    reach: Reach,
) -> [[f32; 4]; T] {
    // SAFETY: every pointer advances by whole blocks, `blocks` times.
    unsafe {
        let mut sums = [[S::zero(); 4]; T];
        for block in 0..reach.blocks {
            let from = [
                weights[0].add(block * D::BYTES),
                weights[1].add(block * D::BYTES),
                weights[2].add(block * D::BYTES),
                weights[3].add(block * D::BYTES),
            ];
            let heads = [D::head::<S>(from[0]), D::head::<S>(from[1]), D::head::<S>(from[2]), D::head::<S>(from[3])];
            if reach.ahead > 0 {
                for row in from {
                    S::prefetch(row.wrapping_add(reach.ahead));
                }
            }
            for index in 0..D::LEN / S::LANES {
                let at = block * D::LEN + index * S::LANES;
                let mut x = [S::zero(); T];
                for t in 0..T {
                    x[t] = S::load(tokens[t].add(at));
                }
                for row in 0..4 {
                    let w = D::vector::<S>(from[row], heads[row], index);
                    for t in 0..T {
                        sums[t][row] = S::fma(w, x[t], sums[t][row]);
                    }
                }
            }
        }
        let mut out = [[0.0; 4]; T];
        for t in 0..T {
            out[t] = S::sum4(sums[t]);
        }
        out
    }
}
