//! Paged causal attention, prefill chunks and decode alike: a slot's new tokens attend to every earlier position in its
//! pages (or, in a sliding window, to the last of them) and to themselves. Tolerance against `reference::attention`: abs 1e-5, eps 1e-4.
//!
//! Also how keys and values get into the pages ([`store_kv`]).

use crate::{
    cpu::{
        attention::{self, HeadTask},
        for_isa,
        shared_out::SharedOut,
    },
    device::Device,
    error::KernelError,
    tensor::{Rows, check},
};

const OP: &str = "attention";

/// Most query tokens in a task: keys and values are read from memory once for so many.
pub const QUERY_TILE: usize = 8;

/// Keys (or values) of one layer: `blocks × kv_heads × block_size × head_dim`, f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    pub blocks: usize,
    /// Positions in a block.
    pub block_size: usize,
    pub kv_heads: usize,
    /// A multiple of 16.
    pub head_dim: usize,
}

impl KvLayout {
    /// Values in a block, all KV heads.
    pub fn block_values(&self) -> usize {
        self.kv_heads * self.block_size * self.head_dim
    }

    /// Values in a layer.
    pub fn values(&self) -> usize {
        self.blocks.saturating_mul(self.block_values())
    }

    /// Where the rows of `kv_head` in `block` start.
    pub fn offset(&self, block: u32, kv_head: usize) -> usize {
        block as usize * self.block_values() + kv_head * self.block_size * self.head_dim
    }
}

/// Heads and pages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    pub cache: KvLayout,
    /// Query heads, a multiple of `cache.kv_heads`.
    pub heads: usize,
    /// Scores are multiplied with this, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// A token attends to this many last positions, its own included; `usize::MAX` for all.
    pub window: usize,
}

/// New tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSlot<'a> {
    /// Row of the first new token in the batch.
    pub first_row: usize,
    /// New tokens; may be 0.
    pub tokens: usize,
    /// Position of the first new token in its sequence.
    pub position: usize,
    /// The block table, from position 0.
    pub blocks: &'a [u32],
}

/// What attention reads.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInput<'a> {
    /// `tokens × (heads * head_dim)`.
    pub queries: Rows<'a>,
    /// One layer's keys, see [`KvLayout`].
    pub keys: &'a [f32],
    /// One layer's values.
    pub values: &'a [f32],
    pub slots: &'a [AttentionSlot<'a>],
}

/// Computes the slots' rows of `out` (`tokens × (heads * head_dim)`). Keys and values of the new tokens are in the
/// pages already. Rows that no slot names are left alone; no two slots may name the same row.
pub fn attention(
    device: &Device,
    shape: &AttentionShape,
    input: AttentionInput<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    check_input(shape, &input, out)?;
    let tiles: Vec<(usize, usize, usize)> = input
        .slots
        .iter()
        .enumerate()
        .flat_map(|(slot, new)| {
            (0..new.tokens).step_by(QUERY_TILE).map(move |from| (slot, from, QUERY_TILE.min(new.tokens - from)))
        })
        .collect();
    let (out, isa, kv_heads) = (SharedOut::new(out), device.isa(), shape.cache.kv_heads);
    device.parallel(tiles.len() * kv_heads, &|index| {
        // The last tiles of a prefill have the longest context: they go first.
        let (slot, from, tokens) = tiles[tiles.len() - 1 - index / kv_heads];
        let task = HeadTask {
            shape,
            slot: &input.slots[slot],
            queries: input.queries.values,
            keys: input.keys,
            values: input.values,
            out: &out,
            kv_head: index % kv_heads,
            from,
            tokens,
        };
        for_isa!(isa, attention::run, &task, &HeadTask<'_>)
    });
    Ok(())
}

fn check_input(shape: &AttentionShape, input: &AttentionInput<'_>, out: &[f32]) -> Result<(), KernelError> {
    let cache = &shape.cache;
    check(OP, "window of 0 positions", usize::from(shape.window == 0), 0)?;
    check(OP, "head size modulo 16", cache.head_dim % 16, 0)?;
    check(OP, "query heads modulo KV heads", shape.heads % cache.kv_heads.max(1), 0)?;
    check(OP, "query columns", input.queries.cols, shape.heads * cache.head_dim)?;
    check(OP, "output values", out.len(), input.queries.values.len())?;
    check(OP, "key values", input.keys.len(), cache.values())?;
    check(OP, "value values", input.values.len(), cache.values())?;
    let mut rows = vec![false; input.queries.rows];
    for slot in input.slots {
        check_slot(cache, slot, input.queries.rows)?;
        for row in &mut rows[slot.first_row..slot.first_row + slot.tokens] {
            check(OP, "slots that name a row", 1 + usize::from(*row), 1)?;
            *row = true;
        }
    }
    Ok(())
}

/// The slot's rows are in the batch, its pages reach to its last token, and all of them exist.
fn check_slot(cache: &KvLayout, slot: &AttentionSlot<'_>, rows: usize) -> Result<(), KernelError> {
    if slot.first_row > rows || slot.tokens > rows - slot.first_row {
        let got = slot.first_row.saturating_add(slot.tokens);
        return Err(KernelError::Shape { op: OP, what: "last row of a slot", got, expected: rows });
    }
    let positions = slot.position.saturating_add(slot.tokens);
    if slot.blocks.len().saturating_mul(cache.block_size) < positions {
        let expected = positions.div_ceil(cache.block_size.max(1));
        return Err(KernelError::Shape { op: OP, what: "blocks of a slot", got: slot.blocks.len(), expected });
    }
    match slot.blocks.iter().find(|block| **block as usize >= cache.blocks) {
        Some(block) => {
            Err(KernelError::Shape { op: OP, what: "block number", got: *block as usize, expected: cache.blocks - 1 })
        }
        None => Ok(()),
    }
}

/// Copies the slots' rows of `rows` (`tokens × (kv_heads * head_dim)`) into their pages in `cache`.
pub fn store_kv(
    layout: &KvLayout,
    rows: Rows<'_>,
    slots: &[AttentionSlot<'_>],
    cache: &mut [f32],
) -> Result<(), KernelError> {
    check("store_kv", "columns", rows.cols, layout.kv_heads * layout.head_dim)?;
    check("store_kv", "cache values", cache.len(), layout.values())?;
    for slot in slots {
        check_slot(layout, slot, rows.rows)?;
        for token in 0..slot.tokens {
            let position = slot.position + token;
            let block = slot.blocks[position / layout.block_size];
            for (head, values) in rows.row(slot.first_row + token).chunks_exact(layout.head_dim).enumerate() {
                let at = layout.offset(block, head) + position % layout.block_size * layout.head_dim;
                cache[at..at + layout.head_dim].copy_from_slice(values);
            }
        }
    }
    Ok(())
}
