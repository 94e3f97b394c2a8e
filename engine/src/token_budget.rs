//! The token budget of one step (SPEC B7): how many new tokens a batch may still take, and how many of these from prompts.
//!
//! Invariant: what was taken and what is left add up to the step's budget. Cost: O(1); three numbers.

/// See the file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBudget {
    left: usize,
    total: usize,
    /// Of what is left, how much prompts may take.
    prompts_left: usize,
}

impl TokenBudget {
    pub fn new(tokens: usize) -> Self {
        Self { left: tokens, total: tokens, prompts_left: tokens }
    }

    /// Prompts may take no more than this from now on.
    pub fn limit_prompts(&mut self, tokens: usize) {
        self.prompts_left = tokens;
    }

    /// Tokens that can still be taken.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Tokens that prompts can still take.
    pub fn left_for_prompts(&self) -> usize {
        self.left.min(self.prompts_left)
    }

    /// Takes up to `wanted` tokens and says how many.
    pub fn take(&mut self, wanted: usize) -> usize {
        let granted = wanted.min(self.left);
        self.left -= granted;
        granted
    }

    /// Takes up to `wanted` tokens of a prompt and says how many.
    pub fn take_for_prompt(&mut self, wanted: usize) -> usize {
        let granted = self.take(wanted.min(self.prompts_left));
        self.prompts_left -= granted;
        granted
    }

    /// Returns tokens that will not run after all.
    pub fn give_back(&mut self, tokens: usize) {
        self.left += tokens;
        assert!(self.left <= self.total, "invariant: no more comes back than was taken");
    }
}
