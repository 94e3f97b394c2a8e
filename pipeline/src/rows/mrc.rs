//! Rows of the miss-ratio curve (SPEC X4); see `rows` for the rules.

use macro_rules_attribute::macro_rules_derive;
use serde::{Deserialize, Serialize};

use super::{Row, columns::columns};
use crate::ids::Micros;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct MrcRow {
    pub as_of: Micros,
    pub scope: String,
    pub model: Option<String>,
    pub tier: Option<String>,
    pub tenant: Option<String>,
    pub window_seconds: f64,
    pub prompts: u64,
    pub prompt_tokens: u64,
    pub capacity_blocks: Option<u64>,
    pub capacity_tokens: Option<u64>,
    pub hit_tokens: u64,
    pub hit_rate: f64,
    pub hit_rate_error: f64,
    pub sampling_rate: f64,
    pub blocks_seen: u64,
}
row!(MrcRow => Mrc);
