//! `[policy.route]`: which policy routes, and the figures it uses until the fleet has shown its own.
//!
//! Invariant: after `validate` every rate is above zero and every share finite. No cost, no state.

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, require},
    policy::LEAST_LOADED,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutePolicy {
    /// Queue drain + uncached prefill + fetch from lower levels + decode interference, in seconds.
    LeastSeconds,
    /// Fewest leased tokens; ties in turn. Needs no view: the safe policy.
    LeastOutstandingTokens,
    RoundRobin,
    /// The one of two drawn instances with fewer leased tokens.
    PowerOfTwo,
    /// The longest cached prefix above a threshold, while the fleet is balanced; else the fewest requests.
    PrefixAffinity,
    /// Fewest new prefill tokens × batch size.
    PrefillTimesBatch,
}

impl RoutePolicy {
    pub const ALL: [RoutePolicy; 6] = [
        RoutePolicy::LeastSeconds,
        RoutePolicy::LeastOutstandingTokens,
        RoutePolicy::RoundRobin,
        RoutePolicy::PowerOfTwo,
        RoutePolicy::PrefixAffinity,
        RoutePolicy::PrefillTimesBatch,
    ];

    pub fn name(self) -> &'static str {
        match self {
            RoutePolicy::LeastSeconds => "least_seconds",
            RoutePolicy::LeastOutstandingTokens => "least_outstanding_tokens",
            RoutePolicy::RoundRobin => "round_robin",
            RoutePolicy::PowerOfTwo => "power_of_two",
            RoutePolicy::PrefixAffinity => "prefix_affinity",
            RoutePolicy::PrefillTimesBatch => "prefill_times_batch",
        }
    }

    /// Makes no sense without usable views; the safe policy decides then.
    pub fn needs_views(self) -> bool {
        matches!(self, RoutePolicy::LeastSeconds | RoutePolicy::PrefixAffinity | RoutePolicy::PrefillTimesBatch)
    }

    /// A sample of the least loaded and those that hold the prefix are enough for it.
    pub(super) fn can_sample(self) -> bool {
        matches!(self, RoutePolicy::LeastSeconds | RoutePolicy::PrefillTimesBatch)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    pub policy: RoutePolicy,
    pub lease_tokens_max: u64,
    pub default_prefill_tokens_per_second: f64,
    pub default_decode_step_seconds: f64,
    pub default_fetch_tokens_per_second: FetchRates,
    pub default_error: f64,
    pub error_weight: f64,
    pub score_all_max: usize,
    pub holders_max: usize,
    pub sample: usize,
    pub affinity: AffinityConfig,
    pub borrow_share: f64,
    pub home_reserve: f64,
    pub borrow_cost: f64,
}

/// Tokens whose KV comes back from a level in a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchRates {
    pub l2: f64,
    pub l25: f64,
    pub l3: f64,
}

/// Thresholds of [`RoutePolicy::PrefixAffinity`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AffinityConfig {
    pub cache_threshold: f64,
    pub balance_abs: u32,
    pub balance_rel: f64,
}

impl RouteConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        require(self.lease_tokens_max >= 1, "policy.route.lease_tokens_max", self.lease_tokens_max, "at least 1")?;
        let above_zero = |value: f64, key, what| require(value.is_finite() && value > 0.0, key, value, what);
        let rate = self.default_prefill_tokens_per_second;
        above_zero(rate, "policy.route.default_prefill_tokens_per_second", "a rate above 0")?;
        above_zero(self.default_decode_step_seconds, "policy.route.default_decode_step_seconds", "a time above 0")?;
        let FetchRates { l2, l25, l3 } = self.default_fetch_tokens_per_second;
        for rate in [l2, l25, l3] {
            above_zero(rate, "policy.route.default_fetch_tokens_per_second", "rates above 0")?;
        }
        let is_share = |value: f64| (0.0..=10.0).contains(&value);
        require(is_share(self.default_error), "policy.route.default_error", self.default_error, "0 to 10")?;
        require(is_share(self.error_weight), "policy.route.error_weight", self.error_weight, "0 to 10")?;
        require(
            self.score_all_max >= LEAST_LOADED,
            "policy.route.score_all_max",
            self.score_all_max,
            format!("at least {LEAST_LOADED}"),
        )?;
        require((1..=1024).contains(&self.holders_max), "policy.route.holders_max", self.holders_max, "1 to 1024")?;
        require(
            (1..=LEAST_LOADED).contains(&self.sample),
            "policy.route.sample",
            self.sample,
            format!("1 to {LEAST_LOADED}, the least loaded it is drawn from"),
        )?;
        let cost = self.borrow_cost;
        require(cost.is_finite() && cost >= 0.0, "policy.route.borrow_cost", cost, "a factor of at least 0")?;
        let shares =
            [("policy.route.borrow_share", self.borrow_share), ("policy.route.home_reserve", self.home_reserve)];
        for (key, share) in shares {
            require((0.0..=1.0).contains(&share), key, share, "a share from 0 to 1")?;
        }
        let affinity = self.affinity;
        let threshold = affinity.cache_threshold;
        require(
            (0.0..=1.0).contains(&threshold),
            "policy.route.affinity.cache_threshold",
            threshold,
            "a share from 0 to 1",
        )?;
        require(
            affinity.balance_rel.is_finite() && affinity.balance_rel >= 1.0,
            "policy.route.affinity.balance_rel",
            affinity.balance_rel,
            "a factor of at least 1",
        )
    }
}
