//! Rows of bucket plans; columns as in `queries::schema`.

use macro_rules_attribute::macro_rules_derive;
use serde::{Deserialize, Serialize};

use super::{Row, columns::columns};
use crate::ids::Micros;

/// One bucket of a plan; a model that is not cut is one bucket, and `state` says why.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[macro_rules_derive(columns)]
pub struct BucketRow {
    pub at: Micros,
    pub plan: u64,
    pub model: String,
    pub state: String,
    pub trigger: String,
    pub cut: String,
    pub capacity: String,
    pub bucket: u32,
    pub buckets: u32,
    pub from_tokens: u32,
    pub to_tokens: Option<u32>,
    pub instances: Vec<u32>,
    pub load: f64,
    pub target_load: f64,
    pub imbalance: Option<f64>,
    pub imbalance_before: Option<f64>,
    pub moved: u32,
}
row!(BucketRow => Buckets);
