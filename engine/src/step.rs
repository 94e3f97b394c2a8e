//! The report of one engine step: effects are returned here and not done (STYLE "Shapes").

use crate::{
    Micros,
    block_pool::PoolFigures,
    events::KvEvent,
    request::{FinishReason, SequenceId},
    runner::RunnerError,
    speculation::report::SpeculationChange,
};

/// A generated token's log-probability and its best alternatives, as asked by `SamplingParams::logprobs`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    pub token: u32,
    pub logprob: f32,
    /// `(token, log-probability)`, best first.
    pub top: Vec<(u32, f32)>,
}

/// What one sequence produced in this step.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceOutput {
    pub sequence: SequenceId,
    /// New tokens, stop token included.
    pub tokens: Vec<u32>,
    /// Text that may be shown now: whole characters, and nothing that could still turn out to begin a stop string.
    pub text: String,
    /// One entry a token, if asked for.
    pub logprobs: Vec<TokenLogprob>,
    pub finish: Option<Finish>,
}

/// The end of a sequence, with its accounts.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    pub reason: FinishReason,
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    /// Prompt tokens whose KV was reused when the sequence was first scheduled.
    pub cached_tokens: u32,
    pub submitted: Micros,
    pub first_scheduled: Option<Micros>,
    pub preemptions: u32,
    /// Set when `reason` is `Failed`.
    pub error: Option<String>,
}

/// Figures of one step, a row of `engine_steps`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepStats {
    /// Number of the step since the engine started, from 1.
    pub step: u64,
    pub prefill_tokens: u32,
    pub decode_tokens: u32,
    pub running: u32,
    pub waiting: u32,
    pub preempted: u32,
    /// Guessed tokens that ran behind those of `decode_tokens`, and how many of them were right: the step drew one token
    /// for each sequence that decodes, and `accepted_tokens` more (less what ended on a right one).
    pub proposed_tokens: u32,
    pub accepted_tokens: u32,
    /// Prompt tokens found in the prefix cache by sequences first scheduled in this step.
    pub cached_tokens: u32,
    /// Prompt tokens of sequences first scheduled in this step.
    pub scheduled_prompt_tokens: u32,
    /// Prompt tokens not yet computed, over waiting and running sequences.
    pub queued_prefill_tokens: u32,
    /// Tokens whose KV is held by running sequences.
    pub context_tokens: u32,
    /// Of those preempted, how many went to L2; the others are recomputed.
    pub swapped: u32,
    /// Blocks copied to L2, back from L2, and within L1 (for the reuse of a part of a block).
    pub swapped_out_blocks: u32,
    pub swapped_in_blocks: u32,
    pub copied_blocks: u32,
    /// Slots of L2 in use.
    pub l2_blocks_used: u32,
    /// Blocks in use by sequences, blocks kept only for reuse, blocks in all.
    pub blocks_used: u32,
    pub blocks_cached: u32,
    pub blocks_total: u32,
    /// Time of the batch as the runner measured or modelled it, in microseconds; `None` if it did not or nothing ran.
    pub modelled_us: Option<Micros>,
}

/// How full the engine is between steps, and the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFigures {
    /// Waiting sequences of L1, L2, L3, interrupted ones included.
    pub waiting: [usize; 3],
    pub max_waiting: usize,
    pub running: usize,
    pub max_running: usize,
    /// Tokens that need KV before their sequence can draw, over waiting and running sequences.
    pub queued_prefill_tokens: usize,
    pub pool: PoolFigures,
    /// When the sequence that waits longest was submitted.
    pub oldest_waiting: Option<Micros>,
}

/// Everything a step did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepReport {
    pub outputs: Vec<SequenceOutput>,
    pub kv_events: Vec<KvEvent>,
    pub stats: StepStats,
    /// Classes of requests whose speculation was switched on or off.
    pub speculation: Vec<SpeculationChange>,
    /// Why the draft model gave no guesses, if it failed; the step was not affected.
    pub draft_error: Option<RunnerError>,
}
