//! The shape of a model, read from metadata and checked once; after that nothing checks again.
//!
//! Invariant: every product of two sizes fits in memory terms (each is bounded in `read`), heads are a multiple of KV
//! heads, and every matrix has columns that kernels can work on (multiples of 16).

use kernels::ops::rope::RopeStyle;

use super::{
    family::Family,
    gguf::{Gguf, GgufError, RowOrder},
};

/// Sizes and constants of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub family: Family,
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the feed-forward part.
    pub feed_forward: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Longest sequence the model was made for, in tokens.
    pub context: usize,
    pub rms_eps: f32,
    /// Attention scores are multiplied with this.
    pub attention_scale: f32,
    pub rope_style: RopeStyle,
    pub rope_base: f32,
    /// Rotation frequencies are multiplied with this (linear scaling); not those of local layers.
    pub rope_scale: f32,
    /// Values of a head that are rotated; even.
    pub rope_dims: usize,
    /// Local layers, for families that have them.
    pub sliding: Option<Sliding>,
}

/// Local layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sliding {
    /// Last positions that a token attends to, its own included; at least 1.
    pub window: usize,
    /// The last of every so many layers is global; at least 1.
    pub global_every: usize,
    /// Rotation base of local layers.
    pub rope_base: f32,
}

impl Config {
    pub fn read(gguf: &Gguf) -> Result<Self, GgufError> {
        let architecture = gguf.text("general.architecture")?;
        let family = Family::of_architecture(architecture).ok_or_else(|| {
            let expected = format!("one of {}", Family::architectures());
            bad("general.architecture", format!("{architecture:?}"), expected)
        })?;
        let recipe = family.recipe();
        let key = |name: &str| format!("{}.{name}", recipe.architecture);
        refuse_variants(gguf, &key)?;
        let heads = gguf.count(&key("attention.head_count"), 1..=4096)?;
        let hidden = gguf.count(&key("embedding_length"), 16..=1 << 17)?;
        let kv_heads = match gguf.find_count(&key("attention.head_count_kv"))? {
            Some(_) => gguf.count(&key("attention.head_count_kv"), 1..=heads)?,
            None => heads,
        };
        let head_dim = match gguf.find_count(&key("attention.key_length"))? {
            Some(_) => gguf.count(&key("attention.key_length"), 16..=1024)?,
            None => hidden / heads,
        };
        let mut config = Self {
            family,
            layers: gguf.count(&key("block_count"), 1..=1024)?,
            hidden,
            feed_forward: gguf.count(&key("feed_forward_length"), 16..=1 << 20)?,
            heads,
            kv_heads,
            head_dim,
            context: gguf.count(&key("context_length"), 1..=1 << 24)?,
            rms_eps: positive(gguf, &key("attention.layer_norm_rms_epsilon"), None)?,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            rope_style: match gguf.row_order() {
                RowOrder::AsGguf => recipe.gguf_rope,
                RowOrder::AsTrained => RopeStyle::Halves,
            },
            rope_base: positive(gguf, &key("rope.freq_base"), Some(10_000.0))?,
            rope_scale: rope_scale(gguf, &key)?,
            rope_dims: gguf.find_count(&key("rope.dimension_count"))?.unwrap_or(head_dim),
            sliding: sliding(gguf, family, &key)?,
        };
        (recipe.adjust)(&mut config);
        if gguf.find(&key("attention.scale")).is_some() {
            config.attention_scale = positive(gguf, &key("attention.scale"), None)?;
        }
        config.check(&key)?;
        Ok(config)
    }

    fn check(&self, key: &dyn Fn(&str) -> String) -> Result<(), GgufError> {
        let multiple = |name: &str, value: usize, of: usize| {
            if value.is_multiple_of(of) {
                return Ok(());
            }
            Err(bad(&key(name), value.to_string(), format!("a multiple of {of}")))
        };
        multiple("embedding_length", self.hidden, 16)?;
        multiple("feed_forward_length", self.feed_forward, 16)?;
        multiple("attention.head_count", self.heads, self.kv_heads)?;
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(16) {
            let expected = "a multiple of 16, at least 16 (key_length, or embedding_length / head_count)".to_owned();
            return Err(bad(&key("attention.key_length"), self.head_dim.to_string(), expected));
        }
        if self.rope_dims == 0 || self.rope_dims > self.head_dim || !self.rope_dims.is_multiple_of(2) {
            let expected = format!("an even number of 2 to {}", self.head_dim);
            return Err(bad(&key("rope.dimension_count"), self.rope_dims.to_string(), expected));
        }
        Ok(())
    }

    /// Values of one token's queries.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of one token's keys (and of its values).
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The window of a local layer; `None` for a global one.
    pub fn local(&self, layer: usize) -> Option<&Sliding> {
        self.sliding.as_ref().filter(|sliding| !(layer + 1).is_multiple_of(sliding.global_every))
    }

    /// One rotation frequency a pair, in f32 as the models were trained.
    pub fn rope_frequencies(&self) -> Vec<f32> {
        self.frequencies(self.rope_base).into_iter().map(|frequency| frequency * self.rope_scale).collect()
    }

    /// Those of local layers, for families that have them.
    pub fn local_rope_frequencies(&self) -> Option<Vec<f32>> {
        self.sliding.map(|sliding| self.frequencies(sliding.rope_base))
    }

    fn frequencies(&self, base: f32) -> Vec<f32> {
        let exponent = |pair: usize| -(2.0 * pair as f64) / self.rope_dims as f64;
        (0..self.rope_dims / 2).map(|pair| f64::from(base).powf(exponent(pair)) as f32).collect()
    }
}

/// Local layers, as the file describes them or as the family has them.
fn sliding(gguf: &Gguf, family: Family, key: &dyn Fn(&str) -> String) -> Result<Option<Sliding>, GgufError> {
    let name = key("attention.sliding_window");
    let window = gguf.find_count(&name)?.filter(|window| *window > 0);
    let Some(recipe) = family.recipe().sliding else {
        return match window {
            None => Ok(None),
            Some(count) => Err(bad(&name, count.to_string(), format!("0 (a {family:?} model has no local layers)"))),
        };
    };
    let Some(window) = window else { return Ok(None) };
    let pattern = key("attention.sliding_window_pattern");
    let global_every = match gguf.find_count(&pattern)? {
        Some(_) => gguf.count(&pattern, 1..=1024)?,
        None => recipe.global_every,
    };
    let rope_base = positive(gguf, &key("rope.freq_base_swa"), Some(recipe.rope_base))?;
    Ok(Some(Sliding { window, global_every, rope_base }))
}

fn rope_scale(gguf: &Gguf, key: &dyn Fn(&str) -> String) -> Result<f32, GgufError> {
    let scaling = key("rope.scaling.type");
    match gguf.find_text(&scaling)? {
        None | Some("none") => Ok(1.0),
        Some("linear") => Ok(1.0 / positive(gguf, &key("rope.scaling.factor"), None)?),
        Some(other) => Err(bad(&scaling, format!("{other:?}"), "\"none\" or \"linear\"".to_owned())),
    }
}

/// Variants of a family that would give wrong results if they were ignored.
fn refuse_variants(gguf: &Gguf, key: &dyn Fn(&str) -> String) -> Result<(), GgufError> {
    let experts = key("expert_count");
    match gguf.find_count(&experts)? {
        None | Some(0) => {}
        Some(count) => return Err(bad(&experts, count.to_string(), "0 (no mixture of experts is built)".to_owned())),
    }
    for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
        match gguf.find_number(&key(name))? {
            None | Some(0.0) => {}
            Some(cap) => return Err(bad(&key(name), cap.to_string(), "0 (no capping of logits is built)".to_owned())),
        }
    }
    let value_length = key("attention.value_length");
    match (gguf.find_count(&value_length)?, gguf.find_count(&key("attention.key_length"))?) {
        (Some(value), Some(key_length)) if value != key_length => {
            Err(bad(&value_length, value.to_string(), format!("{key_length}, as attention.key_length")))
        }
        _ => Ok(()),
    }
}

fn positive(gguf: &Gguf, key: &str, default: Option<f64>) -> Result<f32, GgufError> {
    let value = gguf.find_number(key)?.or(default).ok_or_else(|| GgufError::missing(key))?;
    let value = value as f32;
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(bad(key, value.to_string(), "a number above 0".to_owned()))
}

fn bad(key: &str, value: String, expected: String) -> GgufError {
    GgufError::BadValue { key: key.to_owned(), value, expected }
}
