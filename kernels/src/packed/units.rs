//! One row's share of a unit, from the stored block and back. Both ways are written out, so that a test can prove that
//! nothing is lost. Cost: some instructions a weight, once at load.

use super::geometry::{BLOCK, Geometry, HALVES, ROWS, STEP};
use crate::dtype::Dtype;

/// Unsigned values of a block of 32, in the order of columns.
type Values = [u8; BLOCK];

/// Writes a stored block as row `row` of a unit, which is zero there.
pub(super) fn pack(dtype: Dtype, stored: &[u8], unit: &mut [u8], row: usize) {
    let geometry = geometry(dtype);
    pack_head(dtype, stored, unit, row);
    for block in 0..geometry.blocks {
        let values = stored_values(dtype, stored, block);
        let from = geometry.head + block * geometry.block_bytes();
        interleave(geometry.bits, &values, &mut unit[from..from + geometry.block_bytes()], row);
    }
}

/// Writes row `row` of a unit as the stored block that it was made of; `stored` is zero.
pub(super) fn unpack(dtype: Dtype, unit: &[u8], row: usize, stored: &mut [u8]) {
    let geometry = geometry(dtype);
    unpack_head(dtype, unit, row, stored);
    for block in 0..geometry.blocks {
        let from = geometry.head + block * geometry.block_bytes();
        let values = gather(geometry.bits, &unit[from..from + geometry.block_bytes()], row);
        store_values(dtype, &values, block, stored);
    }
}

fn geometry(dtype: Dtype) -> Geometry {
    Geometry::of(dtype).expect("invariant: the layout has a packed order")
}

/// Bytes of f16 before a stored block's values: none for the layout that has its scale behind them.
fn halves(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => 4,
        Dtype::Q6K => 0,
        _ => 2,
    }
}

fn pack_head(dtype: Dtype, stored: &[u8], unit: &mut [u8], row: usize) {
    for from in (0..halves(dtype)).step_by(2) {
        unit[from * ROWS + 2 * row..][..2].copy_from_slice(&stored[from..from + 2]);
    }
    match dtype {
        Dtype::Q4K | Dtype::Q5K => {
            let packed = &stored[4..16];
            for group in 0..8 {
                let (scale, least) = match group {
                    0..4 => (packed[group] & 63, packed[group + 4] & 63),
                    _ => (
                        (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4),
                        (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4),
                    ),
                };
                let at = 2 * HALVES + 2 * group * ROWS + row;
                (unit[at], unit[at + ROWS]) = (scale, least);
            }
        }
        Dtype::Q6K => {
            unit[2 * row..2 * row + 2].copy_from_slice(&stored[208..210]);
            for part in 0..16 {
                unit[HALVES + part * ROWS + row] = stored[192 + part];
            }
        }
        _ => {}
    }
}

fn unpack_head(dtype: Dtype, unit: &[u8], row: usize, stored: &mut [u8]) {
    for from in (0..halves(dtype)).step_by(2) {
        stored[from..from + 2].copy_from_slice(&unit[from * ROWS + 2 * row..][..2]);
    }
    match dtype {
        Dtype::Q4K | Dtype::Q5K => {
            let at = |group: usize| 2 * HALVES + 2 * group * ROWS + row;
            let packed = &mut stored[4..16];
            for group in 0..4 {
                let (low, high) = (at(group), at(group + 4));
                packed[group] = unit[low] | ((unit[high] >> 4) << 6);
                packed[group + 4] = unit[low + ROWS] | ((unit[high + ROWS] >> 4) << 6);
                packed[group + 8] = (unit[high] & 15) | (unit[high + ROWS] << 4);
            }
        }
        Dtype::Q6K => {
            stored[208..210].copy_from_slice(&unit[2 * row..2 * row + 2]);
            for part in 0..16 {
                stored[192 + part] = unit[HALVES + part * ROWS + row];
            }
        }
        _ => {}
    }
}

/// Block `block` of a stored block, without its zero point taken away.
fn stored_values(dtype: Dtype, stored: &[u8], block: usize) -> Values {
    let mut values = [0; BLOCK];
    let halves = halves(dtype);
    for (index, value) in values.iter_mut().enumerate() {
        *value = match dtype {
            Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Iq4Nl => nibble(&stored[halves..], index),
            Dtype::Q5_0 | Dtype::Q5_1 => {
                let fifth = (stored[halves + index / 8] >> (index % 8)) & 1;
                nibble(&stored[halves + 4..], index) | (fifth << 4)
            }
            Dtype::Q8_0 => stored[2 + index] ^ 0x80,
            Dtype::Q4K => (stored[16 + block / 2 * 32 + index] >> (block % 2 * 4)) & 15,
            Dtype::Q5K => {
                let low = stored[48 + block / 2 * 32 + index] >> (block % 2 * 4);
                (low & 15) | (((stored[16 + index] >> block) & 1) << 4)
            }
            Dtype::Q6K => {
                let low = stored[block / 4 * 64 + block % 2 * 32 + index] >> (block % 4 / 2 * 4);
                let high = stored[128 + block / 4 * 32 + index] >> (block % 4 * 2);
                (low & 15) | ((high & 3) << 4)
            }
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => unreachable!("invariant: the layout has a packed order"),
        };
    }
    values
}

/// The inverse of [`stored_values`], over zeros.
fn store_values(dtype: Dtype, values: &Values, block: usize, stored: &mut [u8]) {
    let halves = halves(dtype);
    for (index, value) in values.iter().enumerate() {
        match dtype {
            Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Iq4Nl => stored[halves + index % 16] |= value << (index / 16 * 4),
            Dtype::Q5_0 | Dtype::Q5_1 => {
                stored[halves + index / 8] |= (value >> 4) << (index % 8);
                stored[halves + 4 + index % 16] |= (value & 15) << (index / 16 * 4);
            }
            Dtype::Q8_0 => stored[2 + index] = value ^ 0x80,
            Dtype::Q4K => stored[16 + block / 2 * 32 + index] |= value << (block % 2 * 4),
            Dtype::Q5K => {
                stored[48 + block / 2 * 32 + index] |= (value & 15) << (block % 2 * 4);
                stored[16 + index] |= (value >> 4) << block;
            }
            Dtype::Q6K => {
                stored[block / 4 * 64 + block % 2 * 32 + index] |= (value & 15) << (block % 4 / 2 * 4);
                stored[128 + block / 4 * 32 + index] |= (value >> 4) << (block % 4 * 2);
            }
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => unreachable!("invariant: the layout has a packed order"),
        }
    }
}

/// Value `index` of 32 in 16 bytes: the low nibbles first, then the high ones.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    (bytes[index % 16] >> (index / 16 * 4)) & 15
}

/// Writes a row's values into a block of a group, over zeros.
fn interleave(bits: usize, values: &Values, block: &mut [u8], row: usize) {
    for (index, value) in values.iter().enumerate() {
        let (step, at) = (index / 4, 4 * row + index % 4);
        if bits == 8 {
            block[step * STEP + at] = *value;
            continue;
        }
        block[step % 4 * STEP + at] |= (value & 15) << (step / 4 * 4);
        match bits {
            5 => block[4 * STEP + at] |= (value >> 4) << step,
            6 => block[(4 + step / 4) * STEP + at] |= (value >> 4) << (step % 4 * 2),
            _ => {}
        }
    }
}

/// The inverse of [`interleave`].
fn gather(bits: usize, block: &[u8], row: usize) -> Values {
    let mut values = [0; BLOCK];
    for (index, value) in values.iter_mut().enumerate() {
        let (step, at) = (index / 4, 4 * row + index % 4);
        let low = block[step % 4 * STEP + at] >> (step / 4 * 4) & 15;
        *value = match bits {
            8 => block[step * STEP + at],
            5 => low | ((block[4 * STEP + at] >> step & 1) << 4),
            6 => low | ((block[(4 + step / 4) * STEP + at] >> (step % 4 * 2) & 3) << 4),
            _ => low,
        };
    }
    values
}
