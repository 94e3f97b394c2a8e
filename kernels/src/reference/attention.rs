//! Paged causal attention, one query head at a time in f64.

use half::f16;

use crate::ops::attention::{AttentionInput, AttentionShape, AttentionSlot, Pages};

/// The slots' rows; rows that no slot names are 0. Shapes are those of `ops::attention`, unchecked.
pub fn attention(shape: &AttentionShape, input: AttentionInput<'_>) -> Vec<f32> {
    let mut out = vec![0.0; input.queries.rows() * input.queries.cols()];
    for slot in input.slots {
        for token in 0..slot.tokens {
            for head in 0..shape.heads {
                let at = ((slot.first_row + token) * shape.heads + head) * shape.cache.head_dim;
                let query = &input.queries.values[at..at + shape.cache.head_dim];
                let kv_head = head / (shape.heads / shape.cache.kv_heads);
                let result = one_head(shape, &input, (slot, token), (kv_head, query));
                out[at..at + shape.cache.head_dim].copy_from_slice(&result);
            }
        }
    }
    out
}

fn one_head(
    shape: &AttentionShape,
    input: &AttentionInput<'_>,
    (slot, token): (&AttentionSlot<'_>, usize),
    (kv_head, query): (usize, &[f32]),
) -> Vec<f32> {
    let cache = &shape.cache;
    let start = |position: usize| cache.offset(slot.blocks[position / cache.block_size], kv_head);
    let key = |position: usize, column: usize| {
        let at = start(position) + column * cache.block_size + position % cache.block_size;
        match input.pages {
            Pages::F32 { keys, .. } => f64::from(keys[at]),
            Pages::F16 { keys, .. } => keys[at].to_f64(),
        }
    };
    let value = |position: usize, column: usize| {
        let at = start(position) + position % cache.block_size * cache.head_dim + column;
        match input.pages {
            Pages::F32 { values, .. } => f64::from(values[at]),
            Pages::F16 { values, .. } => values[at].to_f64(),
        }
    };
    let context = slot.position + token + 1;
    let first = context.saturating_sub(shape.window);
    let scores: Vec<f64> = (first..context)
        .map(|position| {
            let dot: f64 = query.iter().enumerate().map(|(column, q)| key(position, column) * f64::from(*q)).sum();
            dot * f64::from(shape.scale)
        })
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    let mut out = vec![0.0f64; cache.head_dim];
    for (position, score) in (first..).zip(&scores) {
        let weight = (score - max).exp() / total;
        for (column, out) in out.iter_mut().enumerate() {
            *out += weight * value(position, column);
        }
    }
    out.into_iter().map(|value| value as f32).collect()
}

/// What a page in f16 holds of a value: rounded to nearest, ties to even, at most 65504 either way.
pub fn rounded_f16(value: f32) -> f16 {
    f16::from_f64(f64::from(value).clamp(-65504.0, 65504.0))
}
