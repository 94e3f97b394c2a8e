//! Which tokens a sequence has seen, for the penalties (SPEC B7: sampling is a leaf of the step).
//!
//! Kept only for requests that ask for a penalty; all others carry nothing.
//!
//! Cost: O(1) a token. Bound: one entry a distinct token, at most the vocabulary or the context, whichever is smaller.

use std::collections::HashMap;

use crate::request::SamplingParams;

/// How often a token occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenUse {
    /// Occurrences among the generated tokens; 0 for a token of the prompt only.
    pub generated: u32,
}

/// Tokens of prompt and output, with counts of the output.
#[derive(Debug, Clone, Default)]
pub struct TokenHistory {
    uses: Option<HashMap<u32, TokenUse>>,
}

impl TokenHistory {
    /// The history of a sequence whose prompt ends in `drawn` tokens of an interrupted run. Empty and inert if `params` has
    /// no penalty.
    pub fn new(params: &SamplingParams, prompt: &[u32], drawn: usize) -> Self {
        if params.frequency_penalty == 0.0 && params.presence_penalty == 0.0 && params.repetition_penalty == 1.0 {
            return Self { uses: None };
        }
        let (given, drawn) = prompt.split_at(prompt.len().saturating_sub(drawn));
        let uses = given.iter().map(|token| (*token, TokenUse::default())).collect();
        let mut history = Self { uses: Some(uses) };
        drawn.iter().for_each(|token| history.record(*token));
        history
    }

    /// Counts a generated token.
    pub fn record(&mut self, token: u32) {
        if let Some(uses) = &mut self.uses {
            uses.entry(token).or_default().generated += 1;
        }
    }

    /// Tokens seen, each once, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, TokenUse)> + '_ {
        self.uses.iter().flatten().map(|(token, seen)| (*token, *seen))
    }

    pub fn is_empty(&self) -> bool {
        self.uses.as_ref().is_none_or(HashMap::is_empty)
    }
}
