//! A model's vocabulary as the grammar library sees it: bytes of each token, and which tokens end a text.
//!
//! Invariant: no text can be made of a control token or of one that ends a reply; their bytes begin with 0xFF, which no
//! character contains. Cost: O(bytes of the vocabulary), once a model; no state past the factory's making.

use std::sync::Arc;

use llguidance::{
    panic_utils,
    toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie},
};

use super::GrammarError;
use crate::{stop::TokenBytes, tokenizer::Tokenizer};

/// Bytes that mark a token as one that is no text.
const NO_TEXT: u8 = 0xFF;

/// See the file's header.
#[derive(Debug, Clone, Default)]
pub struct GrammarVocabulary {
    words: Vec<Vec<u8>>,
    eos: Vec<u32>,
}

impl GrammarVocabulary {
    /// Of a tokenizer, for a model with `vocab` logits. Ids that the tokenizer lacks can never be drawn.
    pub fn of_tokenizer(tokenizer: &Tokenizer, vocab: usize) -> Self {
        let word = |id: u32| match tokenizer.special_text(id) {
            Some(name) => marked(name.as_bytes()),
            None => tokenizer.token_bytes(id).to_vec(),
        };
        Self::new((0..vocab as u32).map(word).collect(), tokenizer.eos_tokens())
    }

    /// Of `vocab` tokens by their bytes alone; those in `eos` end a text.
    pub fn of_bytes(bytes: &dyn TokenBytes, vocab: usize, eos: &[u32]) -> Self {
        Self::new((0..vocab as u32).map(|id| bytes.token_bytes(id).to_vec()).collect(), eos)
    }

    fn new(mut words: Vec<Vec<u8>>, eos: &[u32]) -> Self {
        let eos: Vec<u32> = eos.iter().copied().filter(|id| (*id as usize) < words.len()).collect();
        for id in &eos {
            let word = &mut words[*id as usize];
            if word.first() != Some(&NO_TEXT) {
                *word = marked(word);
            }
        }
        Self { words, eos }
    }

    /// Tokens, those without text included.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The search tree over all tokens.
    pub(super) fn token_env(&self) -> Result<TokEnv, GrammarError> {
        let build = || {
            let info = TokRxInfo::new(self.words.len() as u32, self.eos.first().copied().unwrap_or(INVALID_TOKEN));
            let trie = TokTrie::from(&info, &self.words);
            Ok(if self.eos.is_empty() { trie } else { trie.with_eos_tokens(&self.eos) })
        };
        let trie = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(build));
        let trie = trie.map_err(|fault| GrammarError::Vocabulary(super::factory::first_line(&fault.to_string())))?;
        // Its tokenisation is not the model's own; it is used for no more than guesses, since nothing is forced.
        Ok(Arc::new(ApproximateTokEnv::new(trie)))
    }
}

fn marked(name: &[u8]) -> Vec<u8> {
    [&[NO_TEXT], name].concat()
}
