//! Paged attention at the shape of SmolLM2-135M: decode over a long context, and a prefill chunk. See `bench`.

mod bench;

use bench::Bench;
use half::f16;
use kernels::{Device, Rows, ops::attention::*};

fn main() {
    let mut bench = Bench::new("attention");
    let (heads, context) = (9, 8192);
    let cache = KvLayout { blocks: 8 * context / 16, block_size: 16, kv_heads: 3, head_dim: 64 };
    let shape = AttentionShape { cache, heads, scale: 0.125, window: usize::MAX };
    let pages: Vec<f16> = (0..cache.values()).map(|i| f16::from_f32((i % 31) as f32 * 0.01 - 0.15)).collect();
    let tables: Vec<Vec<u32>> = (0..8)
        .map(|slot| (0..context as u32 / 16).map(|block| (block * 8 + slot) % cache.blocks as u32).collect())
        .collect();
    for threads in [1, bench.threads()] {
        let device = Device::new(threads);
        // (name, slots, new tokens a slot, position of the first)
        for (name, slots, tokens, position) in [
            ("decode", 1, 1, 511),
            ("decode", 1, 1, 2047),
            ("decode", 8, 1, 2047),
            ("decode", 1, 1, 8191),
            ("prefill", 1, 512, 0),
            ("prefill", 1, 512, 1536),
            ("prefill", 1, 512, 7680),
        ] {
            let slots: Vec<AttentionSlot<'_>> = tables[..slots]
                .iter()
                .enumerate()
                .map(|(index, blocks)| AttentionSlot { first_row: index * tokens, tokens, position, blocks })
                .collect();
            let rows = slots.len() * tokens;
            let queries: Vec<f32> = (0..rows * heads * 64).map(|i| (i % 13) as f32 * 0.1 - 0.6).collect();
            let mut out = vec![0.0; queries.len()];
            let pairs: usize = slots.len() * (0..tokens).map(|token| position + token + 1).sum::<usize>();
            let bytes = slots.len() * (position + tokens) * cache.kv_heads * 64 * 2 * size_of::<f16>();
            let label =
                format!("{name} slots={} tokens={tokens} context={} threads={threads}", slots.len(), position + tokens);
            bench.measure(&label, threads, (4 * pairs * heads * 64, bytes), || {
                let queries = Rows::new(&queries, heads * 64).expect("rows");
                let pages = Pages::F16 { keys: &pages, values: &pages };
                let input = AttentionInput { queries, pages, slots: &slots };
                attention(&device, &shape, input, &mut out).expect("shapes");
            });
        }
    }
    bench.finish();
}
