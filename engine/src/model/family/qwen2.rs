//! Qwen 2 and 2.5: the common block with biases on queries, keys and values (any linear part may have one: the file
//! decides).

use super::{COMMON, Recipe};

pub(super) const RECIPE: Recipe = Recipe { architecture: "qwen2", model_types: &["qwen2"], ..COMMON };
