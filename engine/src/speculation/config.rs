//! How, and how far, the engine runs ahead of its sampler (SPEC B7; issue E).
//!
//! Invariant: a validated setting keeps one sequence's proposals to [`MAX_DRAFT_TOKENS`] a step. Cost: none. No state.

/// Most tokens that may be proposed for one sequence in one step.
pub const MAX_DRAFT_TOKENS: usize = 16;
/// Shortest and longest repetition that prompt lookup may ask for.
pub const MATCH_RANGE: std::ops::RangeInclusive<usize> = 2..=8;

/// Who proposes tokens, if anybody. Outputs are the same with all three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    #[default]
    Off,
    /// The continuation of the last place in prompt and output that reads like the newest tokens.
    PromptLookup {
        limits: SpeculationLimits,
        /// Tokens that must agree; 2 to 8. Default 3.
        min_match: usize,
    },
    /// A smaller model of the same vocabulary; the engine is built with `Engine::with_draft`.
    Draft { limits: SpeculationLimits },
}

/// Bounds that all proposers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeculationLimits {
    /// Most tokens proposed for a sequence in a step; 1 to 16. Default 8.
    pub max_draft: usize,
    /// Decode draws of a class between two verifications while speculation does not pay for it; at least 1. Grows to 16
    /// times this while it goes on not paying. Default 32.
    pub verify_interval: usize,
}

impl Default for SpeculationLimits {
    fn default() -> Self {
        Self { max_draft: 8, verify_interval: 32 }
    }
}

impl Speculation {
    /// Prompt lookup with the defaults.
    pub fn prompt_lookup() -> Self {
        Self::PromptLookup { limits: SpeculationLimits::default(), min_match: 3 }
    }

    pub fn limits(&self) -> Option<SpeculationLimits> {
        match self {
            Self::Off => None,
            Self::PromptLookup { limits, .. } | Self::Draft { limits } => Some(*limits),
        }
    }

    /// The first setting that is wrong: its name, its value and what is right.
    pub(crate) fn fault(&self) -> Option<(&'static str, usize, &'static str)> {
        let limits = self.limits()?;
        if !(1..=MAX_DRAFT_TOKENS).contains(&limits.max_draft) {
            return Some(("max_draft", limits.max_draft, "between 1 and 16 tokens"));
        }
        if limits.verify_interval == 0 {
            return Some(("verify_interval", 0, "at least 1 decode step"));
        }
        match self {
            Self::PromptLookup { min_match, .. } if !MATCH_RANGE.contains(min_match) => {
                Some(("min_match", *min_match, "between 2 and 8 tokens"))
            }
            _ => None,
        }
    }
}
