//! Text to token ids and back: byte-level BPE, built from a model file's metadata.
//!
//! The merging, the splitting by regular expression and the search for special tokens are the `tokenizers` crate's; here
//! is how a GGUF file maps onto them. Invariant: `token_bytes` of all tokens of a text, joined, are its bytes (unless the
//! vocabulary lacks a byte), so text can be streamed byte by byte. Cost: about 10 MB for 50 000 tokens; encoding is a few
//! µs a word, with the library's bounded cache of merged words (10 000 a thread). Thread-safe: share it in an `Arc`.

use std::collections::HashSet;

use tokenizers::{
    AddedToken, AddedVocabulary, Model as _, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizer as _,
    PreTokenizerWrapper, SplitDelimiterBehavior,
    models::bpe::{BPE, Vocab},
    normalizers::NFC,
    pre_tokenizers::{
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use crate::model::gguf::{Gguf, GgufError};

/// Pre-tokenizers that are built.
pub const PRE_TOKENIZERS: [&str; 5] = ["default", "gpt-2", "smollm", "qwen2", "llama-bpe"];

/// Why a file gives no tokenizer, or a text no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("metadata key tokenizer.ggml.model is {0:?}, expected \"gpt2\" (byte-level BPE)")]
    Model(String),
    #[error("metadata key tokenizer.ggml.pre is {name:?}, expected one of {}", PRE_TOKENIZERS.join(", "))]
    PreTokenizer { name: String },
    #[error("metadata key {key} has {got} entries, expected {expected}")]
    Length { key: &'static str, got: usize, expected: usize },
    #[error("metadata key tokenizer.ggml.merges: entry {index} is {merge:?}, expected {expected}")]
    Merge { index: usize, merge: String, expected: &'static str },
    #[error("metadata key {key} is {id}, expected below the {vocab} tokens")]
    Token { key: String, id: usize, vocab: usize },
    #[error("tokenizer: {0}")]
    Library(String),
}

impl From<tokenizers::Error> for TokenizerError {
    fn from(error: tokenizers::Error) -> Self {
        Self::Library(error.to_string())
    }
}

/// Whether the file's own first token (and last, if it asks for one) is put around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddSpecial {
    /// As `tokenizer.ggml.add_bos_token` and `add_eos_token` say.
    AsModel,
    /// Never: the text is a rendered chat template, which has them already.
    Never,
}

/// Whether control tokens written out in a text (`<|im_end|>`) become those tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseSpecial {
    /// They do: for rendered templates.
    Control,
    /// They are plain text: for text that a user typed.
    Plain,
}

/// What `tokenizer.ggml.token_type` says of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    /// Never shown: `<|im_start|>`.
    Control,
    /// Found in any text before it is split: `<tool_call>`.
    UserDefined,
}

/// A model's tokenizer.
pub struct Tokenizer {
    bpe: BPE,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: PreTokenizerWrapper,
    /// Control and user-defined tokens; the second has the user-defined alone.
    with_control: AddedVocabulary,
    without_control: AddedVocabulary,
    tokens: Vec<TokenText>,
    first: Option<u32>,
    last: Option<u32>,
    eos: Vec<u32>,
}

struct TokenText {
    /// Bytes of the text it stands for; for a control token, its name.
    bytes: Vec<u8>,
    kind: Kind,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab", &self.tokens.len()).field("eos", &self.eos).finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let model = gguf.text("tokenizer.ggml.model")?;
        if model != "gpt2" {
            return Err(TokenizerError::Model(model.to_owned()));
        }
        let pre = gguf.find_text("tokenizer.ggml.pre")?.unwrap_or("default");
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let names = gguf.find_texts(TOKENS)?.ok_or_else(|| GgufError::missing(TOKENS))?;
        let kinds = kinds(gguf, names.len())?;
        let bytes_of = byte_alphabet();
        let tokens: Vec<TokenText> =
            names.iter().zip(&kinds).map(|(name, kind)| token_text(name, *kind, &bytes_of)).collect();
        let bpe = bpe(gguf, names, pre == "llama-bpe")?;
        let normalizer = (pre == "qwen2").then_some(NormalizerWrapper::NFC(NFC));
        let added = |wanted: &[Kind]| added(names, &kinds, wanted, &bpe);
        Ok(Self {
            normalizer,
            pre_tokenizer: pre_tokenizer(pre)?,
            with_control: added(&[Kind::Control, Kind::UserDefined])?,
            without_control: added(&[Kind::UserDefined])?,
            first: edge_token(gguf, "bos", names.len())?,
            last: edge_token(gguf, "eos", names.len())?,
            eos: eos_tokens(gguf, names)?,
            tokens,
            bpe,
        })
    }

    /// Tokens of a text.
    pub fn encode(&self, text: &str, add: AddSpecial, parse: ParseSpecial) -> Result<Vec<u32>, TokenizerError> {
        let added = match parse {
            ParseSpecial::Control => &self.with_control,
            ParseSpecial::Plain => &self.without_control,
        };
        let mut pieces = added.extract_and_normalize(self.normalizer.as_ref(), text);
        self.pre_tokenizer.pre_tokenize(&mut pieces)?;
        pieces.tokenize(|piece| self.bpe.tokenize(piece.get()))?;
        let edge = |token: Option<u32>| token.filter(|_| add == AddSpecial::AsModel);
        let mut ids: Vec<u32> = edge(self.first).into_iter().collect();
        for (_, _, tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::None) {
            ids.extend(tokens.iter().flatten().map(|token| token.id));
        }
        ids.extend(edge(self.last));
        Ok(ids)
    }

    /// The bytes a token adds to a text: none for control tokens and for ids past the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        match self.tokens.get(id as usize) {
            Some(token) if token.kind != Kind::Control => &token.bytes,
            _ => &[],
        }
    }

    /// Text of some tokens, control tokens by name; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let known = ids.iter().filter_map(|id| self.tokens.get(*id as usize));
        let bytes: Vec<u8> = known.flat_map(|token| token.bytes.iter().copied()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Tokens that end a reply.
    pub fn eos_tokens(&self) -> &[u32] {
        &self.eos
    }

    pub fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    /// True for control tokens, which are never shown.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokens.get(id as usize).is_some_and(|token| token.kind == Kind::Control)
    }

    /// The name of a token, as templates write it.
    pub fn special_text(&self, id: u32) -> Option<&str> {
        let token = self.tokens.get(id as usize).filter(|token| token.kind == Kind::Control)?;
        std::str::from_utf8(&token.bytes).ok()
    }
}

/// The pre-tokenizer of a name in `tokenizer.ggml.pre`.
fn pre_tokenizer(name: &str) -> Result<PreTokenizerWrapper, TokenizerError> {
    // add_prefix_space, trim_offsets, use_regex: the last splits as GPT-2 does.
    let gpt2 = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, true));
    let bytes_only = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false));
    let split = |digits: &str| {
        let pattern = format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
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
fn bpe(gguf: &Gguf, names: &[String], whole_words_first: bool) -> Result<BPE, TokenizerError> {
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

fn kinds(gguf: &Gguf, tokens: usize) -> Result<Vec<Kind>, TokenizerError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let Some(types) = gguf.find_ints(KEY)? else { return Ok(vec![Kind::Text; tokens]) };
    if types.len() != tokens {
        return Err(TokenizerError::Length { key: KEY, got: types.len(), expected: tokens });
    }
    Ok(types
        .iter()
        .map(|kind| match kind {
            3 => Kind::Control,
            4 => Kind::UserDefined,
            _ => Kind::Text,
        })
        .collect())
}

fn added(names: &[String], kinds: &[Kind], wanted: &[Kind], bpe: &BPE) -> Result<AddedVocabulary, TokenizerError> {
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

/// The token to put at an edge of a text, if the file asks for it.
fn edge_token(gguf: &Gguf, edge: &str, vocab: usize) -> Result<Option<u32>, TokenizerError> {
    let token = find_token(gguf, format!("tokenizer.ggml.{edge}_token_id"), vocab)?;
    let wanted = gguf.find_flag(&format!("tokenizer.ggml.add_{edge}_token"))?.unwrap_or(false);
    Ok(token.filter(|_| wanted))
}

/// The file's end-of-sequence and end-of-turn tokens, and the well-known names of such among its control tokens.
fn eos_tokens(gguf: &Gguf, names: &[String]) -> Result<Vec<u32>, TokenizerError> {
    const ENDS: [&str; 4] = ["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>"];
    let mut tokens = Vec::new();
    for key in ["eos", "eot", "eom"] {
        tokens.extend(find_token(gguf, format!("tokenizer.ggml.{key}_token_id"), names.len())?);
    }
    let types = gguf.find_ints("tokenizer.ggml.token_type")?.unwrap_or(&[]);
    for ((name, kind), id) in names.iter().zip(types).zip(0u32..) {
        if *kind == 3 && ENDS.contains(&name.as_str()) && !tokens.contains(&id) {
            tokens.push(id);
        }
    }
    Ok(tokens)
}

/// Which byte a character of a byte-level token stands for: printable ones for themselves, the rest, in order, for the
/// characters from U+0100 on.
pub(crate) fn byte_alphabet() -> std::collections::HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let hidden = (0..=u8::MAX).filter(|byte| !printable(*byte));
    let moved = hidden.zip('\u{100}'..).map(|(byte, character)| (character, byte));
    (0..=u8::MAX).filter(|byte| printable(*byte)).map(|byte| (char::from(byte), byte)).chain(moved).collect()
}

fn token_text(name: &str, kind: Kind, bytes_of: &std::collections::HashMap<char, u8>) -> TokenText {
    let mapped: Option<Vec<u8>> = match kind {
        Kind::Text => name.chars().map(|character| bytes_of.get(&character).copied()).collect(),
        Kind::Control | Kind::UserDefined => None,
    };
    // A token with characters outside the alphabet stands for its own text.
    TokenText { bytes: mapped.unwrap_or_else(|| name.as_bytes().to_vec()), kind }
}
