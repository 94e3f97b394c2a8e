//! Llama, SmolLM and Mistral: the common block. GGUF files store query and key rows permuted so that neighbours are
//! rotated; Hugging Face files do not, and are rotated by halves. Llama 3.x files carry divisors of the frequencies.

use kernels::ops::rope::RopeStyle;

use super::{COMMON, Recipe};

pub(super) const RECIPE: Recipe =
    Recipe { architecture: "llama", model_types: &["llama", "mistral"], gguf_rope: RopeStyle::Interleaved, ..COMMON };
