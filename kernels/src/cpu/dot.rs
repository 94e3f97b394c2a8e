//! The register tile: dot products of four rows of weights with up to six rows of activations.
//!
//! Invariant: each dot product has one vector of partial sums, advanced in index order and added up by
//! [`Simd::sum4`]; its bits do not depend on how many others are computed beside it, nor on whether the weights were
//! decoded here or before. Matmul with one token, matmul with many and attention scores all come through here.

use super::{decode::Decode, simd::Simd};

/// Dot products of four stored rows with `T` activation rows over `blocks` blocks; `[token][row]`.
///
/// # Safety
/// As for [`Simd`]; each of `weights` is good for `blocks * D::BYTES` bytes, each of `tokens` for `blocks * D::LEN` f32.
#[inline(always)]
pub(crate) unsafe fn dot4<S: Simd, D: Decode, const T: usize>(
    weights: [*const u8; 4],
    tokens: [*const f32; T],
    blocks: usize,
) -> [[f32; 4]; T] {
    // SAFETY: every pointer advances by whole blocks, `blocks` times.
    unsafe {
        let mut sums = [[S::zero(); 4]; T];
        for block in 0..blocks {
            let from = [
                weights[0].add(block * D::BYTES),
                weights[1].add(block * D::BYTES),
                weights[2].add(block * D::BYTES),
                weights[3].add(block * D::BYTES),
            ];
            let heads = [D::head::<S>(from[0]), D::head::<S>(from[1]), D::head::<S>(from[2]), D::head::<S>(from[3])];
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
