//! Paged causal attention, prefill chunks and decode alike: a slot's new tokens attend to every earlier position in its
//! pages (or, in a sliding window, to the last of them) and to themselves. Tolerance against `reference::attention` on
//! the same pages: abs 1e-5, eps 1e-4. Pages in f16 hold what was rounded by [`store_kv`]: at most 1/2048 off, and at
//! most 65504; products and sums are f32 either way.
//!
//! Work is cut by cost: query tiles of each KV head, and where few of them are long, their keys too. Bit-identical for any number of threads, any cut and any neighbours.

mod pages;

use std::{cmp::Reverse, ops::Range};

use half::f16;
pub use pages::{KvDtype, KvLayout, Pages, PagesMut, store_kv};

use crate::{
    cpu::{
        attention::{self, Element, HeadTask, MergeTask, Target, part_floats, query_tile},
        for_isa,
        shared_out::SharedOut,
    },
    device::Device,
    error::KernelError,
    tensor::{Rows, check},
};

const OP: &str = "attention";
/// Most rows (tokens times query heads) of a task whose keys are cut: its parts must be kept until they are merged.
const CUT_ROWS: usize = 16;
/// Fewest key tiles of a cut task.
const CUT_TILES: usize = 2;

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
    pub pages: Pages<'a>,
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
    let isa = device.isa();
    match input.pages {
        Pages::F32 { keys, values } => run(
            device,
            (shape, &input),
            (keys, values),
            (out, &|task| for_isa!(isa, attention::run::<_, f32>, task, &HeadTask<'_, f32>)),
        ),
        Pages::F16 { keys, values } => run(
            device,
            (shape, &input),
            (keys, values),
            (out, &|task| for_isa!(isa, attention::run::<_, f16>, task, &HeadTask<'_, f16>)),
        ),
    }
    Ok(())
}

/// Some query tokens and one KV head.
#[derive(Clone, Copy)]
struct Tile {
    slot: usize,
    from: usize,
    tokens: usize,
    kv_head: usize,
}

/// A tile, or some of its keys; for those, where its parts lie.
struct Piece {
    tile: Tile,
    keys: Range<usize>,
    parts: Option<usize>,
}

/// Output, and the body that fills it.
type Body<'a, E> = (&'a mut [f32], &'a (dyn Fn(&HeadTask<'_, E>) + Sync));

fn run<E: Element>(
    device: &Device,
    (shape, input): (&AttentionShape, &AttentionInput<'_>),
    (keys, values): (&[E], &[E]),
    (out, body): Body<'_, E>,
) {
    let out = SharedOut::new(out);
    let task = |tile: &Tile, keys_of: Range<usize>, target| HeadTask {
        shape,
        slot: &input.slots[tile.slot],
        queries: input.queries.values,
        keys,
        values,
        kv_head: tile.kv_head,
        from: tile.from,
        tokens: tile.tokens,
        tiles: keys_of,
        target,
    };
    let (group, part) = (shape.heads / shape.cache.kv_heads, part_floats(shape.cache.head_dim));
    let tiles: Vec<(Tile, Range<usize>)> = tiles(shape, input.slots)
        .map(|tile| {
            let keys = task(&tile, 0..0, Target::Rows(&out)).all_tiles();
            (tile, keys)
        })
        .collect();
    let (mut pieces, cut) = pieces(&tiles, [device.threads(), group, part]);
    pieces.sort_by_key(|piece| Reverse(piece.keys.len() * piece.tile.tokens));
    let places: Vec<usize> = cut.iter().map(|cut| task(&cut.tile, 0..0, Target::Rows(&out)).first_place()).collect();
    let mut memory = vec![0.0; cut.last().map_or(0, |last| last.parts.end)];
    let parts = SharedOut::new(&mut memory);
    device.parallel(pieces.len(), &|index| {
        let Piece { tile, keys, parts: place } = &pieces[index];
        match place {
            None => body(&task(tile, keys.clone(), Target::Rows(&out))),
            Some(from) => {
                let target = Target::Parts { parts: &parts, from: *from };
                body(&task(tile, keys.clone(), target));
            }
        }
    });
    for (Cut { tile, parts }, at) in cut.into_iter().zip(places) {
        let rows = tile.tokens * group;
        let (parts, head_dim) = (&mut memory[parts], shape.cache.head_dim);
        let mut merge = MergeTask { parts, rows, head_dim, at, out: &out };
        for_isa!(device.isa(), attention::merge_parts, &mut merge, &mut MergeTask<'_>);
    }
}

/// A tile whose keys were cut, and where its parts lie.
struct Cut {
    tile: Tile,
    parts: Range<usize>,
}

fn tiles<'a>(shape: &'a AttentionShape, slots: &'a [AttentionSlot<'_>]) -> impl Iterator<Item = Tile> + 'a {
    let step = query_tile(shape);
    slots.iter().enumerate().flat_map(move |(slot, new)| {
        (0..new.tokens).step_by(step).flat_map(move |from| {
            let tokens = step.min(new.tokens - from);
            (0..shape.cache.kv_heads).map(move |kv_head| Tile { slot, from, tokens, kv_head })
        })
    })
}

/// Cuts the keys of tiles that would keep one thread busy while the others have nothing left. Only tiles of one token: so
/// rows of a result lie side by side, and parts are few.
fn pieces(tiles: &[(Tile, Range<usize>)], [threads, group, part]: [usize; 3]) -> (Vec<Piece>, Vec<Cut>) {
    let total: usize = tiles.iter().map(|(tile, keys)| tile.tokens * keys.len()).sum();
    let share = if threads == 1 { usize::MAX } else { (total / (threads * 4)).max(CUT_TILES) };
    let (mut pieces, mut cut) = (Vec::with_capacity(tiles.len()), Vec::new());
    let mut used = 0;
    for (tile, keys) in tiles {
        if tile.tokens > 1 || group > CUT_ROWS || keys.len() < 2 * share {
            pieces.push(Piece { tile: *tile, keys: keys.clone(), parts: None });
            continue;
        }
        let len = keys.len() * group * part;
        cut.push(Cut { tile: *tile, parts: used..used + len });
        pieces.extend(keys.clone().step_by(share).map(|from| Piece {
            tile: *tile,
            keys: from..(from + share).min(keys.end),
            parts: Some(used + (from - keys.start) * group * part),
        }));
        used += len;
    }
    (pieces, cut)
}

fn check_input(shape: &AttentionShape, input: &AttentionInput<'_>, out: &[f32]) -> Result<(), KernelError> {
    let cache = &shape.cache;
    check(OP, "window of 0 positions", usize::from(shape.window == 0), 0)?;
    check(OP, "head size modulo 16", cache.head_dim % 16, 0)?;
    check(OP, "query heads modulo KV heads", shape.heads % cache.kv_heads.max(1), 0)?;
    check(OP, "query columns", input.queries.cols, shape.heads * cache.head_dim)?;
    check(OP, "output values", out.len(), input.queries.values.len())?;
    let [keys, values] = input.pages.lens();
    check(OP, "key values", keys, cache.values())?;
    check(OP, "value values", values, cache.values())?;
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
