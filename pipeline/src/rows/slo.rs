//! Rows of deadlines and of how they fared (SPEC A4); columns as in `queries::schema`.

use macro_rules_attribute::macro_rules_derive;
use serde::{Deserialize, Serialize};

use super::{Row, columns::columns};
use crate::ids::{Micros, Name};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct SloRow {
    pub at: Micros,
    pub request_id: Name,
    pub model: Name,
    pub tenant: Name,
    pub tier: Name,
    pub instance: Option<u32>,
    pub outcome: Name,
    pub is_stated: bool,
    pub is_met: Option<bool>,
    pub margin_seconds: Option<f64>,
    pub first_token_budget_seconds: f64,
    pub whole_budget_seconds: Option<f64>,
    pub first_token_seconds: Option<f64>,
    pub whole_seconds: f64,
    pub wait_seconds: f64,
    pub predicted_first_token_seconds: Option<f64>,
    pub predicted_whole_seconds: Option<f64>,
    pub meet_probability: Option<f64>,
    pub start_meet_probability: Option<f64>,
    pub is_trial: bool,
    pub prompt_tokens: u32,
    pub cached_tokens: Option<u32>,
    pub output_tokens: u32,
}
row!(SloRow => Slo);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct SloReliabilityRow {
    pub as_of: Micros,
    pub model: String,
    pub tier: String,
    pub predicted_from: f64,
    pub predicted_to: f64,
    pub requests: u64,
    pub met: u64,
    pub predicted_mean: f64,
    pub met_share: f64,
}
row!(SloReliabilityRow => SloReliability);
