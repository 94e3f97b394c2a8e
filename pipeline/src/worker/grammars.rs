//! Grammars for the model that a worker serves: compiled where requests come in, never on the engine's thread.
//!
//! Invariant: they are for exactly the engine's vocabulary. Cost: nothing until the first request with a grammar, which
//! reads the model file's tokenizer again and builds the search tree (under a second, 5 MB for 50 000 tokens); after that
//! milliseconds a new grammar. State: that tree and the factory's bounded cache of grammars.

use std::{path::PathBuf, sync::OnceLock};

use engine::{
    grammar::{Grammar, GrammarError, GrammarSource, GrammarVocabulary, factory::GrammarFactory},
    model::gguf::Gguf,
    tokenizer::Tokenizer,
};

use super::{model::SIMULATED, paced::NumberedTokens};

/// See the file's header.
pub struct Grammars {
    model: PathBuf,
    /// Vocabulary entries of the engine.
    vocab: usize,
    factory: OnceLock<Result<GrammarFactory, GrammarError>>,
}

impl Grammars {
    /// For the model file at `model`, or the simulated one; `vocab` as the engine has it. Reads nothing yet.
    pub fn of_model(model: &str, vocab: usize) -> Self {
        Self { model: model.into(), vocab, factory: OnceLock::new() }
    }

    /// The grammar of `source`. Blocks for milliseconds; the first call for longer.
    pub fn compile(&self, source: &GrammarSource) -> Result<Grammar, GrammarError> {
        let factory = self.factory.get_or_init(|| GrammarFactory::new(&self.vocabulary()?));
        factory.as_ref().map_err(Clone::clone)?.compile(source)
    }

    fn vocabulary(&self) -> Result<GrammarVocabulary, GrammarError> {
        if self.model.as_os_str() == SIMULATED {
            return Ok(GrammarVocabulary::of_bytes(&NumberedTokens::new(self.vocab), self.vocab, &[]));
        }
        let gguf = Gguf::open(&self.model).map_err(|error| GrammarError::Vocabulary(error.to_string()))?;
        let tokenizer = Tokenizer::from_gguf(&gguf).map_err(|error| GrammarError::Vocabulary(error.to_string()))?;
        Ok(GrammarVocabulary::of_tokenizer(&tokenizer, self.vocab))
    }
}
