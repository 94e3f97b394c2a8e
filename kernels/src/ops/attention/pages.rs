//! How keys and values lie in pages, and how they get there. Tolerance of [`store_kv`] against
//! `reference::attention::rounded_f16`: none.
//!
//! Invariant: pages of f16 hold finite numbers for finite values. Cost of storing: one pass over the new keys and values;
//! a key's columns lie `block_size` places apart.

use half::f16;

use super::{AttentionSlot, check_slot};
use crate::{
    cpu::store_kv::store,
    device::Device,
    error::KernelError,
    tensor::{Rows, check},
};

const STORE: &str = "store_kv";

/// What pages hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvDtype {
    F32,
    #[default]
    F16,
}

impl KvDtype {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            KvDtype::F32 => size_of::<f32>(),
            KvDtype::F16 => size_of::<f16>(),
        }
    }
}

/// Keys and values of one layer. Keys are `blocks × kv_heads × head_dim × block_size`, so that neighbouring positions lie
/// side by side; values are `blocks × kv_heads × block_size × head_dim`.
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
    /// Keys (or values) in a block, all KV heads.
    pub fn block_values(&self) -> usize {
        self.kv_heads * self.block_size * self.head_dim
    }

    /// Keys (or values) in a layer.
    pub fn values(&self) -> usize {
        self.blocks.saturating_mul(self.block_values())
    }

    /// Where what belongs to `kv_head` in `block` starts, for keys and values alike.
    pub fn offset(&self, block: u32, kv_head: usize) -> usize {
        block as usize * self.block_values() + kv_head * self.block_size * self.head_dim
    }
}

/// One layer's pages, `KvLayout::values` each.
#[derive(Debug, Clone, Copy)]
pub enum Pages<'a> {
    F32 { keys: &'a [f32], values: &'a [f32] },
    F16 { keys: &'a [f16], values: &'a [f16] },
}

impl Pages<'_> {
    /// How many keys, and how many values.
    pub(super) fn lens(&self) -> [usize; 2] {
        match self {
            Pages::F32 { keys, values } => [keys.len(), values.len()],
            Pages::F16 { keys, values } => [keys.len(), values.len()],
        }
    }
}

/// One layer's pages, to be written.
#[derive(Debug)]
pub enum PagesMut<'a> {
    F32 { keys: &'a mut [f32], values: &'a mut [f32] },
    F16 { keys: &'a mut [f16], values: &'a mut [f16] },
}

/// Copies the slots' rows of keys and values (`tokens × (kv_heads * head_dim)` each) into their pages, rounded to what
/// those hold. No block may be written by two slots, nor appear twice among those that one writes.
pub fn store_kv(
    device: &Device,
    layout: &KvLayout,
    (keys, values, slots): (Rows<'_>, Rows<'_>, &[AttentionSlot<'_>]),
    pages: PagesMut<'_>,
) -> Result<(), KernelError> {
    for rows in [keys, values] {
        check(STORE, "columns", rows.cols, layout.kv_heads * layout.head_dim)?;
        check(STORE, "rows of values", rows.rows, keys.rows)?;
    }
    let lens = match &pages {
        PagesMut::F32 { keys, values } => [keys.len(), values.len()],
        PagesMut::F16 { keys, values } => [keys.len(), values.len()],
    };
    for len in lens {
        check(STORE, "cache values", len, layout.values())?;
    }
    check(STORE, "head size modulo 16", layout.head_dim % 16, 0)?;
    let mut written = Vec::new();
    for slot in slots {
        check_slot(layout, slot, keys.rows)?;
        let (first, end) = (slot.position, slot.position + slot.tokens);
        written.extend_from_slice(&slot.blocks[first / layout.block_size..end.div_ceil(layout.block_size)]);
    }
    written.sort_unstable();
    let twice = written.windows(2).filter(|pair| pair[0] == pair[1]).count();
    check(STORE, "blocks written twice", twice, 0)?;
    match pages {
        PagesMut::F32 { keys: to_keys, values: to_values } => {
            store(device, layout, (keys, values, slots), (to_keys, to_values));
        }
        PagesMut::F16 { keys: to_keys, values: to_values } => {
            store(device, layout, (keys, values, slots), (to_keys, to_values));
        }
    }
    Ok(())
}
