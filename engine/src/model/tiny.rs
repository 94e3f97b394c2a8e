//! Test models: two layers of a family with random weights, its kind of tokenizer and (byte-level ones) a chat template,
//! as a GGUF file of about 110 KB. They talk nonsense, deterministically; whatever serves a real file serves them.
//!
//! Invariant: one family and seed, one file. Matrices cover most stored data types; Gemma's first layer is local, its
//! second global.

mod vocabulary;
mod writer;

use half::f16;
use kernels::Dtype;
use rand::{Rng, SeedableRng, rngs::StdRng};
pub use vocabulary::CONTROL;
use writer::Writer;

use super::{
    family::{ExtraNorms, Family},
    gguf::type_id,
};

pub const LAYERS: usize = 2;
pub const HIDDEN: usize = 64;
pub const FEED_FORWARD: usize = 96;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const CONTEXT: usize = 4096;
/// Positions that a token of a local layer attends to.
pub const WINDOW: usize = 24;

/// The Llama of a seed.
pub fn tiny_llama_gguf(seed: u64) -> Vec<u8> {
    tiny_gguf(Family::Llama, seed)
}

/// The file of a family and seed.
pub fn tiny_gguf(family: Family, seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let (keys, vocab) = metadata(family);
    let tensors = tensors(family, vocab);
    let mut file = Writer::default();
    file.bytes.extend(b"GGUF");
    file.u32(3);
    file.u64(tensors.len() as u64);
    file.u64(keys.count);
    file.bytes.extend(keys.bytes);
    let mut offset = 0u64;
    for (name, dims, dtype) in &tensors {
        file.text(name);
        file.u32(dims.len() as u32);
        dims.iter().for_each(|size| file.u64(*size as u64));
        file.u32(type_id(*dtype));
        file.u64(offset);
        offset += stored_bytes(dims, *dtype).next_multiple_of(ALIGNMENT) as u64;
    }
    for (_, dims, dtype) in &tensors {
        file.bytes.resize(file.bytes.len().next_multiple_of(ALIGNMENT), 0);
        let rows = dims.iter().skip(1).product::<usize>();
        for _ in 0..rows * dims[0] / dtype.block_len() {
            // Norms are near 1, weights about 1/8: logits spread over a few units.
            if dims.len() == 1 {
                file.bytes.extend(random.random_range(0.8..1.2f32).to_le_bytes());
            } else {
                block(*dtype, &mut random, &mut file.bytes);
            }
        }
    }
    file.bytes
}

const ALIGNMENT: usize = 32;

fn stored_bytes(dims: &[usize], dtype: Dtype) -> usize {
    dtype.row_bytes(dims[0]).expect("invariant: whole blocks") * dims[1..].iter().product::<usize>()
}

/// Values of a head. Those that files of a family may choose freely are not hidden / heads, so that nobody assumes it.
fn head_dim(family: Family) -> usize {
    match family {
        Family::Llama | Family::Qwen2 => HIDDEN / HEADS,
        Family::Qwen3 | Family::Gemma3 => 2 * HIDDEN / HEADS,
    }
}

/// Name, sizes (columns first) and type of every tensor.
fn tensors(family: Family, vocab: usize) -> Vec<(String, Vec<usize>, Dtype)> {
    let head = head_dim(family);
    let norms = family.recipe().norms;
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), vec![HIDDEN, vocab], Dtype::Q8_0),
        ("output_norm.weight".to_owned(), vec![HIDDEN], Dtype::F32),
    ];
    for layer in 0..LAYERS {
        let mut add = |part: &str, dims: Vec<usize>, dtype| {
            tensors.push((format!("blk.{layer}.{part}"), dims, dtype));
        };
        add("attn_norm.weight", vec![HIDDEN], Dtype::F32);
        add("attn_q.weight", vec![HIDDEN, HEADS * head], Dtype::Q4_1);
        add("attn_k.weight", vec![HIDDEN, KV_HEADS * head], Dtype::Q4_0);
        add("attn_v.weight", vec![HIDDEN, KV_HEADS * head], Dtype::Q5_0);
        add("attn_output.weight", vec![HEADS * head, HIDDEN], Dtype::F16);
        add("ffn_norm.weight", vec![HIDDEN], Dtype::F32);
        add("ffn_gate.weight", vec![HIDDEN, FEED_FORWARD], Dtype::Q5_1);
        add("ffn_up.weight", vec![HIDDEN, FEED_FORWARD], Dtype::Bf16);
        add("ffn_down.weight", vec![FEED_FORWARD, HIDDEN], Dtype::F32);
        if family == Family::Qwen2 {
            add("attn_q.bias", vec![HEADS * head], Dtype::F32);
            add("attn_k.bias", vec![KV_HEADS * head], Dtype::F32);
            add("attn_v.bias", vec![KV_HEADS * head], Dtype::F32);
        }
        if norms.heads() {
            add("attn_q_norm.weight", vec![head], Dtype::F32);
            add("attn_k_norm.weight", vec![head], Dtype::F32);
        }
        if norms == ExtraNorms::HeadsAndOutputs {
            add("post_attention_norm.weight", vec![HIDDEN], Dtype::F32);
            add("post_ffw_norm.weight", vec![HIDDEN], Dtype::F32);
        }
    }
    tensors
}

/// The keys, and the number of tokens.
fn metadata(family: Family) -> (Writer, usize) {
    let mut keys = Writer::default();
    let recipe = family.recipe();
    let key = |name: &str| format!("{}.{name}", recipe.architecture);
    keys.key_text("general.architecture", recipe.architecture);
    keys.key_text("general.name", "tiny test model");
    keys.key_u32(&key("block_count"), LAYERS);
    keys.key_u32(&key("context_length"), CONTEXT);
    keys.key_u32(&key("embedding_length"), HIDDEN);
    keys.key_u32(&key("feed_forward_length"), FEED_FORWARD);
    keys.key_u32(&key("attention.head_count"), HEADS);
    keys.key_u32(&key("attention.head_count_kv"), KV_HEADS);
    keys.key_u32(&key("rope.dimension_count"), head_dim(family));
    keys.key_f32(&key("rope.freq_base"), 10_000.0);
    keys.key_f32(&key("attention.layer_norm_rms_epsilon"), 1e-5);
    if head_dim(family) != HIDDEN / HEADS {
        keys.key_u32(&key("attention.key_length"), head_dim(family));
        keys.key_u32(&key("attention.value_length"), head_dim(family));
    }
    if recipe.sliding.is_some() {
        keys.key_u32(&key("attention.sliding_window"), WINDOW);
        keys.key_u32(&key("attention.sliding_window_pattern"), 2);
        keys.key_f32(&key("rope.freq_base_swa"), 500.0);
    }
    let vocab = vocabulary::vocabulary(family, &mut keys);
    (keys, vocab)
}

/// One block of random weights of about 1/8.
fn block(dtype: Dtype, random: &mut StdRng, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend((0..dtype.block_bytes()).map(|_| random.random::<u8>()));
    let block = &mut out[start..];
    let levels = match dtype {
        Dtype::Q4_0 | Dtype::Q4_1 => 16.0,
        Dtype::Q5_0 | Dtype::Q5_1 => 32.0,
        _ => 256.0,
    };
    let step: f32 = random.random_range(0.3..0.5) / levels;
    match dtype {
        Dtype::F32 => block.copy_from_slice(&random.random_range(-0.2..0.2f32).to_le_bytes()),
        Dtype::F16 => block.copy_from_slice(&f16::from_f32(random.random_range(-0.2..0.2)).to_le_bytes()),
        Dtype::Bf16 => block.copy_from_slice(&half::bf16::from_f32(random.random_range(-0.2..0.2)).to_le_bytes()),
        _ => {
            block[..2].copy_from_slice(&f16::from_f32(step).to_le_bytes());
            if matches!(dtype, Dtype::Q4_1 | Dtype::Q5_1) {
                block[2..4].copy_from_slice(&f16::from_f32(-step * levels / 2.0).to_le_bytes());
            }
        }
    }
}
