//! Compiles grammars for one model, and keeps the last [`CACHED_GRAMMARS`] of them.
//!
//! Invariant: the same source gives the same grammar, cached or not. Share it in an `Arc`; `compile` may take
//! milliseconds and belongs on no engine's thread. Two callers that ask for the same new source at once both compile it,
//! and one result is kept.
//!
//! Cost: a hit is O(source) under a lock; a miss compiles outside of it. Memory: the vocabulary's search tree (about
//! 5 MB for 50 000 tokens) and at most [`CACHED_GRAMMARS`] grammars with sources of at most [`MAX_SOURCE_BYTES`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use llguidance::{
    JsonCompileOptions, Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
};
use serde_json::{Value, json};

use super::{
    CACHED_GRAMMARS, Compiled, Grammar, GrammarError, GrammarSource, GrammarVocabulary, INITIAL_LEXER_FUEL,
    MAX_GRAMMAR_SYMBOLS, MAX_JSON_WHITESPACE, MAX_LEXER_STATES, MAX_SOURCE_BYTES, STEP_ITEMS, STEP_LEXER_FUEL,
    one_of::relax,
};

/// See the file's header.
pub struct GrammarFactory {
    library: ParserFactory,
    vocab: usize,
    cache: Mutex<Cache>,
}

/// Grammars by source, each with when it was last asked for.
#[derive(Default)]
struct Cache {
    grammars: HashMap<GrammarSource, (Grammar, u64)>,
    asked: u64,
}

impl std::fmt::Debug for GrammarFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarFactory").field("vocab", &self.vocab).finish_non_exhaustive()
    }
}

impl GrammarFactory {
    /// For a model with this vocabulary. Takes about 100 ms for 50 000 tokens.
    pub fn new(vocabulary: &GrammarVocabulary) -> Result<Self, GrammarError> {
        let unusable = |fault: &dyn std::fmt::Display| GrammarError::Vocabulary(first_line(&fault.to_string()));
        if vocabulary.is_empty() {
            return Err(GrammarError::Vocabulary("it has no tokens".to_owned()));
        }
        let mut library = ParserFactory::new_simple(&vocabulary.token_env()?).map_err(|fault| unusable(&fault))?;
        library.quiet();
        *library.limits_mut() = ParserLimits {
            initial_lexer_fuel: INITIAL_LEXER_FUEL,
            step_lexer_fuel: STEP_LEXER_FUEL,
            step_max_items: STEP_ITEMS,
            max_lexer_states: MAX_LEXER_STATES,
            max_grammar_size: MAX_GRAMMAR_SYMBOLS,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self { library, vocab: vocabulary.len(), cache: Mutex::default() })
    }

    /// The grammar of `source`.
    pub fn compile(&self, source: &GrammarSource) -> Result<Grammar, GrammarError> {
        let cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grammar) = cache().find(source) {
            return Ok(grammar);
        }
        let grammar = self.compile_fresh(source)?;
        cache().keep(&grammar);
        Ok(grammar)
    }

    /// Grammars kept.
    pub fn cached(&self) -> usize {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).grammars.len()
    }

    fn compile_fresh(&self, source: &GrammarSource) -> Result<Grammar, GrammarError> {
        let (name, bytes) = (source.name(), source.text().len());
        if bytes > MAX_SOURCE_BYTES {
            return Err(GrammarError::TooLong { name, bytes });
        }
        let top = match source {
            GrammarSource::JsonObject => TopLevelGrammar::from_json_schema(schema(json!({ "type": "object" }))?),
            GrammarSource::JsonSchema(text) => {
                let parsed = serde_json::from_str(text).map_err(|fault| GrammarError::NotJson(fault.to_string()))?;
                TopLevelGrammar::from_json_schema(schema(parsed)?)
            }
            GrammarSource::Regex(text) => TopLevelGrammar::from_regex(text),
            GrammarSource::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        let refused = |fault: &dyn std::fmt::Display| GrammarError::Refused { name, fault: plain(&fault.to_string()) };
        let mut start = Matcher::new(self.library.create_parser(top));
        // The first mask finds grammars that no text can follow, and warms the lexer that sequences copy.
        start.compute_mask_or_eos().map_err(|fault| refused(&fault))?;
        Ok(Grammar(Arc::new(Compiled { source: source.clone(), start, vocab: self.vocab })))
    }
}

impl Cache {
    fn find(&mut self, source: &GrammarSource) -> Option<Grammar> {
        self.asked += 1;
        let (grammar, asked) = self.grammars.get_mut(source)?;
        *asked = self.asked;
        Some(grammar.clone())
    }

    fn keep(&mut self, grammar: &Grammar) {
        let oldest = self.grammars.iter().min_by_key(|(_, (_, asked))| *asked).map(|(source, _)| source.clone());
        if let Some(oldest) = oldest.filter(|_| self.grammars.len() >= CACHED_GRAMMARS) {
            self.grammars.remove(&oldest);
        }
        self.grammars.insert(grammar.source().clone(), (grammar.clone(), self.asked));
    }
}

/// A schema with the whitespace that we allow; the request can't choose it.
fn schema(value: Value) -> Result<Value, GrammarError> {
    let mut schema = match value {
        Value::Object(_) => value,
        Value::Bool(true) => json!({}),
        other => return Err(GrammarError::NotSchema(first_line(&other.to_string()))),
    };
    prepare_schema(&mut schema);
    Ok(schema)
}

/// Makes a schema, an object, ready for the library: with our bound on blanks, over whatever it says itself of them, and
/// with `anyOf` for `oneOf` where that is the same.
pub(crate) fn prepare_schema(schema: &mut Value) {
    let options = JsonCompileOptions {
        whitespace_pattern: Some(format!(r"[\x20\x0A\x0D\x09]{{1,{MAX_JSON_WHITESPACE}}}")),
        ..JsonCompileOptions::default()
    };
    if schema.is_object() {
        relax(schema);
        options.apply_to(schema);
    }
}

/// The library's words without its advice on options that a request does not have.
fn plain(fault: &str) -> String {
    let fault = fault.split("\n<backtrace>").next().unwrap_or_default();
    match fault.split_once("oneOf constraints are not supported.") {
        Some((before, _)) => format!("{before}oneOf with alternatives that may overlap; anyOf would do"),
        None => fault.trim().chars().take(2000).collect(),
    }
}

/// Enough of a fault to say what it is.
pub(super) fn first_line(fault: &str) -> String {
    fault.lines().next().unwrap_or_default().chars().take(300).collect()
}
