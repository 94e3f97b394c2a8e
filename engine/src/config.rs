//! The engine's settings (SPEC B7, B8, C1, C2), checked once at construction.
//!
//! Invariant: a validated configuration can always make progress: in each step every running sequence can take a token,
//! and a prompt at least one.
//!
//! Cost: none. No state.

use crate::{Micros, prefix_cache::PrefixCacheMode, runner::RunnerShape, speculation::config::Speculation};

/// How many pages a sequence reserves for tokens it is yet to generate, when it starts (SPEC C1: quota before pages).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrowthQuota {
    /// For this many tokens, or for what it can still generate if that is less. Beyond it, pages are asked for one by
    /// one and a sequence may be preempted.
    Tokens(usize),
    /// For all it can generate: fewer run at once, and none is preempted for want of pages.
    Full,
}

/// Whether a waiting sequence may take the place of a running one of a lower lane (SPEC B8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LanePreemption {
    /// Only background work (L3) gives way, to L1 and L2.
    Background,
    /// Any lower lane gives way.
    Lower,
    /// Nobody gives way; a waiting sequence waits for a free place.
    Off,
}

/// What moving and computing KV costs on this machine, to choose the cheaper way (SPEC B8). Measured by whoever builds
/// the engine; the engine has no clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapRates {
    /// Default 500 000: 2 000 tokens a second.
    pub prefill_ns_per_token: u64,
    /// Of one block, one way. Default 100 000.
    pub copy_ns_per_block: u64,
}

impl Default for SwapRates {
    fn default() -> Self {
        Self { prefill_ns_per_token: 500_000, copy_ns_per_block: 100_000 }
    }
}

impl SwapRates {
    /// Least shared tokens for which copying a block costs no more than computing them.
    pub fn least_part(&self) -> usize {
        let tokens = self.copy_ns_per_block.div_ceil(self.prefill_ns_per_token.max(1)).max(1);
        usize::try_from(tokens).unwrap_or(usize::MAX)
    }
}

/// Tokens a KV block that an engine is served with.
pub const BLOCK_SIZES: std::ops::RangeInclusive<usize> = 16..=64;

/// Checks a block size from outside against [`BLOCK_SIZES`]. Smaller blocks work too and are for tests, where block edges
/// should be many.
pub fn check_block_size(tokens: usize) -> Result<(), ConfigError> {
    match BLOCK_SIZES.contains(&tokens) {
        true => Ok(()),
        false => Err(ConfigError::BlockSize { value: tokens }),
    }
}

/// See the file's header. `Default` suits one CPU instance with a small model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineConfig {
    /// Most new tokens in a step, decode and prefill together. Default 512. More than `max_running`.
    pub token_budget: usize,
    /// Longest time of a step in microseconds, as far as the length of its prompts decides it, and longest rest of a
    /// sequence for another's deadline; a prompt waits for one ten times as long at most. `None`: `token_budget` alone bounds
    /// prompts, and nobody rests or waits. Counts once
    /// [`Engine::took`](crate::engine::Engine::took) has told how long steps take. Default none.
    pub prefill_step_us: Option<Micros>,
    /// Most sequences with KV. Default 64.
    pub max_running: usize,
    /// Most sequences waiting for their first step; the next is refused. Default 1024. Preempted ones come on top, at
    /// most `max_running`.
    pub max_waiting: usize,
    /// Default on.
    pub prefix_cache: PrefixCacheMode,
    /// Most tokens of a sequence that can be reused. Default: no cap.
    pub max_prefix_tokens: Option<usize>,
    /// Least tokens that make a prefix match worth taking. Default 0.
    pub min_match_tokens: usize,
    /// Default 32 tokens.
    pub growth_quota: GrowthQuota,
    /// Default: background work gives way.
    pub lane_preemption: LanePreemption,
    /// Host-memory blocks for the KV of sequences that give way; `block_bytes` of the runner each. Default 0: they are
    /// always recomputed.
    pub l2_blocks: usize,
    pub swap_rates: SwapRates,
    /// Longest time for which later arrivals with tighter deadlines may overtake a sequence in its lane, in
    /// microseconds. Default 30 s.
    pub max_overtake_us: Micros,
    /// Default off.
    pub speculation: Speculation,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            token_budget: 512,
            prefill_step_us: None,
            max_running: 64,
            max_waiting: 1024,
            prefix_cache: PrefixCacheMode::On,
            max_prefix_tokens: None,
            min_match_tokens: 0,
            growth_quota: GrowthQuota::Tokens(32),
            lane_preemption: LanePreemption::Background,
            l2_blocks: 0,
            swap_rates: SwapRates::default(),
            max_overtake_us: 30_000_000,
            speculation: Speculation::Off,
        }
    }
}

/// A setting, or a runner's shape, that the engine can't work with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("engine.{field} is {value}; it must be at least {least}")]
    TooSmall { field: &'static str, value: i64, least: i64 },
    #[error(
        "engine.token_budget is {token_budget}; it must be above max_running ({max_running}), \
         so that in each step every running sequence can take a token and a prompt gets on"
    )]
    BudgetBelowRunning { token_budget: usize, max_running: usize },
    #[error("engine.speculation.{field} is {value}; it must be {expected}")]
    Speculation { field: &'static str, value: usize, expected: &'static str },
    #[error("engine.speculation asks for a draft model and none was given; build the engine with `with_draft`")]
    DraftMissing,
    #[error("the draft model has {draft} vocabulary entries; it must have the {target} of the model it drafts for")]
    DraftVocabulary { draft: usize, target: usize },
    #[error("the block size is {value} tokens; it must be between 16 and 64")]
    BlockSize { value: usize },
    #[error("engine.l2_blocks is {blocks}; the runner can't provide them: {problem}")]
    SecondLevel { blocks: usize, problem: String },
    #[error("the runner has {value} {field}; it must have {expected}")]
    Runner { field: &'static str, value: usize, expected: &'static str },
}

impl EngineConfig {
    /// Checks the settings against each other and against the runner they are for.
    pub fn validate(&self, shape: &RunnerShape) -> Result<(), ConfigError> {
        let at_least = [
            ("max_running", self.max_running, 1),
            ("max_waiting", self.max_waiting, 1),
            ("max_prefix_tokens", self.max_prefix_tokens.unwrap_or(1), 1),
        ];
        for (field, value, least) in at_least {
            if value < least {
                return Err(ConfigError::TooSmall { field, value: value as i64, least: least as i64 });
            }
        }
        if self.max_overtake_us < 0 {
            return Err(ConfigError::TooSmall { field: "max_overtake_us", value: self.max_overtake_us, least: 0 });
        }
        if let Some(value) = self.prefill_step_us.filter(|us| *us < 1) {
            return Err(ConfigError::TooSmall { field: "prefill_step_us", value, least: 1 });
        }
        if self.token_budget <= self.max_running {
            let Self { token_budget, max_running, .. } = *self;
            return Err(ConfigError::BudgetBelowRunning { token_budget, max_running });
        }
        if let Some((field, value, expected)) = self.speculation.fault() {
            return Err(ConfigError::Speculation { field, value, expected });
        }
        if u32::try_from(self.l2_blocks).is_err() {
            let problem = "there are at most 4294967295".to_owned();
            return Err(ConfigError::SecondLevel { blocks: self.l2_blocks, problem });
        }
        let sizes = [
            ("vocabulary entries", shape.vocab),
            ("tokens of context", shape.context),
            ("tokens a block", shape.block_size),
            ("KV blocks", shape.blocks),
        ];
        for (field, value) in sizes {
            if value == 0 || u32::try_from(value).is_err() {
                return Err(ConfigError::Runner { field, value, expected: "between 1 and 4294967295" });
            }
        }
        Ok(())
    }
}
