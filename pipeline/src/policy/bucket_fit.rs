//! How a request fits an instance's bucket (SPEC B3): at home, borrowing, or one too many.
//!
//! A request belongs to the instances whose range of lengths holds its prompt. Elsewhere it may borrow: it pays its own
//! uncached prefill again, `borrow_cost` times, for what waits behind it there, and only while the foreign work in flight on
//! that instance stays within `borrow_share` of its lease, or its lease as a whole leaves `home_reserve` of it free: room that its own
//! bucket does not use is not left idle, and its own bucket never finds it full of others. Work is what the instance has to compute: uncached prompt and
//! output; so a session goes on to where its prefix is at next to no price.
//!
//! Invariants: no plan, an instance without a seat, and a bucket of which nothing is ready, restrict and cost nothing: nobody
//! starves for a plan. A request never has less room at home than without a plan. Cost: O(instances) a request. No state.

use crate::policy::{InstanceView, RouteConfig};

/// An instance's place in the plan of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketSeat {
    /// The plan in force.
    pub plan: u64,
    /// Prompts of at least this many tokens are at home …
    pub from_tokens: u32,
    /// … and of less than this many; `None`: without end.
    pub to_tokens: Option<u32>,
    /// Work of other buckets in flight there; the gateway's own truth.
    pub foreign_tokens: u64,
}

impl BucketSeat {
    pub fn holds(&self, prompt_tokens: u32) -> bool {
        self.from_tokens <= prompt_tokens && self.to_tokens.is_none_or(|end| prompt_tokens < end)
    }
}

/// How a request stands to an instance's bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// No plan restricts it there.
    Free,
    Home,
    Borrows,
    /// Foreign, and the budget for foreign work is used up.
    OverBudget,
}

impl Fit {
    pub fn name(self) -> &'static str {
        match self {
            Fit::Free => "free",
            Fit::Home => "home",
            Fit::Borrows => "borrows",
            Fit::OverBudget => "over_budget",
        }
    }
}

/// The term of one candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BucketFit {
    pub fit: Fit,
    /// What it would borrow; 0 at home.
    pub work_tokens: u64,
    /// What borrowing costs, in seconds of others' waiting.
    pub seconds: f64,
}

/// What a request would have an instance do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BucketWork {
    /// Uncached prompt and output.
    pub tokens: u64,
    /// What would be reserved for it.
    pub lease_tokens: u64,
    /// Predicted for the uncached prompt.
    pub prefill_seconds: f64,
}

/// Foreign work to be reserved with a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Borrowed {
    pub tokens: u64,
    /// Most foreign work on the instance.
    pub tokens_max: u64,
}

/// What the plans mean for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketRule {
    prompt_tokens: u32,
    has_home: bool,
}

impl BucketRule {
    /// `able`: the instances that could serve the request.
    pub fn of(able: &[&InstanceView], prompt_tokens: u32) -> Self {
        let is_home = |instance: &&InstanceView| instance.bucket.is_some_and(|seat| seat.holds(prompt_tokens));
        Self { prompt_tokens, has_home: able.iter().any(is_home) }
    }

    /// The term of one of them.
    pub fn fit(self, instance: &InstanceView, work: BucketWork, config: &RouteConfig) -> BucketFit {
        let Some(seat) = instance.bucket.filter(|_| self.has_home) else { return BucketFit::FREE };
        if seat.holds(self.prompt_tokens) {
            return BucketFit { fit: Fit::Home, ..BucketFit::FREE };
        }
        let is_within = seat.foreign_tokens.saturating_add(work.tokens) <= of_lease(config.borrow_share, config);
        let leased = instance.leased_tokens.saturating_add(work.lease_tokens);
        let is_spare = leased <= of_lease(1.0 - config.home_reserve, config);
        BucketFit {
            fit: if is_within || is_spare { Fit::Borrows } else { Fit::OverBudget },
            work_tokens: work.tokens,
            seconds: config.borrow_cost * work.prefill_seconds,
        }
    }
}

impl BucketFit {
    pub const FREE: BucketFit = BucketFit { fit: Fit::Free, work_tokens: 0, seconds: 0.0 };

    /// What goes with the lease.
    pub fn borrowed(&self, config: &RouteConfig) -> Option<Borrowed> {
        matches!(self.fit, Fit::Borrows).then(|| Borrowed { tokens: self.work_tokens, tokens_max: borrow_max(config) })
    }
}

/// Most foreign work in flight on one instance, in tokens.
fn borrow_max(config: &RouteConfig) -> u64 {
    of_lease(config.borrow_share.max(1.0 - config.home_reserve), config)
}

fn of_lease(share: f64, config: &RouteConfig) -> u64 {
    (config.lease_tokens_max as f64 * share) as u64
}

#[cfg(test)]
#[path = "bucket_fit_tests.rs"]
mod tests;
