//! A decision and everything it was made from, as one row (SPEC X3), and the words in it. A replay builds the same row from
//! recorded inputs (SPEC X2), so nothing here looks at anything but its arguments.

use std::time::{Duration, UNIX_EPOCH};

use smol_str::format_smolstr;

use super::{dispatcher::Pressure, error::ApiError};
use crate::{
    ids::{Micros, Name},
    policy::{CandidateCost, Classified, EntrySize, Fit, Outlook, Placement, QueueLoad, RejectReason, SloSeen, Tier},
    rows::{BucketFitRow, CandidateRow, DecisionRow},
};

/// What was decided.
pub enum Outcome<'a> {
    Admit { placement: &'a Placement, because: String },
    Queue { candidates: &'a [CandidateCost], because: String },
    Reject { error: &'a ApiError, candidates: &'a [CandidateCost] },
}

/// The inputs, as known at the time; a request refused early has few.
pub struct Inputs<'a> {
    pub request_id: &'a Name,
    pub tenant: &'a Name,
    pub model: &'a Name,
    pub classified: Option<&'a Classified>,
    pub pressure: Option<&'a Pressure>,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub predicted_hit_tokens: u32,
    pub turns: u32,
    pub slo: Option<&'a SloSeen>,
}

/// A new id for a decision or a request: `prefix` and a UUID of version 7, so that ids sort by time; within a millisecond by the bits
/// that follow (RFC 9562, section 6.2, method 3). `Uuid::now_v7` would ask the system for random bytes each time.
pub fn new_id(prefix: &str) -> Name {
    let now = UNIX_EPOCH.elapsed().unwrap_or_default();
    let part = u64::from(now.subsec_nanos() % 1_000_000) * 4096 / 1_000_000;
    let mut random: [u8; 10] = rand::random();
    [random[0], random[1]] = (part as u16).to_be_bytes();
    let id = uuid::Builder::from_unix_timestamp_millis(now.as_millis() as u64, &random).into_uuid();
    format_smolstr!("{prefix}-{}", id.simple())
}

/// The row. Where nothing was classed or looked at, the row says `none`.
pub fn row(at: Micros, decision_id: Name, inputs: &Inputs<'_>, outcome: Outcome<'_>) -> DecisionRow {
    let (name, reason, placement, candidates) = match outcome {
        Outcome::Admit { placement, because } => {
            let reason =
                if because.is_empty() { placement.reason.clone() } else { format!("{because}; {}", placement.reason) };
            ("admit", reason, Some(placement), placement.candidates.as_slice())
        }
        Outcome::Queue { candidates, because } => ("queue", because, None, candidates),
        Outcome::Reject { error, candidates } => ("reject", format!("{}: {error}", error.code()), None, candidates),
    };
    let none = || Name::new_static(super::recorder::UNCLASSED);
    let outlook = inputs.slo.and_then(|slo| slo.outlook.as_ref());
    DecisionRow {
        at,
        decision_id,
        request_id: inputs.request_id.clone(),
        model: inputs.model.clone(),
        tenant: inputs.tenant.clone(),
        tier: inputs.classified.map_or_else(none, |classified| Name::new_static(classified.tier.name())),
        tier_reason: inputs.classified.map_or_else(|| none().into(), |classified| classified.reason.clone()),
        outcome: Name::new_static(name),
        reason,
        throttle_step: inputs.pressure.map_or_else(none, |pressure| Name::new_static(pressure.throttle.step.name())),
        route_policy: placement.map_or_else(none, |placement| Name::new_static(placement.policy.name())),
        instance: placement.map(|placement| placement.instance.0),
        prompt_tokens: inputs.prompt_tokens,
        max_tokens: inputs.max_tokens,
        predicted_hit_tokens: inputs.predicted_hit_tokens,
        predicted_seconds: placement.and_then(|placement| placement.predicted_seconds),
        turns: inputs.turns,
        view_mode: inputs.pressure.map_or_else(none, |pressure| Name::new_static(pressure.view.mode.name())),
        view_as_of: inputs.pressure.and_then(|pressure| pressure.view.as_of),
        saturation: inputs.pressure.and_then(|pressure| pressure.saturation),
        candidates: candidates.iter().map(candidate_row).collect(),
        variant: placement.map(|placement| placement.variant.as_str().into()),
        visible_hit_tokens: placement.map(|placement| placement.visible_tokens),
        first_token_due: inputs.slo.map(|slo| slo.deadline.first_token),
        whole_due: inputs.slo.and_then(|slo| slo.deadline.whole),
        predicted_wait_seconds: outlook.map(|outlook| outlook.wait_seconds),
        predicted_first_token_seconds: outlook.map(|outlook| outlook.first_token_seconds),
        predicted_whole_seconds: outlook.map(|outlook| outlook.whole_seconds),
        meet_probability: outlook.map(|outlook| outlook.meet),
        is_trial: inputs.slo.map(|slo| slo.is_trial),
        bucket_fits: bucket_fits(candidates),
    }
}

/// The refusal of a request that policies would not take.
pub fn overloaded(
    (reason, retry_after): (RejectReason, Duration),
    (tier, outlook): (Option<Tier>, Option<&Outlook>),
    model: &str,
) -> ApiError {
    let tier = tier.map_or(super::recorder::UNCLASSED, Tier::name);
    let message = match reason {
        RejectReason::Throttled => format!("The service is near its capacity and takes no {tier} requests now."),
        RejectReason::QueueFull => "Too many requests wait already.".to_string(),
        RejectReason::NoInstance => format!("No instance serves `{model}` now."),
        RejectReason::WaitedTooLong => "The request waited for the longest time allowed.".to_string(),
        RejectReason::PredictedMiss => miss(outlook),
    };
    let message = format!("{message} Please retry after {} s.", retry_after.as_secs_f64().ceil());
    let outlook = outlook.filter(|_| reason == RejectReason::PredictedMiss).map(|outlook| Box::new(*outlook));
    ApiError::Overloaded { reason, retry_after, message, outlook }
}

/// A predicted miss in words; where nothing could be predicted, it is a miss because its time is over.
fn miss(outlook: Option<&Outlook>) -> String {
    let Some(outlook) = outlook else { return "The request's deadline passed while it waited.".into() };
    let whole = outlook
        .whole_due_seconds
        .map_or_else(String::new, |due| format!(", and to the end {:.2} s of {due:.2} s", outlook.whole_seconds));
    format!(
        "The request would miss its deadline on every instance: to the first token it would take {:.2} s of {:.2} s left{whole}.",
        outlook.first_token_seconds, outlook.first_token_due_seconds
    )
}

/// Refusal of a request that found the queue full when it came to it.
pub const FULL_AT_PUSH: (RejectReason, Duration) = (RejectReason::QueueFull, Duration::from_secs(2));
/// Refusal of a request that waited for the longest time allowed.
pub const WAITED_TOO_LONG: (RejectReason, Duration) = (RejectReason::WaitedTooLong, Duration::from_secs(5));

/// Why a request of this size waits in a queue that held `before`.
pub fn queue_reason(before: QueueLoad, size: EntrySize) -> String {
    let after = before.with(size);
    format!("no lease free: {} requests with {} tokens wait", after.requests, after.tokens)
}

/// `None` where no plan says anything.
fn bucket_fits(candidates: &[CandidateCost]) -> Option<Vec<BucketFitRow>> {
    let is_cut = candidates.iter().any(|cost| cost.bucket.fit != Fit::Free);
    let row = |cost: &CandidateCost| BucketFitRow {
        instance: cost.instance.0,
        fit: Name::new_static(cost.bucket.fit.name()),
        work_tokens: cost.bucket.work_tokens,
        bucket_seconds: cost.bucket.seconds,
    };
    is_cut.then(|| candidates.iter().map(row).collect())
}

fn candidate_row(cost: &CandidateCost) -> CandidateRow {
    CandidateRow {
        instance: cost.instance.0,
        hit_tokens: cost.hit_tokens,
        queue_seconds: cost.queue.seconds,
        prefill_seconds: cost.prefill.seconds,
        interference_seconds: cost.interference.seconds,
        total_seconds: cost.total_seconds,
        fetch_tokens: cost.fetch_tokens,
        fetch_seconds: cost.fetch.seconds,
        queue_error_seconds: cost.queue.error,
        prefill_error_seconds: cost.prefill.error,
        fetch_error_seconds: cost.fetch.error,
        interference_error_seconds: cost.interference.error,
        error_seconds: cost.error_seconds,
        compared_seconds: cost.compared_seconds,
        has_room: Some(cost.has_room),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a thousand ids in a row. Guarantees: all differ and are UUIDs of version 7; the part of them that is the time never
    /// falls.
    #[test]
    fn ids_sort_by_time() {
        let made: Vec<Name> = (0..1000).map(|_| new_id("req")).collect();
        for id in &made {
            let id = uuid::Uuid::parse_str(id.strip_prefix("req-").unwrap()).unwrap();
            assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
        }
        // Twelve digits of milliseconds, the version, three of their parts.
        let times: Vec<&str> = made.iter().map(|id| &id[..20]).collect();
        assert!(times.is_sorted());
        assert_eq!(made.iter().collect::<std::collections::BTreeSet<_>>().len(), 1000);
    }
}
