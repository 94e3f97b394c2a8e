//! The instance that serves a request: by one cost in seconds (SPEC C4 in one region), by one of the baselines, or by the safe
//! policy.
//!
//! | file | idea |
//! |---|---|
//! | `cost` | predicted seconds of one candidate, term by term, each with its uncertainty |
//! | `narrow` | which candidates are costed at all in a large fleet |
//! | `settings` | `[policy.route]` |
//! | `least_seconds` | the cost decides |
//! | `prefill_times_batch`, `prefix_affinity`, `power_of_two`, `least_outstanding`, `round_robin` | baselines |
//!
//! A policy brings the candidates into an order; the first with room is chosen. Affinity to a cached prefix is a term of the cost and
//! nothing else, so it gives way by as much as its instance is busier, request by request, and no threshold breaks it for the whole
//! fleet at once. A bucket plan adds to what candidates are compared by what borrowing costs others, and bounds it (`bucket_fit`).
//!
//! Invariants: the instance chosen serves the model in the variant that `variant` chose, is ready, has room and was not excluded; the
//! same inputs give the same answer. Without a usable view the safe policy decides and says so (SPEC X5). Time: O(n log n) in the
//! candidates, which are all able instances, or a bounded number of them (see `narrow`).

mod cost;
mod least_outstanding;
mod least_seconds;
mod narrow;
mod power_of_two;
mod prefill_times_batch;
mod prefix_affinity;
mod round_robin;
mod settings;

pub use cost::{CandidateCost, Term};
pub use settings::{AffinityConfig, FetchRates, RouteConfig, RoutePolicy};

use crate::{
    ids::{InstanceId, Micros},
    policy::{Borrowed, BucketRule, ClusterView, Fit, InstanceView, PrefixHits, Tier, VariantChoice, choose_variant},
};

/// What routing looks at, besides the view.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteRequest<'a> {
    pub model: &'a str,
    /// Variants that may serve it, best first; empty: any.
    pub variants: &'a [String],
    pub tier: Tier,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub hits: &'a PrefixHits,
    /// Decides ties in turn, and seeds what is drawn; the caller counts it up.
    pub turn: u64,
    pub now: Micros,
    /// Instances already tried for this request and failed.
    pub excluded: &'a [InstanceId],
    /// Instances that take no more for now, since requests there would miss their deadlines by it (see `harm`).
    pub spared: &'a [InstanceId],
}

/// The instance chosen, by which policy and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    pub instance: InstanceId,
    /// Variant of the model that it serves.
    pub variant: String,
    /// Policy that really decided: the safe one if the view could not be used.
    pub policy: RoutePolicy,
    pub reason: String,
    pub predicted_seconds: Option<f64>,
    /// Foreign work to be reserved with the lease.
    pub borrowed: Option<Borrowed>,
    /// Longest cached prefix seen on any instance, candidate or not; 0 if the view could not be used.
    pub visible_tokens: u32,
    /// Every candidate with its terms, in the order of the policy.
    pub candidates: Vec<CandidateCost>,
}

impl Placement {
    /// Cached prefix believed on the instance chosen.
    pub fn hit_tokens(&self) -> Option<u32> {
        self.candidates.iter().find(|cost| cost.instance == self.instance).map(|cost| cost.hit_tokens)
    }
}

/// Why no instance was chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum RouteRejection {
    /// No ready instance serves the model.
    NoInstance,
    /// Every candidate's lease is full; wait for one.
    NoRoom { candidates: Vec<CandidateCost> },
}

/// One instance that could serve the request.
struct Candidate<'a> {
    view: &'a InstanceView,
    cost: CandidateCost,
    /// What the product of tokens and batch is made of.
    work: cost::Work,
    /// Place in this request's turn.
    place: usize,
}

/// Chooses the instance for one request, or says why there is none.
pub fn route(
    view: &ClusterView,
    request: &RouteRequest<'_>,
    config: &RouteConfig,
) -> Result<Placement, RouteRejection> {
    let policy = match config.policy.needs_views() && !view.mode.is_usable() {
        true => RoutePolicy::LeastOutstandingTokens,
        false => config.policy,
    };
    let choice = choose_variant(view, request.model, request.variants, request.excluded);
    let (mut candidates, is_sample) = match choice {
        None if !request.variants.is_empty() => return Err(RouteRejection::NoInstance),
        choice => candidates(view, request, config, choice.map(|choice| choice.variant)),
    };
    if candidates.is_empty() {
        return Err(RouteRejection::NoInstance);
    }
    order(&mut candidates, policy, (request, config));
    let costs: Vec<CandidateCost> = candidates.iter().map(|candidate| candidate.cost).collect();
    let Some(rank) = candidates.iter().position(|candidate| candidate.cost.has_room) else {
        return Err(RouteRejection::NoRoom { candidates: costs });
    };
    let chosen = &candidates[rank];
    let mut reason = reason(chosen, policy, request);
    if policy != config.policy {
        let age = view.as_of.map_or("none yet".to_string(), |at| format!("{} ms old", (request.now - at) / 1000));
        reason = format!("views {} ({age}), safe policy {reason}", view.mode.name());
    }
    if rank > 0 {
        reason.push_str(&format!("; {rank} better without room"));
    }
    let is_cheaper =
        |other: &Candidate<'_>| other.cost.has_room && other.cost.compared_seconds < chosen.cost.compared_seconds;
    let cheaper = candidates[rank + 1..].iter().filter(|other| is_cheaper(other)).count();
    if let (RoutePolicy::LeastSeconds, 1.., Some(blocks)) = (policy, cheaper, chosen.view.cached_blocks) {
        reason
            .push_str(&format!("; {cheaper} cheaper within the error, but with more cached than its {blocks} blocks"));
    }
    if !request.spared.is_empty() {
        reason.push_str(&format!("; {} spared for the deadlines of others", request.spared.len()));
    }
    if chosen.cost.bucket.fit == Fit::Borrows {
        reason.push_str(&format!("; borrows in another bucket at {:.3} s", chosen.cost.bucket.seconds));
    }
    if is_sample {
        reason.push_str(&format!("; {} of {} instances looked at", candidates.len(), view.instances.len()));
    }
    if let Some(VariantChoice { variant, passed_over: better @ [_, ..] }) = choice {
        reason.push_str(&format!("; variant {variant}, since {} has no ready instance", better.join(", ")));
    }
    Ok(Placement {
        instance: chosen.view.instance,
        variant: chosen.view.variant.to_string(),
        policy,
        reason,
        predicted_seconds: (policy == RoutePolicy::LeastSeconds).then_some(chosen.cost.total_seconds),
        borrowed: chosen.cost.bucket.borrowed(config),
        visible_tokens: cost::believed(request.hits.longest(), view.mode, request.prompt_tokens),
        candidates: costs,
    })
}

/// Brings the candidates into the order of the policy.
fn order(candidates: &mut [Candidate<'_>], policy: RoutePolicy, (request, config): (&RouteRequest<'_>, &RouteConfig)) {
    match policy {
        RoutePolicy::LeastSeconds => least_seconds::order(candidates, config),
        RoutePolicy::LeastOutstandingTokens => least_outstanding::order(candidates),
        RoutePolicy::RoundRobin => round_robin::order(candidates),
        RoutePolicy::PowerOfTwo => power_of_two::order(candidates, request.turn),
        RoutePolicy::PrefixAffinity => {
            prefix_affinity::order(candidates, request.prompt_tokens, &config.affinity);
        }
        RoutePolicy::PrefillTimesBatch => prefill_times_batch::order(candidates),
    }
}

fn reason(chosen: &Candidate<'_>, policy: RoutePolicy, request: &RouteRequest<'_>) -> String {
    match policy {
        RoutePolicy::LeastSeconds => least_seconds::reason(chosen, request.prompt_tokens),
        RoutePolicy::PrefixAffinity => prefix_affinity::reason(chosen, request.prompt_tokens),
        RoutePolicy::PrefillTimesBatch => prefill_times_batch::reason(chosen),
        _ => format!("{}: {} tokens in flight on {}", policy.name(), chosen.view.leased_tokens, chosen.view.instance),
    }
}

/// May serve the request: all that this asks is in the view, so that it can be asked again.
fn is_able(instance: &InstanceView, request: &RouteRequest<'_>, variant: Option<&str>) -> bool {
    instance.is_ready
        && instance.model == request.model
        && variant.is_none_or(|variant| instance.variant == variant)
        && !request.excluded.contains(&instance.instance)
}

/// The instances that are costed, and whether they are only some of those able.
fn candidates<'a>(
    view: &'a ClusterView,
    request: &RouteRequest<'_>,
    config: &RouteConfig,
    variant: Option<&str>,
) -> (Vec<Candidate<'a>>, bool) {
    let is_able = |instance: &InstanceView| is_able(instance, request, variant);
    let narrowed = match config.policy.can_sample() && view.mode.is_usable() {
        true => narrow::narrow(view, (request, config), is_able),
        false => None,
    };
    let is_sample = narrowed.is_some();
    let able = narrowed.unwrap_or_else(|| view.instances.iter().filter(|instance| is_able(instance)).collect());
    let is_cut = config.policy == RoutePolicy::LeastSeconds && view.mode.is_usable();
    let buckets = BucketRule::of(if is_cut { &able } else { &[] }, request.prompt_tokens);
    let count = able.len();
    let first = (request.turn % count.max(1) as u64) as usize;
    let candidate = |(index, instance): (usize, &'a InstanceView)| {
        let (cost, work) = cost::cost(instance, view.mode, request, config);
        let cost = cost.fitted(buckets, (instance, request), config);
        Candidate { view: instance, cost, work, place: (index + count - first) % count }
    };
    (able.into_iter().enumerate().map(candidate).collect(), is_sample)
}

/// What `turn` draws of an instance: the same for the same turn.
fn draw(turn: u64, instance: InstanceId) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&instance.0.to_le_bytes(), turn)
}

#[cfg(test)]
#[path = "route/affinity_tests.rs"]
mod affinity_tests;
#[cfg(test)]
#[path = "route/baseline_tests.rs"]
mod baseline_tests;
#[cfg(test)]
#[path = "route/narrow_tests.rs"]
mod narrow_tests;
#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
