//! Admit, queue or reject (SPEC A2, DESIGN §2 step 2).

use std::time::Duration;

/// Why a request was refused; the name goes into the response body, the decision row and the metric (DESIGN §7 rule 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The step of throttling in force refuses this tier.
    Throttled,
    /// The gateway's queue is at its bound of requests or tokens.
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
