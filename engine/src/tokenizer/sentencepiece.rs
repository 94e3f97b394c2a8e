//! SentencePiece vocabularies of GGUF files (`tokenizer.ggml.model` = "llama"): pieces with scores, bytes as a fallback.
//!
//! Two neighbours are merged if their joined text is a piece, best score first. That is BPE whose merges are all ways to
//! cut a piece in two pieces, in the order of the pieces' scores; the `tokenizers` crate does it. Ties between cuts of one
//! piece go to the longest left part. Nothing is kept here. Cost on loading: the square of a piece's length, which is why
//! only pieces of at most [`MAX_PIECE_BYTES`] are ever made of others.

use std::collections::HashMap;

use tokenizers::{
    NormalizerWrapper,
    models::bpe::{BPE, Vocab},
    normalizers::{Prepend, Replace, Sequence},
};

use super::{Kind, TokenText, TokenizerError};
use crate::model::gguf::{Gguf, GgufError};

/// Longer pieces are found in no text.
pub(super) const MAX_PIECE_BYTES: usize = 1024;

/// A space, as pieces write it.
const SPACE: &str = "\u{2581}";

/// The pieces and their merges. Control tokens and bytes are never merged into.
pub(super) fn model(gguf: &Gguf, names: &[String], kinds: &[Kind]) -> Result<BPE, TokenizerError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = gguf.find_floats(SCORES)?.ok_or_else(|| GgufError::missing(SCORES))?;
    if scores.len() != names.len() {
        return Err(TokenizerError::Length { key: SCORES, got: scores.len(), expected: names.len() });
    }
    // Of tokens with the same text the first one is used.
    let mut vocab = Vocab::default();
    for (name, id) in names.iter().zip(0u32..) {
        vocab.entry(name.clone()).or_insert(id);
    }
    let mut pieces: Vec<usize> = (0..names.len())
        .filter(|id| kinds[*id] == Kind::Text && names[*id].len() <= MAX_PIECE_BYTES)
        .filter(|id| vocab.get(&names[*id]) == Some(&(*id as u32)))
        .collect();
    pieces.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let part = |text: &str| vocab.get(text).is_some_and(|id| kinds[*id as usize] == Kind::Text);
    let mut merges = Vec::with_capacity(2 * pieces.len());
    for name in pieces.iter().map(|id| &names[*id]) {
        let places = name.char_indices().map(|(at, _)| at).rev().filter(|at| *at > 0);
        let known = places.map(|at| name.split_at(at)).filter(|(left, right)| part(left) && part(right));
        merges.extend(known.map(|(left, right)| (left.to_owned(), right.to_owned())));
    }
    let mut builder = BPE::builder().vocab_and_merges(vocab, merges).byte_fallback(true).fuse_unk(true);
    if let Some(name) = gguf.find_count("tokenizer.ggml.unknown_token_id")?.and_then(|id| names.get(id)) {
        builder = builder.unk_token(name.clone());
    }
    Ok(builder.build()?)
}

/// Spaces as pieces write them; one is put before each run of text unless the file says no.
pub(super) fn normalizer(gguf: &Gguf) -> Result<NormalizerWrapper, TokenizerError> {
    let spaces = NormalizerWrapper::Replace(Replace::new(" ", SPACE)?);
    Ok(match gguf.find_flag("tokenizer.ggml.add_space_prefix")? {
        Some(false) => spaces,
        _ => {
            let prefix = NormalizerWrapper::Prepend(Prepend::new(SPACE.to_owned()));
            NormalizerWrapper::Sequence(Sequence::new(vec![prefix, spaces]))
        }
    })
}

/// What a piece adds to a text.
pub(super) fn token_text(name: &str, kind: Kind) -> TokenText {
    let bytes = match kind {
        Kind::Text => name.replace(SPACE, " ").into_bytes(),
        Kind::Byte => byte(name).map_or_else(|| name.as_bytes().to_vec(), |byte| vec![byte]),
        Kind::Control | Kind::UserDefined => name.as_bytes().to_vec(),
    };
    TokenText { bytes, kind }
}

/// The byte of a name such as `<0x0A>`.
pub(super) fn byte(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

/// The tokens of a Hugging Face vocabulary that is not byte-level: their kinds follow from the library's.
pub(super) fn kinds(names: &[String], added: &HashMap<u32, Kind>) -> Vec<Kind> {
    let plain = |name: &str| if byte(name).is_some() { Kind::Byte } else { Kind::Text };
    names.iter().zip(0u32..).map(|(name, id)| added.get(&id).copied().unwrap_or_else(|| plain(name))).collect()
}
