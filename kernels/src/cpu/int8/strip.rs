//! A strip: some blocks of one group of rows against some tokens, cut into register tiles.
//!
//! Invariant: a strip that starts behind the first block goes on from the sums that the one before it has stored, so that
//! cutting a row changes no bit; the bias is added behind the last block. Cost: nothing is allocated.

// Arrays of `R` by `T` registers are walked side by side; `zip` would hide which.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::{
    GroupTask,
    activations::BLOCK_BYTES,
    lanes::Lanes,
    layouts::Layout,
    tile::{self, Sums, Tokens},
};
use crate::packed::geometry::{BLOCK, ROWS};

/// Blocks `first .. first + count` of a group, all or some, decoded or not.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) group: usize,
    /// Block `first` of the group.
    pub(super) weights: *const u8,
    pub(super) first: usize,
    pub(super) count: usize,
}

/// A piece against some tokens.
pub(super) struct Strip<'a> {
    pub(super) task: &'a GroupTask<'a>,
    pub(super) piece: Piece,
    pub(super) tokens: Range<usize>,
    /// Weights that this thread probably reads next: asked for bit by bit, so that memory need not idle meanwhile.
    pub(super) ahead: &'a [u8],
}

/// A piece of a group against some tokens.
///
/// # Safety
/// As for [`Lanes`] and [`super::run`]; the piece is of layout `L`.
#[inline(always)]
pub(super) unsafe fn strip<S: Lanes, L: Layout>(_: S, args: &Strip<'_>) {
    let Range { start: mut token, end } = args.tokens;
    let (task, piece) = (args.task, args.piece);
    let begin = token;
    // SAFETY: the caller's promise; each call takes tokens below `end`.
    unsafe {
        while S::TILE >= 8 && token + 8 <= end {
            ask::<S>(args, [token - begin, 8]);
            rows::<S, L, 8>(task, piece, token);
            token += 8;
        }
        while S::TILE >= 4 && token + 4 <= end {
            ask::<S>(args, [token - begin, 4]);
            rows::<S, L, 4>(task, piece, token);
            token += 4;
        }
        while token + 2 <= end {
            ask::<S>(args, [token - begin, 2]);
            rows::<S, L, 2>(task, piece, token);
            token += 2;
        }
        if token < end {
            rows::<S, L, 1>(task, piece, token);
        }
    }
}

/// Asks for the share of the next weights that falls to `at[1]` tokens from `at[0]`. One token alone asks for nothing: it
/// reads so fast that the hardware is ahead of it.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn ask<S: Lanes>(args: &Strip<'_>, [from, count]: [usize; 2]) {
    const LINE: usize = 64;
    let (all, tokens) = (args.ahead.len(), args.tokens.len());
    for line in args.ahead[all * from / tokens..all * (from + count) / tokens].chunks(LINE) {
        // SAFETY: the caller's promise.
        unsafe { S::prefetch(line.as_ptr()) };
    }
}

/// A piece against `T` tokens from `token`.
///
/// # Safety
/// As for [`strip`].
#[inline(always)]
unsafe fn rows<S: Lanes, L: Layout, const T: usize>(task: &GroupTask<'_>, piece: Piece, token: usize) {
    // SAFETY: the caller's promise; lanes stay below 16.
    unsafe {
        if S::NARROW == 2 && L::BITS == 4 {
            register_tile::<S, L, 2, T>(task, piece, [token, 0]);
        } else {
            for lane in (0..ROWS).step_by(S::LANES) {
                register_tile::<S, L, 1, T>(task, piece, [token, lane]);
            }
        }
    }
}

/// One register tile; `at` is `[first token, first row of the group]`.
///
/// # Safety
/// As for [`strip`].
#[inline(always)]
unsafe fn register_tile<S: Lanes, L: Layout, const R: usize, const T: usize>(
    task: &GroupTask<'_>,
    piece: Piece,
    [token, lane]: [usize; 2],
) {
    let blocks = task.weight.cols() / BLOCK;
    let row = piece.group * ROWS + lane;
    // SAFETY: the caller's promise.
    unsafe {
        for t in 0..T {
            prefetch::<S>(task, token + t, row);
        }
        let mut sums: Sums<S::V, R, T> = [[S::zero(); T]; R];
        if piece.first > 0 {
            for v in 0..R {
                for t in 0..T {
                    sums[v][t] = load::<S>(task, token + t, row + v * S::LANES);
                }
            }
        }
        let first = task.x.as_ptr().add(token * blocks + piece.first).cast();
        let x = Tokens { first, stride: blocks * BLOCK_BYTES };
        tile::run::<S, L, R, T>((piece.weights, lane), x, piece.count, &mut sums);
        let bias = if piece.first + piece.count == blocks { task.bias } else { None };
        for v in 0..R {
            for t in 0..T {
                store::<S>(task, (token + t, row + v * S::LANES), sums[v][t], bias);
            }
        }
    }
}

/// Asks for the places of 16 results before they are computed: each token's lie in a page of its own, and stores would
/// wait for one line of memory after the other.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
unsafe fn prefetch<S: Lanes>(task: &GroupTask<'_>, token: usize, row: usize) {
    let rows = task.weight.rows();
    let count = rows.saturating_sub(row).min(ROWS);
    if count > 0 {
        // SAFETY: tasks have disjoint rows, and nothing is read or written here.
        unsafe {
            let out = task.out.part(token * rows + row, count);
            S::prefetch(out.as_ptr().cast());
            S::prefetch(out.as_ptr().add(count - 1).cast());
        }
    }
}

/// What an earlier piece has stored; anything for rows past the last.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
unsafe fn load<S: Lanes>(task: &GroupTask<'_>, token: usize, row: usize) -> S::V {
    let rows = task.weight.rows();
    let count = rows.saturating_sub(row).min(S::LANES);
    let mut values = [0.0; ROWS];
    // SAFETY: tasks have disjoint rows, so these places belong to this task alone; `LANES` is at most 16.
    unsafe {
        if count == S::LANES {
            return S::load(task.out.part(token * rows + row, count).as_ptr());
        }
        if count > 0 {
            values[..count].copy_from_slice(task.out.part(token * rows + row, count));
        }
        S::load(values.as_ptr())
    }
}

/// Stores what exists of the rows from `row`, with the bias if this is the last piece.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
unsafe fn store<S: Lanes>(task: &GroupTask<'_>, (token, row): (usize, usize), sum: S::V, bias: Option<&[f32]>) {
    let rows = task.weight.rows();
    let count = rows.saturating_sub(row).min(S::LANES);
    if count == 0 {
        return;
    }
    // SAFETY: tasks have disjoint rows, so these places belong to this task alone; `LANES` is at most 16.
    unsafe {
        let out = task.out.part(token * rows + row, count);
        let mut terms = [0.0; ROWS];
        if let Some(bias) = bias {
            terms[..count].copy_from_slice(&bias[row..row + count]);
        }
        let sum = if bias.is_some() { S::add(sum, S::load(terms.as_ptr())) } else { sum };
        if count == S::LANES {
            return S::store(out.as_mut_ptr(), sum);
        }
        S::store(terms.as_mut_ptr(), sum);
        out.copy_from_slice(&terms[..count]);
    }
}
