//! How far one sequence has come in its grammar.
//!
//! Invariants: the state has taken exactly the sequence's drawn tokens (those of an interrupted run too); a mask belongs
//! to the next draw and to no other. Preemption leaves it alone, since it does not depend on KV.
//!
//! Cost and memory: see `grammar`. Bound: the library's limits, set by the factory.

use llguidance::{Matcher, api::StopReason, toktrie::SimpleVob};

use super::{Grammar, factory::first_line};

/// A grammar that can't go on. The sequence fails; nothing else does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("grammar: {0}")]
pub struct GrammarFault(String);

impl GrammarFault {
    fn of(fault: &dyn std::fmt::Display) -> Self {
        Self(first_line(&fault.to_string()))
    }
}

/// Which tokens may be drawn; one bit a vocabulary entry.
#[derive(Debug, Clone)]
pub struct TokenMask(SimpleVob);

impl TokenMask {
    /// Sets the logits of all forbidden tokens, and of those past the mask, to -inf.
    pub fn apply(&self, logits: &mut [f32]) {
        let words = self.0.as_slice();
        for (index, chunk) in logits.chunks_mut(32).enumerate() {
            match words.get(index).copied().unwrap_or(0) {
                u32::MAX => {}
                0 => chunk.fill(f32::NEG_INFINITY),
                word => {
                    let forbidden = chunk.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                    forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
    }

    /// Whether `token` may be drawn.
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.0.len() && self.0.is_allowed(token)
    }
}

/// Whether a text may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Open,
    /// Whole, and nothing may follow.
    Complete,
    /// Whole, and the model ended it with a token that is no text.
    Ended,
}

/// See the file's header.
pub(crate) struct GrammarState {
    matcher: Matcher,
    progress: Progress,
    mask: Option<Result<TokenMask, GrammarFault>>,
}

impl GrammarState {
    /// At the start of `grammar`, moved on by `drawn` tokens of an interrupted run.
    pub fn new(grammar: &Grammar, drawn: &[u32]) -> Result<Self, GrammarFault> {
        let mut state = Self { matcher: grammar.0.start.deep_clone(), progress: Progress::Open, mask: None };
        drawn.iter().try_for_each(|token| state.commit(*token))?;
        Ok(state)
    }

    /// Computes the mask of the next draw, if it is not there yet. `stop_tokens`: allowed where the text may end.
    pub fn prepare(&mut self, stop_tokens: &[u32]) {
        if self.mask.is_none() {
            self.mask = Some(self.compute(stop_tokens));
        }
    }

    /// The mask of the next draw.
    pub fn take_mask(&mut self, stop_tokens: &[u32]) -> Result<TokenMask, GrammarFault> {
        match self.mask.take() {
            Some(mask) => mask,
            None => self.compute(stop_tokens),
        }
    }

    fn compute(&mut self, stop_tokens: &[u32]) -> Result<TokenMask, GrammarFault> {
        let mut mask = self.matcher.compute_mask_or_eos().map_err(|fault| match self.matcher.stop_reason() {
            StopReason::NoExtensionBias => GrammarFault("no token of the vocabulary continues the text".to_owned()),
            _ => GrammarFault::of(&fault),
        })?;
        if self.progress != Progress::Open || self.matcher.is_accepting().map_err(|fault| GrammarFault::of(&fault))? {
            let entries = mask.len();
            let known = stop_tokens.iter().filter(|token| (**token as usize) < entries);
            known.for_each(|token| mask.allow_token(*token));
        }
        if mask.is_zero() {
            return Err(GrammarFault("no token may follow, and the model has none to end with".to_owned()));
        }
        Ok(TokenMask(mask))
    }

    /// Takes a drawn token.
    pub fn commit(&mut self, token: u32) -> Result<(), GrammarFault> {
        if self.progress != Progress::Open {
            return Err(GrammarFault(format!("token {token} follows the end of the text")));
        }
        self.mask = None;
        self.matcher.consume_token(token).map_err(|fault| GrammarFault::of(&fault))?;
        self.progress = match self.matcher.stop_reason() {
            StopReason::NotStopped => Progress::Open,
            StopReason::EndOfSentence => Progress::Ended,
            StopReason::NoExtension | StopReason::NoExtensionBias => Progress::Complete,
            other => return Err(GrammarFault(format!("stopped with {other:?}"))),
        };
        Ok(())
    }

    /// The text is whole and nothing may follow, or the model ended it.
    pub fn is_complete(&self) -> bool {
        self.progress != Progress::Open
    }

    /// The last token ended the text and is no part of it.
    pub fn ended_by_token(&self) -> bool {
        self.progress == Progress::Ended
    }
}
