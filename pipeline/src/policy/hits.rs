//! Cached prefixes of a request's prompts, per instance and level of storage (SPEC C3, C4).
//!
//! Invariant: one entry an instance, in the order of their ids; an instance that is not listed holds nothing known.
//! Cost: O(log n) a look-up, one sort to make. State: 20 bytes an instance that holds something.

use crate::ids::InstanceId;

/// Levels KV is held at: L1 (device), L2 (host), L2.5 (local disk), L3 (object storage), in the order of their cost.
pub const KV_LEVELS: usize = 4;

/// Tokens of a prefix by the nearest level that holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LevelTokens(pub [u32; KV_LEVELS]);

impl LevelTokens {
    pub fn total(self) -> u32 {
        self.0.iter().fold(0, |sum, tokens| sum.saturating_add(*tokens))
    }

    /// The same with at most `most` in all; the nearest levels give way, so that what is left is not thought cheaper.
    pub fn capped(mut self, most: u32) -> Self {
        let mut excess = self.total().saturating_sub(most);
        for tokens in &mut self.0 {
            let given = excess.min(*tokens);
            (*tokens, excess) = (*tokens - given, excess - given);
        }
        self
    }

    fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|level| self.0[level].saturating_add(other.0[level])))
    }
}

/// What one instance holds of the prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixHit {
    pub instance: InstanceId,
    pub tokens: LevelTokens,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrefixHits(Vec<PrefixHit>);

impl PrefixHits {
    /// Adds up what several prompts of a request hit.
    pub fn new(mut found: Vec<PrefixHit>) -> Self {
        found.sort_by_key(|hit| hit.instance);
        found.dedup_by(|later, hit| {
            let is_same = later.instance == hit.instance;
            if is_same {
                hit.tokens = hit.tokens.plus(later.tokens);
            }
            is_same
        });
        Self(found)
    }

    /// Hits that are all in L1.
    pub fn near(found: impl IntoIterator<Item = (InstanceId, u32)>) -> Self {
        let hit = |(instance, tokens)| PrefixHit { instance, tokens: LevelTokens([tokens, 0, 0, 0]) };
        Self::new(found.into_iter().map(hit).collect())
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &PrefixHit> {
        self.0.iter()
    }

    pub fn on(&self, instance: InstanceId) -> LevelTokens {
        let found = self.0.binary_search_by_key(&instance, |hit| hit.instance);
        found.map_or(LevelTokens::default(), |place| self.0[place].tokens)
    }

    /// Tokens that an instance holds, at any level.
    pub fn tokens_on(&self, instance: InstanceId) -> u32 {
        self.on(instance).total()
    }

    /// Longest prefix any instance holds.
    pub fn longest(&self) -> u32 {
        self.0.iter().map(|hit| hit.tokens.total()).max().unwrap_or(0)
    }

    /// Longest prefix that any of some instances holds.
    pub fn longest_where(&self, counts: impl Fn(InstanceId) -> bool) -> u32 {
        // Who holds no more than the best so far need not be asked for: where all hold the same beginning, that is nearly all.
        self.0.iter().fold(0, |best, hit| {
            let tokens = hit.tokens.total();
            if tokens > best && counts(hit.instance) { tokens } else { best }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Scenario: what several prompts hit, in any order and more than once an instance.
        /// Guarantees: sums per instance and level as by a plain sum; a cap keeps the total and takes from the nearest level.
        #[test]
        fn sums_and_caps(found in prop::collection::vec((0u32..5, prop::array::uniform4(0u32..100)), 0..12), most in 0u32..300) {
            let hit = |(id, tokens): &(u32, [u32; 4])| PrefixHit { instance: InstanceId(*id), tokens: LevelTokens(*tokens) };
            let hits = PrefixHits::new(found.iter().map(hit).collect());
            for id in 0..5 {
                let own = || found.iter().filter(|(found, _)| *found == id);
                let sum = |level: usize| own().map(|(_, tokens)| tokens[level]).sum::<u32>();
                let on = hits.on(InstanceId(id));
                prop_assert_eq!(on, LevelTokens(std::array::from_fn(sum)));
                let capped = on.capped(most);
                prop_assert_eq!(capped.total(), on.total().min(most));
                for level in 1..KV_LEVELS {
                    prop_assert!(capped.0[level] == on.0[level] || capped.0[..level].iter().all(|left| *left == 0));
                }
            }
        }
    }
}
