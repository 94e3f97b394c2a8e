//! Tokens of the test models: byte-level BPE, or SentencePiece pieces for Gemma, as their real files have them. Every
//! byte is a token in both, so any text can be encoded.

use super::{
    Family,
    writer::{Flag, Writer},
};
use crate::tokenizer::byte_alphabet;

/// Control tokens of the byte-level test models, ids 0 to 2; the 256 bytes follow, then the merged tokens.
pub const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Merges, as pairs of byte-level text (`Ġ` is a space).
const MERGES: [&str; 8] = ["t h", "th e", "Ġ the", "i n", "a n", "an d", "Ġ and", "e r"];
const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] \
                        + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                        {% endif %}";

/// Control tokens of the SentencePiece test model; a user-defined token, the 256 bytes and the pieces follow.
const PIECE_CONTROL: [&str; 6] = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"];
const USER_DEFINED: &str = "\n\n";
/// Best score first.
const PIECES: [&str; 20] =
    ["th", "the", "▁the", "in", "an", "and", "▁and", "er", "▁", "t", "h", "e", "i", "n", "a", "d", "r", "o", "é", "日"];

/// Tokens of a family's test model, with the keys that describe them.
pub(super) fn vocabulary(family: Family, keys: &mut Writer) -> usize {
    match family {
        Family::Gemma3 => pieces(keys),
        _ => byte_level(family, keys),
    }
}

fn byte_level(family: Family, keys: &mut Writer) -> usize {
    let mut bytes: Vec<(u8, char)> = byte_alphabet().into_iter().map(|(character, byte)| (byte, character)).collect();
    bytes.sort_unstable();
    let tokens: Vec<String> = CONTROL
        .iter()
        .map(|name| (*name).to_owned())
        .chain(bytes.into_iter().map(|(_, character)| character.to_string()))
        .chain(MERGES.iter().map(|pair| pair.replace(' ', "")))
        .collect();
    keys.key_text("tokenizer.ggml.model", "gpt2");
    keys.key_text("tokenizer.ggml.pre", if family == Family::Llama { "smollm" } else { "qwen2" });
    keys.key_texts("tokenizer.ggml.tokens", tokens.iter().map(String::as_str));
    keys.key_texts("tokenizer.ggml.merges", MERGES.into_iter());
    let kinds: Vec<u32> = (0..tokens.len()).map(|id| if id < CONTROL.len() { 3 } else { 1 }).collect();
    keys.key_u32s("tokenizer.ggml.token_type", &kinds);
    keys.key_u32("tokenizer.ggml.bos_token_id", 1);
    keys.key_u32("tokenizer.ggml.eos_token_id", 2);
    keys.key_text("tokenizer.chat_template", TEMPLATE);
    tokens.len()
}

fn pieces(keys: &mut Writer) -> usize {
    let mut tokens: Vec<String> = PIECE_CONTROL.iter().map(|name| (*name).to_owned()).collect();
    tokens.push(USER_DEFINED.to_owned());
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(PIECES.iter().map(|piece| (*piece).to_owned()));
    let kind = |id: usize| match id {
        id if id < PIECE_CONTROL.len() => 3,
        id if id == PIECE_CONTROL.len() => 4,
        id if id <= PIECE_CONTROL.len() + 256 => 6,
        _ => 1,
    };
    let kinds: Vec<u32> = (0..tokens.len()).map(kind).collect();
    let score = |id: usize| if kinds[id] == 1 { (tokens.len() - PIECES.len()) as f32 - id as f32 } else { 0.0 };
    let scores: Vec<f32> = (0..tokens.len()).map(score).collect();
    keys.key_text("tokenizer.ggml.model", "llama");
    keys.key_text("tokenizer.ggml.pre", "default");
    keys.key_texts("tokenizer.ggml.tokens", tokens.iter().map(String::as_str));
    keys.key_f32s("tokenizer.ggml.scores", &scores);
    keys.key_u32s("tokenizer.ggml.token_type", &kinds);
    for (name, id) in [("padding", 0), ("eos", 1), ("bos", 2), ("unknown", 3)] {
        keys.key_u32(&format!("tokenizer.ggml.{name}_token_id"), id);
    }
    keys.key_flag("tokenizer.ggml.add_bos_token", Flag::Yes);
    keys.key_flag("tokenizer.ggml.add_space_prefix", Flag::No);
    tokens.len()
}
