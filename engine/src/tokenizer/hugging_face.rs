//! A tokenizer.json: the `tokenizers` crate reads it, its parts are taken over. Nothing is kept here.
//!
//! What stands around a text (`<bos>`) is found by asking the library once with its special tokens and once without. Which
//! bytes a token stands for follows from the decoder: byte-level, or pieces with `▁` for a space and bytes by name.

use std::collections::HashMap;

use tokenizers::DecoderWrapper;

use super::{
    Kind, Tokenizer, TokenizerError,
    metadata::{byte_alphabet, eos_tokens, token_text},
    sentencepiece,
};
use crate::model::gguf::Gguf;

/// Ids past this are refused: a list as long is kept.
const MAX_TOKENS: usize = 4 * 1024 * 1024;

/// The tokenizer of `json`; `gguf` has the ids of the tokens that end a reply.
pub(super) fn read(json: &str, gguf: &Gguf) -> Result<Tokenizer, TokenizerError> {
    let library = parse(json)?;
    let mut names: Vec<String> = Vec::new();
    for (name, id) in library.get_vocab(true) {
        let id = id as usize;
        if id >= MAX_TOKENS {
            return Err(TokenizerError::Token { key: format!("tokenizer.json: {name:?}"), id, vocab: MAX_TOKENS });
        }
        if names.len() <= id {
            names.resize(id + 1, String::new());
        }
        names[id] = name;
    }
    let kind = |special| if special { Kind::Control } else { Kind::UserDefined };
    let added: HashMap<u32, Kind> =
        library.get_added_tokens_decoder().into_iter().map(|(id, token)| (id, kind(token.special))).collect();
    let kinds = sentencepiece::kinds(&names, &added);
    let bytes_of = byte_alphabet();
    let byte_level = library.get_decoder().is_some_and(is_byte_level);
    let text = |(name, kind): (&String, &Kind)| match (byte_level, kind) {
        // A byte-level vocabulary may have the letters of a byte's name as a word.
        (true, Kind::Byte) => token_text(name, Kind::Text, &bytes_of),
        (true, kind) => token_text(name, *kind, &bytes_of),
        (false, kind) => sentencepiece::token_text(name, *kind),
    };
    let tokens = names.iter().zip(&kinds).map(text).collect();
    let (first, last) = edges(&library)?;
    let with_control = library.get_added_vocabulary().clone();
    let mut without_control = with_control.clone();
    without_control.set_encode_special_tokens(true);
    Ok(Tokenizer {
        normalizer: library.get_normalizer().cloned(),
        pre_tokenizer: library.get_pre_tokenizer().cloned(),
        model: library.get_model().clone(),
        with_control,
        without_control,
        tokens,
        first,
        last,
        eos: eos_tokens(gguf, &names, &kinds)?,
    })
}

/// The library's own reading, which panics on some files that are JSON and no tokenizer; that is an error here.
fn parse(json: &str) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let bad = |error: serde_json::Error| TokenizerError::Library(format!("tokenizer.json: {error}"));
    serde_json::from_str::<serde::de::IgnoredAny>(json).map_err(bad)?;
    let read = std::panic::catch_unwind(|| tokenizers::Tokenizer::from_bytes(json));
    let panicked =
        |_| TokenizerError::Library("tokenizer.json is malformed, expected what `tokenizers` writes".to_owned());
    Ok(read.map_err(panicked)??)
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(is_byte_level),
        _ => false,
    }
}

/// What the library puts before and after a text.
fn edges(library: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let (bare, whole) = (library.encode("a", false)?, library.encode("a", true)?);
    let (bare, whole) = (bare.get_ids(), whole.get_ids());
    let at = whole.windows(bare.len().max(1)).position(|window| window == bare).unwrap_or(0);
    Ok((whole[..at].to_vec(), whole.get(at + bare.len()..).unwrap_or(&[]).to_vec()))
}
