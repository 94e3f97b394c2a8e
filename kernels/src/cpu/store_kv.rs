//! Keys and values of new tokens on their way into pages.
//!
//! Invariant: `ops` has checked that slots, rows and pages fit, and that no block is written twice. Cost: one pass over the new
//! keys and values; a key's columns lie `block_size` places apart.

use super::{attention::Element, shared_out::SharedOut};
use crate::{
    device::Device,
    ops::attention::{AttentionSlot, KvLayout},
    tensor::Rows,
};

/// Tokens that one task stores.
const STORE_TOKENS: usize = 64;

pub(crate) fn store<E: Element + Send>(
    device: &Device,
    layout: &KvLayout,
    (keys, values, slots): (Rows<'_>, Rows<'_>, &[AttentionSlot<'_>]),
    (to_keys, to_values): (&mut [E], &mut [E]),
) {
    let (to_keys, to_values) = (SharedOut::new(to_keys), SharedOut::new(to_values));
    let tasks: Vec<(usize, usize)> = slots
        .iter()
        .enumerate()
        .flat_map(|(slot, new)| (0..new.tokens).step_by(STORE_TOKENS).map(move |from| (slot, from)))
        .collect();
    let one = |slot: &AttentionSlot<'_>, token: usize| {
        let (position, row) = (slot.position + token, slot.first_row + token);
        let (block, place) = (slot.blocks[position / layout.block_size], position % layout.block_size);
        let heads = keys.row(row).chunks_exact(layout.head_dim).zip(values.row(row).chunks_exact(layout.head_dim));
        for (head, (keys, values)) in heads.enumerate() {
            let page = layout.offset(block, head);
            // SAFETY: tasks have tokens of their own, and those have places of their own: no block is written twice.
            let row = unsafe { to_values.part(page + place * layout.head_dim, layout.head_dim) };
            for (to, values) in row.as_chunks_mut().0.iter_mut().zip(values.as_chunks().0) {
                *to = E::round(values);
            }
            for (sixteenth, keys) in keys.as_chunks().0.iter().enumerate() {
                for (column, key) in (16 * sixteenth..).zip(E::round(keys)) {
                    // SAFETY: as above.
                    let place = unsafe { to_keys.part(page + column * layout.block_size + place, 1) };
                    place[0] = key;
                }
            }
        }
    };
    let body = |index: usize| {
        let (slot, from) = tasks[index];
        let slot = &slots[slot];
        (from..(from + STORE_TOKENS).min(slot.tokens)).for_each(|token| one(slot, token));
    };
    let tokens: usize = slots.iter().map(|slot| slot.tokens).sum();
    if tokens > STORE_TOKENS {
        device.parallel(tasks.len(), &body);
    } else {
        (0..tasks.len()).for_each(body);
    }
}
