//! Rows that make a log enough to decide again (SPEC X2); columns as in `queries::schema`.

use std::ops::Range;

use macro_rules_attribute::macro_rules_derive;
use queries::Topic;
use serde::{Deserialize, Serialize};

use super::{Row, columns::columns};
use crate::ids::{Micros, Name};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct SettingsRow {
    pub at: Micros,
    pub id: String,
    pub program: String,
    pub text: String,
}
row!(SettingsRow => Settings);

/// One instance as a policy saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct InstanceInputRow {
    pub instance: u32,
    pub epoch: u64,
    pub model: Name,
    pub variant: Name,
    pub is_ready: bool,
    pub leased_tokens: u64,
    pub leased_requests: u32,
    pub reported_at: Option<Micros>,
    pub running: Option<u32>,
    pub waiting: Option<u32>,
    pub queued_prefill_tokens: Option<u64>,
    pub context_tokens: Option<u64>,
    pub blocks_used: Option<u32>,
    pub blocks_total: Option<u32>,
    pub prefill_tokens_per_second: Option<f64>,
    pub decode_step_seconds: Option<f64>,
    pub prefill_error: Option<f64>,
    pub decode_error: Option<f64>,
    pub l2_fetch_seconds_per_token: Option<f64>,
    pub l25_fetch_seconds_per_token: Option<f64>,
    pub l3_fetch_seconds_per_token: Option<f64>,
}

/// Place of one instance in the bucket plan of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct SeatRow {
    pub instance: u32,
    pub plan: u64,
    pub from_tokens: u32,
    pub to_tokens: Option<u32>,
    pub foreign_tokens: u64,
}

/// A prompt that an instance has to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct PromptDueRow {
    pub instance: u32,
    pub due_us: i64,
    pub tokens: u32,
}

/// A request that was refused lately.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct RejectRow {
    pub at_us: i64,
    pub tier: u8,
    pub engine_seconds: f64,
}

/// Blocks believed to be cached on an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct CachedRow {
    pub instance: u32,
    pub blocks: u64,
}

/// Cached prefix believed of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct HitRow {
    pub instance: u32,
    pub tokens: u32,
    pub l2_tokens: u32,
    pub l25_tokens: u32,
    pub l3_tokens: u32,
}

/// Service times of one variant, as the fits have them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct ServiceInputRow {
    pub variant: String,
    pub chunk_tokens: u32,
    pub prefill: Option<Vec<f64>>,
    pub decode: Option<Vec<f64>>,
}

/// What waits in a tier with a latest start up to this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct QueueStepRow {
    pub tier: u8,
    pub start_by_us: i64,
    pub tokens: u64,
    pub requests: u32,
}

/// Everything that policies read at one time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct PolicyInputRow {
    pub at: Micros,
    pub reading: Name,
    pub decision_id: Name,
    pub request_id: Name,
    pub settings: Name,
    pub view_mode: Name,
    pub view_as_of: Option<Micros>,
    pub instances: Vec<InstanceInputRow>,
    pub least_loaded: Vec<u32>,
    pub hits: Vec<HitRow>,
    pub hits_as_of: Option<Micros>,
    pub block_hashes: Vec<Vec<u64>>,
    pub tenant: Option<Name>,
    pub tenant_class: Option<Name>,
    pub variants: Vec<String>,
    pub tier: Option<Name>,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub turns: Option<u32>,
    pub tie_turn: Option<u64>,
    pub excluded: Vec<u32>,
    pub throttle_step: Option<Name>,
    pub throttle_since_us: Option<i64>,
    pub queued_requests: Option<u64>,
    pub queued_tokens: Option<u64>,
    pub pushed_requests: Option<u64>,
    pub pushed_tokens: Option<u64>,
    pub lease: Option<Name>,
    pub because: Option<String>,
    pub queued_bytes: Option<u64>,
    pub pushed_bytes: Option<u64>,
    pub request_bytes: Option<u64>,
    pub model: Option<Name>,
    pub arrived_at: Option<Micros>,
    pub slo_first_token_us: Option<i64>,
    pub slo_whole_us: Option<i64>,
    pub slo_per_token_us: Option<i64>,
    pub tier_asked: Option<Name>,
    pub tier_asked_max: Option<Name>,
    pub sequences: Option<u32>,
    pub forecast_as_of: Option<Micros>,
    pub output_lengths: Option<Vec<Vec<u32>>>,
    pub services: Option<Vec<ServiceInputRow>>,
    pub drain_tokens_per_second: Option<f64>,
    pub skill: Option<Vec<f64>>,
    pub queue_steps: Option<Vec<QueueStepRow>>,
    pub bucket_seats: Option<Vec<SeatRow>>,
    pub prompts_due: Option<Vec<PromptDueRow>>,
    pub spared: Option<Vec<u32>>,
    pub missed_share: Option<f64>,
    pub request_seconds: Option<f64>,
    pub cached_blocks: Option<Vec<CachedRow>>,
    pub refused_since: Option<Micros>,
    pub refused_lately: Option<Vec<RejectRow>>,
    pub chance_offset: Option<f64>,
    pub chance_slope: Option<f64>,
}
row!(PolicyInputRow => PolicyInputs);

/// What a shadow policy would have decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct ShadowDecisionRow {
    pub at: Micros,
    pub shadow: Name,
    pub decision_id: Name,
    pub request_id: Name,
    pub tenant: Name,
    pub acting_tier: Name,
    pub shadow_tier: Name,
    pub acting_outcome: Name,
    pub shadow_outcome: Name,
    pub acting_reason: String,
    pub shadow_reason: String,
    pub acting_throttle_step: Name,
    pub shadow_throttle_step: Name,
    pub acting_instance: Option<u32>,
    pub shadow_instance: Option<u32>,
    pub acting_seconds: Option<f64>,
    pub shadow_seconds: Option<f64>,
    pub seconds_difference: Option<f64>,
    pub hit_tokens_difference: Option<i64>,
    pub is_changed: bool,
}
row!(ShadowDecisionRow => ShadowDecisions);

/// Topics that an epoch has rows of.
pub const EPOCH_TOPICS: usize = 6;

/// Which rows came in one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct EpochRow {
    pub at: Micros,
    pub flow_start: Micros,
    pub epoch_us: i64,
    pub epoch: u64,
    pub requests_from: u64,
    pub requests_to: u64,
    pub engine_steps_from: u64,
    pub engine_steps_to: u64,
    pub kv_events_from: u64,
    pub kv_events_to: u64,
    pub decisions_from: u64,
    pub decisions_to: u64,
    pub instances_from: u64,
    pub instances_to: u64,
    pub buckets_from: u64,
    pub buckets_to: u64,
}
row!(EpochRow => Epochs);

impl EpochRow {
    /// Place of a topic in [`ranges`](Self::ranges), if the dataflow reads it.
    pub fn place(topic: Topic) -> Option<usize> {
        EpochRow::default().ranges().iter().position(|(known, _)| *known == topic)
    }

    /// The rows of each topic; what names models comes before what is counted by them.
    pub fn ranges(&self) -> [(Topic, Range<u64>); EPOCH_TOPICS] {
        [
            (Topic::Instances, self.instances_from..self.instances_to),
            (Topic::Decisions, self.decisions_from..self.decisions_to),
            (Topic::Requests, self.requests_from..self.requests_to),
            (Topic::EngineSteps, self.engine_steps_from..self.engine_steps_to),
            (Topic::KvEvents, self.kv_events_from..self.kv_events_to),
            (Topic::Buckets, self.buckets_from..self.buckets_to),
        ]
    }
}
