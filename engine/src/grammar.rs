//! Structured output: a grammar says which tokens may come next (SPEC E1: `response_format`, tools).
//!
//! A [`GrammarSource`] is what travels: plain text in a request. A [`GrammarFactory`](factory::GrammarFactory), one for
//! each model, compiles it off the engine's thread into a [`Grammar`], which a request carries into the engine. There
//! the sequence owns the grammar's state: a mask before each draw, a commit after it.
//!
//! The matching of bytes against grammars and the search through the vocabulary are the `llguidance` crate's; here is
//! what it may cost and how it joins the step.
//!
//! Invariants: a token that the mask forbids is never drawn; the tokens of a sequence that ended with `Stop` by its
//! grammar, joined, are a text of the grammar; two sequences share no mutable state, so a fault ends one of them alone.
//!
//! Cost (bench `grammar`, 49 152 tokens, a core shared with four other processes): compiling 1–6 ms; the start of a
//! sequence 40 µs; a mask 60–160 µs on average, 15–30 µs at the median and up to 10 ms where a string with a bounded
//! length meets lexer states for the first time; a commit 2–20 µs. The constants below bound all of it; a sequence that
//! reaches one fails. Memory: a grammar 0.1–1 MB, a sequence as much again plus one bit a vocabulary entry; the lexer's
//! states are a sequence's own, so that no neighbour's text decides whether it reaches its bound.

pub mod factory;
mod one_of;
mod state;
mod vocabulary;

use std::sync::Arc;

use llguidance::Matcher;
use serde::{Deserialize, Serialize};

pub use self::{
    state::{GrammarFault, TokenMask},
    vocabulary::GrammarVocabulary,
};
pub(crate) use factory::prepare_schema;
pub(crate) use state::GrammarState;

/// Longest source, in bytes; longer ones are refused.
pub const MAX_SOURCE_BYTES: usize = 256 * 1024;
/// Grammars that a factory keeps compiled. The least recently used one leaves first.
pub const CACHED_GRAMMARS: usize = 64;
/// Most symbols in the productions of a grammar.
pub const MAX_GRAMMAR_SYMBOLS: usize = 200_000;
/// Work for the first form of a grammar's regular expressions, in the library's units (about 50 000 a millisecond).
pub const INITIAL_LEXER_FUEL: u64 = 1_000_000;
/// Work of the lexer for one mask (about 14 000 a millisecond).
pub const STEP_LEXER_FUEL: u64 = 200_000;
/// Parser items made for one mask (about 20 000 a millisecond).
pub const STEP_ITEMS: usize = 50_000;
/// Most lexer states of one sequence, 1–2 kB each.
pub const MAX_LEXER_STATES: usize = 50_000;
/// Most blanks and line ends in a row between the tokens of JSON: room for indented output, no room to idle.
pub const MAX_JSON_WHITESPACE: usize = 64;

/// What the output must look like. Plain text, so that it can cross any wire; equal sources are one grammar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", content = "text", rename_all = "snake_case")]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// A JSON value that follows this JSON schema (text of an object, or `true`).
    JsonSchema(String),
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// A text of this grammar, in `llguidance`'s dialect of Lark.
    Lark(String),
}

impl GrammarSource {
    /// What errors call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::JsonObject => "json_object",
            Self::JsonSchema(_) => "json_schema",
            Self::Regex(_) => "regex",
            Self::Lark(_) => "grammar",
        }
    }

    /// Its text; empty for [`GrammarSource::JsonObject`].
    pub fn text(&self) -> &str {
        match self {
            Self::JsonObject => "",
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => text,
        }
    }
}

/// Why there is no grammar. All but the last are the request's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    #[error("{name} has {bytes} bytes; it must have at most {MAX_SOURCE_BYTES}")]
    TooLong { name: &'static str, bytes: usize },
    #[error("json_schema is not JSON: {0}")]
    NotJson(String),
    #[error("json_schema is {0}; it must be an object, or true")]
    NotSchema(String),
    /// The library's words, which name the place in the schema or grammar.
    #[error("{name} can't be enforced: {fault}")]
    Refused { name: &'static str, fault: String },
    #[error("the vocabulary can't be constrained: {0}")]
    Vocabulary(String),
}

/// A compiled grammar. Cloning is cheap; a clone is the same grammar.
#[derive(Clone)]
pub struct Grammar(Arc<Compiled>);

struct Compiled {
    source: GrammarSource,
    /// At its start, and never moved on: sequences take copies.
    start: Matcher,
    vocab: usize,
}

impl Grammar {
    /// What it was compiled from.
    pub fn source(&self) -> &GrammarSource {
        &self.0.source
    }

    /// Vocabulary entries of the model that it was compiled for.
    pub fn vocab(&self) -> usize {
        self.0.vocab
    }
}

/// A walk through a grammar outside of an engine, for benches and tools.
pub struct Walk(GrammarState);

impl Walk {
    /// At the start of `grammar`.
    pub fn new(grammar: &Grammar) -> Result<Self, GrammarFault> {
        GrammarState::new(grammar, &[]).map(Self)
    }

    /// The tokens that may come next.
    pub fn mask(&mut self) -> Result<TokenMask, GrammarFault> {
        self.0.take_mask(&[])
    }

    /// Nothing may follow.
    pub fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    /// Goes on by `token`.
    pub fn take(&mut self, token: u32) -> Result<(), GrammarFault> {
        self.0.commit(token)
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Grammar").field(self.source()).finish()
    }
}

impl PartialEq for Grammar {
    fn eq(&self, other: &Self) -> bool {
        self.0.vocab == other.0.vocab && self.0.source == other.0.source
    }
}
