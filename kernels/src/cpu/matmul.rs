//! `out = x · wᵀ`: two bodies over the register tile of [`super::dot`].
//!
//! * few tokens (up to [`FUSED_TOKENS`]): weights are decoded in registers and used at once; bytes moved = the weights.
//! * more tokens: a tile of rows is decoded once into a scratch that fits the second-level cache, then multiplied with
//!   all tokens, in chunks that fit it too.
//!
//! Invariant: both give the same bits. Cost: `rows * cols * tokens` multiply-adds; scratch of [`TILE_FLOATS`] f32 (or
//! four rows, if they are longer, and a little padding) a thread, kept between calls.

use std::cell::RefCell;

use super::{
    decode::{self, Decode},
    dot::{Reach, dot4},
    shared_out::SharedOut,
    simd::Simd,
};
use crate::{dtype::Dtype, tensor::WeightMatrix};

/// Most tokens for which decoding in registers pays.
pub(crate) const FUSED_TOKENS: usize = 3;
/// Decoded weights that one thread holds: 192 KiB, with [`TOKEN_FLOATS`] inside half a megabyte of second-level cache.
pub(crate) const TILE_FLOATS: usize = 48 * 1024;
/// Activations that a thread goes through at a time: 96 KiB.
const TOKEN_FLOATS: usize = 24 * 1024;
/// Added to the length of a decoded row, lest rows of a power of two compete for the same places in the caches.
const PAD: usize = 16;

thread_local! {
    static TILE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// One task: some rows of one weight matrix, for all tokens.
pub(crate) struct RowTask<'a> {
    pub(crate) weight: WeightMatrix<'a>,
    /// First row.
    pub(crate) from: usize,
    /// Rows; at least 1.
    pub(crate) rows: usize,
    /// Where the task that this thread probably gets next starts, counted in rows from `from`.
    pub(crate) stride: usize,
    /// `tokens × weight.cols`, row-major.
    pub(crate) x: &'a [f32],
    /// `tokens × weight.rows`, row-major.
    pub(crate) out: &'a SharedOut<'a>,
    /// Added to each token's row; `weight.rows` values.
    pub(crate) bias: Option<&'a [f32]>,
}

impl RowTask<'_> {
    fn tokens(&self) -> usize {
        self.x.len() / self.weight.cols
    }

    /// Pointers to activation rows `token..token + T`.
    #[inline(always)]
    fn token_rows<const T: usize>(&self, token: usize) -> [*const f32; T] {
        let cols = self.weight.cols;
        let rows = &self.x[token * cols..(token + T) * cols];
        let mut pointers = [rows.as_ptr(); T];
        for (t, pointer) in pointers.iter_mut().enumerate() {
            *pointer = rows[t * cols..].as_ptr();
        }
        pointers
    }

    /// Stores the results of rows `row..row + 4` (less at the end of the task) for one token.
    #[inline(always)]
    fn store(&self, token: usize, row: usize, values: [f32; 4]) {
        let count = (self.from + self.rows - row).min(4);
        // SAFETY: tasks have disjoint rows, so these places belong to this task alone.
        let out = unsafe { self.out.part(token * self.weight.rows + row, count) };
        for (index, value) in out.iter_mut().enumerate() {
            *value = match self.bias {
                Some(bias) => values[index] + bias[row + index],
                None => values[index],
            };
        }
    }
}

/// Runs a task with the vectors of `S`.
///
/// # Safety
/// As for [`Simd`]. `cols` is a multiple of 16 (and a whole number of blocks), the task's rows exist.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(_: S, task: &RowTask<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        if task.tokens() > FUSED_TOKENS {
            return tiled::<S>(task);
        }
        match task.weight.dtype {
            Dtype::F32 => fused::<S, decode::F32>(task),
            Dtype::F16 => fused::<S, decode::F16>(task),
            Dtype::Bf16 => fused::<S, decode::Bf16>(task),
            Dtype::Q4_0 => fused::<S, decode::Q4_0>(task),
            Dtype::Q4_1 => fused::<S, decode::Q4_1>(task),
            Dtype::Q8_0 => fused::<S, decode::Q8_0>(task),
            Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K | Dtype::Q6K | Dtype::Iq4Nl => tiled::<S>(task),
        }
    }
}

/// Four neighbouring rows from `row`; the last one stands in for those past `end`.
#[inline(always)]
pub(crate) fn four_rows(start: *const u8, row_bytes: usize, row: usize, end: usize) -> [*const u8; 4] {
    let mut rows = [start; 4];
    for (index, pointer) in rows.iter_mut().enumerate() {
        *pointer = start.wrapping_add((row + index).min(end - 1) * row_bytes);
    }
    rows
}

/// # Safety
/// As for [`run`]; the matrix has layout `D`, and there are at most [`FUSED_TOKENS`] tokens.
#[inline(always)]
unsafe fn fused<S: Simd, D: Decode>(task: &RowTask<'_>) {
    let weight = &task.weight;
    let (row_bytes, end) = (weight.row_bytes(), task.from + task.rows);
    // Two register tiles ahead.
    let reach = Reach { blocks: weight.cols / D::LEN, ahead: 8 * row_bytes };
    for row in (task.from..end).step_by(4) {
        let weights = four_rows(weight.bytes.as_ptr(), row_bytes, row, end);
        // SAFETY: rows `..end` exist and are `blocks` blocks long, as are the activation rows.
        unsafe {
            match task.tokens() {
                1 => product::<S, D, 1>(task, weights, [0, row], reach),
                2 => product::<S, D, 2>(task, weights, [0, row], reach),
                _ => product::<S, D, 3>(task, weights, [0, row], reach),
            }
        }
    }
}

/// One register tile: `at` is `[first token, first row]`.
///
/// # Safety
/// As for [`dot4`]; tokens `at[0]..at[0] + T` exist.
#[inline(always)]
unsafe fn product<S: Simd, D: Decode, const T: usize>(
    task: &RowTask<'_>,
    weights: [*const u8; 4],
    at: [usize; 2],
    reach: Reach,
) {
    let [token, row] = at;
    // SAFETY: the caller's promise.
    let sums = unsafe { dot4::<S, D, T>(weights, task.token_rows::<T>(token), reach) };
    for (t, sum) in sums.into_iter().enumerate() {
        task.store(token + t, row, sum);
    }
}

/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn tiled<S: Simd>(task: &RowTask<'_>) {
    let weight = &task.weight;
    let cols = weight.cols;
    // Taken out and put back rather than borrowed in a closure: a closure would not have the instruction set.
    let mut tile = TILE.take();
    let stride = cols + PAD;
    if tile.len() < task.rows * stride {
        tile.resize(task.rows * stride, 0.0);
    }
    for row in 0..task.rows {
        let out = &mut tile[row * stride..row * stride + cols];
        // SAFETY: one row of the matrix and room for its weights.
        unsafe { decode::decode_row::<S>(weight.dtype, weight.row(task.from + row), out) };
    }
    let chunk = (TOKEN_FLOATS / cols).max(1).next_multiple_of(S::TOKENS);
    for token in (0..task.tokens()).step_by(chunk) {
        let end = (token + chunk).min(task.tokens());
        for row in (0..task.rows).step_by(4) {
            if token == 0 {
                // SAFETY: the caller's promise.
                unsafe { prefetch_rows::<S>(weight, task.from + task.stride + row) };
            }
            let weights = four_rows(tile.as_ptr().cast(), 4 * stride, row, task.rows);
            // SAFETY: the tile holds `task.rows` rows of `cols` f32, and tokens `token..end` exist.
            unsafe { strip::<S>(task, weights, [token, end, task.from + row]) };
        }
    }
    TILE.set(tile);
}

/// Asks for four stored rows from `row`, as far as they exist, while others are multiplied: memory need not idle then.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn prefetch_rows<S: Simd>(weight: &WeightMatrix<'_>, row: usize) {
    const LINE: usize = 64;
    let row_bytes = weight.row_bytes();
    let (from, to) = (row * row_bytes, (row + 4) * row_bytes);
    for line in weight.bytes.get(from..to.min(weight.bytes.len())).unwrap_or(&[]).chunks(LINE) {
        // SAFETY: the caller's promise.
        unsafe { S::prefetch(line.as_ptr()) };
    }
}

/// Four decoded rows against tokens `at[0]..at[1]`; `at[2]` is the first row's index in the matrix.
///
/// # Safety
/// `weights` are good for `cols` f32 each; the tokens exist.
#[inline(always)]
unsafe fn strip<S: Simd>(task: &RowTask<'_>, weights: [*const u8; 4], at: [usize; 3]) {
    let [mut token, end, row] = at;
    let reach = Reach { blocks: task.weight.cols / decode::F32::LEN, ahead: 0 };
    // SAFETY: the caller's promise; each call takes tokens below `end`.
    unsafe {
        while S::TOKENS == 6 && token + 6 <= end {
            product::<S, decode::F32, 6>(task, weights, [token, row], reach);
            token += 6;
        }
        while S::TOKENS >= 3 && token + 3 <= end {
            product::<S, decode::F32, 3>(task, weights, [token, row], reach);
            token += 3;
        }
        while token + 2 <= end {
            product::<S, decode::F32, 2>(task, weights, [token, row], reach);
            token += 2;
        }
        if token < end {
            product::<S, decode::F32, 1>(task, weights, [token, row], reach);
        }
    }
}
