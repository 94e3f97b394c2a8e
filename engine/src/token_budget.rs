//! The token budget of one step (SPEC B7): how many new tokens a batch may still take.
//!
//! Invariant: what was taken and what is left add up to the step's budget. Cost: O(1); one number.

/// See the file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBudget {
    left: usize,
    total: usize,
}

impl TokenBudget {
    pub fn new(tokens: usize) -> Self {
        Self { left: tokens, total: tokens }
    }

    /// Tokens that can still be taken.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Takes up to `wanted` tokens and says how many.
    pub fn take(&mut self, wanted: usize) -> usize {
        let granted = wanted.min(self.left);
        self.left -= granted;
        granted
    }

    /// Returns tokens that will not run after all.
    pub fn give_back(&mut self, tokens: usize) {
        self.left += tokens;
        assert!(self.left <= self.total, "invariant: no more comes back than was taken");
    }
}
