//! How often proposals turn out right, learnt for one class of requests and one level of trust.
//!
//! Kept by place in the proposal: given that all before it were right, was it? Counts fade, so that about the last 40
//! outcomes decide; where there are few, the place before it stands in.
//!
//! Invariant: [`Acceptance::expected`] is non-decreasing, and grows by at most one a token. Cost: O(max draft) an
//! outcome. Memory: three arrays of [`MAX_DRAFT_TOKENS`].

use super::config::MAX_DRAFT_TOKENS;

/// What an outcome's weight is multiplied with at each later one.
const FADE: f32 = 0.975;
/// Outcomes for which the place before counts.
const PRIOR_WEIGHT: f32 = 2.0;

/// See the file's header.
#[derive(Debug, Clone)]
pub(crate) struct Acceptance {
    right: [f32; MAX_DRAFT_TOKENS],
    tried: [f32; MAX_DRAFT_TOKENS],
    /// Tokens expected to be right of a proposal of each length.
    expected: [f32; MAX_DRAFT_TOKENS + 1],
    prior: f32,
}

impl Acceptance {
    /// `prior`: the share of right tokens that is believed at first.
    pub fn new(prior: f32) -> Self {
        let blank = [0.0; MAX_DRAFT_TOKENS];
        let mut new = Self { right: blank, tried: blank, expected: [0.0; MAX_DRAFT_TOKENS + 1], prior };
        new.update();
        new
    }

    /// Of `proposed` tokens the first `right` were.
    pub fn record(&mut self, proposed: usize, right: usize) {
        debug_assert!(right <= proposed && proposed <= MAX_DRAFT_TOKENS);
        for place in 0..proposed.min(right + 1) {
            self.tried[place] = self.tried[place] * FADE + 1.0;
            self.right[place] = self.right[place] * FADE + if place < right { 1.0 } else { 0.0 };
        }
        self.update();
    }

    /// Tokens expected to be right among the first `length` proposed.
    pub fn expected(&self, length: usize) -> f32 {
        self.expected[length.min(MAX_DRAFT_TOKENS)]
    }

    /// Faded number of outcomes.
    pub fn outcomes(&self) -> f32 {
        self.tried[0]
    }

    fn update(&mut self) {
        let (mut before, mut survives) = (self.prior, 1.0);
        for place in 0..MAX_DRAFT_TOKENS {
            before = (self.right[place] + PRIOR_WEIGHT * before) / (self.tried[place] + PRIOR_WEIGHT);
            survives *= before;
            self.expected[place + 1] = self.expected[place] + survives;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: outcomes that are all right, then all wrong.
    /// Guarantees: expectations follow, stay ordered, and never exceed the proposal.
    #[test]
    fn expectations_follow_outcomes() {
        let mut acceptance = Acceptance::new(0.3);
        (0..60).for_each(|_| acceptance.record(8, 8));
        assert!(acceptance.expected(8) > 7.0, "{acceptance:?}");
        (0..60).for_each(|_| acceptance.record(8, 0));
        assert!(acceptance.expected(8) < 1.5, "{acceptance:?}");
        for length in 0..MAX_DRAFT_TOKENS {
            let gain = acceptance.expected(length + 1) - acceptance.expected(length);
            assert!((0.0..=1.0).contains(&gain));
        }
    }
}
