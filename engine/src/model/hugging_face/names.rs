//! Hugging Face tensor names to GGUF's. A name that nobody knows is kept, so that the refusal of it names it.

use crate::model::family::Family;

/// Parts of a layer that most families share, as `(theirs, GGUF's)`.
const COMMON: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// GGUF's name of a tensor; `None` for one that is computed and not learnt.
pub(super) fn gguf_name(family: Family, name: &str) -> Option<String> {
    if name.ends_with("rotary_emb.inv_freq") {
        return None;
    }
    let known = match name {
        "model.embed_tokens.weight" => Some("token_embd.weight".to_owned()),
        "model.norm.weight" => Some("output_norm.weight".to_owned()),
        "lm_head.weight" => Some("output.weight".to_owned()),
        _ => layer_name(family, name),
    };
    Some(known.unwrap_or_else(|| name.to_owned()))
}

fn layer_name(family: Family, name: &str) -> Option<String> {
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    let index: usize = layer.parse().ok()?;
    let all = family.recipe().renamed.iter().chain(&COMMON);
    let (_, ours) = all.into_iter().find(|(theirs, _)| *theirs == part)?;
    Some(format!("blk.{index}.{ours}.{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: names that families share, names one family uses otherwise, names nobody knows.
    /// Guarantees: GGUF's names; unknown ones are kept, computed ones dropped.
    #[test]
    fn names_follow_the_family() {
        let name = |family, name| gguf_name(family, name).unwrap();
        let norm = "model.layers.3.post_attention_layernorm.weight";
        assert_eq!(name(Family::Llama, norm), "blk.3.ffn_norm.weight");
        assert_eq!(name(Family::Gemma3, norm), "blk.3.post_attention_norm.weight");
        assert_eq!(name(Family::Qwen2, "model.layers.0.self_attn.q_proj.bias"), "blk.0.attn_q.bias");
        assert_eq!(name(Family::Qwen3, "model.layers.x.mlp.up_proj.weight"), "model.layers.x.mlp.up_proj.weight");
        assert_eq!(gguf_name(Family::Llama, "model.layers.0.self_attn.rotary_emb.inv_freq"), None);
    }
}
