//! The life of a request from its prepared prompts to running sequences (DESIGN §2 steps 2 to 5): classify, throttle,
//! admit, queue, route, dispatch. Every decision on the way is a row.
//!
//! Bounds: `policy.queue.wait_max` in the queue, [`CHOICES_MAX`](super::params::CHOICES_MAX) × prompts sequences.

use std::{sync::Arc, time::Duration};

use engine::request::{Lane, SamplingParams, StopConditions};
use futures::future::try_join_all;

use super::{
    Gateway,
    auth::Tenant,
    decision::{self, Inputs, Outcome},
    deps::Deps,
    dispatcher::{Demand, Grant, Pressure},
    error::ApiError,
    instances::GenerateCall,
    parse::ParsedRequest,
    prepare::Prepared,
    recorder::Recorder,
    sequence::{Sequence, SequencePlan},
};
use crate::policy::{
    Admission, AdmitRequest, AdmitState, CandidateCost, Classified, ClassifyRequest, RejectReason, RequestClass,
    RouteRejection, Tier, admit, choose_variant, classify, hits_of,
};

/// A request on its way, with what became known of it.
pub struct Case {
    pub tenant: Tenant,
    pub recorder: Recorder,
    /// Id of the newest decision, for the response's header.
    pub decision_id: String,
    classified: Option<Classified>,
    pressure: Option<Pressure>,
    prompt_tokens: u32,
    max_tokens: u32,
    predicted_hit_tokens: u32,
    turns: u32,
}

impl Case {
    pub fn new(tenant: Tenant, recorder: Recorder) -> Self {
        Self {
            tenant,
            recorder,
            decision_id: super::recorder::UNCLASSED.into(),
            classified: None,
            pressure: None,
            prompt_tokens: 0,
            max_tokens: 0,
            predicted_hit_tokens: 0,
            turns: 0,
        }
    }

    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    async fn decided(&mut self, gateway: &Gateway, outcome: Outcome<'_>) {
        let inputs = Inputs {
            request_id: self.recorder.request_id(),
            tenant: &self.tenant,
            classified: self.classified.as_ref(),
            pressure: self.pressure.as_ref(),
            prompt_tokens: self.prompt_tokens,
            max_tokens: self.max_tokens,
            predicted_hit_tokens: self.predicted_hit_tokens,
            turns: self.turns,
        };
        let row = decision::row(&gateway.deps, gateway.deps.clock.now(), &inputs, outcome);
        self.decision_id = row.decision_id.clone();
        gateway.deps.events.decision(row).await;
    }

    /// A refusal before any decision of a policy: a decision all the same, so that every id can be explained.
    pub async fn refused(&mut self, gateway: &Gateway, error: &ApiError) {
        self.decided(gateway, Outcome::Reject { error, candidates: &[] }).await;
        self.recorder.rejected(error).await;
    }

    /// A sequence was moved: a decision that names the instance it left.
    pub async fn moved(&mut self, gateway: &Gateway, placement: &crate::policy::Placement, because: &str) {
        let because = format!("moved, since {because}");
        self.decided(gateway, Outcome::Admit { placement, because }).await;
        self.recorder.dispatched(placement).await;
    }

    async fn overloaded(
        &mut self,
        gateway: &Gateway,
        refusal: (RejectReason, Duration),
        candidates: &[CandidateCost],
    ) -> ApiError {
        let (reason, retry_after) = refusal;
        let tier = self.classified.as_ref().map_or(super::recorder::UNCLASSED, |classified| classified.tier.name());
        let message = match reason {
            RejectReason::Throttled => format!("The service is near its capacity and takes no {tier} requests now."),
            RejectReason::QueueFull => "Too many requests wait already.".to_string(),
            RejectReason::NoInstance => format!("No instance serves `{}` now.", gateway.deps.text.name()),
            RejectReason::WaitedTooLong => "The request waited for the longest time allowed.".to_string(),
        };
        let message = format!("{message} Please retry after {} s.", retry_after.as_secs_f64().ceil());
        let error = ApiError::Overloaded { reason, retry_after, message };
        self.decided(gateway, Outcome::Reject { error: &error, candidates }).await;
        self.recorder.rejected(&error).await;
        error
    }
}

/// Decides, waits where it must, and starts the sequences. On `Err` the case has its last event already.
pub async fn serve(
    gateway: &Arc<Gateway>,
    case: &mut Case,
    request: &ParsedRequest,
    prepared: &Prepared,
) -> Result<Vec<Sequence>, ApiError> {
    let mut demand = classify_case(gateway, case, request, prepared).await;
    let sequences = prepared.prompts.len() * request.common.choices as usize;
    case.recorder.arrived(demand.tier.name(), prepared.prompt_tokens, sequences).await;
    let grant = seat(gateway, case, &mut demand).await?;
    case.recorder.dispatched(&grant.placement).await;
    let source = Plans { request, prepared, demand: &demand, request_id: case.recorder.request_id() };
    let plans = source.make(&gateway.deps);
    let starts = plans.into_iter().map(|plan| Sequence::start(&gateway.deps, &gateway.dispatcher, plan, &grant));
    match try_join_all(starts).await {
        Ok(sequences) => Ok(sequences),
        Err(error) => {
            case.recorder.failed(&error).await;
            Err(error)
        }
    }
}

/// Reads the views, classes the request, and says what it needs.
async fn classify_case(gateway: &Gateway, case: &mut Case, request: &ParsedRequest, prepared: &Prepared) -> Demand {
    let pressure = gateway.dispatcher.pressure(gateway.deps.clock.now()).await;
    let (orders, tenant) = (&gateway.deps.config.policy.variants, case.tenant.name.as_str());
    let mut demand = Demand {
        tier: Tier::Low,
        variants: orders.possible_for(tenant).into(),
        prompt_tokens: prepared.prompt_tokens,
        max_tokens: total_max_tokens(prepared, request.common.choices),
        hashes: Arc::new(prepared.prompts.iter().map(|prompt| prompt.hashes.clone()).collect()),
    };
    let hits = pressure.view.mode.is_usable().then(|| gateway.dispatcher.hits(&demand));
    // The tier decides about the variant: until it is known, a hit on any that may come counts.
    let hit = hits.as_ref().map(|hits| hits_of(&pressure.view, hits, &demand.variants).longest());
    let asked = ClassifyRequest {
        prompt_tokens: prepared.prompt_tokens,
        predicted_hit_tokens: hit,
        turns: request.turns,
        tenant_class: case.tenant.class,
    };
    let classified = classify(&asked, &gateway.deps.config.policy.tiers);
    demand.tier = classified.tier;
    demand.variants = orders.order_for(RequestClass { tenant, tier: demand.tier }).into();
    let variant = choose_variant(&pressure.view, gateway.deps.text.name(), &demand.variants, &[]);
    let hit = hits.zip(variant).map(|(hits, chosen)| {
        hits_of(&pressure.view, &hits, std::slice::from_ref(&chosen.variant.to_string())).longest()
    });
    case.prompt_tokens = prepared.prompt_tokens;
    case.max_tokens = demand.max_tokens;
    case.predicted_hit_tokens = hit.unwrap_or(0);
    case.turns = request.turns;
    case.classified = Some(classified);
    case.pressure = Some(pressure);
    demand
}

/// Admission, the queue if need be, and the lease. `demand.max_tokens` and the case's are capped as admission says.
async fn seat(gateway: &Arc<Gateway>, case: &mut Case, demand: &mut Demand) -> Result<Grant, ApiError> {
    let policy = &gateway.deps.config.policy;
    let now = gateway.deps.clock.now();
    let pressure = case.pressure.as_ref().expect("invariant: classified before");
    let preview = gateway.dispatcher.preview(&pressure.view, demand, now);
    let is_serving = |instance: &&crate::policy::InstanceView| {
        instance.is_ready && instance.model == gateway.deps.text.name() && demand.variants.contains(&instance.variant)
    };
    let queue = gateway.dispatcher.queue_load();
    let state = AdmitState {
        step: pressure.step,
        serving: pressure.view.instances.iter().filter(is_serving).count(),
        has_room: preview.is_ok(),
        queued_requests: queue.requests,
        queued_tokens: queue.tokens,
        saturation: pressure.saturation,
    };
    let candidates = match &preview {
        Ok(placement) => placement.candidates.clone(),
        Err(RouteRejection::NoRoom { candidates }) => candidates.clone(),
        Err(RouteRejection::NoInstance) => Vec::new(),
    };
    let ask = AdmitRequest { tier: demand.tier, prompt_tokens: demand.prompt_tokens, max_tokens: demand.max_tokens };
    let (max_tokens, may_go) = match admit(&ask, &state, policy) {
        Admission::Admit { max_tokens } => (max_tokens, true),
        Admission::Queue { max_tokens } => (max_tokens, false),
        Admission::Reject { reason, retry_after } => {
            return Err(case.overloaded(gateway, (reason, retry_after), &candidates).await);
        }
    };
    (demand.max_tokens, case.max_tokens) = (max_tokens, max_tokens);
    if may_go && let Ok(grant) = gateway.dispatcher.place(demand, &[]) {
        case.decided(gateway, Outcome::Admit { placement: &grant.placement, because: String::new() }).await;
        return Ok(grant);
    }
    wait(gateway, case, demand, candidates).await
}

async fn wait(
    gateway: &Arc<Gateway>,
    case: &mut Case,
    demand: &Demand,
    candidates: Vec<CandidateCost>,
) -> Result<Grant, ApiError> {
    let Some(mut place) = gateway.dispatcher.enqueue(demand.clone()) else {
        let refusal = (RejectReason::QueueFull, Duration::from_secs(2));
        return Err(case.overloaded(gateway, refusal, &candidates).await);
    };
    let load = gateway.dispatcher.queue_load();
    let because = format!("no lease free: {} requests with {} tokens wait", load.requests, load.tokens);
    case.decided(gateway, Outcome::Queue { candidates: &candidates, because }).await;
    case.recorder.queued().await;
    let wait_max = gateway.deps.config.policy.queue.wait_max;
    let began = gateway.deps.clock.now();
    let grant = place.wait(wait_max).await;
    drop(place);
    let waited_us = gateway.deps.clock.now() - began;
    gateway.deps.metrics.queue_wait.observe(waited_us as f64 / 1e6);
    match grant {
        Some(grant) => {
            let because = format!("waited {} ms", waited_us / 1000);
            case.decided(gateway, Outcome::Admit { placement: &grant.placement, because }).await;
            Ok(grant)
        }
        None => {
            let refusal = (RejectReason::WaitedTooLong, Duration::from_secs(5));
            Err(case.overloaded(gateway, refusal, &candidates).await)
        }
    }
}

/// Where the plans of a request's sequences come from.
struct Plans<'a> {
    request: &'a ParsedRequest,
    prepared: &'a Prepared,
    demand: &'a Demand,
    request_id: &'a str,
}

impl Plans<'_> {
    /// One plan a sequence: prompts in order, choices inside a prompt. The demand bounds the sum of all `max_tokens`.
    fn make(&self, deps: &Deps) -> Vec<SequencePlan> {
        let common = &self.request.common;
        let choices = common.choices as usize;
        let asked = total_max_tokens(self.prepared, common.choices);
        let count = (self.prepared.prompts.len() * choices).max(1) as u32;
        let most = if self.demand.max_tokens < asked { (self.demand.max_tokens / count).max(1) } else { u32::MAX };
        let seed = common.seed.unwrap_or_else(|| uuid::Uuid::now_v7().as_u64_pair().1);
        let prompts = self.prepared.prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, choices));
        prompts
            .enumerate()
            .map(|(index, prompt)| {
                let max_tokens = prompt.max_tokens.min(most);
                let call = GenerateCall {
                    request_id: format!("{}-{index}", self.request_id),
                    prompt: prompt.tokens.clone(),
                    sampling: SamplingParams { seed: seed.wrapping_add(index as u64), ..common.sampling.clone() },
                    stop: StopConditions {
                        max_tokens,
                        stop_tokens: deps.text.stop_tokens().to_vec(),
                        stop_strings: common.stop_strings.clone(),
                    },
                    lane: if self.demand.tier == Tier::High { Lane::L1 } else { Lane::L2 },
                    deadline: None,
                    cache_salt: 0,
                    sampling_offset: 0,
                };
                let demand = Demand {
                    tier: self.demand.tier,
                    variants: self.demand.variants.clone(),
                    prompt_tokens: prompt.tokens.len() as u32,
                    max_tokens,
                    hashes: Arc::new(vec![prompt.hashes.clone()]),
                };
                SequencePlan { index, call, grammar: self.prepared.grammar.clone(), demand }
            })
            .collect()
    }
}

fn total_max_tokens(prepared: &Prepared, choices: u32) -> u32 {
    prepared.prompts.iter().fold(0, |sum: u32, prompt| sum.saturating_add(prompt.max_tokens.saturating_mul(choices)))
}
