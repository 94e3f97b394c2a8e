//! Paged causal attention, prefill chunks and decode alike: a slot's new tokens attend to every earlier position in its
//! pages (or, in a sliding window, to the last of them) and to themselves. Tolerance against `reference::attention` on
//! the same pages: abs 1e-5, eps 1e-4. Pages in f16 hold what was rounded by [`store_kv`]: at most 1/2048 off, and at
//! most 65504; products and sums are f32 either way.
//!
//! Also how keys and values get into the pages ([`store_kv`]). Work is cut by cost: query tiles of each KV head, and where
//! few of them are long, their keys too. Bit-identical for any number of threads, any cut and any neighbours.

use std::{cmp::Reverse, ops::Range};

use half::f16;

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
const STORE: &str = "store_kv";
/// Most rows (tokens times query heads) of a task whose keys are cut: its parts must be kept until they are merged.
const CUT_ROWS: usize = 16;
/// Fewest key tiles of a cut task.
const CUT_TILES: usize = 2;
/// Tokens that one task of [`store_kv`] stores.
const STORE_TOKENS: usize = 64;

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
    fn lens(&self) -> [usize; 2] {
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

fn store<E: Element + Send>(
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
