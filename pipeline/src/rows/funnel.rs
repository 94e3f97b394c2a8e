//! Rows of the hit-rate funnel and of the diagnosis (SPEC C5, D4).

use macro_rules_attribute::macro_rules_derive;
use serde::{Deserialize, Serialize};

use super::{Row, columns::columns};
use crate::ids::{Micros, Name};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct FunnelRow {
    pub at: Micros,
    pub request_id: Name,
    pub model: Name,
    pub region: Name,
    pub tier: Name,
    pub tenant: Name,
    pub instance: Option<u32>,
    pub layer: Name,
    pub level: Option<Name>,
    pub reason: Option<Name>,
    pub tokens: i64,
    pub predicted_seconds: Option<f64>,
}
row!(FunnelRow => Funnel);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct FunnelWindowRow {
    pub as_of: Micros,
    pub span: Name,
    pub window_seconds: f64,
    pub model: Name,
    pub region: Name,
    pub tier: Name,
    pub tenant: Name,
    pub requests: u64,
    pub layer: Name,
    pub level: Option<Name>,
    pub reason: Option<Name>,
    pub tokens: i64,
    pub predicted_seconds: Option<f64>,
}
row!(FunnelWindowRow => FunnelWindow);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct DiagnosisRow {
    pub as_of: Micros,
    pub model: String,
    pub window_seconds: f64,
    pub verdict: String,
    pub requests: u64,
    pub slow_requests: u64,
    pub slow_from_seconds: f64,
    pub slow_seconds: f64,
    pub slow_queue_seconds: f64,
    pub slow_wait_seconds: f64,
    pub queue_share: Option<f64>,
    pub queue_share_most: f64,
    pub steps: u64,
    pub step_seconds: f64,
    pub spikes: u64,
    pub spike_seconds: f64,
    pub spikes_paged: u64,
    pub spike_share: Option<f64>,
    pub spike_share_most: f64,
    pub decode_steps: u64,
    pub decode_seconds: f64,
    pub decode_predicted_seconds: f64,
    pub context_seconds: f64,
    pub decode_ratio: Option<f64>,
    pub decode_ratio_most: f64,
    pub worst_requests: Vec<String>,
    pub worst_step_instance: Option<u32>,
    pub worst_step_epoch: Option<u64>,
    pub worst_step: Option<u64>,
    pub worst_step_us: Option<i64>,
}
row!(DiagnosisRow => Diagnosis);
