//! A decision and everything it was made from, as one row (SPEC X3).

use super::{auth::Tenant, deps::Deps, dispatcher::Pressure, error::ApiError};
use crate::{
    ids::Micros,
    policy::{CandidateCost, Classified, Placement},
    rows::{CandidateRow, DecisionRow},
};

/// What was decided.
pub enum Outcome<'a> {
    Admit { placement: &'a Placement, because: String },
    Queue { candidates: &'a [CandidateCost], because: String },
    Reject { error: &'a ApiError, candidates: &'a [CandidateCost] },
}

/// The inputs, as known at the time; a request refused early has few.
pub struct Inputs<'a> {
    pub request_id: &'a str,
    pub tenant: &'a Tenant,
    pub classified: Option<&'a Classified>,
    pub pressure: Option<&'a Pressure>,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub predicted_hit_tokens: u32,
    pub turns: u32,
}

/// A new id for a decision or a request: `prefix` and a UUID of version 7, so that ids sort by time.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}-{}", uuid::Uuid::now_v7().simple())
}

/// The row. Where nothing was classed or looked at, the row says `none`.
pub fn row(deps: &Deps, at: Micros, inputs: &Inputs<'_>, outcome: Outcome<'_>) -> DecisionRow {
    let (name, reason, placement, candidates) = match outcome {
        Outcome::Admit { placement, because } => {
            let reason =
                if because.is_empty() { placement.reason.clone() } else { format!("{because}; {}", placement.reason) };
            ("admit", reason, Some(placement), placement.candidates.as_slice())
        }
        Outcome::Queue { candidates, because } => ("queue", because, None, candidates),
        Outcome::Reject { error, candidates } => ("reject", format!("{}: {error}", error.code()), None, candidates),
    };
    let none = || super::recorder::UNCLASSED.to_string();
    DecisionRow {
        at,
        decision_id: new_id("dec"),
        request_id: inputs.request_id.into(),
        model: deps.text.name().into(),
        tenant: inputs.tenant.name.clone(),
        tier: inputs.classified.map_or_else(none, |classified| classified.tier.name().into()),
        tier_reason: inputs.classified.map_or_else(none, |classified| classified.reason.clone()),
        outcome: name.into(),
        reason,
        throttle_step: inputs.pressure.map_or_else(none, |pressure| pressure.step.name().into()),
        route_policy: placement.map_or_else(none, |placement| placement.policy.name().into()),
        instance: placement.map(|placement| placement.instance.0),
        prompt_tokens: inputs.prompt_tokens,
        max_tokens: inputs.max_tokens,
        predicted_hit_tokens: inputs.predicted_hit_tokens,
        predicted_seconds: placement.and_then(|placement| placement.predicted_seconds),
        turns: inputs.turns,
        view_mode: inputs.pressure.map_or_else(none, |pressure| pressure.view.mode.name().into()),
        view_as_of: inputs.pressure.and_then(|pressure| pressure.view.as_of),
        saturation: inputs.pressure.and_then(|pressure| pressure.saturation),
        candidates: candidates.iter().map(candidate_row).collect(),
        variant: placement.map(|placement| placement.variant.clone()),
    }
}

fn candidate_row(cost: &CandidateCost) -> CandidateRow {
    CandidateRow {
        instance: cost.instance.0,
        hit_tokens: cost.hit_tokens,
        queue_seconds: cost.queue_seconds,
        prefill_seconds: cost.prefill_seconds,
        interference_seconds: cost.interference_seconds,
        total_seconds: cost.total_seconds,
    }
}
