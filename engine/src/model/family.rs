//! Model families: what each adds to, or changes in, the one transformer block that `forward.rs` computes.
//!
//! How to add a family: write `family/NAME.rs` with one [`Recipe`] (its header says what is special), add the variant to
//! [`Family`] and to [`Family::ALL`], and its arm to [`Family::recipe`]. Weights, configuration, GGUF and Hugging Face
//! loading, the forward pass and the tests over `Family::ALL` follow from the recipe. Only a part that no family had so
//! far needs more: a field of `Recipe`, read where the block would do it. Prove the new file against a reference: add it
//! to `tests/fixtures/make_families.py`.
//!
//! Invariant: a recipe is constant data; nothing here allocates or keeps state.

mod gemma3;
mod llama;
mod qwen2;
mod qwen3;

use kernels::ops::rope::RopeStyle;

use super::config::Config;

/// Families that are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Llama,
    Qwen2,
    Qwen3,
    Gemma3,
}

/// How the feed-forward part gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    SwiGlu,
    GeGlu,
}

/// Norms of a layer beside the two that every family has (before attention, before the feed-forward part).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraNorms {
    None,
    /// On each head's queries and keys, before they are rotated.
    Heads,
    /// Those, and on what attention and the feed-forward part give, before it is added to the stream.
    HeadsAndOutputs,
}

/// Local layers of a family: they see a window of positions and rotate with a base of their own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlidingRecipe {
    /// Every so many layers one is global, the last of each such run.
    pub global_every: usize,
    /// Rotation base of local layers.
    pub rope_base: f64,
}

/// A family, as differences from the common block.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// `general.architecture` in GGUF files, and the prefix of its keys.
    pub architecture: &'static str,
    /// `model_type` values in a Hugging Face config.json.
    pub model_types: &'static [&'static str],
    /// Rotation of the rows as GGUF files of this family store them.
    pub gguf_rope: RopeStyle,
    pub activation: Activation,
    pub norms: ExtraNorms,
    /// The embedding is multiplied with the square root of its width.
    pub scaled_embedding: bool,
    pub sliding: Option<SlidingRecipe>,
    /// What Hugging Face files leave out of norm weights: added on loading. GGUF files have it in.
    pub norm_offset: f32,
    /// Hugging Face names of a layer's tensors where they differ from the common ones, as `(theirs, GGUF's)`.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Corrections that follow from other sizes.
    pub adjust: fn(&mut Config),
}

/// What most families are; theirs start from it.
const COMMON: Recipe = Recipe {
    architecture: "",
    model_types: &[],
    gguf_rope: RopeStyle::Halves,
    activation: Activation::SwiGlu,
    norms: ExtraNorms::None,
    scaled_embedding: false,
    sliding: None,
    norm_offset: 0.0,
    renamed: &[],
    adjust: |_| {},
};

impl Family {
    pub const ALL: [Family; 4] = [Family::Llama, Family::Qwen2, Family::Qwen3, Family::Gemma3];

    pub const fn recipe(self) -> &'static Recipe {
        match self {
            Family::Llama => &llama::RECIPE,
            Family::Qwen2 => &qwen2::RECIPE,
            Family::Qwen3 => &qwen3::RECIPE,
            Family::Gemma3 => &gemma3::RECIPE,
        }
    }

    /// The family of a `general.architecture`.
    pub fn of_architecture(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.recipe().architecture == name)
    }

    /// The family of a Hugging Face `model_type`.
    pub fn of_model_type(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.recipe().model_types.contains(&name))
    }

    /// All architectures, for error messages.
    pub fn architectures() -> String {
        Self::ALL.map(|family| family.recipe().architecture).join(", ")
    }
}

impl ExtraNorms {
    pub fn heads(self) -> bool {
        self != ExtraNorms::None
    }

    pub fn outputs(self) -> bool {
        self == ExtraNorms::HeadsAndOutputs
    }
}
