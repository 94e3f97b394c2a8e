//! Queries, keys and values of a task into scratch, as f32 in the order that the products read.
//!
//! Pages hold keys with positions side by side and values with columns side by side, so both go over vector by vector.
//! Invariant: values of positions that no row sees are not read; keys may be, a panel at a time, and their scores are
//! not used. Cost: one load and one store a vector, once a task and tile; the next page is asked for meanwhile, since
//! pages are scattered and the hardware cannot guess it.

use std::ops::Range;

use super::{Element, HeadTask, KEY_TILE, PANEL};
use crate::cpu::simd::Simd;

/// `rows × head_dim`, scaled.
pub(super) fn queries<E>(task: &HeadTask<'_, E>, out: &mut [f32]) {
    let head_dim = task.shape.cache.head_dim;
    for (row, out) in out.chunks_exact_mut(head_dim).enumerate() {
        let at = task.at(row);
        for (out, query) in out.iter_mut().zip(&task.queries[at..at + head_dim]) {
            *out = query * task.shape.scale;
        }
    }
}

/// Keys of the tile `at.0`, places `at.1` at least, in panels of `head_dim × PANEL`.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
pub(super) unsafe fn keys<S: Simd, E: Element>(
    task: &HeadTask<'_, E>,
    (tile, places): (usize, Range<usize>),
    out: &mut [f32],
) {
    let (layout, base) = (&task.shape.cache, tile * KEY_TILE);
    let (block_size, head_dim) = (layout.block_size, layout.head_dim);
    let mut place = places.start / PANEL * PANEL;
    while place < places.end {
        let (block, first) = ((base + place) / block_size, (base + place) % block_size);
        let (panel, column) = (place / PANEL, place % PANEL);
        let count = (PANEL - column).min(block_size - first);
        let page = layout.offset(task.slot.blocks[block], task.kv_head);
        let page = &task.keys[page..page + head_dim * block_size];
        let next = task
            .slot
            .blocks
            .get(block + 1)
            .map_or(page.as_ptr(), |next| task.keys.as_ptr().wrapping_add(layout.offset(*next, task.kv_head)));
        let out = &mut out[panel * head_dim * PANEL..(panel + 1) * head_dim * PANEL];
        for (index, out) in out.chunks_exact_mut(PANEL).enumerate() {
            let from = &page[index * block_size + first..index * block_size + first + count];
            // SAFETY: the caller's promise; a whole panel's row has 16 places on both sides.
            unsafe {
                S::prefetch(next.wrapping_add(index * block_size + first).cast());
                if count == PANEL {
                    for at in (0..PANEL).step_by(S::LANES) {
                        S::store(out.as_mut_ptr().add(at), E::load::<S>(from.as_ptr().add(at)));
                    }
                    continue;
                }
            }
            for (out, value) in out[column..].iter_mut().zip(from) {
                *out = value.widen();
            }
        }
        place += count;
    }
}

/// Values of the tile `at.0`, places `at.1`, in panels of `KEY_TILE × PANEL`.
///
/// # Safety
/// As for [`super::run`].
#[inline(always)]
pub(super) unsafe fn values<S: Simd, E: Element>(
    task: &HeadTask<'_, E>,
    (tile, places): (usize, Range<usize>),
    out: &mut [f32],
) {
    let (layout, base) = (&task.shape.cache, tile * KEY_TILE);
    let (block_size, head_dim) = (layout.block_size, layout.head_dim);
    for place in places {
        let (block, row) = ((base + place) / block_size, (base + place) % block_size);
        let page = layout.offset(task.slot.blocks[block], task.kv_head);
        let from = &task.values[page + row * head_dim..page + (row + 1) * head_dim];
        let next = task.slot.blocks.get(block + 1).map_or(from.as_ptr(), |next| {
            task.values.as_ptr().wrapping_add(layout.offset(*next, task.kv_head) + row * head_dim)
        });
        for (panel, from) in from.chunks_exact(PANEL).enumerate() {
            let out = &mut out[(panel * KEY_TILE + place) * PANEL..][..PANEL];
            // SAFETY: the caller's promise; both sides have 16 places.
            unsafe {
                S::prefetch(next.wrapping_add(panel * PANEL).cast());
                for at in (0..PANEL).step_by(S::LANES) {
                    S::store(out.as_mut_ptr().add(at), E::load::<S>(from.as_ptr().add(at)));
                }
            }
        }
    }
}
