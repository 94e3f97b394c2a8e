//! config.json to GGUF's keys. Fields that would change results and are not built are refused; all others are ignored.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::HubError;
use crate::model::{
    family::{Activation, Family},
    gguf::Value,
};

/// What is read of config.json. Older files have `rope_theta` and `rope_scaling`, newer ones `rope_parameters`.
#[derive(Debug, Deserialize)]
pub(super) struct HubConfig {
    model_type: String,
    num_hidden_layers: Option<u32>,
    hidden_size: Option<u32>,
    intermediate_size: Option<u32>,
    num_attention_heads: Option<u32>,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    max_position_embeddings: Option<u32>,
    rms_norm_eps: Option<f64>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    rope_theta: Option<f64>,
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<Rope>,
    rope_parameters: Option<RopeParameters>,
    partial_rotary_factor: Option<f64>,
    query_pre_attn_scalar: Option<f64>,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    sliding_window: Option<u32>,
    use_sliding_window: Option<bool>,
    sliding_window_pattern: Option<u32>,
    layer_types: Option<Vec<String>>,
    pub(super) tie_word_embeddings: Option<bool>,
    bos_token_id: Option<Ids>,
    eos_token_id: Option<Ids>,
    quantization_config: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

/// One rotation, or one a kind of layer.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RopeParameters {
    ByLayer { full_attention: Rope, sliding_attention: Rope },
    One(Rope),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(i64),
    Several(Vec<i64>),
}

impl Ids {
    fn as_slice(&self) -> &[i64] {
        match self {
            Ids::One(id) => std::slice::from_ref(id),
            Ids::Several(ids) => ids,
        }
    }
}

fn bad(field: &'static str, value: impl ToString, expected: impl ToString) -> HubError {
    HubError::Config { field, value: value.to_string(), expected: expected.to_string() }
}

impl HubConfig {
    /// The family, and the keys a GGUF file of it would have.
    pub(super) fn metadata(&self) -> Result<(Family, BTreeMap<String, Value>), HubError> {
        let family = Family::of_model_type(&self.model_type).ok_or_else(|| {
            let known: Vec<&str> = Family::ALL.iter().flat_map(|family| family.recipe().model_types).copied().collect();
            bad("model_type", format!("{:?}", self.model_type), format!("one of {}", known.join(", ")))
        })?;
        self.refuse_variants(family)?;
        let mut keys = Keys { prefix: family.recipe().architecture, map: BTreeMap::new() };
        keys.map.insert("general.architecture".to_owned(), Value::Text(keys.prefix.to_owned()));
        let needed = |field, value: Option<u32>| value.ok_or(HubError::Missing(field));
        keys.count("block_count", Some(needed("num_hidden_layers", self.num_hidden_layers)?));
        keys.count("embedding_length", Some(needed("hidden_size", self.hidden_size)?));
        keys.count("feed_forward_length", Some(needed("intermediate_size", self.intermediate_size)?));
        keys.count("attention.head_count", Some(needed("num_attention_heads", self.num_attention_heads)?));
        keys.count("context_length", Some(needed("max_position_embeddings", self.max_position_embeddings)?));
        keys.count("attention.head_count_kv", self.num_key_value_heads);
        keys.count("attention.key_length", self.head_dim);
        keys.count("attention.value_length", self.head_dim);
        let eps = self.rms_norm_eps.ok_or(HubError::Missing("rms_norm_eps"))?;
        keys.number("attention.layer_norm_rms_epsilon", Some(eps));
        keys.number("attn_logit_softcapping", self.attn_logit_softcapping);
        keys.number("final_logit_softcapping", self.final_logit_softcapping);
        keys.number("attention.scale", self.query_pre_attn_scalar.map(|scalar| 1.0 / scalar.sqrt()));
        self.rope_keys(&mut keys)?;
        self.window_keys(&mut keys)?;
        for (name, ids) in [("bos", &self.bos_token_id), ("eos", &self.eos_token_id)] {
            // GGUF has three names for tokens that end a reply.
            let names = if name == "bos" { &["bos"][..] } else { &["eos", "eot", "eom"] };
            for (name, id) in names.iter().zip(ids.as_ref().map_or(&[][..], Ids::as_slice)) {
                keys.map.insert(format!("tokenizer.ggml.{name}_token_id"), Value::Int(*id));
            }
        }
        Ok((family, keys.map))
    }

    fn refuse_variants(&self, family: Family) -> Result<(), HubError> {
        let expected = match family.recipe().activation {
            Activation::SwiGlu => "silu",
            Activation::GeGlu => "gelu_pytorch_tanh",
        };
        if let Some(name) = self.hidden_activation.as_ref().or(self.hidden_act.as_ref())
            && name != expected
        {
            return Err(bad("hidden_act", format!("{name:?}"), format!("{expected:?}")));
        }
        if let Some(part) = self.partial_rotary_factor.filter(|part| *part != 1.0) {
            return Err(bad("partial_rotary_factor", part, "1 (heads are rotated whole)"));
        }
        match &self.quantization_config {
            Some(value) if !value.is_null() => {
                Err(bad("quantization_config", "set", "none (F32, F16 or BF16 weights)"))
            }
            _ => Ok(()),
        }
    }

    /// The rotation of global layers, and of local ones if they have their own.
    fn ropes(&self) -> (Rope, Option<f64>) {
        match &self.rope_parameters {
            Some(RopeParameters::ByLayer { full_attention, sliding_attention }) => {
                (full_attention.clone(), sliding_attention.rope_theta)
            }
            Some(RopeParameters::One(rope)) => (rope.clone(), self.rope_local_base_freq),
            None => {
                let rope = self.rope_scaling.clone().unwrap_or_default();
                (Rope { rope_theta: self.rope_theta, ..rope }, self.rope_local_base_freq)
            }
        }
    }

    fn rope_keys(&self, keys: &mut Keys) -> Result<(), HubError> {
        let (rope, local) = self.ropes();
        keys.number("rope.freq_base", rope.rope_theta.or(self.rope_theta));
        keys.number("rope.freq_base_swa", local);
        match rope.rope_type.as_deref() {
            None | Some("default" | "llama3") => Ok(()),
            Some("linear") => {
                keys.text("rope.scaling.type", "linear");
                keys.number("rope.scaling.factor", Some(rope.factor.ok_or(HubError::Missing("rope_scaling.factor"))?));
                Ok(())
            }
            Some(other) => {
                Err(bad("rope_scaling.rope_type", format!("{other:?}"), "\"default\", \"linear\" or \"llama3\""))
            }
        }
    }

    /// The window of local layers, and how often a global one comes.
    fn window_keys(&self, keys: &mut Keys) -> Result<(), HubError> {
        let Some(window) = self.sliding_window.filter(|_| self.use_sliding_window != Some(false)) else {
            return Ok(());
        };
        // A window that no sequence outgrows is none.
        if self.max_position_embeddings.is_some_and(|context| context <= window) {
            return Ok(());
        }
        keys.count("attention.sliding_window", Some(window));
        let mut every = self.sliding_window_pattern;
        if let Some(types) = &self.layer_types {
            let global = |kind: &String| kind == "full_attention";
            // With no global layer at all, the first would come after the last.
            let first = types.iter().position(global).unwrap_or(types.len()) + 1;
            let periodic =
                types.iter().zip(1..).all(|(kind, number): (_, usize)| global(kind) == number.is_multiple_of(first));
            if !periodic {
                return Err(bad("layer_types", format!("{types:?}"), "one full_attention every so many layers"));
            }
            every = u32::try_from(first).ok();
        }
        keys.count("attention.sliding_window_pattern", every);
        Ok(())
    }

    /// Divisors of the rotation frequencies, one a pair, where the scaling of Llama 3.x is asked for: long waves are
    /// stretched by the factor, short ones left alone, those between in proportion.
    pub(super) fn rope_factors(&self) -> Result<Option<Vec<f32>>, HubError> {
        let (rope, _) = self.ropes();
        if rope.rope_type.as_deref() != Some("llama3") {
            return Ok(None);
        }
        let positive = |field, value: Option<f64>| match value {
            Some(value) if value > 0.0 => Ok(value),
            Some(value) => Err(bad(field, value, "a number above 0")),
            None => Err(HubError::Missing(field)),
        };
        let factor = positive("rope_scaling.factor", rope.factor)?;
        let low = positive("rope_scaling.low_freq_factor", rope.low_freq_factor)?;
        let high = positive("rope_scaling.high_freq_factor", rope.high_freq_factor)?;
        let context = positive("rope_scaling.original_max_position_embeddings", rope.original_max_position_embeddings)?;
        let base = rope.rope_theta.or(self.rope_theta).unwrap_or(10_000.0);
        let heads = self.num_attention_heads.ok_or(HubError::Missing("num_attention_heads"))?;
        let hidden = self.hidden_size.ok_or(HubError::Missing("hidden_size"))?;
        let dims = self.head_dim.unwrap_or(hidden / heads.max(1));
        if dims > 1 << 16 {
            return Err(bad("head_dim", dims, "at most 65536"));
        }
        let divisor = |pair: u32| {
            let turns = context * base.powf(-2.0 * f64::from(pair) / f64::from(dims)) / std::f64::consts::TAU;
            if turns < low {
                return factor as f32;
            }
            if turns > high {
                return 1.0;
            }
            let share = (turns - low) / (high - low);
            (1.0 / ((1.0 - share) / factor + share)) as f32
        };
        Ok(Some((0..dims / 2).map(divisor).collect()))
    }
}

/// Keys of one architecture.
struct Keys {
    prefix: &'static str,
    map: BTreeMap<String, Value>,
}

impl Keys {
    fn put(&mut self, name: &str, value: Option<Value>) {
        if let Some(value) = value {
            self.map.insert(format!("{}.{name}", self.prefix), value);
        }
    }

    fn count(&mut self, name: &str, value: Option<u32>) {
        self.put(name, value.map(|value| Value::Int(i64::from(value))));
    }

    fn number(&mut self, name: &str, value: Option<f64>) {
        self.put(name, value.map(Value::Float));
    }

    fn text(&mut self, name: &str, value: &str) {
        self.put(name, Some(Value::Text(value.to_owned())));
    }
}
