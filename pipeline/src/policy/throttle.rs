//! Stepped throttling (SPEC A2): one saturation signal, explicit steps, hysteresis and dwell.
//!
//! Invariants: at most one step per dwell time, up or down, so the number of changes in a time T is at most T / dwell + 1
//! whatever the signal does; a signal that stays between a step's exit and the next one's entry changes nothing; a lost
//! signal changes nothing (DESIGN §7 rule 4). Time: one pass over the instances. State: [`ThrottleState`] alone.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    config::{self, ConfigError, require},
    ids::{Micros, micros},
    policy::{ClusterView, QueueLoad, Tier},
};

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
    /// … and `max_tokens` and context of the rest are capped.
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

    pub const ALL: [ThrottleStep; 6] = [
        ThrottleStep::Open,
        ThrottleStep::ShapeBatch,
        ThrottleStep::ThrottleLow,
        ThrottleStep::ThrottleMedium,
        ThrottleStep::Shrink,
        ThrottleStep::ThrottleHigh,
    ];

    /// The step of a name that [`name`](Self::name) gave.
    pub fn from_name(name: &str) -> Option<ThrottleStep> {
        ThrottleStep::ALL.into_iter().find(|step| step.name() == name)
    }

    /// Does this step refuse the tier?
    pub fn refuses(self, tier: Tier) -> bool {
        self >= match tier {
            Tier::Low => ThrottleStep::ThrottleLow,
            Tier::Medium => ThrottleStep::ThrottleMedium,
            Tier::High => ThrottleStep::ThrottleHigh,
        }
    }

    fn tighter(self) -> Option<ThrottleStep> {
        Self::ALL.get(self as usize + 1).copied()
    }

    fn looser(self) -> Option<ThrottleStep> {
        (self as usize).checked_sub(1).and_then(|index| Self::ALL.get(index)).copied()
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
    pub shrink_context_tokens: u32,
    pub queue_seconds_full: f64,
    pub leased_full: f64,
}

impl ThrottleConfig {
    /// Thresholds of a step; `Open` has none.
    pub fn threshold(&self, step: ThrottleStep) -> Option<Threshold> {
        match step {
            ThrottleStep::Open => None,
            ThrottleStep::ShapeBatch => Some(self.shape_batch),
            ThrottleStep::ThrottleLow => Some(self.throttle_low),
            ThrottleStep::ThrottleMedium => Some(self.throttle_medium),
            ThrottleStep::Shrink => Some(self.shrink),
            ThrottleStep::ThrottleHigh => Some(self.throttle_high),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        const KEYS: [&str; 5] = [
            "policy.throttle.shape_batch",
            "policy.throttle.throttle_low",
            "policy.throttle.throttle_medium",
            "policy.throttle.shrink",
            "policy.throttle.throttle_high",
        ];
        let mut before = Threshold { enter: 0.0, exit: 0.0 };
        for (key, step) in KEYS.into_iter().zip(&ThrottleStep::ALL[1..]) {
            let at = self.threshold(*step).expect("invariant: every step but Open has thresholds");
            let value = format!("{{ enter = {}, exit = {} }}", at.enter, at.exit);
            let is_band = at.enter.is_finite() && at.exit > 0.0 && at.exit < at.enter;
            require(is_band, key, &value, "0 < exit < enter")?;
            let is_ordered = at.enter >= before.enter && at.exit >= before.exit;
            require(is_ordered, key, &value, "thresholds not below those of the step before")?;
            before = at;
        }
        require(
            !self.dwell.is_zero() && self.dwell <= Duration::from_secs(3600),
            "policy.throttle.dwell",
            format!("{:?}", self.dwell),
            "more than 0 and at most 1h",
        )?;
        require(
            self.shrink_max_tokens >= 1,
            "policy.throttle.shrink_max_tokens",
            self.shrink_max_tokens,
            "at least 1",
        )?;
        require(
            self.shrink_context_tokens >= 1,
            "policy.throttle.shrink_context_tokens",
            self.shrink_context_tokens,
            "at least 1",
        )?;
        require(
            self.leased_full.is_finite() && self.leased_full > 0.0,
            "policy.throttle.leased_full",
            self.leased_full,
            "more than 0",
        )?;
        require(
            self.queue_seconds_full.is_finite() && self.queue_seconds_full > 0.0,
            "policy.throttle.queue_seconds_full",
            self.queue_seconds_full,
            "more than 0",
        )
    }
}

/// Step in force and since when. The only state; its owner keeps it and feeds it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThrottleState {
    pub step: ThrottleStep,
    pub since: Micros,
}

/// What waits in the gateway's own queue, and how fast it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Backlog {
    pub queue: QueueLoad,
    pub drain_tokens_per_second: Option<f64>,
}

impl Backlog {
    /// Time until what waits now has left; `None`: the drain is not known.
    pub fn seconds(&self) -> Option<f64> {
        self.drain_tokens_per_second.filter(|rate| *rate > 0.0).map(|rate| self.queue.tokens as f64 / rate)
    }
}

/// Used capacity of the instances that take requests; 1.0 is full. The largest of four shares: leased tokens and time that the
/// gateway's queue takes to drain (its own truth, known without views), KV blocks in use and predicted queue time of the
/// engines (from the views, where usable and reported). Leases at their bound count as `leased_full`: a full batch alone is
/// how an instance works best. `None`: no instance is ready, so nothing is known.
pub fn saturation(view: &ClusterView, backlog: &Backlog, policy: &config::Policy) -> Option<f64> {
    let ready = || view.instances.iter().filter(|instance| instance.is_ready);
    let count = ready().count();
    if count == 0 {
        return None;
    }
    let leased: u64 = ready().map(|instance| instance.leased_tokens).sum();
    let leased_share = leased as f64 / (count as f64 * policy.route.lease_tokens_max as f64);
    let backlog_share = backlog.seconds().map_or(0.0, |seconds| seconds / policy.throttle.queue_seconds_full);
    let own_share = (leased_share * policy.throttle.leased_full).max(backlog_share);
    if !view.mode.is_usable() {
        return Some(own_share);
    }
    let engines = || ready().filter_map(|instance| instance.engine.as_ref());
    let blocks_total: u64 = engines().map(|engine| u64::from(engine.blocks_total)).sum();
    let blocks_used: u64 = engines().map(|engine| u64::from(engine.blocks_used)).sum();
    let blocks_share = if blocks_total == 0 { 0.0 } else { blocks_used as f64 / blocks_total as f64 };
    let queued: u64 = engines().map(|engine| engine.queued_prefill_tokens).sum();
    let rate: f64 = engines()
        .map(|engine| engine.prefill_tokens_per_second.unwrap_or(policy.route.default_prefill_tokens_per_second))
        .sum();
    let queue_share = if rate > 0.0 { queued as f64 / rate / policy.throttle.queue_seconds_full } else { 0.0 };
    Some(own_share.max(blocks_share).max(queue_share))
}

/// The step from `now` on: one step tighter at its entry threshold, one looser below its exit threshold, none within the
/// dwell time or without a signal.
pub fn next_step(state: ThrottleState, saturation: Option<f64>, now: Micros, config: &ThrottleConfig) -> ThrottleState {
    let Some(level) = saturation.filter(|_| now.saturating_sub(state.since) >= micros(config.dwell)) else {
        return state;
    };
    let enters = |step: &ThrottleStep| config.threshold(*step).is_some_and(|at| level >= at.enter);
    if let Some(step) = state.step.tighter().filter(enters) {
        return ThrottleState { step, since: now };
    }
    let leaves = config.threshold(state.step).is_some_and(|at| level < at.exit);
    match state.step.looser() {
        Some(step) if leaves => ThrottleState { step, since: now },
        _ => state,
    }
}

#[cfg(test)]
#[path = "throttle_tests.rs"]
mod tests;
