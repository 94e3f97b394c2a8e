//! The instance with the least predicted seconds, prefix affinity included (SPEC C4 in one region), and the safe policy.

use serde::{Deserialize, Serialize};

use crate::{
    config::ConfigError,
    ids::{InstanceId, Micros},
    policy::{PrefixHits, Tier},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutePolicy {
    /// Queue drain + uncached prefill + decode interference, in seconds.
    LeastSeconds,
    /// Fewest leased tokens; ties in turn. Needs no view: the safe policy.
    LeastOutstandingTokens,
    RoundRobin,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    pub policy: RoutePolicy,
    pub lease_tokens_max: u64,
    pub default_prefill_tokens_per_second: f64,
    pub default_decode_step_seconds: f64,
}

impl RouteConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}

/// What routing looks at, besides the view.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteRequest<'a> {
    pub model: &'a str,
    pub tier: Tier,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub hits: &'a PrefixHits,
    /// Decides ties in turn; the caller counts it up.
    pub turn: u64,
    pub now: Micros,
    /// Instances already tried for this request and failed.
    pub excluded: &'a [InstanceId],
}

/// Cost terms of one candidate, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CandidateCost {
    pub instance: InstanceId,
    pub hit_tokens: u32,
    pub queue_seconds: f64,
    pub prefill_seconds: f64,
    pub interference_seconds: f64,
    pub total_seconds: f64,
    /// Its lease has room for the request.
    pub has_room: bool,
}

/// The instance chosen, by which policy and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    pub instance: InstanceId,
    /// Policy that really decided: the safe one if the view could not be used.
    pub policy: RoutePolicy,
    pub reason: String,
    pub predicted_seconds: Option<f64>,
    /// Every candidate with its terms, cheapest first.
    pub candidates: Vec<CandidateCost>,
}

/// Why no instance was chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum RouteRejection {
    /// No ready instance serves the model.
    NoInstance,
    /// Every candidate's lease is full; wait for one.
    NoRoom { candidates: Vec<CandidateCost> },
}
