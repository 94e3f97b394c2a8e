//! Paged causal attention, one query head at a time in f64.

use crate::ops::attention::{AttentionInput, AttentionShape, AttentionSlot};

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
    let place = |position: usize| {
        cache.offset(slot.blocks[position / cache.block_size], kv_head) + position % cache.block_size * cache.head_dim
    };
    let context = slot.position + token + 1;
    let first = context.saturating_sub(shape.window);
    let scores: Vec<f64> = (first..context)
        .map(|position| {
            let key = &input.keys[place(position)..][..cache.head_dim];
            let dot: f64 = key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
            dot * f64::from(shape.scale)
        })
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    let mut out = vec![0.0f64; cache.head_dim];
    for (position, score) in (first..).zip(&scores) {
        let weight = (score - max).exp() / total;
        for (out, value) in out.iter_mut().zip(&input.values[place(position)..]) {
            *out += weight * f64::from(*value);
        }
    }
    out.into_iter().map(|value| value as f32).collect()
}
