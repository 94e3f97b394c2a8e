//! Paged attention.

use half::f16;
use kernels::{
    Device, Isa, Rows,
    ops::attention::*,
    reference::{self, attention::rounded_f16},
};
use proptest::prelude::*;

use crate::data::{Source, close};

/// A cache full of random values (what stale pages hold), and slots with pages drawn without repetition.
struct Case {
    shape: AttentionShape,
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
    /// `(tokens, position, blocks)` of each slot.
    slots: Vec<(usize, usize, Vec<u32>)>,
}

impl Case {
    fn new(seed: u64, heads: [usize; 2], head_dim: usize, sizes: &[(usize, usize)]) -> Self {
        let mut source = Source::new(seed);
        let block_size = [4, 8, 16][(seed % 3) as usize];
        let needed: Vec<usize> =
            sizes.iter().map(|(tokens, position)| (tokens + position).div_ceil(block_size)).collect();
        let blocks = needed.iter().sum::<usize>() + 3;
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        let slots = sizes.iter().zip(&needed).map(|((tokens, position), needed)| {
            let pages = (0..*needed).map(|_| free.swap_remove(source.bits() as usize % free.len())).collect();
            (*tokens, *position, pages)
        });
        let slots: Vec<_> = slots.collect();
        let cache = KvLayout { blocks, block_size, kv_heads: heads[1], head_dim };
        let shape =
            AttentionShape { cache, heads: heads[0], scale: 1.0 / (head_dim as f32).sqrt(), window: usize::MAX };
        let rows: usize = sizes.iter().map(|(tokens, _)| tokens).sum();
        let queries = source.values(rows * heads[0] * head_dim).iter().map(|value| value * 8.0).collect();
        Self { shape, keys: source.values(cache.values()), values: source.values(cache.values()), queries, slots }
    }

    fn slots(&self) -> Vec<AttentionSlot<'_>> {
        let mut first_row = 0;
        self.slots
            .iter()
            .map(|(tokens, position, blocks)| {
                let slot = AttentionSlot { first_row, tokens: *tokens, position: *position, blocks };
                first_row += tokens;
                slot
            })
            .collect()
    }

    fn input<'a>(&'a self, slots: &'a [AttentionSlot<'a>]) -> AttentionInput<'a> {
        self.input_of(slots, Pages::F32 { keys: &self.keys, values: &self.values })
    }

    fn input_of<'a>(&'a self, slots: &'a [AttentionSlot<'a>], pages: Pages<'a>) -> AttentionInput<'a> {
        let queries = Rows::new(&self.queries, self.shape.heads * self.shape.cache.head_dim).unwrap();
        AttentionInput { queries, pages, slots }
    }

    fn run(&self, device: &Device, slots: &[AttentionSlot<'_>]) -> Vec<f32> {
        self.run_on(device, self.input(slots))
    }

    fn run_on(&self, device: &Device, input: AttentionInput<'_>) -> Vec<f32> {
        let mut out = vec![0.0; self.queries.len()];
        attention(device, &self.shape, input, &mut out).unwrap();
        out
    }

    /// The pages rounded to f16: `[keys, values]`.
    fn halves(&self) -> [Vec<f16>; 2] {
        [&self.keys, &self.values].map(|all| all.iter().map(|value| rounded_f16(*value)).collect())
    }

    /// Fills the keys and values of a position of the first slot with NaN.
    fn poison(&mut self, position: usize) {
        let KvLayout { block_size, head_dim, kv_heads, .. } = self.shape.cache;
        for head in 0..kv_heads {
            let page = self.shape.cache.offset(self.slots[0].2[position / block_size], head);
            let place = position % block_size;
            self.values[page + place * head_dim..][..head_dim].fill(f32::NAN);
            self.keys[page..][..head_dim * block_size].iter_mut().skip(place).step_by(block_size).for_each(|key| {
                *key = f32::NAN;
            });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Scenario: prefill chunks and decodes side by side, groups of 1 to 5 query heads, scattered pages of f32 and of
    /// f16, with and without a window, every instruction set.
    /// Guarantees: within abs 1e-5, eps 1e-4 of the reference on the same pages; bit-equal on 1 and 3 threads, and when a
    /// slot's tokens come one at a time instead of together.
    #[test]
    fn attention_is_the_reference(
        seed: u64, group in 1..6usize, kv_heads in 1..4usize, vectors in 1..9usize,
        sizes in prop::collection::vec((1..30usize, prop_oneof![0..60usize, 60..700usize]), 1..4),
        window in prop_oneof![Just(usize::MAX), 1..70usize, 100..300usize], half: bool,
    ) {
        let mut case = Case::new(seed, [group * kv_heads, kv_heads], 16 * vectors, &sizes);
        case.shape.window = window;
        let slots = case.slots();
        let [keys, values] = case.halves();
        let input = |slots| match half {
            true => case.input_of(slots, Pages::F16 { keys: &keys, values: &values }),
            false => case.input(slots),
        };
        let want = reference::attention::attention(&case.shape, input(&slots));
        let single: Vec<AttentionSlot<'_>> = slots.iter().flat_map(|slot| {
            (0..slot.tokens).map(move |token| AttentionSlot {
                first_row: slot.first_row + token, tokens: 1, position: slot.position + token, blocks: slot.blocks,
            })
        }).collect();
        for isa in Isa::available() {
            let got = case.run_on(&Device::with_isa(1, isa), input(&slots));
            close(&got, &want, (1e-5, 1e-4)).unwrap();
            prop_assert_eq!(&got, &case.run_on(&Device::with_isa(3, isa), input(&slots)));
            prop_assert_eq!(&got, &case.run_on(&Device::with_isa(2, isa), input(&single)));
        }
    }
}

/// Scenario: pages past a sequence's end hold NaN, as memory of an earlier sequence may.
/// Guarantees: no token reads them.
#[test]
fn stale_pages_are_not_read() {
    let mut case = Case::new(3, [6, 2], 32, &[(5, 6)]);
    let cache = case.shape.cache;
    (11..case.slots[0].2.len() * cache.block_size).for_each(|position| case.poison(position));
    assert!(case.run(&Device::new(2), &case.slots()).iter().all(|value| value.is_finite()));
}

/// Scenario: pages from before a window hold NaN, as pages given back may.
/// Guarantees: they are not read.
#[test]
fn pages_before_the_window_are_not_read() {
    let mut case = Case::new(3, [6, 2], 32, &[(2, 30)]);
    case.shape.window = 5;
    // The first new token, at position 30, attends to 26 and later.
    (0..26).for_each(|position| case.poison(position));
    assert!(case.run(&Device::new(2), &case.slots()).iter().all(|value| value.is_finite()));
    case.shape.window = 6;
    assert!(case.run(&Device::new(2), &case.slots()).iter().any(|value| value.is_nan()));
    case.shape.window = 0;
    let mut out = vec![0.0; case.queries.len()];
    let slots = case.slots();
    let error = attention(&Device::new(1), &case.shape, case.input(&slots), &mut out).unwrap_err();
    assert!(error.to_string().contains("window"), "{error}");
}

/// Scenario: block numbers, tables and rows that do not fit.
/// Guarantees: each is refused by name, before anything is written.
#[test]
fn wrong_slots_are_refused() {
    let case = Case::new(4, [4, 2], 32, &[(3, 9)]);
    let device = Device::new(1);
    let good = case.slots()[0];
    let far = vec![case.shape.cache.blocks as u32; good.blocks.len()];
    let mut out = vec![0.0; case.queries.len()];
    for (slots, what) in [
        (vec![AttentionSlot { blocks: &far, ..good }], "block number"),
        (vec![AttentionSlot { blocks: &good.blocks[..1], ..good }], "blocks of a slot"),
        (vec![AttentionSlot { first_row: 1, ..good }], "last row of a slot"),
        (vec![AttentionSlot { position: usize::MAX, ..good }], "blocks of a slot"),
        (vec![good, good], "slots that name a row"),
    ] {
        let error = attention(&device, &case.shape, case.input(&slots), &mut out).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert!(out.iter().all(|value| *value == 0.0));
    }
}

/// Scenario: one long decode beside nothing, so that its keys are cut over threads, and the same on one thread.
/// Guarantees: the same bits, within tolerance of the reference.
#[test]
fn a_long_decode_is_cut_without_a_trace() {
    let case = Case::new(8, [9, 3], 64, &[(1, 2999)]);
    let slots = case.slots();
    let got = case.run(&Device::new(1), &slots);
    close(&got, &reference::attention::attention(&case.shape, case.input(&slots)), (1e-5, 1e-4)).unwrap();
    for threads in [2, 3, 5] {
        assert_eq!(got, case.run(&Device::new(threads), &slots));
    }
}

/// Scenario: rows stored at positions that straddle blocks, in f32 and f16, some beyond what f16 holds.
/// Guarantees: each head's values lie where attention looks for them, rounded as the reference says; other places are
/// untouched; a block that two slots would write is refused.
#[test]
fn store_kv_puts_rows_into_their_pages() {
    let layout = KvLayout { blocks: 3, block_size: 2, kv_heads: 2, head_dim: 16 };
    let mut source = Source::new(1);
    let [keys, mut values] = [(); 2].map(|()| source.values(3 * 32));
    (values[3], values[40]) = (1e30, -70_000.0);
    let slot = AttentionSlot { first_row: 0, tokens: 3, position: 1, blocks: &[2, 0] };
    let [mut keys32, mut values32] = [(); 2].map(|()| vec![0.0f32; layout.values()]);
    let [mut keys16, mut values16] = [(); 2].map(|()| vec![f16::ZERO; layout.values()]);
    let device = Device::new(2);
    let rows = (Rows::new(&keys, 32).unwrap(), Rows::new(&values, 32).unwrap());
    let slots = [slot];
    let pages = PagesMut::F32 { keys: &mut keys32, values: &mut values32 };
    store_kv(&device, &layout, (rows.0, rows.1, &slots), pages).unwrap();
    let pages = PagesMut::F16 { keys: &mut keys16, values: &mut values16 };
    store_kv(&device, &layout, (rows.0, rows.1, &slots), pages).unwrap();
    for (token, (block, place)) in [(2, 1), (0, 0), (0, 1)].into_iter().enumerate() {
        for (head, column) in (0..2).flat_map(|head| (0..16).map(move |column| (head, column))) {
            let from = token * 32 + head * 16 + column;
            let page = layout.offset(block, head);
            let (key, value) = (page + column * 2 + place, page + place * 16 + column);
            assert_eq!((keys32[key], values32[value]), (keys[from], values[from]));
            assert_eq!((keys16[key], values16[value]), (rounded_f16(keys[from]), rounded_f16(values[from])));
        }
    }
    for all in [&keys32, &values32] {
        assert_eq!(all.iter().filter(|value| **value == 0.0).count(), layout.values() - keys.len());
    }
    assert!(values16.iter().all(|value| value.is_finite()));
    let other = AttentionSlot { first_row: 2, tokens: 1, position: 0, blocks: &[0] };
    let pages = PagesMut::F32 { keys: &mut keys32, values: &mut values32 };
    let error = store_kv(&device, &layout, (rows.0, rows.1, &[slot, other]), pages).unwrap_err();
    assert!(error.to_string().contains("blocks written twice"), "{error}");
}
