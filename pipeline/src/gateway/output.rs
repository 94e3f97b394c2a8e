//! What a sequence has produced, over all the instances it ran on.
//!
//! Invariants: `safe` is the newest point where every token's text was shown and nothing was held back; a new instance starts
//! there, and what it produces up to where the old one was must be the same again and is not reported twice. Memory: the
//! tokens and text of one sequence. Time: linear in a chunk.

use super::{
    deps::TextModel,
    error::ApiError,
    instances::Chunk,
    sequence::{Fault, Piece},
};

/// Point up to which every token's text has been shown.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SafePoint {
    pub tokens: usize,
    pub shown: usize,
}

/// What the sequence has produced so far.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub tokens: Vec<u32>,
    /// Text shown, in full.
    shown: String,
    /// Bytes of all tokens that are text.
    bytes: usize,
    pub safe: SafePoint,
    /// Tokens in the prompt of the present instance.
    pub resumed_at: usize,
    /// Position in `tokens` and `shown` that the present instance has reached.
    reached: SafePoint,
    pub cached: Option<u32>,
}

impl Output {
    /// A new instance begins at the safe point.
    pub fn restart(&mut self) {
        self.resumed_at = self.safe.tokens;
        self.reached = self.safe;
    }

    pub fn is_all_shown(&self) -> bool {
        self.bytes == self.shown.len()
    }

    /// What of the chunk is new. What was produced before must come again as it was.
    pub fn take(&mut self, chunk: &Chunk, text: &dyn TextModel, stop_tokens: &[u32]) -> Result<Piece, Fault> {
        let differs =
            || Fault::Final(ApiError::InstanceLost("the text computed again differs from the text sent".into()));
        let again = (self.tokens.len() - self.reached.tokens).min(chunk.tokens.len());
        if chunk.tokens[..again] != self.tokens[self.reached.tokens..self.reached.tokens + again] {
            return Err(differs());
        }
        let new = &chunk.tokens[again..];
        self.reached.tokens += chunk.tokens.len();
        for token in new {
            let is_text = !stop_tokens.contains(token);
            self.bytes += if is_text { text.token_bytes(*token).len() } else { 0 };
            self.tokens.push(*token);
        }
        let owed = &self.shown[self.reached.shown..];
        let fresh = match chunk.text.strip_prefix(owed) {
            Some(fresh) => fresh,
            None if owed.starts_with(chunk.text.as_str()) => "",
            None => return Err(differs()),
        };
        self.reached.shown += chunk.text.len();
        self.shown.push_str(fresh);
        if self.is_all_shown() && self.reached.tokens == self.tokens.len() && self.reached.shown == self.shown.len() {
            self.safe = self.reached;
        }
        if let Some(finish) = &chunk.finish
            && self.resumed_at == 0
        {
            self.cached.get_or_insert(finish.cached_tokens);
        }
        let logprobs = chunk.logprobs.iter().skip(again).filter(|entry| !stop_tokens.contains(&entry.token));
        Ok(Piece {
            tokens: new.len() as u32,
            text: fresh.to_string(),
            logprobs: logprobs.cloned().collect(),
            end: None,
        })
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
