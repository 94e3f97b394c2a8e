//! Causal attention of some query tokens over one KV head's pages: a matrix product, a softmax, a matrix product, one
//! tile of [`KEY_TILE`] keys after the other.
//!
//! The rows of both products are the task's query tokens times the query heads that share the KV head, so each key and
//! value is read from memory and widened to f32 once a task. Tiles begin at multiples of [`KEY_TILE`] positions; each
//! gives its own maximum, sum and weighted values, and they are merged in order ([`softmax::merge`]).
//!
//! Invariant: a query token's result is a function of its window's positions and of nothing else, in position order,
//! whatever other tokens are in the task: places outside the window weigh exactly 0, and adding `0 * value` or merging
//! nothing changes no bit. (Values of later tokens of one task must be finite for that; if they are not, the sequence is
//! lost anyway.) Cost: `4 * heads * head_dim * context` operations a token (a window in place of the context where it
//! is shorter); scratch, kept between calls: about 200 KiB a thread with heads of 64, 600 KiB with heads of 256.

mod element;
mod product;
mod softmax;
mod stage;

use std::{cell::RefCell, ops::Range};

pub(crate) use element::Element;
use product::{PANEL, Product, product};
pub(crate) use softmax::part_floats;

use super::{aligned::AlignedBytes, shared_out::SharedOut, simd::Simd};
use crate::ops::attention::{AttentionShape, AttentionSlot};

/// Keys multiplied at a time.
pub(crate) const KEY_TILE: usize = 128;
/// Places from one row of scores to the next: rows of a power of two would compete for the same places in the caches.
const SCORE_STRIDE: usize = KEY_TILE + PANEL;
/// f32 of queries that a task should have at most: 32 KiB, one row at least.
const QUERY_FLOATS: usize = 8 * 1024;

thread_local! {
    static SCRATCH: RefCell<AlignedBytes> = RefCell::default();
}

/// Most query tokens in a task.
pub(crate) fn query_tile(shape: &AttentionShape) -> usize {
    let group = shape.heads / shape.cache.kv_heads.max(1);
    (QUERY_FLOATS / (group * shape.cache.head_dim).max(1)).max(1)
}

/// Where results go.
pub(crate) enum Target<'a> {
    /// The finished rows, laid out as the queries.
    Rows(&'a SharedOut<'a>),
    /// What each key tile of the task gives, unmerged, from place `from`: [`part_floats`] for each row of each tile.
    Parts { parts: &'a SharedOut<'a>, from: usize },
}

/// Query tokens `from..from + tokens` of one slot, for the query heads of one KV head, over some tiles of keys.
pub(crate) struct HeadTask<'a, E> {
    pub(crate) shape: &'a AttentionShape,
    pub(crate) slot: &'a AttentionSlot<'a>,
    pub(crate) queries: &'a [f32],
    pub(crate) keys: &'a [E],
    pub(crate) values: &'a [E],
    pub(crate) kv_head: usize,
    /// First token, counted inside the slot.
    pub(crate) from: usize,
    pub(crate) tokens: usize,
    /// Tiles of [`HeadTask::all_tiles`].
    pub(crate) tiles: Range<usize>,
    pub(crate) target: Target<'a>,
}

impl<E> HeadTask<'_, E> {
    fn group(&self) -> usize {
        self.shape.heads / self.shape.cache.kv_heads
    }

    /// Rows of the products: query heads of the group, token by token.
    fn rows(&self) -> usize {
        self.tokens * self.group()
    }

    /// Where row `row` lies in queries and results.
    fn at(&self, row: usize) -> usize {
        let (token, head) = (self.from + row / self.group(), self.kv_head * self.group() + row % self.group());
        ((self.slot.first_row + token) * self.shape.heads + head) * self.shape.cache.head_dim
    }

    /// Where the result of the first row goes.
    pub(crate) fn first_place(&self) -> usize {
        self.at(0)
    }

    /// Positions that row `row` attends to.
    fn window(&self, row: usize) -> Range<usize> {
        let end = self.slot.position + self.from + row / self.group() + 1;
        end.saturating_sub(self.shape.window)..end
    }

    /// Of tile `tile`, the places that rows `rows` attend to, from the first row's first to the last row's last.
    fn visible(&self, rows: Range<usize>, tile: usize) -> Range<usize> {
        let inside = |position: usize| position.saturating_sub(tile * KEY_TILE).min(KEY_TILE);
        let (from, to) = (self.window(rows.start).start, self.window(rows.end - 1).end);
        inside(from)..inside(to)
    }

    /// The tiles that any token attends to.
    pub(crate) fn all_tiles(&self) -> Range<usize> {
        self.window(0).start / KEY_TILE..self.window(self.rows() - 1).end.div_ceil(KEY_TILE)
    }
}

/// The parts of a thread's scratch.
struct Scratch<'a> {
    /// `rows × head_dim`, scaled.
    queries: &'a mut [f32],
    /// `rows × SCORE_STRIDE`: scores, then weights.
    scores: &'a mut [f32],
    /// Panels of [`PANEL`] keys, `head_dim × PANEL` each.
    keys: &'a mut [f32],
    /// Panels of [`PANEL`] columns, `KEY_TILE × PANEL` each.
    values: &'a mut [f32],
    /// `rows × head_dim`: weighted values of one tile.
    mixed: &'a mut [f32],
    /// `rows × head_dim`: weighted values of the tiles so far.
    out: &'a mut [f32],
    /// Maximum and sum of each row: of the tile, and of the tiles so far.
    tile: &'a mut [[f32; 2]],
    total: &'a mut [[f32; 2]],
}

impl<'a> Scratch<'a> {
    fn floats(rows: usize, head_dim: usize) -> usize {
        rows * (3 * head_dim + SCORE_STRIDE + 4) + 2 * KEY_TILE * head_dim
    }

    /// Cuts `floats`, which has [`Scratch::floats`] values.
    fn new(floats: &'a mut [f32], rows: usize, head_dim: usize) -> Self {
        let (keys, rest) = floats.split_at_mut(KEY_TILE * head_dim);
        let (values, rest) = rest.split_at_mut(KEY_TILE * head_dim);
        let (queries, rest) = rest.split_at_mut(rows * head_dim);
        let (mixed, rest) = rest.split_at_mut(rows * head_dim);
        let (out, rest) = rest.split_at_mut(rows * head_dim);
        let (scores, rest) = rest.split_at_mut(rows * SCORE_STRIDE);
        let (tile, total) = rest.split_at_mut(2 * rows);
        let (tile, total) = (tile.as_chunks_mut().0, total.as_chunks_mut().0);
        Self { queries, scores, keys, values, mixed, out, tile, total }
    }
}

/// # Safety
/// As for [`Simd`]; `ops::attention` has checked the shapes: `head_dim` is a multiple of 16, blocks exist. The results
/// are this task's alone.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd, E: Element>(_: S, task: &HeadTask<'_, E>) {
    let (rows, head_dim) = (task.rows(), task.shape.cache.head_dim);
    let floats = Scratch::floats(rows, head_dim);
    // Taken out and put back rather than borrowed in a closure: a closure would not have the instruction set.
    let mut memory = SCRATCH.take();
    if memory.floats() < floats {
        memory = AlignedBytes::zeroed(4 * floats);
    }
    let mut scratch = Scratch::new(&mut memory.floats_mut()[..floats], rows, head_dim);
    stage::queries(task, scratch.queries);
    for tile in task.tiles.clone() {
        // SAFETY: the caller's promise.
        unsafe { one_tile::<S, E>(task, tile, &mut scratch) };
        match &task.target {
            Target::Rows(_) if tile == task.tiles.start => {
                scratch.out.copy_from_slice(scratch.mixed);
                scratch.total.copy_from_slice(scratch.tile);
            }
            Target::Rows(_) => {
                for row in 0..rows {
                    let columns = row * head_dim..(row + 1) * head_dim;
                    let sofar = (&mut scratch.out[columns.clone()], &mut scratch.total[row]);
                    // SAFETY: the caller's promise; both are rows of `head_dim`.
                    unsafe { softmax::merge::<S>(sofar, (&scratch.mixed[columns], scratch.tile[row])) };
                }
            }
            Target::Parts { parts, from } => {
                let len = part_floats(head_dim);
                for row in 0..rows {
                    // SAFETY: the parts of this task's tiles are its alone.
                    let part = unsafe { parts.part(from + ((tile - task.tiles.start) * rows + row) * len, len) };
                    part[..head_dim].copy_from_slice(&scratch.mixed[row * head_dim..(row + 1) * head_dim]);
                    part[head_dim..].copy_from_slice(&scratch.tile[row]);
                }
            }
        }
    }
    if let Target::Rows(out) = &task.target {
        for row in 0..rows {
            // SAFETY: the caller's promise.
            let out = unsafe { out.part(task.at(row), head_dim) };
            softmax::divide(&scratch.out[row * head_dim..(row + 1) * head_dim], scratch.total[row], out);
        }
    }
    SCRATCH.set(memory);
}

/// Maxima, sums and weighted values of one tile, for every row.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn one_tile<S: Simd, E: Element>(task: &HeadTask<'_, E>, tile: usize, scratch: &mut Scratch<'_>) {
    let (rows, head_dim) = (task.rows(), task.shape.cache.head_dim);
    let all = task.visible(0..rows, tile);
    // SAFETY: the caller's promise; the scratch has the sizes that the products name.
    unsafe {
        stage::keys::<S, E>(task, (tile, all.clone()), scratch.keys);
        let scores = Product {
            left: (scratch.queries, head_dim),
            right: (scratch.keys, head_dim * PANEL),
            out: (scratch.scores, SCORE_STRIDE),
            rows,
        };
        // A panel of keys that a register tile's rows don't see is left out: `visible` covers none of it.
        product::<S>(scores, all.start / PANEL..all.end.div_ceil(PANEL), |rows, panel| {
            let seen = task.visible(rows, tile);
            if seen.start < (panel + 1) * PANEL && panel * PANEL < seen.end { 0..head_dim } else { 0..0 }
        });
        for row in 0..rows {
            let scores = &mut scratch.scores[row * SCORE_STRIDE..row * SCORE_STRIDE + KEY_TILE];
            scratch.tile[row] = softmax::weights::<S>(scores, task.visible(row..row + 1, tile));
        }
        stage::values::<S, E>(task, (tile, all), scratch.values);
        let mixed = Product {
            left: (scratch.scores, SCORE_STRIDE),
            right: (scratch.values, KEY_TILE * PANEL),
            out: (scratch.mixed, head_dim),
            rows,
        };
        product::<S>(mixed, 0..head_dim / PANEL, |rows, _| task.visible(rows, tile));
    }
}

/// Rows of results merged from parts.
pub(crate) struct MergeTask<'a> {
    /// Tile by tile, `rows` parts each.
    pub(crate) parts: &'a mut [f32],
    pub(crate) rows: usize,
    pub(crate) head_dim: usize,
    /// Where the first row's result goes; the others follow.
    pub(crate) at: usize,
    pub(crate) out: &'a SharedOut<'a>,
}

/// # Safety
/// As for [`Simd`]; the result rows exist and are this task's alone.
#[inline(always)]
pub(crate) unsafe fn merge_parts<S: Simd>(_: S, task: &mut MergeTask<'_>) {
    let (len, head_dim) = (part_floats(task.head_dim), task.head_dim);
    let (total, others) = task.parts.split_at_mut(task.rows * len);
    for (row, total) in total.chunks_exact_mut(len).enumerate() {
        let (sofar, state) = total.split_at_mut(head_dim);
        let mut state = [state[0], state[1]];
        for tile in others.chunks_exact(task.rows * len) {
            let part = &tile[row * len..(row + 1) * len];
            // SAFETY: the caller's promise; both are rows of `head_dim`.
            unsafe {
                softmax::merge::<S>((sofar, &mut state), (&part[..head_dim], [part[head_dim], part[head_dim + 1]]))
            };
        }
        // SAFETY: the caller's promise.
        softmax::divide(sofar, state, unsafe { task.out.part(task.at + row * head_dim, head_dim) });
    }
}
