//! Order of what waits for a dispatch slot (SPEC A3, first version): weighted between tiers, arrival inside a tier, aging.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::ConfigError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierWeights {
    pub high: u32,
    pub medium: u32,
    pub low: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    pub requests_max: usize,
    pub tokens_max: u64,
    pub weights: TierWeights,
    #[serde(with = "humantime_serde")]
    pub wait_max: Duration,
    #[serde(with = "humantime_serde")]
    pub aging: Duration,
}

impl QueueConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}
