//! Gemma 3 (text): a scaled embedding, norms on heads and on both outputs, GeGLU, and five local layers to each global
//! one, each kind with its own rotation. Hugging Face files store norm weights less 1.

use super::{Activation, COMMON, ExtraNorms, Recipe, SlidingRecipe};
use crate::model::config::Config;

pub(super) const RECIPE: Recipe = Recipe {
    architecture: "gemma3",
    model_types: &["gemma3_text"],
    activation: Activation::GeGlu,
    norms: ExtraNorms::HeadsAndOutputs,
    scaled_embedding: true,
    sliding: Some(SlidingRecipe { global_every: 6, rope_base: 10_000.0 }),
    norm_offset: 1.0,
    renamed: &[
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    adjust,
    ..COMMON
};

/// GGUF files do not say how scores are scaled; of all sizes only the largest does not go by the head's.
fn adjust(config: &mut Config) {
    const LAYERS_OF_27B: usize = 62;
    if config.layers == LAYERS_OF_27B {
        config.attention_scale = 1.0 / ((config.hidden / config.heads) as f32).sqrt();
    }
}
