//! What a sequence carries of speculation: proposals of the step under way, or one that is only watched.
//!
//! A watched proposal did not run. Since outputs are the same with and without speculation, comparing it with what is
//! drawn step by step tells how it would have fared. Invariant: at most one is watched. Cost: O(1) a drawn token.
//! Memory: at most [`MAX_DRAFT_TOKENS`](super::config::MAX_DRAFT_TOKENS) tokens each.

use super::proposer::Trust;

/// A proposal that is compared with what is drawn.
#[derive(Debug)]
pub(crate) struct Watch {
    pub tokens: Vec<u32>,
    pub trust: Trust,
    right: usize,
}

/// How a proposal fared: tokens proposed, and how many from its start were right.
pub(crate) type Outcome = (Trust, (usize, usize));

/// See the file's header.
#[derive(Debug, Default)]
pub(crate) struct DraftState {
    /// Tokens behind the known ones that run in this step.
    pub proposals: Vec<u32>,
    pub trust: Trust,
    watch: Option<Watch>,
}

impl DraftState {
    pub fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    /// Starts to watch a proposal of at least one token.
    pub fn watch(&mut self, tokens: Vec<u32>, trust: Trust) {
        self.watch = Some(Watch { tokens, trust, right: 0 });
    }

    /// Proposals that run in this step; nothing is watched meanwhile.
    pub fn run(&mut self, tokens: Vec<u32>, trust: Trust) {
        self.watch = None;
        (self.proposals, self.trust) = (tokens, trust);
    }

    /// `token` was drawn. Tells of the watched proposal once it is decided.
    pub fn drew(&mut self, token: u32) -> Option<Outcome> {
        let watch = self.watch.as_mut()?;
        let right = watch.tokens[watch.right] == token;
        watch.right += usize::from(right);
        if right && watch.right < watch.tokens.len() {
            return None;
        }
        let outcome = (watch.trust, (watch.tokens.len(), watch.right));
        self.watch = None;
        Some(outcome)
    }
}
