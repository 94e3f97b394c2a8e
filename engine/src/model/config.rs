//! The shape of a model, read from metadata and checked once; after that nothing checks again.
//!
//! Invariant: every product of two sizes fits in memory terms (each is bounded in `read`), heads are a multiple of KV
//! heads, and every matrix has columns that kernels can work on (multiples of 16).

use kernels::ops::rope::RopeStyle;

use super::gguf::{Gguf, GgufError};

/// Families that `llama.rs` computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama, SmolLM, Mistral: interleaved rotation.
    Llama,
    /// Qwen 2 and 2.5: rotation by halves, biases on queries, keys and values.
    Qwen2,
}

impl Family {
    pub const NAMES: [&'static str; 2] = ["llama", "qwen2"];
}

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
    pub rope_style: RopeStyle,
    pub rope_base: f32,
    /// Values of a head that are rotated; even.
    pub rope_dims: usize,
}

impl Config {
    pub fn read(gguf: &Gguf) -> Result<Self, GgufError> {
        let family = match gguf.text("general.architecture")? {
            "llama" => Family::Llama,
            "qwen2" => Family::Qwen2,
            other => {
                let expected = format!("one of {}", Family::NAMES.join(", "));
                return Err(bad("general.architecture", format!("{other:?}"), expected));
            }
        };
        let key = |name: &str| format!("{}.{name}", Family::NAMES[family as usize]);
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
        let rope_dims = gguf.find_count(&key("rope.dimension_count"))?.unwrap_or(head_dim);
        let config = Self {
            family,
            layers: gguf.count(&key("block_count"), 1..=1024)?,
            hidden,
            feed_forward: gguf.count(&key("feed_forward_length"), 16..=1 << 20)?,
            heads,
            kv_heads,
            head_dim,
            context: gguf.count(&key("context_length"), 1..=1 << 24)?,
            rms_eps: positive(gguf, &key("attention.layer_norm_rms_epsilon"), None)?,
            rope_style: match family {
                Family::Llama => RopeStyle::Interleaved,
                Family::Qwen2 => RopeStyle::Halves,
            },
            rope_base: positive(gguf, &key("rope.freq_base"), Some(10_000.0))?,
            rope_dims,
        };
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

    /// One rotation frequency a pair, in f32 as the models were trained.
    pub fn rope_frequencies(&self) -> Vec<f32> {
        let exponent = |pair: usize| -(2.0 * pair as f64) / self.rope_dims as f64;
        (0..self.rope_dims / 2).map(|pair| f64::from(self.rope_base).powf(exponent(pair)) as f32).collect()
    }
}

/// Variants of a family that would give wrong results if they were ignored.
fn refuse_variants(gguf: &Gguf, key: &dyn Fn(&str) -> String) -> Result<(), GgufError> {
    let scaling = key("rope.scaling.type");
    match gguf.find_text(&scaling)? {
        None | Some("none") => {}
        Some(other) => return Err(bad(&scaling, format!("{other:?}"), "\"none\" (no scaling is built)".to_owned())),
    }
    let experts = key("expert_count");
    match gguf.find_count(&experts)? {
        None | Some(0) => {}
        Some(count) => return Err(bad(&experts, count.to_string(), "0 (no mixture of experts is built)".to_owned())),
    }
    let window = key("attention.sliding_window");
    match gguf.find_count(&window)? {
        None | Some(0) => {}
        Some(count) => return Err(bad(&window, count.to_string(), "0 (no sliding window is built)".to_owned())),
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
