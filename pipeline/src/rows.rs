//! Rows of the bus's topics as typed structs. `columns` turns them into the batches that `queries::schema` declares, and
//! `serde_arrow` back: field names and order here are the columns there, and a test holds the two together.

use macro_rules_attribute::macro_rules_derive;
use serde::{Deserialize, Serialize};

use self::columns::{Cell, Record, columns};
use crate::ids::{Micros, Name};

pub(crate) mod columns;

/// A row of one topic, of which there is one type.
pub trait Row: Cell<Column: Record> + Serialize + for<'de> Deserialize<'de> + Send + 'static {
    const TOPIC: queries::schema::Topic;
}

macro_rules! row {
    ($name:ident => $topic:ident) => {
        impl Row for $name {
            const TOPIC: queries::schema::Topic = queries::schema::Topic::$topic;
        }
    };
}

mod buckets;
mod funnel;
mod replay;
mod slo;

pub use buckets::BucketRow;

pub use funnel::{DiagnosisRow, FunnelRow, FunnelWindowRow};
pub use replay::{
    CachedRow, EPOCH_TOPICS, EpochRow, HitRow, InstanceInputRow, PolicyInputRow, PromptDueRow, QueueStepRow, RejectRow,
    SeatRow, ServiceInputRow, SettingsRow, ShadowDecisionRow,
};
pub use slo::{SloReliabilityRow, SloRow};
mod mrc;

pub use mrc::MrcRow;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct RequestRow {
    pub at: Micros,
    pub request_id: Name,
    pub seq: u32,
    pub event: Name,
    pub model: Name,
    pub tier: Name,
    pub tenant: Name,
    pub instance: Option<u32>,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub cached_tokens: Option<u32>,
    pub gap_us: Option<i64>,
    pub total_us: Option<i64>,
    pub finish_reason: Option<Name>,
    pub error: Option<String>,
    pub variant: Option<Name>,
    pub block_tokens: Option<u32>,
    pub prompt_blocks: Option<Vec<Vec<u64>>>,
    pub session_hash: Option<u64>,
    pub turns: Option<u32>,
    pub tenant_class: Option<Name>,
    pub expected_hit_tokens: Option<u32>,
}
row!(RequestRow => Requests);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct CandidateRow {
    pub instance: u32,
    pub hit_tokens: u32,
    pub queue_seconds: f64,
    pub prefill_seconds: f64,
    pub interference_seconds: f64,
    pub total_seconds: f64,
    pub fetch_tokens: u32,
    pub fetch_seconds: f64,
    pub queue_error_seconds: f64,
    pub prefill_error_seconds: f64,
    pub fetch_error_seconds: f64,
    pub interference_error_seconds: f64,
    pub error_seconds: f64,
    pub compared_seconds: f64,
    pub has_room: Option<bool>,
}

/// How the request fits the bucket of one candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct BucketFitRow {
    pub instance: u32,
    pub fit: Name,
    pub work_tokens: u64,
    pub bucket_seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct DecisionRow {
    pub at: Micros,
    pub decision_id: Name,
    pub request_id: Name,
    pub model: Name,
    pub tenant: Name,
    pub tier: Name,
    pub tier_reason: String,
    pub outcome: Name,
    pub reason: String,
    pub throttle_step: Name,
    pub route_policy: Name,
    pub instance: Option<u32>,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub predicted_hit_tokens: u32,
    pub predicted_seconds: Option<f64>,
    pub turns: u32,
    pub view_mode: Name,
    pub view_as_of: Option<Micros>,
    pub saturation: Option<f64>,
    pub candidates: Vec<CandidateRow>,
    pub variant: Option<Name>,
    pub visible_hit_tokens: Option<u32>,
    pub first_token_due: Option<Micros>,
    pub whole_due: Option<Micros>,
    pub predicted_wait_seconds: Option<f64>,
    pub predicted_first_token_seconds: Option<f64>,
    pub predicted_whole_seconds: Option<f64>,
    pub meet_probability: Option<f64>,
    pub is_trial: Option<bool>,
    pub bucket_fits: Option<Vec<BucketFitRow>>,
}
row!(DecisionRow => Decisions);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct EngineStepRow {
    pub at: Micros,
    pub instance: u32,
    pub epoch: u64,
    pub step: u64,
    pub step_us: i64,
    pub prefill_tokens: u32,
    pub decode_tokens: u32,
    pub running: u32,
    pub waiting: u32,
    pub preempted: u32,
    pub cached_tokens: u32,
    pub scheduled_prompt_tokens: u32,
    pub queued_prefill_tokens: u32,
    pub context_tokens: u32,
    pub blocks_used: u32,
    pub blocks_cached: u32,
    pub blocks_total: u32,
    pub proposed_tokens: u32,
    pub accepted_tokens: u32,
    pub swapped: u32,
    pub swapped_out_blocks: u32,
    pub swapped_in_blocks: u32,
    pub copied_blocks: u32,
    pub l2_blocks_used: u32,
}
row!(EngineStepRow => EngineSteps);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct KvEventRow {
    pub at: Micros,
    pub instance: u32,
    pub epoch: u64,
    pub seq: u64,
    pub event: String,
    pub block_hash: Option<u64>,
    pub parent_hash: Option<u64>,
    pub level: Option<String>,
    pub tokens: Option<u32>,
    pub bucket: Option<u32>,
    pub blocks: Option<u32>,
}
row!(KvEventRow => KvEvents);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct SpeculationRow {
    pub at: Micros,
    pub instance: u32,
    pub epoch: u64,
    pub class: String,
    pub state: String,
    pub predicted_gain: f32,
    pub drawn: u64,
    pub proposed: u64,
    pub accepted: u64,
}
row!(SpeculationRow => Speculation);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct InstanceRow {
    pub at: Micros,
    pub instance: u32,
    pub name: String,
    pub epoch: u64,
    pub state: String,
    pub model: String,
    pub address: Option<String>,
    pub pid: Option<u32>,
    pub detail: Option<String>,
    pub phase_us: Option<i64>,
    pub variant: Option<String>,
}
row!(InstanceRow => Instances);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct AtomLoadRow {
    pub as_of: Micros,
    pub instance: u32,
    pub from_tokens: u32,
    pub to_tokens: u32,
    pub tokens: i64,
    pub requests: i64,
}
row!(AtomLoadRow => AtomLoad);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct LoadTotalsRow {
    pub as_of: Micros,
    pub grouped_by: String,
    pub region: Option<u32>,
    pub model: Option<String>,
    pub tier: Option<String>,
    pub bucket: Option<u32>,
    pub tokens: i64,
    pub requests: i64,
    pub uncached_tokens: Option<i64>,
}
row!(LoadTotalsRow => LoadTotals);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct RequestDistributionRow {
    pub as_of: Micros,
    pub model: String,
    pub tier: String,
    pub window_seconds: f64,
    pub arrived: u64,
    pub finished: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub prompt_p50: Option<f64>,
    pub prompt_p95: Option<f64>,
    pub prompt_p99: Option<f64>,
    pub output_p50: Option<f64>,
    pub output_p95: Option<f64>,
    pub output_p99: Option<f64>,
    pub ttft_ms_p50: Option<f64>,
    pub ttft_ms_p95: Option<f64>,
    pub ttft_ms_p99: Option<f64>,
    pub itl_ms_p50: Option<f64>,
    pub itl_ms_p95: Option<f64>,
    pub itl_ms_p99: Option<f64>,
    pub arrivals_per_second: Option<f64>,
    pub concurrent_tokens: Option<i64>,
    pub concurrent_requests: Option<i64>,
}
row!(RequestDistributionRow => RequestDistribution);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct SessionActivityRow {
    pub as_of: Micros,
    pub model: String,
    pub window_seconds: f64,
    pub sessions: u64,
    pub requests: u64,
    pub turns_p50: Option<f64>,
    pub turns_p95: Option<f64>,
    pub turns_p99: Option<f64>,
    pub sampled_one_in: u64,
}
row!(SessionActivityRow => SessionActivity);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct ServiceTimeRow {
    pub as_of: Micros,
    pub shape: String,
    pub prefill_steps: u64,
    pub decode_steps: u64,
    pub chunk_tokens: u32,
    pub prefill_base_seconds: Option<f64>,
    pub prefill_seconds_per_token: Option<f64>,
    pub prefill_seconds_per_token_and_context_token: Option<f64>,
    pub prefill_seconds_per_sequence: Option<f64>,
    pub prefill_noise_seconds: Option<f64>,
    pub decode_base_seconds: Option<f64>,
    pub decode_seconds_per_sequence: Option<f64>,
    pub decode_seconds_per_context_token: Option<f64>,
    pub decode_noise_seconds: Option<f64>,
    pub prefill_1000_seconds_p50: Option<f64>,
    pub prefill_1000_seconds_p95: Option<f64>,
    pub decode_100_seconds_p50: Option<f64>,
    pub decode_100_seconds_p95: Option<f64>,
}
row!(ServiceTimeRow => ServiceTime);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct OutputLengthRow {
    pub as_of: Micros,
    pub model: String,
    pub tier: Option<String>,
    pub tenant_class: Option<String>,
    pub prompt_from_tokens: Option<u32>,
    pub prompt_to_tokens: Option<u32>,
    pub answers: u64,
    pub output_mean: Option<f64>,
    pub output_p05: Option<f64>,
    pub output_p50: Option<f64>,
    pub output_p95: Option<f64>,
    pub left_after_100_mean: Option<f64>,
    pub left_after_100_p95: Option<f64>,
}
row!(OutputLengthRow => OutputLength);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct ArrivalTrendRow {
    pub as_of: Micros,
    pub model: String,
    pub period_seconds: f64,
    pub periods: u64,
    pub arrivals: u64,
    pub level: f64,
    pub growth_per_minute: f64,
    pub season: f64,
    pub horizon_seconds: f64,
    pub forecast: f64,
    pub forecast_low: f64,
    pub forecast_high: f64,
}
row!(ArrivalTrendRow => ArrivalTrend);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct PredictionErrorRow {
    pub as_of: Micros,
    pub predictor: String,
    pub model: String,
    pub tier: Option<String>,
    pub tenant_class: Option<String>,
    pub prompt_from_tokens: Option<u32>,
    pub prompt_to_tokens: Option<u32>,
    pub error_unit: String,
    pub predictions: u64,
    pub bias: f64,
    pub mape: f64,
    pub coverage_90: f64,
}
row!(PredictionErrorRow => PredictionError);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct InstanceLoadRow {
    pub as_of: Micros,
    pub instance: u32,
    pub epoch: u64,
    pub running: u32,
    pub waiting: u32,
    pub leased_tokens: u64,
    pub context_tokens: u64,
    pub queued_prefill_tokens: u64,
    pub cached_blocks: u64,
    pub blocks_used: u32,
    pub blocks_total: u32,
    pub prefill_tokens_per_second: Option<f64>,
    pub decode_step_seconds: Option<f64>,
    pub tokens_per_second: Option<f64>,
}
row!(InstanceLoadRow => InstanceLoad);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct CacheViewRow {
    pub at: Micros,
    pub instance: u32,
    pub epoch: u64,
    pub event: String,
    pub mode: String,
    pub cause: String,
    pub held_blocks: Option<u64>,
    pub indexed_blocks: Option<u64>,
    pub differing_blocks: Option<u64>,
    pub drift_ratio: Option<f64>,
}
row!(CacheViewRow => CacheView);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct RefusedRow {
    pub at: Micros,
    pub topic: String,
    pub reason: String,
    pub field: Option<String>,
    pub value: Option<String>,
    pub instance: Option<u32>,
    pub count: u64,
    pub detail: String,
}
row!(RefusedRow => RefusedRows);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct FaultRow {
    pub at: Micros,
    pub component: String,
    pub kind: String,
    pub detail: String,
    pub count: u64,
}
row!(FaultRow => Faults);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct ModeRow {
    pub at: Micros,
    pub component: String,
    pub subject: String,
    pub mode: String,
    pub is_degraded: bool,
    pub branch: String,
}
row!(ModeRow => Modes);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct SnapshotRow {
    pub at: Micros,
    pub name: String,
    pub target: String,
    pub cause: String,
    pub outcome: String,
    pub base: Option<String>,
    pub tables: u64,
    pub rows: u64,
    pub files: u64,
    pub bytes: u64,
    pub took_us: i64,
    pub detail: Option<String>,
}
row!(SnapshotRow => Snapshots);
