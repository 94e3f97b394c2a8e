//! Reading packed weights: unsigned bytes of a step, and the scale and offset of a block, one type per layout.
//!
//! Invariant: a weight is `scale · value + offset`; the layouts without a minimum have `offset = -zero · scale`, exact in
//! f32 (as is a K layout's product of scales). [`Unpacked`] is the same data decoded, so both give the same bits.

use super::lanes::Lanes;
use crate::{
    dtype::Dtype,
    packed::geometry::{Geometry, HALVES, ROWS, STEP},
    reference::dequantize::IQ4_VALUES,
};

/// One block of a group.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    unit: *const u8,
    /// Block of the unit.
    block: usize,
}

/// # Safety
/// Methods: as for [`Simd`]; pointers are to a whole group of the layout, `block`, `part`, `step`, `lane` in range.
pub(crate) trait Layout {
    /// Bits of a value.
    const BITS: usize;
    /// Scales of a block: 1, or 2 that are good for 16 columns each.
    const PARTS: usize;
    /// Block `block` of a group.
    unsafe fn spot(group: *const u8, block: usize) -> Spot;
    /// Scale and offset of part `part` for the rows from `lane`.
    unsafe fn scales<S: Lanes>(spot: Spot, part: usize, lane: usize) -> (S::V, S::V);
    /// The values of step `step` for the rows from `lane`.
    unsafe fn step<S: Lanes>(spot: Spot, step: usize, lane: usize) -> S::Bytes;
}

const fn geometry(dtype: Dtype) -> Geometry {
    Geometry::of(dtype).expect("invariant: only packed layouts have a reader")
}

/// # Safety
/// As for [`Layout::spot`].
#[inline(always)]
unsafe fn find(geometry: Geometry, group: *const u8, block: usize) -> Spot {
    let (unit, block) = (block / geometry.blocks, block % geometry.blocks);
    // SAFETY: the caller's promise.
    Spot { unit: unsafe { group.add(unit * geometry.unit_bytes()) }, block }
}

/// Values of four to eight bits from where a block's values start.
///
/// # Safety
/// As for [`Layout::step`].
#[inline(always)]
unsafe fn values<S: Lanes, const BITS: usize>(from: *const u8, step: usize, lane: usize) -> S::Bytes {
    // SAFETY: the caller's promise; see `packed::geometry` for the order.
    unsafe {
        let from = from.add(4 * lane);
        if BITS == 8 {
            return S::bytes(from.add(step * STEP));
        }
        let pair = S::bytes(from.add(step % 4 * STEP));
        let low = S::and(if step < 4 { pair } else { S::shift(pair, 4) }, 15);
        let step = step as i32;
        match BITS {
            4 => low,
            5 => S::or(low, S::and(S::shift(S::bytes(from.add(4 * STEP)), step - 4), 0x10)),
            _ => {
                let high = S::bytes(from.add((4 + step as usize / 4) * STEP));
                S::or(low, S::and(S::shift(high, 2 * (step % 4) - 4), 0x30))
            }
        }
    }
}

/// Layouts of one block a unit; `ZERO` is the value that stands for nought, 0 where a minimum is stored.
pub(crate) struct Flat<const BITS: usize, const ZERO: usize>;

impl<const BITS: usize, const ZERO: usize> Flat<BITS, ZERO> {
    const GEOMETRY: Geometry = Geometry { blocks: 1, head: if ZERO == 0 { 2 * HALVES } else { HALVES }, bits: BITS };
}

impl<const BITS: usize, const ZERO: usize> Layout for Flat<BITS, ZERO> {
    const BITS: usize = BITS;
    const PARTS: usize = 1;
    #[inline(always)]
    unsafe fn spot(group: *const u8, block: usize) -> Spot {
        // SAFETY: the caller's promise.
        unsafe { find(Self::GEOMETRY, group, block) }
    }
    #[inline(always)]
    unsafe fn scales<S: Lanes>(spot: Spot, _part: usize, lane: usize) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = S::load_f16(spot.unit.add(2 * lane));
            match ZERO {
                0 => (scale, S::load_f16(spot.unit.add(HALVES + 2 * lane))),
                _ => (scale, S::mul(scale, S::splat(-(ZERO as f32)))),
            }
        }
    }
    #[inline(always)]
    unsafe fn step<S: Lanes>(spot: Spot, step: usize, lane: usize) -> S::Bytes {
        // SAFETY: the caller's promise.
        unsafe { values::<S, BITS>(spot.unit.add(Self::GEOMETRY.head), step, lane) }
    }
}

/// IQ4_NL: nibbles that are looked up; read as bytes.
pub(crate) struct Table;

impl Table {
    /// The byte of value `v` is `v + ZERO`.
    const ZERO: i32 = 128;
    const BYTES: [u8; 16] = {
        let mut bytes = [0; 16];
        let mut index = 0;
        while index < 16 {
            bytes[index] = (IQ4_VALUES[index] as i32 + Self::ZERO) as u8;
            index += 1;
        }
        bytes
    };
}

impl Layout for Table {
    const BITS: usize = 8;
    const PARTS: usize = 1;
    #[inline(always)]
    unsafe fn spot(group: *const u8, block: usize) -> Spot {
        // SAFETY: the caller's promise.
        unsafe { Flat::<4, 8>::spot(group, block) }
    }
    #[inline(always)]
    unsafe fn scales<S: Lanes>(spot: Spot, _part: usize, lane: usize) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = S::load_f16(spot.unit.add(2 * lane));
            (scale, S::mul(scale, S::splat(-(Self::ZERO as f32))))
        }
    }
    #[inline(always)]
    unsafe fn step<S: Lanes>(spot: Spot, step: usize, lane: usize) -> S::Bytes {
        // SAFETY: the caller's promise; the nibbles lie as in Q4_0.
        unsafe { S::look_up(Flat::<4, 8>::step::<S>(spot, step, lane), &Self::BYTES) }
    }
}

/// Q4_K and Q5_K: scales and minimums are products of an f16 and six bits.
pub(crate) struct ScaledTwice<const BITS: usize>;

impl<const BITS: usize> ScaledTwice<BITS> {
    const GEOMETRY: Geometry = geometry(if BITS == 4 { Dtype::Q4K } else { Dtype::Q5K });
}

impl<const BITS: usize> Layout for ScaledTwice<BITS> {
    const BITS: usize = BITS;
    const PARTS: usize = 1;
    #[inline(always)]
    unsafe fn spot(group: *const u8, block: usize) -> Spot {
        // SAFETY: the caller's promise.
        unsafe { find(Self::GEOMETRY, group, block) }
    }
    #[inline(always)]
    unsafe fn scales<S: Lanes>(spot: Spot, _part: usize, lane: usize) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let small = spot.unit.add(2 * HALVES + spot.block * 2 * ROWS + lane);
            let scale = S::mul(S::load_f16(spot.unit.add(2 * lane)), S::load_u8(small));
            let least = S::mul(S::load_f16(spot.unit.add(HALVES + 2 * lane)), S::load_u8(small.add(ROWS)));
            (scale, S::sub(S::zero(), least))
        }
    }
    #[inline(always)]
    unsafe fn step<S: Lanes>(spot: Spot, step: usize, lane: usize) -> S::Bytes {
        let at = Self::GEOMETRY.head + spot.block * Self::GEOMETRY.block_bytes();
        // SAFETY: the caller's promise.
        unsafe { values::<S, BITS>(spot.unit.add(at), step, lane) }
    }
}

/// Q6_K: a signed 8-bit scale for every 16 columns.
pub(crate) struct Sixteenths;

impl Sixteenths {
    const GEOMETRY: Geometry = geometry(Dtype::Q6K);
}

impl Layout for Sixteenths {
    const BITS: usize = 6;
    const PARTS: usize = 2;
    #[inline(always)]
    unsafe fn spot(group: *const u8, block: usize) -> Spot {
        // SAFETY: the caller's promise.
        unsafe { find(Self::GEOMETRY, group, block) }
    }
    #[inline(always)]
    unsafe fn scales<S: Lanes>(spot: Spot, part: usize, lane: usize) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let small = spot.unit.add(HALVES + (2 * spot.block + part) * ROWS + lane);
            let scale = S::mul(S::load_f16(spot.unit.add(2 * lane)), S::load_i8(small));
            (scale, S::mul(scale, S::splat(-32.0)))
        }
    }
    #[inline(always)]
    unsafe fn step<S: Lanes>(spot: Spot, step: usize, lane: usize) -> S::Bytes {
        let at = Self::GEOMETRY.head + spot.block * Self::GEOMETRY.block_bytes();
        // SAFETY: the caller's promise.
        unsafe { values::<S, 6>(spot.unit.add(at), step, lane) }
    }
}

/// Decoded blocks of a group: `PARTS` times 16 f32 scales and 16 f32 offsets, then eight steps of bytes.
pub(crate) struct Unpacked<const BITS: usize, const PARTS: usize>;

impl<const BITS: usize, const PARTS: usize> Unpacked<BITS, PARTS> {
    /// f32 scales and offsets of a part.
    const PART_BYTES: usize = 2 * 4 * ROWS;
    pub(crate) const BLOCK_BYTES: usize = PARTS * Self::PART_BYTES + 8 * STEP;

    /// Decodes a block of `L` to `to`.
    ///
    /// # Safety
    /// As for [`Layout`]; `to` is good for `BLOCK_BYTES`; `L` has the bits and parts of this type.
    #[inline(always)]
    pub(crate) unsafe fn fill<S: Lanes, L: Layout>(to: *mut u8, spot: Spot) {
        // SAFETY: the caller's promise.
        unsafe {
            for lane in (0..ROWS).step_by(S::LANES) {
                for part in 0..PARTS {
                    let (scale, offset) = L::scales::<S>(spot, part, lane);
                    let to = to.add(part * Self::PART_BYTES + 4 * lane);
                    S::store(to.cast(), scale);
                    S::store(to.add(4 * ROWS).cast(), offset);
                }
                for step in 0..8 {
                    let to = to.add(PARTS * Self::PART_BYTES + step * STEP + 4 * lane);
                    S::put(to, L::step::<S>(spot, step, lane));
                }
            }
        }
    }
}

impl<const BITS: usize, const PARTS: usize> Layout for Unpacked<BITS, PARTS> {
    const BITS: usize = BITS;
    const PARTS: usize = PARTS;
    #[inline(always)]
    unsafe fn spot(group: *const u8, block: usize) -> Spot {
        // SAFETY: the caller's promise.
        Spot { unit: unsafe { group.add(block * Self::BLOCK_BYTES) }, block: 0 }
    }
    #[inline(always)]
    unsafe fn scales<S: Lanes>(spot: Spot, part: usize, lane: usize) -> (S::V, S::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let from = spot.unit.add(part * Self::PART_BYTES + 4 * lane);
            (S::load(from.cast()), S::load(from.add(4 * ROWS).cast()))
        }
    }
    #[inline(always)]
    unsafe fn step<S: Lanes>(spot: Spot, step: usize, lane: usize) -> S::Bytes {
        // SAFETY: the caller's promise.
        unsafe { S::bytes(spot.unit.add(PARTS * Self::PART_BYTES + step * STEP + 4 * lane)) }
    }
}
