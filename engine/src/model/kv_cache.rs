//! Keys and values of all layers, in pages (SPEC C1).
//!
//! Each layer has an anonymous map of its keys and one of its values: the operating system gives zeroed memory where a
//! page of it is first written, so a pool takes as much memory as the blocks that were ever used. (A vector of zeros may
//! be cut from memory that the allocator has at hand and then clears: all of it, at once.)
//!
//! Invariant: both maps hold the layout's blocks exactly. Cost: `block_bytes` a block that was used; copies are one
//! `memcpy` a layer and half.

use half::{f16, slice::HalfBitsSliceExt};
use kernels::ops::attention::{KvDtype, KvLayout, Pages, PagesMut};
use memmap2::MmapMut;

/// The pages of a model.
#[derive(Debug)]
pub struct KvCache {
    pub layout: KvLayout,
    pub dtype: KvDtype,
    layers: Vec<LayerCache>,
}

#[derive(Debug)]
struct LayerCache {
    keys: MmapMut,
    values: MmapMut,
}

impl KvCache {
    /// `None` if the memory cannot be had.
    pub fn new(layers: usize, layout: KvLayout, dtype: KvDtype) -> Option<Self> {
        let bytes = layout.blocks.checked_mul(layout.block_values())?.checked_mul(dtype.bytes())?;
        let half = || MmapMut::map_anon(bytes).ok();
        let layers = (0..layers).map(|_| Some(LayerCache { keys: half()?, values: half()? })).collect::<Option<_>>()?;
        Some(Self { layout, dtype, layers })
    }

    /// Bytes of keys and values in one block, over all layers.
    pub fn block_bytes(&self) -> usize {
        2 * self.layers.len() * self.half_block()
    }

    /// Bytes of one layer's keys, or values, in one block.
    fn half_block(&self) -> usize {
        self.layout.block_values() * self.dtype.bytes()
    }

    /// The pages of layer `index`; panics if there is no such layer.
    pub fn layer(&self, index: usize) -> Pages<'_> {
        let LayerCache { keys, values } = &self.layers[index];
        match self.dtype {
            KvDtype::F32 => Pages::F32 { keys: bytemuck::cast_slice(keys), values: bytemuck::cast_slice(values) },
            KvDtype::F16 => Pages::F16 { keys: halves(keys), values: halves(values) },
        }
    }

    /// As [`KvCache::layer`], to be written.
    pub fn layer_mut(&mut self, index: usize) -> PagesMut<'_> {
        let LayerCache { keys, values } = &mut self.layers[index];
        match self.dtype {
            KvDtype::F32 => {
                PagesMut::F32 { keys: bytemuck::cast_slice_mut(keys), values: bytemuck::cast_slice_mut(values) }
            }
            KvDtype::F16 => PagesMut::F16 { keys: halves_mut(keys), values: halves_mut(values) },
        }
    }

    /// Copies block `from` of another cache of the same model, block size and element to block `to`; both exist.
    pub fn copy_from(&mut self, (other, from): (&Self, u32), to: u32) {
        let len = self.half_block();
        let (from, to) = (from as usize * len, to as usize * len);
        for (layer, source) in self.layers.iter_mut().zip(&other.layers) {
            layer.keys[to..to + len].copy_from_slice(&source.keys[from..from + len]);
            layer.values[to..to + len].copy_from_slice(&source.values[from..from + len]);
        }
    }

    /// Copies block `from` to block `to` in every layer; both exist.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        let len = self.half_block();
        let (from, to) = (from as usize * len, to as usize * len);
        for layer in &mut self.layers {
            layer.keys.copy_within(from..from + len, to);
            layer.values.copy_within(from..from + len, to);
        }
    }
}

/// A map starts at a page of memory, so its alignment is that of any number.
fn halves(bytes: &[u8]) -> &[f16] {
    bytemuck::cast_slice::<u8, u16>(bytes).reinterpret_cast()
}

fn halves_mut(bytes: &mut [u8]) -> &mut [f16] {
    bytemuck::cast_slice_mut::<u8, u16>(bytes).reinterpret_cast_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a pool in either element, and one that no machine has memory for.
    /// Guarantees: pages are zero and as many as the layout says; a block is counted with both halves of all layers; what
    /// cannot be had is `None`.
    #[test]
    fn pages_are_the_layouts() {
        let layout = KvLayout { blocks: 3, block_size: 4, kv_heads: 2, head_dim: 16 };
        let full = KvCache::new(2, layout, KvDtype::F32).unwrap();
        let half = KvCache::new(2, layout, KvDtype::F16).unwrap();
        assert_eq!([full.block_bytes(), half.block_bytes()], [4 * 128 * 4, 4 * 128 * 2]);
        let Pages::F32 { keys, values } = full.layer(1) else { panic!("pages of f32") };
        assert_eq!([keys.len(), values.len()], [layout.values(); 2]);
        assert!(keys.iter().chain(values).all(|value| *value == 0.0));
        let Pages::F16 { keys, .. } = half.layer(1) else { panic!("pages of f16") };
        assert_eq!(keys, vec![f16::ZERO; layout.values()]);
        assert!(KvCache::new(1, KvLayout { blocks: usize::MAX / 4, ..layout }, KvDtype::F16).is_none());
    }
}
