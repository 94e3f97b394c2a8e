//! Admit, queue or reject (SPEC A2, DESIGN §2 step 2).
//!
//! Invariants: tiers are refused in order, Low first; nothing overtakes what waits already; at the queue's bound the answer
//! is a refusal with a time to come back, never a longer queue. Constant time, no state.

use std::time::Duration;

use crate::{
    config,
    policy::{EntrySize, QueueLoad, ThrottleStep, Tier},
};

/// Shortest and longest `Retry-After` ever given.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Why a request was refused; the name goes into the response body, the decision row and the metric (DESIGN §7 rule 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The step of throttling in force refuses this tier.
    Throttled,
    /// The gateway's queue is at its bound of requests, tokens or bytes.
    QueueFull,
    /// No instance serves the model now.
    NoInstance,
    /// It waited `policy.queue.wait_max`.
    WaitedTooLong,
}

impl RejectReason {
    pub fn name(self) -> &'static str {
        match self {
            RejectReason::Throttled => "throttled",
            RejectReason::QueueFull => "queue_full",
            RejectReason::NoInstance => "no_instance",
            RejectReason::WaitedTooLong => "waited_too_long",
        }
    }
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Admission {
    /// Dispatch as soon as a lease exists; `max_tokens` may have been capped by the step `shrink`.
    Admit {
        max_tokens: u32,
    },
    /// Wait for a lease.
    Queue {
        max_tokens: u32,
    },
    Reject {
        reason: RejectReason,
        retry_after: Duration,
    },
}

/// What admission looks at: the request …
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmitRequest {
    pub tier: Tier,
    pub prompt_tokens: u32,
    /// Most tokens to generate, over all sequences of the request.
    pub max_tokens: u32,
    /// Memory it holds while it waits.
    pub bytes: u64,
}

/// … and the state of the entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdmitState {
    pub step: ThrottleStep,
    /// Ready instances that serve the model.
    pub serving: usize,
    /// One of them has room for the request now.
    pub has_room: bool,
    /// What waits already.
    pub queue: QueueLoad,
    /// The signal throttling read; sets how long a refused client should stay away.
    pub saturation: Option<f64>,
}

/// Tokens a request may hold: its prompt and all it may generate.
pub fn token_cost(prompt_tokens: u32, max_tokens: u32) -> u64 {
    u64::from(prompt_tokens) + u64::from(max_tokens)
}

/// The answer for one request.
pub fn admit(request: &AdmitRequest, state: &AdmitState, policy: &config::Policy) -> Admission {
    if state.serving == 0 {
        return Admission::Reject { reason: RejectReason::NoInstance, retry_after: clamp(Duration::from_secs(5)) };
    }
    if state.step.refuses(request.tier) {
        // A step can be left after one dwell time at the earliest, and each step takes another.
        let excess = ThrottleStep::ALL.iter().filter(|step| **step <= state.step && step.refuses(request.tier)).count();
        let steps = u32::try_from(excess).unwrap_or(1);
        return Admission::Reject {
            reason: RejectReason::Throttled,
            retry_after: clamp(policy.throttle.dwell.saturating_mul(steps)),
        };
    }
    let max_tokens = match state.step >= ThrottleStep::Shrink {
        true => request.max_tokens.min(policy.throttle.shrink_max_tokens),
        false => request.max_tokens,
    };
    if state.queue.requests == 0 && state.has_room {
        return Admission::Admit { max_tokens };
    }
    let size = EntrySize { tokens: token_cost(request.prompt_tokens, max_tokens), bytes: request.bytes };
    if !policy.queue.has_room(state.queue, size) {
        let drain = policy.throttle.queue_seconds_full * state.saturation.unwrap_or(1.0).clamp(0.0, 10.0);
        return Admission::Reject {
            reason: RejectReason::QueueFull,
            retry_after: clamp(Duration::from_secs_f64(drain)),
        };
    }
    Admission::Queue { max_tokens }
}

fn clamp(retry_after: Duration) -> Duration {
    retry_after.clamp(RETRY_MIN, RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::test_policy;

    fn state(step: ThrottleStep) -> AdmitState {
        AdmitState { step, serving: 1, has_room: true, queue: QueueLoad::default(), saturation: Some(0.9) }
    }

    fn ask(tier: Tier) -> AdmitRequest {
        AdmitRequest { tier, prompt_tokens: 100, max_tokens: 1000, bytes: 500 }
    }

    /// Scenario: every tier at every step of throttling, with room.
    /// Guarantees: Low is refused first, then Medium, High last (SPEC A2); `shrink` caps what is still admitted.
    #[test]
    fn tiers_are_refused_in_order() {
        let policy = test_policy();
        let table: Vec<String> = ThrottleStep::ALL
            .iter()
            .map(|step| {
                let marks: Vec<String> = [Tier::High, Tier::Medium, Tier::Low]
                    .iter()
                    .map(|tier| match admit(&ask(*tier), &state(*step), &policy) {
                        Admission::Admit { max_tokens } => max_tokens.to_string(),
                        Admission::Queue { .. } => "queue".into(),
                        Admission::Reject { reason, retry_after } => format!("{}/{retry_after:?}", reason.name()),
                    })
                    .collect();
                format!("{}: {}", step.name(), marks.join(" "))
            })
            .collect();
        expect_test::expect![[r#"
            open: 1000 1000 1000
            shape_batch: 1000 1000 1000
            throttle_low: 1000 1000 throttled/2s
            throttle_medium: 1000 throttled/2s throttled/4s
            shrink: 256 throttled/4s throttled/6s
            throttle_high: throttled/2s throttled/6s throttled/8s"#]]
        .assert_eq(&table.join("\n"));
    }

    /// Scenario: no instance; no room; something waits already; the queue at its bounds.
    /// Guarantees: each has its own named answer, and at the bound it is a refusal.
    #[test]
    fn queue_and_its_bounds() {
        let policy = test_policy();
        let reason = |state: AdmitState| match admit(&ask(Tier::High), &state, &policy) {
            Admission::Admit { .. } => "admit",
            Admission::Queue { .. } => "queue",
            Admission::Reject { reason, .. } => reason.name(),
        };
        let open = state(ThrottleStep::Open);
        assert_eq!(reason(AdmitState { serving: 0, ..open }), "no_instance");
        assert_eq!(reason(AdmitState { has_room: false, ..open }), "queue");
        let waits = |requests, tokens, bytes| AdmitState { queue: QueueLoad { requests, tokens, bytes }, ..open };
        assert_eq!(reason(waits(1, 1, 1)), "queue");
        assert_eq!(reason(waits(policy.queue.requests_max, 1, 1)), "queue_full");
        assert_eq!(reason(waits(1, policy.queue.tokens_max, 1)), "queue_full");
        assert_eq!(reason(waits(1, 1, policy.queue.bytes_max.as_u64())), "queue_full");
    }

    proptest! {
        /// Scenario: any state of the entry.
        /// Guarantees: a better tier is never refused where a worse one is let in (no priority inversion).
        #[test]
        fn a_better_tier_fares_no_worse(step in 0usize..6, serving in 0usize..3, room: bool, waits in 0usize..1100) {
            let state = AdmitState {
                step: ThrottleStep::ALL[step], serving, has_room: room, saturation: None,
                queue: QueueLoad { requests: waits, tokens: waits as u64 * 4000, bytes: waits as u64 * 20_000 },
            };
            let policy = test_policy();
            let is_refused = |tier| matches!(admit(&ask(tier), &state, &policy), Admission::Reject { .. });
            prop_assert!(!is_refused(Tier::High) || is_refused(Tier::Medium));
            prop_assert!(!is_refused(Tier::Medium) || is_refused(Tier::Low));
        }
    }
}
