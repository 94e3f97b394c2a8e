//! A test model: a Llama of two layers with random weights, its own byte-level tokenizer and a chat template, as a GGUF
//! file of about 110 KB. It talks nonsense, deterministically; whatever serves a real file serves it.
//!
//! Invariant: one seed, one file. Its matrices cover most stored data types.

use half::f16;
use kernels::Dtype;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::gguf::type_id;
use crate::tokenizer::byte_alphabet;

pub const LAYERS: usize = 2;
pub const HIDDEN: usize = 64;
pub const FEED_FORWARD: usize = 96;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const CONTEXT: usize = 512;

/// Control tokens, ids 0 to 2; the 256 bytes follow, then the merged tokens.
pub const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Merges, as pairs of byte-level text (`Ġ` is a space).
const MERGES: [&str; 8] = ["t h", "th e", "Ġ the", "i n", "a n", "an d", "Ġ and", "e r"];
const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] \
                        + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                        {% endif %}";

/// The file for a seed.
pub fn tiny_llama_gguf(seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let tokens = tokens();
    let tensors = tensors(tokens.len());
    let mut file = Writer::default();
    file.bytes.extend(b"GGUF");
    file.u32(3);
    file.u64(tensors.len() as u64);
    let keys = metadata(&tokens);
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

fn tokens() -> Vec<String> {
    let mut bytes: Vec<(u8, char)> = byte_alphabet().into_iter().map(|(character, byte)| (byte, character)).collect();
    bytes.sort_unstable();
    CONTROL
        .iter()
        .map(|name| (*name).to_owned())
        .chain(bytes.into_iter().map(|(_, character)| character.to_string()))
        .chain(MERGES.iter().map(|pair| pair.replace(' ', "")))
        .collect()
}

/// Name, sizes (columns first) and type of every tensor.
fn tensors(vocab: usize) -> Vec<(String, Vec<usize>, Dtype)> {
    let head = HIDDEN / HEADS;
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), vec![HIDDEN, vocab], Dtype::Q8_0),
        ("output_norm.weight".to_owned(), vec![HIDDEN], Dtype::F32),
    ];
    for layer in 0..LAYERS {
        let mut add = |part: &str, dims: Vec<usize>, dtype| {
            tensors.push((format!("blk.{layer}.{part}.weight"), dims, dtype));
        };
        add("attn_norm", vec![HIDDEN], Dtype::F32);
        add("attn_q", vec![HIDDEN, HIDDEN], Dtype::Q4_1);
        add("attn_k", vec![HIDDEN, KV_HEADS * head], Dtype::Q4_0);
        add("attn_v", vec![HIDDEN, KV_HEADS * head], Dtype::Q5_0);
        add("attn_output", vec![HIDDEN, HIDDEN], Dtype::F16);
        add("ffn_norm", vec![HIDDEN], Dtype::F32);
        add("ffn_gate", vec![HIDDEN, FEED_FORWARD], Dtype::Q5_1);
        add("ffn_up", vec![HIDDEN, FEED_FORWARD], Dtype::Bf16);
        add("ffn_down", vec![FEED_FORWARD, HIDDEN], Dtype::F32);
    }
    tensors
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

fn metadata(tokens: &[String]) -> Writer {
    let mut keys = Writer::default();
    keys.key_text("general.architecture", "llama");
    keys.key_text("general.name", "tiny test model");
    keys.key_u32("llama.block_count", LAYERS);
    keys.key_u32("llama.context_length", CONTEXT);
    keys.key_u32("llama.embedding_length", HIDDEN);
    keys.key_u32("llama.feed_forward_length", FEED_FORWARD);
    keys.key_u32("llama.attention.head_count", HEADS);
    keys.key_u32("llama.attention.head_count_kv", KV_HEADS);
    keys.key_u32("llama.rope.dimension_count", HIDDEN / HEADS);
    keys.key_f32("llama.rope.freq_base", 10_000.0);
    keys.key_f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    keys.key_text("tokenizer.ggml.model", "gpt2");
    keys.key_text("tokenizer.ggml.pre", "smollm");
    keys.key_texts("tokenizer.ggml.tokens", tokens.iter().map(String::as_str));
    keys.key_texts("tokenizer.ggml.merges", MERGES.into_iter());
    keys.key("tokenizer.ggml.token_type", 9);
    keys.u32(5);
    keys.u64(tokens.len() as u64);
    (0..tokens.len()).for_each(|id| keys.u32(if id < CONTROL.len() { 3 } else { 1 }));
    keys.key_u32("tokenizer.ggml.bos_token_id", 1);
    keys.key_u32("tokenizer.ggml.eos_token_id", 2);
    keys.key_text("tokenizer.chat_template", TEMPLATE);
    keys
}

/// The few GGUF pieces that this file needs.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    count: u64,
}

impl Writer {
    fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn key(&mut self, name: &str, type_id: u32) {
        self.count += 1;
        self.text(name);
        self.u32(type_id);
    }

    fn key_text(&mut self, name: &str, text: &str) {
        self.key(name, 8);
        self.text(text);
    }

    fn key_u32(&mut self, name: &str, value: usize) {
        self.key(name, 4);
        self.u32(value as u32);
    }

    fn key_f32(&mut self, name: &str, value: f32) {
        self.key(name, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    fn key_texts<'a>(&mut self, name: &str, texts: impl ExactSizeIterator<Item = &'a str>) {
        self.key(name, 9);
        self.u32(8);
        self.u64(texts.len() as u64);
        texts.for_each(|text| self.text(text));
    }
}
