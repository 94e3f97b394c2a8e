//! What the diagnosis is told, and what it says.
//!
//! Invariant: a row that passes `check` can be folded without overflow or panic. Cost: O(1). State: none.
use serde::{Deserialize, Serialize};

use crate::{
    refused::{Field, Refusal},
    rows::{MAX_DURATION_US, MAX_TOKENS, within},
};

/// One engine step. Ordered by instance, incarnation and step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DiagnosedStep {
    pub model: u32,
    pub instance: u32,
    /// Incarnation of the worker process.
    pub epoch: u64,
    /// Counts the steps of one incarnation; starts at 1.
    pub step: u64,
    pub step_us: u64,
    pub prefill_tokens: u32,
    pub decode_tokens: u32,
    /// Tokens whose KV the step read.
    pub context_tokens: u32,
    /// Blocks copied between levels in the step.
    pub paged_blocks: u32,
}

/// One request that came to its end with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DiagnosedRequest {
    pub model: u32,
    /// From arrival to the end.
    pub total_us: u64,
    pub request: u128,
    /// In the gateway's queue, until it was first placed on an instance.
    pub queue_us: u64,
    pub ttft_us: Option<u64>,
    pub instance: Option<u32>,
    /// Prompt tokens that were not reused.
    pub computed_tokens: u32,
}

/// Input of the diagnosis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DiagnosisInput {
    Step(DiagnosedStep),
    Request(DiagnosedRequest),
}

impl DiagnosisInput {
    pub fn model(&self) -> u32 {
        match self {
            Self::Step(row) => row.model,
            Self::Request(row) => row.model,
        }
    }

    /// # Errors
    /// Names the field outside its range.
    pub fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::Step(row) => {
                within(Field::Step, row.step, 1..=u64::MAX)?;
                within(Field::StepUs, row.step_us, 0..=MAX_DURATION_US)?;
                within(Field::PrefillTokens, row.prefill_tokens.into(), 0..=MAX_TOKENS)?;
                within(Field::DecodeTokens, row.decode_tokens.into(), 0..=MAX_TOKENS)?;
                within(Field::Tokens, row.context_tokens.into(), 0..=MAX_TOKENS)
            }
            Self::Request(row) => {
                within(Field::TotalUs, row.total_us, 0..=MAX_DURATION_US)?;
                within(Field::QueueUs, row.queue_us, 0..=row.total_us)?;
                within(Field::TtftUs, row.ttft_us.unwrap_or(0), 0..=MAX_DURATION_US)?;
                within(Field::PromptTokens, row.computed_tokens.into(), 0..=MAX_TOKENS)
            }
        }
    }
}

/// What the three steps found, the first that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// The slowest requests waited for too large a share of their time.
    Scheduling,
    /// Steps were much longer than what was in them explains: KV paging, remote access.
    IterationSpikes,
    /// Steps that only decode took longer for their context than they used to.
    Bandwidth,
    /// Nothing of these.
    Clear,
    /// No request ended, or no step could be compared with a fit.
    TooLittle,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduling => "scheduling",
            Self::IterationSpikes => "iteration_spikes",
            Self::Bandwidth => "bandwidth",
            Self::Clear => "clear",
            Self::TooLittle => "too_little",
        }
    }
}

/// The step that was longest beyond its prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorstStep {
    pub excess_us: u64,
    pub instance: u32,
    pub epoch: u64,
    pub step: u64,
    pub step_us: u64,
}

/// One model over one window. Shares are in thousandths; `None` if there was nothing to take a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DiagnosisRow {
    /// The last epoch of the window, in which the row was made.
    pub epoch: u64,
    pub model: u32,
    /// The first epoch of the window.
    pub from_epoch: u64,
    pub verdict: Verdict,
    /// Requests that ended, and how many of them are looked at as the slowest: a hundredth, at least one.
    pub requests: u64,
    pub slow_requests: u64,
    /// The least latency among the slowest.
    pub slow_from_us: u64,
    /// Over the slowest: whole latency, in the gateway's queue, and up to the first token beyond that and prefill.
    pub slow_total_us: u64,
    pub slow_queue_us: u64,
    pub slow_wait_us: u64,
    pub queue_share: Option<u64>,
    /// Steps compared with a fit and their length; of these, spikes, what they took beyond the fit, and those that paged.
    pub steps: u64,
    pub steps_us: u64,
    pub spikes: u64,
    pub spikes_us: u64,
    pub spikes_paged: u64,
    pub spike_share: Option<u64>,
    /// Steps that only decoded and were no spikes: their length, as predicted, and the part of that for reading the context.
    pub decodes: u64,
    pub decodes_us: u64,
    pub decodes_predicted_us: u64,
    pub context_us: u64,
    /// Length over prediction.
    pub decode_ratio: Option<u64>,
    /// The slowest requests, slowest first.
    pub worst: [Option<u128>; 3],
    pub worst_step: Option<WorstStep>,
}
