//! The instance with the least predicted seconds, prefix affinity included (SPEC C4 in one region), and the safe policy.
//!
//! Cost of a candidate = queue drain + uncached prefill + decode interference, all in seconds. A cached prefix lowers the
//! prefill term and nothing else, so affinity gives way by as much as its instance is busier, request by request. What an
//! instance was sent since its last report is not in the views yet: requests leased there but not reported are taken to be
//! like this one, so that a burst does not all go to one place. Rates that are not known yet come from the configuration.
//!
//! Invariants: the instance chosen serves the model in the variant that `variant` chose, is ready, has room and was not excluded; the same inputs give the same
//! answer. Without a usable view the safe policy decides and says so (SPEC X5). Time: O(n log n) in the instances.

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, require},
    ids::{InstanceId, Micros},
    policy::{ClusterView, InstanceView, PrefixHits, Tier, VariantChoice, ViewMode, choose_variant, token_cost},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutePolicy {
    /// Queue drain + uncached prefill + decode interference, in seconds.
    LeastSeconds,
    /// Fewest leased tokens; ties in turn. Needs no view: the safe policy.
    LeastOutstandingTokens,
    RoundRobin,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    pub policy: RoutePolicy,
    pub lease_tokens_max: u64,
    pub default_prefill_tokens_per_second: f64,
    pub default_decode_step_seconds: f64,
}

impl RoutePolicy {
    pub fn name(self) -> &'static str {
        match self {
            RoutePolicy::LeastSeconds => "least_seconds",
            RoutePolicy::LeastOutstandingTokens => "least_outstanding_tokens",
            RoutePolicy::RoundRobin => "round_robin",
        }
    }
}

impl RouteConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        require(self.lease_tokens_max >= 1, "policy.route.lease_tokens_max", self.lease_tokens_max, "at least 1")?;
        let rate = self.default_prefill_tokens_per_second;
        require(
            rate.is_finite() && rate > 0.0,
            "policy.route.default_prefill_tokens_per_second",
            rate,
            "a rate above 0",
        )?;
        let step = self.default_decode_step_seconds;
        require(step.is_finite() && step > 0.0, "policy.route.default_decode_step_seconds", step, "a time above 0")
    }
}

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
    /// Decides ties in turn; the caller counts it up.
    pub turn: u64,
    pub now: Micros,
    /// Instances already tried for this request and failed.
    pub excluded: &'a [InstanceId],
}

/// Cost terms of one candidate, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CandidateCost {
    pub instance: InstanceId,
    pub hit_tokens: u32,
    pub queue_seconds: f64,
    pub prefill_seconds: f64,
    pub interference_seconds: f64,
    pub total_seconds: f64,
    /// Its lease has room for the request.
    pub has_room: bool,
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
    /// Longest cached prefix seen on any instance, candidate or not; 0 if the view could not be used.
    pub visible_tokens: u32,
    /// Every candidate with its terms, cheapest first.
    pub candidates: Vec<CandidateCost>,
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
    /// Place in this request's turn.
    place: usize,
}

/// Chooses the instance for one request, or says why there is none.
pub fn route(
    view: &ClusterView,
    request: &RouteRequest<'_>,
    config: &RouteConfig,
) -> Result<Placement, RouteRejection> {
    let is_usable = view.mode.is_usable();
    let policy = match config.policy {
        RoutePolicy::LeastSeconds if !is_usable => RoutePolicy::LeastOutstandingTokens,
        policy => policy,
    };
    let choice = choose_variant(view, request.model, request.variants, request.excluded);
    let mut candidates = match choice {
        None if !request.variants.is_empty() => Vec::new(),
        choice => candidates(view, request, config, choice.map(|choice| choice.variant)),
    };
    if candidates.is_empty() {
        return Err(RouteRejection::NoInstance);
    }
    let by_seconds = |a: &Candidate<'_>, b: &Candidate<'_>| a.cost.total_seconds.total_cmp(&b.cost.total_seconds);
    let by_leases = |a: &Candidate<'_>, b: &Candidate<'_>| a.view.leased_tokens.cmp(&b.view.leased_tokens);
    candidates.sort_by(|a, b| {
        let order = match policy {
            RoutePolicy::LeastSeconds => by_seconds(a, b).then_with(|| by_leases(a, b)),
            RoutePolicy::LeastOutstandingTokens => by_leases(a, b),
            RoutePolicy::RoundRobin => std::cmp::Ordering::Equal,
        };
        order.then_with(|| a.place.cmp(&b.place))
    });
    let costs: Vec<CandidateCost> = candidates.iter().map(|candidate| candidate.cost).collect();
    let Some(rank) = candidates.iter().position(|candidate| candidate.cost.has_room) else {
        return Err(RouteRejection::NoRoom { candidates: costs });
    };
    let chosen = &candidates[rank];
    let mut reason = match policy {
        RoutePolicy::LeastSeconds => seconds_reason(&chosen.cost, request.prompt_tokens),
        _ => format!("{}: {} tokens in flight on {}", policy.name(), chosen.view.leased_tokens, chosen.view.instance),
    };
    if policy != config.policy {
        let age = view.as_of.map_or("none yet".to_string(), |at| format!("{} ms old", (request.now - at) / 1000));
        reason = format!("views {} ({age}), safe policy {reason}", view.mode.name());
    }
    if rank > 0 {
        reason.push_str(&format!("; {rank} better without room"));
    }
    if let Some(VariantChoice { variant, passed_over: better @ [_, ..] }) = choice {
        reason.push_str(&format!("; variant {variant}, since {} has no ready instance", better.join(", ")));
    }
    Ok(Placement {
        instance: chosen.view.instance,
        variant: chosen.view.variant.clone(),
        policy,
        reason,
        predicted_seconds: (policy == RoutePolicy::LeastSeconds).then_some(chosen.cost.total_seconds),
        visible_tokens: believed(request.hits.longest(), view.mode, request.prompt_tokens),
        candidates: costs,
    })
}

fn seconds_reason(cost: &CandidateCost, prompt_tokens: u32) -> String {
    format!(
        "least_seconds: {} in {:.3} s (queue {:.3} + prefill {:.3} + interference {:.3}; {} of {prompt_tokens} tokens cached)",
        cost.instance,
        cost.total_seconds,
        cost.queue_seconds,
        cost.prefill_seconds,
        cost.interference_seconds,
        cost.hit_tokens
    )
}

fn candidates<'a>(
    view: &'a ClusterView,
    request: &RouteRequest<'_>,
    config: &RouteConfig,
    variant: Option<&str>,
) -> Vec<Candidate<'a>> {
    let able: Vec<&InstanceView> = view
        .instances
        .iter()
        .filter(|instance| instance.is_ready && instance.model == request.model)
        .filter(|instance| variant.is_none_or(|variant| instance.variant == variant))
        .filter(|instance| !request.excluded.contains(&instance.instance))
        .collect();
    let count = able.len();
    let first = (request.turn % count.max(1) as u64) as usize;
    able.into_iter()
        .enumerate()
        .map(|(index, instance)| Candidate {
            view: instance,
            cost: cost(instance, view.mode, request, config),
            place: (index + count - first) % count,
        })
        .collect()
}

/// Cached tokens that count. The last prompt token is always computed: its logits are the first answer.
fn believed(hit_tokens: u32, mode: ViewMode, prompt_tokens: u32) -> u32 {
    if mode.is_usable() { hit_tokens.min(prompt_tokens.saturating_sub(1)) } else { 0 }
}

/// Predicted seconds on one instance. Views that are not usable count as not reported, and no hit is believed.
fn cost(instance: &InstanceView, mode: ViewMode, request: &RouteRequest<'_>, config: &RouteConfig) -> CandidateCost {
    let engine = instance.engine.as_ref().filter(|_| mode.is_usable());
    let rate = engine
        .and_then(|engine| engine.prefill_tokens_per_second)
        .filter(|rate| *rate > 0.0)
        .unwrap_or(config.default_prefill_tokens_per_second);
    let step = engine.and_then(|engine| engine.decode_step_seconds).unwrap_or(config.default_decode_step_seconds);
    let (running, waiting, queued) =
        engine.map_or((0, 0, 0), |engine| (engine.running, engine.waiting, engine.queued_prefill_tokens));
    let unseen = instance.leased_requests.saturating_sub(running.saturating_add(waiting));
    let unseen_tokens = instance.leased_tokens.min(u64::from(unseen) * u64::from(request.prompt_tokens));
    let hit_tokens = believed(request.hits.tokens_on(instance.instance), mode, request.prompt_tokens);
    let queue_seconds = (queued + unseen_tokens) as f64 / rate;
    let prefill_seconds = f64::from(request.prompt_tokens - hit_tokens) / rate;
    let interference_seconds = step * f64::from(running.saturating_add(unseen));
    let need = token_cost(request.prompt_tokens, request.max_tokens);
    CandidateCost {
        instance: instance.instance,
        hit_tokens,
        queue_seconds,
        prefill_seconds,
        interference_seconds,
        total_seconds: queue_seconds + prefill_seconds + interference_seconds,
        has_room: instance.leased_tokens == 0 || instance.leased_tokens.saturating_add(need) <= config.lease_tokens_max,
    }
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
