//! Predicted seconds of one candidate: queue drain + uncached prefill + fetch from lower levels + decode interference, each with its
//! uncertainty (SPEC C4).
//!
//! A term is a product of work and a learnt time, and its uncertainty is that of the time: how far predictions were off lately, one
//! standard deviation. Queue and prefill are off together, since one rate makes both; the others are taken to be independent.
//! Candidates are compared by the sum plus `error_weight` times its uncertainty: a guess must be better than a known time by as much as
//! it may be wrong. Times nobody has measured come from the configuration, with `default_error`.
//!
//! What an instance was sent since its last report is not in the views yet: requests leased there but not reported are taken to be like
//! this one, so that a burst does not all go to one place. KV at a lower level counts as cached where bringing it is faster than
//! computing it, else as not cached. Nothing moves from one instance to another, so no term says what that would cost.
//!
//! Invariants: terms are finite and not below 0; the sum is that of the terms. Constant time, no state.

use super::{RouteConfig, RouteRequest};
use crate::{
    ids::InstanceId,
    policy::{BucketFit, BucketRule, BucketWork, Fit, InstanceView, KV_LEVELS, LevelTokens, ViewMode, token_cost},
};

/// Seconds, and one standard deviation of them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Term {
    pub seconds: f64,
    pub error: f64,
}

/// Cost terms of one candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CandidateCost {
    pub instance: InstanceId,
    /// Prompt tokens whose KV need not be computed.
    pub hit_tokens: u32,
    /// … of these, tokens whose KV comes from below L1.
    pub fetch_tokens: u32,
    pub queue: Term,
    pub prefill: Term,
    pub fetch: Term,
    pub interference: Term,
    /// Sum of the terms.
    pub total_seconds: f64,
    /// One standard deviation of the sum.
    pub error_seconds: f64,
    /// What candidates are compared by: the sum and a multiple of its uncertainty.
    pub compared_seconds: f64,
    /// How the request fits the instance's bucket; what borrowing costs others is in `compared_seconds` and in no term.
    pub bucket: BucketFit,
    /// Its lease, and its budget for foreign work, have room for the request, and nothing that runs there is to be spared it.
    pub has_room: bool,
}

impl CandidateCost {
    /// With what the bucket plan has to say.
    pub(super) fn fitted(
        self,
        buckets: BucketRule,
        (instance, request): (&InstanceView, &RouteRequest<'_>),
        config: &RouteConfig,
    ) -> Self {
        let work = BucketWork {
            tokens: token_cost(request.prompt_tokens - self.hit_tokens, request.max_tokens),
            lease_tokens: token_cost(request.prompt_tokens, request.max_tokens),
            prefill_seconds: self.prefill.seconds,
        };
        let bucket = buckets.fit(instance, work, config);
        Self {
            bucket,
            compared_seconds: self.compared_seconds + bucket.seconds,
            has_room: self.has_room && bucket.fit != Fit::OverBudget,
            ..self
        }
    }
}

/// Work at a candidate, in tokens and sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    /// Prompt tokens to be computed there with this request: queued ones, unseen ones and its own.
    pub prefill_tokens: u64,
    /// Sequences there with this one.
    pub batch: u64,
}

/// Cached tokens that count. The last prompt token is always computed: its logits are the first answer.
pub(super) fn believed(hit_tokens: u32, mode: ViewMode, prompt_tokens: u32) -> u32 {
    if mode.is_usable() { hit_tokens.min(prompt_tokens.saturating_sub(1)) } else { 0 }
}

/// A measured time with the error of its predictions, or the configured one.
struct Learnt {
    seconds: f64,
    error: f64,
}

impl Learnt {
    fn of(measured: Option<f64>, error: Option<f64>, (default, config): (f64, &RouteConfig)) -> Self {
        match measured.filter(|seconds| seconds.is_finite()) {
            Some(seconds) => Self { seconds, error: error.unwrap_or(config.default_error) },
            None => Self { seconds: default, error: config.default_error },
        }
    }

    fn times(&self, work: f64) -> Term {
        let seconds = work * self.seconds;
        Term { seconds, error: seconds * self.error }
    }
}

/// What of a prefix is fetched rather than computed, and how long that takes.
fn fetched(
    instance: &InstanceView,
    held: LevelTokens,
    token_seconds: f64,
    config: &RouteConfig,
) -> (LevelTokens, Term) {
    let rates = config.default_fetch_tokens_per_second;
    let defaults = [0.0, 1.0 / rates.l2, 1.0 / rates.l25, 1.0 / rates.l3];
    let (mut used, mut term) = (held, Term::default());
    for (level, default) in defaults.into_iter().enumerate().skip(1) {
        // A copy was timed on this machine with nothing else to do; what disturbs it is not known.
        let time = Learnt::of(instance.fetch.0[level], None, (default, config));
        if time.seconds >= token_seconds {
            used.0[level] = 0;
            continue;
        }
        let own = time.times(f64::from(held.0[level]));
        term = Term { seconds: term.seconds + own.seconds, error: term.error.hypot(own.error) };
    }
    (used, term)
}

/// Predicted seconds on one instance. Views that are not usable count as not reported, and no hit is believed.
pub(super) fn cost(
    instance: &InstanceView,
    mode: ViewMode,
    request: &RouteRequest<'_>,
    config: &RouteConfig,
) -> (CandidateCost, Work) {
    let engine = instance.engine.as_ref().filter(|_| mode.is_usable());
    let rate = engine.and_then(|engine| engine.prefill_tokens_per_second).filter(|rate| *rate > 0.0);
    let token = Learnt::of(
        rate.map(|rate| 1.0 / rate),
        engine.and_then(|engine| engine.prefill_error),
        (1.0 / config.default_prefill_tokens_per_second, config),
    );
    let step = Learnt::of(
        engine.and_then(|engine| engine.decode_step_seconds),
        engine.and_then(|engine| engine.decode_error),
        (config.default_decode_step_seconds, config),
    );
    let (running, waiting, queued) =
        engine.map_or((0, 0, 0), |engine| (engine.running, engine.waiting, engine.queued_prefill_tokens));
    let unseen = instance.leased_requests.saturating_sub(running.saturating_add(waiting));
    let unseen_tokens = instance.leased_tokens.min(u64::from(unseen) * u64::from(request.prompt_tokens));
    let most = believed(u32::MAX, mode, request.prompt_tokens);
    let held = request.hits.on(instance.instance).capped(most);
    let (used, fetch) = fetched(instance, held, token.seconds, config);
    let hit_tokens = used.total();
    let (ahead, own) = (queued + unseen_tokens, request.prompt_tokens - hit_tokens);
    let (queue, prefill) = (token.times(ahead as f64), token.times(f64::from(own)));
    let interference = step.times(f64::from(running.saturating_add(unseen)));
    let total_seconds = queue.seconds + prefill.seconds + fetch.seconds + interference.seconds;
    let error_seconds = (queue.error + prefill.error).hypot(fetch.error).hypot(interference.error);
    let need = token_cost(request.prompt_tokens, request.max_tokens);
    let cost = CandidateCost {
        instance: instance.instance,
        hit_tokens,
        fetch_tokens: used.0[1..KV_LEVELS].iter().sum(),
        queue,
        prefill,
        fetch,
        interference,
        total_seconds,
        error_seconds,
        compared_seconds: total_seconds + config.error_weight * error_seconds,
        bucket: BucketFit::FREE,
        has_room: !request.spared.contains(&instance.instance)
            && (instance.leased_tokens == 0 || instance.leased_tokens.saturating_add(need) <= config.lease_tokens_max),
    };
    let sequences = u64::from(running) + u64::from(waiting) + u64::from(unseen);
    (cost, Work { prefill_tokens: ahead + u64::from(own), batch: sequences + 1 })
}
