//! Qwen 3 (dense): heads of a stated size, whose queries and keys are normed head by head before they are rotated; no
//! biases.

use super::{COMMON, ExtraNorms, Recipe};

pub(super) const RECIPE: Recipe =
    Recipe { architecture: "qwen3", model_types: &["qwen3"], norms: ExtraNorms::Heads, ..COMMON };
