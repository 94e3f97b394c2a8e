//! GGUF metadata to the pieces of a tokenizer: each key checked, so that the library never meets what it counts on not
//! meeting. Nothing is kept here.

use std::collections::{HashMap, HashSet};

use tokenizers::{
    AddedToken, AddedVocabulary, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    models::bpe::{BPE, Vocab},
    pre_tokenizers::{
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::{Kind, TokenText, TokenizerError};
use crate::model::gguf::{Gguf, GgufError};

/// The pre-tokenizer of a name in `tokenizer.ggml.pre`.
pub(super) fn pre_tokenizer(name: &str) -> Result<PreTokenizerWrapper, TokenizerError> {
    // add_prefix_space, trim_offsets, use_regex: the last splits as GPT-2 does.
    let gpt2 = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, true));
    let bytes_only = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false));
    let split = |digits: &str| {
        let words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+";
        let rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let pattern = format!("{words}|{digits}|{rest}");
        Split::new(SplitPattern::Regex(pattern), SplitDelimiterBehavior::Isolated, false)
    };
    let sequence = |steps| PreTokenizerWrapper::Sequence(Sequence::new(steps));
    Ok(match name {
        "default" | "gpt-2" => gpt2,
        "smollm" => sequence(vec![PreTokenizerWrapper::Digits(Digits::new(true)), gpt2]),
        "qwen2" => sequence(vec![PreTokenizerWrapper::Split(split(r"\p{N}")?), bytes_only]),
        "llama-bpe" => sequence(vec![PreTokenizerWrapper::Split(split(r"\p{N}{1,3}")?), bytes_only]),
        other => return Err(TokenizerError::PreTokenizer { name: other.to_owned() }),
    })
}

/// Vocabulary and merges; each merge is checked, since the library counts on them.
pub(super) fn bpe(gguf: &Gguf, names: &[String], whole_words_first: bool) -> Result<BPE, TokenizerError> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let merges = gguf.find_texts(MERGES)?.ok_or_else(|| GgufError::missing(MERGES))?;
    let known: HashSet<&str> = names.iter().map(String::as_str).collect();
    let mut pairs = Vec::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        let bad = |expected| TokenizerError::Merge { index, merge: merge.clone(), expected };
        let (left, right) = merge.split_once(' ').ok_or_else(|| bad("two tokens with a space between"))?;
        let joined = [left, right].concat();
        if ![left, right, &joined].iter().all(|part| known.contains(part)) {
            return Err(bad("two tokens of the vocabulary whose joined text is one too"));
        }
        pairs.push((left.to_owned(), right.to_owned()));
    }
    // Of tokens with the same text the first one is used.
    let mut vocab = Vocab::default();
    for (name, id) in names.iter().zip(0u32..) {
        vocab.entry(name.clone()).or_insert(id);
    }
    Ok(BPE::builder().vocab_and_merges(vocab, pairs).ignore_merges(whole_words_first).build()?)
}

pub(super) fn kinds(gguf: &Gguf, tokens: usize) -> Result<Vec<Kind>, TokenizerError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let Some(types) = gguf.find_ints(KEY)? else { return Ok(vec![Kind::Text; tokens]) };
    if types.len() != tokens {
        return Err(TokenizerError::Length { key: KEY, got: types.len(), expected: tokens });
    }
    Ok(types
        .iter()
        .map(|kind| match kind {
            // The second is the unknown token: like a control token it is never shown and not found in plain text.
            3 | 2 => Kind::Control,
            4 => Kind::UserDefined,
            6 => Kind::Byte,
            _ => Kind::Text,
        })
        .collect())
}

pub(super) fn added(
    names: &[String],
    kinds: &[Kind],
    wanted: &[Kind],
    bpe: &BPE,
) -> Result<AddedVocabulary, TokenizerError> {
    let tokens: Vec<AddedToken> = names
        .iter()
        .zip(kinds)
        .filter(|(name, kind)| wanted.contains(kind) && !name.is_empty())
        .map(|(name, kind)| AddedToken::from(name.as_str(), *kind == Kind::Control).normalized(false))
        .collect();
    let mut added = AddedVocabulary::new();
    if !tokens.is_empty() {
        added.add_tokens(tokens, bpe, None::<&NormalizerWrapper>)?;
    }
    Ok(added)
}

fn find_token(gguf: &Gguf, key: String, vocab: usize) -> Result<Option<u32>, TokenizerError> {
    match gguf.find_count(&key)? {
        Some(id) if id >= vocab => Err(TokenizerError::Token { key, id, vocab }),
        found => Ok(found.map(|id| id as u32)),
    }
}

/// The token to put at an edge of a text, if the file asks for it; a file that says nothing gets the default.
pub(super) fn edge_token(gguf: &Gguf, edge: &str, (vocab, default): (usize, bool)) -> Result<Vec<u32>, TokenizerError> {
    let token = find_token(gguf, format!("tokenizer.ggml.{edge}_token_id"), vocab)?;
    let wanted = gguf.find_flag(&format!("tokenizer.ggml.add_{edge}_token"))?.unwrap_or(default);
    Ok(token.filter(|_| wanted).into_iter().collect())
}

/// The file's end-of-sequence and end-of-turn tokens, and the well-known names of such among its control tokens.
pub(super) fn eos_tokens(gguf: &Gguf, names: &[String], kinds: &[Kind]) -> Result<Vec<u32>, TokenizerError> {
    const ENDS: [&str; 5] = ["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"];
    let mut tokens = Vec::new();
    for key in ["eos", "eot", "eom"] {
        tokens.extend(find_token(gguf, format!("tokenizer.ggml.{key}_token_id"), names.len())?);
    }
    for ((name, kind), id) in names.iter().zip(kinds).zip(0u32..) {
        if *kind == Kind::Control && ENDS.contains(&name.as_str()) && !tokens.contains(&id) {
            tokens.push(id);
        }
    }
    Ok(tokens)
}

/// Which byte a character of a byte-level token stands for: printable ones for themselves, the rest, in order, for the
/// characters from U+0100 on.
pub(crate) fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let hidden = (0..=u8::MAX).filter(|byte| !printable(*byte));
    let moved = hidden.zip('\u{100}'..).map(|(byte, character)| (character, byte));
    (0..=u8::MAX).filter(|byte| printable(*byte)).map(|byte| (char::from(byte), byte)).chain(moved).collect()
}

pub(super) fn token_text(name: &str, kind: Kind, bytes_of: &HashMap<char, u8>) -> TokenText {
    let mapped: Option<Vec<u8>> = match kind {
        Kind::Text => name.chars().map(|character| bytes_of.get(&character).copied()).collect(),
        Kind::Control | Kind::UserDefined | Kind::Byte => None,
    };
    // A token with characters outside the alphabet stands for its own text.
    TokenText { bytes: mapped.unwrap_or_else(|| name.as_bytes().to_vec()), kind }
}

#[cfg(test)]
mod tests {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;

    /// The pieces of a text, spaces shown as the byte alphabet shows them (`Ġ`).
    fn pieces(name: &str, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        pre_tokenizer(name).unwrap().pre_tokenize(&mut pieces).unwrap();
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
        splits.into_iter().map(|(piece, _, _)| piece.to_owned()).collect()
    }

    /// Scenario: words, a contraction in capitals, digits, runs of blanks and lines, under each pre-tokenizer.
    /// Guarantees: the cuts that each model family was trained with.
    #[test]
    fn each_family_cuts_its_own_way() {
        let text = "I'LL pay  12345\n\n ok";
        let gpt2 = ["I", "'", "LL", "Ġpay", "Ġ", "Ġ12345", "ĊĊ", "Ġok"];
        assert_eq!(pieces("gpt-2", text), gpt2);
        assert_eq!(pieces("default", text), gpt2);
        let smollm = ["I", "'", "LL", "Ġpay", "ĠĠ", "1", "2", "3", "4", "5", "ĊĊ", "Ġok"];
        assert_eq!(pieces("smollm", text), smollm);
        let qwen2 = ["I", "'LL", "Ġpay", "Ġ", "Ġ", "1", "2", "3", "4", "5", "ĊĊ", "Ġok"];
        assert_eq!(pieces("qwen2", text), qwen2);
        let llama = ["I", "'LL", "Ġpay", "Ġ", "Ġ", "123", "45", "ĊĊ", "Ġok"];
        assert_eq!(pieces("llama-bpe", text), llama);
        let error = pre_tokenizer("bloom").unwrap_err().to_string();
        assert_eq!(
            error,
            "metadata key tokenizer.ggml.pre is \"bloom\", expected one of default, gpt-2, smollm, qwen2, llama-bpe"
        );
    }

    /// Scenario: the 256 characters of the byte alphabet.
    /// Guarantees: one for each byte, the printable ones themselves.
    #[test]
    fn the_byte_alphabet_is_complete() {
        let alphabet = byte_alphabet();
        let mut bytes: Vec<u8> = alphabet.values().copied().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!((alphabet[&'A'], alphabet[&'Ġ'], alphabet[&'Ċ']), (b'A', b' ', b'\n'));
    }
}
