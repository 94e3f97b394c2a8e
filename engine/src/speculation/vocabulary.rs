//! Whether two model files speak of the same tokens: a draft's proposals mean nothing otherwise, nor do prompts that were
//! tokenised for the other.
//!
//! Invariant: equal means equal ids for equal names, control tokens included. Cost: O(vocabulary), once. No state.

use crate::model::{Gguf, GgufError};

/// Why a file can't draft for another.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("metadata key {TOKENS} is missing in the {which}; both files need it so that their tokens can be compared")]
    Missing { which: &'static str },
    #[error("it has {draft} tokens, expected the {target} of the model it goes with")]
    Size { draft: usize, target: usize },
    #[error("token {token} is {draft:?} in it, expected {target:?} as in the model it goes with")]
    Token { token: usize, draft: String, target: String },
}

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Compares the names of all tokens.
pub fn same_vocabulary(target: &Gguf, draft: &Gguf) -> Result<(), VocabularyError> {
    let missing = |which| VocabularyError::Missing { which };
    let target = target.find_texts(TOKENS)?.ok_or_else(|| missing("model"))?;
    let draft = draft.find_texts(TOKENS)?.ok_or_else(|| missing("other file"))?;
    if target.len() != draft.len() {
        return Err(VocabularyError::Size { draft: draft.len(), target: target.len() });
    }
    match target.iter().zip(draft).position(|(target, draft)| target != draft) {
        Some(token) => {
            let (draft, target) = (draft[token].to_string(), target[token].to_string());
            Err(VocabularyError::Token { token, draft, target })
        }
        None => Ok(()),
    }
}
