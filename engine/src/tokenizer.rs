//! Text to token ids and back: byte-level BPE, SentencePiece pieces with scores, or a tokenizer.json, from a model's
//! metadata.
//!
//! The merging, the splitting by regular expression and the search for special tokens are the `tokenizers` crate's;
//! here is how a model file maps onto them. Invariant: `token_bytes` of all tokens of a text, joined, are its bytes
//! (unless the vocabulary lacks a byte; with a space before them where the model wants one), so text can be streamed
//! byte by byte. Cost: about 10 MB for 50 000 tokens;
//! encoding is a few µs a word, with the library's bounded cache of merged words (10 000 a thread). Thread-safe: share
//! it in an `Arc`.

mod hugging_face;
mod metadata;
mod sentencepiece;

pub(crate) use metadata::byte_alphabet;
use metadata::{added, bpe, edge_token, eos_tokens, kinds, pre_tokenizer, token_text};
use tokenizers::{
    AddedVocabulary, Model as _, ModelWrapper, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizer as _,
    PreTokenizerWrapper, normalizers::NFC,
};

use crate::model::gguf::{Gguf, GgufError};

/// Pre-tokenizers that are built.
pub const PRE_TOKENIZERS: [&str; 5] = ["default", "gpt-2", "smollm", "qwen2", "llama-bpe"];

/// Why a file gives no tokenizer, or a text no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(
        "metadata key tokenizer.ggml.model is {0:?}, expected \"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece)"
    )]
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

/// Where a model made of Hugging Face files has its tokenizer.json.
pub(crate) const HUGGING_FACE_KEY: &str = "tokenizer.huggingface.json";

/// How a GGUF file's tokens are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vocabulary {
    ByteLevel,
    Pieces,
}

/// What `tokenizer.ggml.token_type` says of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    /// Never shown: `<|im_start|>`.
    Control,
    /// Found in any text before it is split: `<tool_call>`.
    UserDefined,
    /// One byte, for text that no piece covers: `<0x0A>`.
    Byte,
}

/// A model's tokenizer.
pub struct Tokenizer {
    model: ModelWrapper,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    /// Control and user-defined tokens; the second has the user-defined alone.
    with_control: AddedVocabulary,
    without_control: AddedVocabulary,
    tokens: Vec<TokenText>,
    first: Vec<u32>,
    last: Vec<u32>,
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
    /// The tokenizer of a GGUF file or Hugging Face folder.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        const MODEL: &str = "tokenizer.ggml.model";
        match (gguf.find_text(MODEL)?, gguf.find_text(HUGGING_FACE_KEY)?) {
            (Some("gpt2"), _) => Self::from_parts(gguf, Vocabulary::ByteLevel),
            (Some("llama"), _) => Self::from_parts(gguf, Vocabulary::Pieces),
            (Some(other), _) => Err(TokenizerError::Model(other.to_owned())),
            (None, Some(json)) => hugging_face::read(json, gguf),
            (None, None) => Err(GgufError::missing(MODEL).into()),
        }
    }

    fn from_parts(gguf: &Gguf, vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let names = gguf.find_texts(TOKENS)?.ok_or_else(|| GgufError::missing(TOKENS))?;
        let kinds = kinds(gguf, names.len())?;
        let named = names.iter().zip(&kinds);
        let (bpe, normalizer, pre_tokenizer, tokens): (_, _, _, Vec<TokenText>) = match vocabulary {
            Vocabulary::ByteLevel => {
                let pre = gguf.find_text("tokenizer.ggml.pre")?.unwrap_or("default");
                let bytes_of = byte_alphabet();
                let tokens = named.map(|(name, kind)| token_text(name, *kind, &bytes_of)).collect();
                let normalizer = (pre == "qwen2").then_some(NormalizerWrapper::NFC(NFC));
                (bpe(gguf, names, pre == "llama-bpe")?, normalizer, Some(pre_tokenizer(pre)?), tokens)
            }
            Vocabulary::Pieces => {
                let tokens = named.map(|(name, kind)| sentencepiece::token_text(name, *kind)).collect();
                let bpe = sentencepiece::model(gguf, names, &kinds)?;
                (bpe, Some(sentencepiece::normalizer(gguf)?), None, tokens)
            }
        };
        let added = |wanted: &[Kind]| added(names, &kinds, wanted, &bpe);
        let edge = |edge, default| edge_token(gguf, edge, (names.len(), default));
        Ok(Self {
            normalizer,
            pre_tokenizer,
            with_control: added(&[Kind::Control, Kind::UserDefined])?,
            without_control: added(&[Kind::UserDefined])?,
            first: edge("bos", vocabulary == Vocabulary::Pieces)?,
            last: edge("eos", false)?,
            eos: eos_tokens(gguf, names, &kinds)?,
            tokens,
            model: ModelWrapper::BPE(bpe),
        })
    }

    /// Tokens of a text.
    pub fn encode(&self, text: &str, add: AddSpecial, parse: ParseSpecial) -> Result<Vec<u32>, TokenizerError> {
        let added = match parse {
            ParseSpecial::Control => &self.with_control,
            ParseSpecial::Plain => &self.without_control,
        };
        let mut pieces = added.extract_and_normalize(self.normalizer.as_ref(), text);
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.model.tokenize(piece.get()))?;
        let edge = |tokens: &[u32]| if add == AddSpecial::AsModel { tokens.to_vec() } else { Vec::new() };
        let mut ids = edge(&self.first);
        for (_, _, tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::None) {
            ids.extend(tokens.iter().flatten().map(|token| token.id));
        }
        ids.extend(edge(&self.last));
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
