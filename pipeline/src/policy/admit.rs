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
    /// It would not make its deadline on any instance.
    PredictedMiss,
}

impl RejectReason {
    pub const ALL: [RejectReason; 5] =
        [Self::Throttled, Self::QueueFull, Self::NoInstance, Self::WaitedTooLong, Self::PredictedMiss];

    pub fn name(self) -> &'static str {
        match self {
            RejectReason::Throttled => "throttled",
            RejectReason::QueueFull => "queue_full",
            RejectReason::NoInstance => "no_instance",
            RejectReason::WaitedTooLong => "waited_too_long",
            RejectReason::PredictedMiss => "predicted_miss",
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
    /// Tokens a second that leave the queue, where that is known.
    pub drain_tokens_per_second: Option<f64>,
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
    let context_left = policy.throttle.shrink_context_tokens.saturating_sub(request.prompt_tokens);
    let is_too_long = state.step >= ThrottleStep::Shrink && context_left == 0;
    if state.step.refuses(request.tier) || is_too_long {
        // A step can be left after one dwell time at the earliest, and each step takes another.
        let holds = |step: &ThrottleStep| step.refuses(request.tier) || (is_too_long && *step >= ThrottleStep::Shrink);
        let excess = ThrottleStep::ALL.iter().filter(|step| **step <= state.step && holds(step)).count();
        let steps = u32::try_from(excess).unwrap_or(1);
        return Admission::Reject {
            reason: RejectReason::Throttled,
            retry_after: clamp(policy.throttle.dwell.saturating_mul(steps)),
        };
    }
    let max_tokens = match state.step >= ThrottleStep::Shrink {
        true => request.max_tokens.min(policy.throttle.shrink_max_tokens).min(context_left),
        false => request.max_tokens,
    };
    if state.queue.requests == 0 && state.has_room {
        return Admission::Admit { max_tokens };
    }
    let size = EntrySize { tokens: token_cost(request.prompt_tokens, max_tokens), bytes: request.bytes };
    if !policy.queue.has_room(state.queue, size) {
        let usual = policy.throttle.queue_seconds_full * state.saturation.unwrap_or(1.0).clamp(0.0, 10.0);
        let drain = state.drain_tokens_per_second.filter(|rate| *rate > 0.0);
        let drain = drain.map_or(usual, |rate| state.queue.tokens as f64 / rate);
        return Admission::Reject { reason: RejectReason::QueueFull, retry_after: retry_after(drain) };
    }
    Admission::Queue { max_tokens }
}

/// A client that was refused should stay away for so many seconds.
pub fn retry_after(seconds: f64) -> Duration {
    let most = RETRY_MAX.as_secs_f64();
    let seconds = if seconds.is_finite() { seconds.clamp(0.0, most) } else { most };
    clamp(Duration::from_secs_f64(seconds))
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
        AdmitState {
            step,
            serving: 1,
            has_room: true,
            queue: QueueLoad::default(),
            saturation: Some(0.9),
            drain_tokens_per_second: None,
        }
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
                let marks: Vec<String> = Tier::ALL
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

    /// Scenario: prompts near and above the longest context that step `shrink` leaves.
    /// Guarantees: the answer is cut to what is left of it, and a prompt that leaves none is refused; before, nothing is.
    #[test]
    fn long_contexts_shrink() {
        let mut policy = test_policy();
        policy.throttle.shrink_context_tokens = 1000;
        let of = |step, prompt_tokens| match admit(
            &AdmitRequest { prompt_tokens, ..ask(Tier::High) },
            &state(step),
            &policy,
        ) {
            Admission::Admit { max_tokens } => format!("{max_tokens}"),
            Admission::Reject { reason, retry_after } => format!("{} {retry_after:?}", reason.name()),
            Admission::Queue { .. } => "queue".into(),
        };
        assert_eq!([of(ThrottleStep::Shrink, 100), of(ThrottleStep::Shrink, 900)], ["256", "100"]);
        assert_eq!(of(ThrottleStep::Shrink, 1000), "throttled 2s");
        assert_eq!(of(ThrottleStep::ThrottleMedium, 100_000), "1000");
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

    /// Scenario: a full queue whose drain is known, or unknown.
    /// Guarantees: a refused client is told the time in which what waits will have left, within bounds.
    #[test]
    fn retry_after_is_the_drain() {
        let policy = test_policy();
        let queue = QueueLoad { requests: policy.queue.requests_max, tokens: 30_000, bytes: 1 };
        let after = |drain_tokens_per_second| {
            let state = AdmitState { queue, drain_tokens_per_second, ..state(ThrottleStep::Open) };
            match admit(&ask(Tier::High), &state, &policy) {
                Admission::Reject { retry_after, .. } => retry_after.as_secs(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([after(Some(3000.0)), after(Some(0.1)), after(Some(1e9)), after(None)], [10, 60, 1, 27]);
    }

    proptest! {
        /// Scenario: any state of the entry.
        /// Guarantees: a better tier is never refused where a worse one is let in (no priority inversion).
        #[test]
        fn a_better_tier_fares_no_worse(step in 0usize..6, serving in 0usize..3, room: bool, waits in 0usize..1100) {
            let state = AdmitState {
                step: ThrottleStep::ALL[step], serving, has_room: room, saturation: None, drain_tokens_per_second: None,
                queue: QueueLoad { requests: waits, tokens: waits as u64 * 4000, bytes: waits as u64 * 20_000 },
            };
            let policy = test_policy();
            let is_refused = |tier| matches!(admit(&ask(tier), &state, &policy), Admission::Reject { .. });
            prop_assert!(!is_refused(Tier::High) || is_refused(Tier::Medium));
            prop_assert!(!is_refused(Tier::Medium) || is_refused(Tier::Low));
        }
    }
}
