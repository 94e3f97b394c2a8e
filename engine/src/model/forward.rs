//! The forward pass of every family over a paged KV cache: norm → attention → norm → gated feed-forward, per layer, with
//! residuals. What a family adds to it stands in its recipe (`family.rs`).
//!
//! One pass takes the new tokens of any number of sequences as one activation matrix: one launch a weight, whatever the
//! mix of prefill and decode. Invariant: a sequence's logits do not depend on what else is in the pass (kernels sum
//! each row in a fixed order). Cost: `2 * parameters` operations a token plus attention; memory: a [`Workspace`] of
//! about `4 * (3 * hidden + 2 * feed_forward + ...)` bytes a token, for at most [`PASS_TOKENS`] tokens.

use kernels::{
    Device, KernelError, Rows,
    ops::{
        attention::{AttentionInput, AttentionShape, AttentionSlot, attention, store_kv},
        elementwise::{add, geglu, scale, swiglu},
        embedding::gather,
        matmul::{Product, matmul},
        rms_norm::{RmsNorm, rms_norm, rms_norm_in_place},
        rope::{RopeAngles, RopeLayout, rope},
    },
};

use super::{
    Model,
    family::Activation,
    kv_cache::KvCache,
    weights::{Layer, Linear},
};

/// Most tokens in one pass; a larger batch is computed in several, with the same result.
pub const PASS_TOKENS: usize = 512;

/// New tokens of one pass, and which of their logits are wanted.
#[derive(Debug)]
pub struct Pass<'a> {
    /// All slots' new tokens, in slot order.
    pub tokens: &'a [u32],
    pub slots: &'a [AttentionSlot<'a>],
    /// Rows of `tokens` whose logits are wanted, ascending.
    pub wanted: &'a [usize],
}

/// Buffers of a pass, kept between passes.
#[derive(Debug, Default)]
pub struct Workspace {
    stream: Vec<f32>,
    normed: Vec<f32>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    mixed: Vec<f32>,
    change: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// Of global layers, then of local ones where the family has them.
    rotations: Vec<Rotation>,
}

#[derive(Debug)]
struct Rotation {
    frequencies: Vec<f32>,
    angles: RopeAngles,
}

/// The first `len` values of a buffer that grows as needed. What they hold is overwritten by the caller.
fn room(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

/// Computes a pass: stores keys and values of its tokens, fills `logits` (`wanted.len() × vocab`).
pub fn forward(
    (model, device): (&Model, &Device),
    pass: &Pass<'_>,
    (cache, work): (&mut KvCache, &mut Workspace),
    logits: &mut [f32],
) -> Result<(), KernelError> {
    let (config, weights, file) = (model.config(), model.weights(), model.gguf());
    let (tokens, hidden) = (pass.tokens.len(), config.hidden);
    if work.rotations.is_empty() {
        work.rotations = rotations(model);
    }
    for Rotation { frequencies, angles } in &mut work.rotations {
        angles.fill(frequencies, pass.slots.iter().flat_map(|slot| (slot.position..).take(slot.tokens)));
    }
    let stream = room(&mut work.stream, tokens * hidden);
    gather(device, weights.embedding.view(file), pass.tokens, stream)?;
    if config.family.recipe().scaled_embedding {
        scale(stream, (hidden as f32).sqrt());
    }
    for (index, layer) in weights.layers.iter().enumerate() {
        let step = Step { model, device, layer, index };
        step.attention(pass, cache, work)?;
        step.feed_forward(tokens, work)?;
    }

    if pass.wanted.is_empty() {
        return Ok(());
    }
    // Only wanted rows go through the output matrix, the largest of all.
    let wanted = room(&mut work.change, pass.wanted.len() * hidden);
    for (to, row) in wanted.chunks_exact_mut(hidden).zip(pass.wanted) {
        to.copy_from_slice(&work.stream[row * hidden..(row + 1) * hidden]);
    }
    let normed = room(&mut work.normed, pass.wanted.len() * hidden);
    let norm = RmsNorm { weight: &weights.output_norm, eps: config.rms_eps };
    rms_norm(device, norm, Rows::new(wanted, hidden)?, normed)?;
    let product = Product { weight: weights.output.weight(file), bias: None, out: logits };
    matmul(device, Rows::new(normed, hidden)?, &mut [product])
}

fn rotations(model: &Model) -> Vec<Rotation> {
    let mut frequencies = model.config().rope_frequencies();
    if let Some(factors) = &model.weights().rope_factors {
        for (frequency, factor) in frequencies.iter_mut().zip(factors) {
            *frequency /= factor;
        }
    }
    let both = [Some(frequencies), model.config().local_rope_frequencies()];
    both.into_iter().flatten().map(|frequencies| Rotation { frequencies, angles: RopeAngles::default() }).collect()
}

/// One layer of a pass.
struct Step<'a> {
    model: &'a Model,
    device: &'a Device,
    layer: &'a Layer,
    index: usize,
}

impl Step<'_> {
    fn product<'a>(&'a self, linear: &'a Linear, out: &'a mut [f32]) -> Product<'a> {
        Product { weight: linear.matrix.weight(self.model.gguf()), bias: linear.bias.as_deref(), out }
    }

    /// A norm that only some families have.
    fn norm_in_place(&self, weight: Option<&Vec<f32>>, x: &mut [f32]) -> Result<(), KernelError> {
        let eps = self.model.config().rms_eps;
        weight.map_or(Ok(()), |weight| rms_norm_in_place(self.device, RmsNorm { weight, eps }, x))
    }

    /// `stream += output(attention(norm(stream)))`.
    fn attention(&self, pass: &Pass<'_>, cache: &mut KvCache, work: &mut Workspace) -> Result<(), KernelError> {
        let (config, device, layer) = (self.model.config(), self.device, self.layer);
        let (tokens, hidden) = (pass.tokens.len(), config.hidden);
        let (query_width, kv_width) = (config.query_width(), config.kv_width());
        let stream = &mut work.stream[..tokens * hidden];
        let normed = room(&mut work.normed, tokens * hidden);
        let norm = RmsNorm { weight: &layer.attention_norm, eps: config.rms_eps };
        rms_norm(device, norm, Rows::new(stream, hidden)?, normed)?;

        let queries = room(&mut work.queries, tokens * query_width);
        let keys = room(&mut work.keys, tokens * kv_width);
        let values = room(&mut work.values, tokens * kv_width);
        let mut products =
            [self.product(&layer.query, queries), self.product(&layer.key, keys), self.product(&layer.value, values)];
        matmul(device, Rows::new(normed, hidden)?, &mut products)?;
        self.norm_in_place(layer.query_norm.as_ref(), queries)?;
        self.norm_in_place(layer.key_norm.as_ref(), keys)?;
        let local = config.local(self.index);
        let angles = &work.rotations[usize::from(local.is_some())].angles;
        let heads = |heads| RopeLayout { heads, head_dim: config.head_dim, style: config.rope_style };
        rope(device, heads(config.heads), angles, queries)?;
        rope(device, heads(config.kv_heads), angles, keys)?;

        let layout = cache.layout;
        let new = (Rows::new(keys, kv_width)?, Rows::new(values, kv_width)?, pass.slots);
        store_kv(device, &layout, new, cache.layer_mut(self.index))?;
        let mixed = room(&mut work.mixed, tokens * query_width);
        let shape = AttentionShape {
            cache: layout,
            heads: config.heads,
            scale: config.attention_scale,
            window: local.map_or(usize::MAX, |sliding| sliding.window),
        };
        let input = AttentionInput {
            queries: Rows::new(queries, query_width)?,
            pages: cache.layer(self.index),
            slots: pass.slots,
        };
        attention(device, &shape, input, mixed)?;
        let change = room(&mut work.change, tokens * hidden);
        matmul(device, Rows::new(mixed, query_width)?, &mut [self.product(&layer.attention_output, change)])?;
        self.norm_in_place(layer.post_attention_norm.as_ref(), change)?;
        add(device, stream, change)
    }

    /// `stream += down(act(gate(norm(stream))) * up(norm(stream)))`.
    fn feed_forward(&self, tokens: usize, work: &mut Workspace) -> Result<(), KernelError> {
        let (config, device, layer) = (self.model.config(), self.device, self.layer);
        let (hidden, inner) = (config.hidden, config.feed_forward);
        let stream = &mut work.stream[..tokens * hidden];
        let normed = room(&mut work.normed, tokens * hidden);
        let norm = RmsNorm { weight: &layer.feed_forward_norm, eps: config.rms_eps };
        rms_norm(device, norm, Rows::new(stream, hidden)?, normed)?;
        let (gate, up) = (room(&mut work.gate, tokens * inner), room(&mut work.up, tokens * inner));
        let mut products = [self.product(&layer.gate, gate), self.product(&layer.up, up)];
        matmul(device, Rows::new(normed, hidden)?, &mut products)?;
        match config.family.recipe().activation {
            Activation::SwiGlu => swiglu(device, gate, up)?,
            Activation::GeGlu => geglu(device, gate, up)?,
        }
        let change = room(&mut work.change, tokens * hidden);
        matmul(device, Rows::new(gate, inner)?, &mut [self.product(&layer.down, change)])?;
        self.norm_in_place(layer.post_feed_forward_norm.as_ref(), change)?;
        add(device, stream, change)
    }
}
