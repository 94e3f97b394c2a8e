//! Stepped throttling (SPEC A2): one saturation signal, explicit steps, hysteresis and dwell.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{config::ConfigError, ids::Micros};

/// Steps in order of severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThrottleStep {
    Open,
    /// Low waits while anything else waits.
    ShapeBatch,
    /// Low is refused.
    ThrottleLow,
    /// Low and Medium are refused.
    ThrottleMedium,
    /// … and `max_tokens` of the rest is capped.
    Shrink,
    /// High is refused too.
    ThrottleHigh,
}

impl ThrottleStep {
    pub fn name(self) -> &'static str {
        match self {
            ThrottleStep::Open => "open",
            ThrottleStep::ShapeBatch => "shape_batch",
            ThrottleStep::ThrottleLow => "throttle_low",
            ThrottleStep::ThrottleMedium => "throttle_medium",
            ThrottleStep::Shrink => "shrink",
            ThrottleStep::ThrottleHigh => "throttle_high",
        }
    }
}

/// Enter at or above `enter`, leave below `exit`; `exit < enter`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    pub enter: f64,
    pub exit: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThrottleConfig {
    #[serde(with = "humantime_serde")]
    pub dwell: Duration,
    pub shape_batch: Threshold,
    pub throttle_low: Threshold,
    pub throttle_medium: Threshold,
    pub shrink: Threshold,
    pub throttle_high: Threshold,
    pub shrink_max_tokens: u32,
    pub queue_seconds_full: f64,
}

impl ThrottleConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}

/// Step in force and since when. The only state; its owner keeps it and feeds it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThrottleState {
    pub step: ThrottleStep,
    pub since: Micros,
}
