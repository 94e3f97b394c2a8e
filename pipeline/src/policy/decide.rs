//! All that policies are asked when a request arrives, as one pure call: class, preview of the routing, admission (DESIGN §2
//! steps 2 and 4; SPEC X1, X2).
//!
//! Invariant: the verdict is a function of the arrival and the policy's settings, so that a shadow runner and a replay call
//! what the gateway called. The throttle is moved before, by [`press`], since its state is shared by all requests.
//! Cost: that of one routing. No state.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    config,
    ids::Micros,
    policy::{
        Admission, AdmitRequest, AdmitState, Backlog, CandidateCost, Classified, ClassifyRequest, ClusterView,
        Deadline, DeadlineConfig, EntrySize, Forecast, Outlook, OutlookRequest, Placement, PrefixHits, QueueLoad,
        RejectReason, RequestClass, RouteRejection, RouteRequest, SloAsk, ThrottleState, Tier, Wait, admit,
        choose_variant, classify, deadline_of, is_one_of, longest_of, next_step, outlook, retry_after, route,
        saturation, token_cost,
    },
};

/// A request that has arrived, and what was known of the fleet then.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    pub now: Micros,
    pub view: &'a ClusterView,
    /// The signal and the step it led to.
    pub saturation: Option<f64>,
    pub throttle: ThrottleState,
    pub model: &'a str,
    pub prompt_tokens: u32,
    /// As the client asked, over all sequences.
    pub max_tokens: u32,
    pub turns: u32,
    pub tenant: &'a str,
    pub tenant_class: Tier,
    pub hits: &'a PrefixHits,
    /// See [`RouteRequest::turn`].
    pub turn: u64,
    pub queue: QueueLoad,
    /// Memory it holds while it waits.
    pub bytes: u64,
    /// `None`: a row of an earlier version, which knew no deadlines.
    pub arrived: Option<Micros>,
    pub asked: Asked,
    pub sequences: u32,
    pub forecast: &'a Forecast,
    /// From 0 to 1, by the request's id: below `policy.deadline.trial_share` a would-be refusal is let through to see.
    pub lot: f64,
}

/// What its sender asks for, as far as its key allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked {
    pub slo: SloAsk,
    /// The tier it wants; its key lets it choose.
    pub tier: Option<Tier>,
    /// It wants no better tier than this.
    pub tier_max: Option<Tier>,
}

/// A request's deadline and what is expected of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SloSeen {
    pub deadline: Deadline,
    /// `None`: too little is known.
    pub outlook: Option<Outlook>,
    /// It would have been refused, and was let through to see what becomes of it.
    pub is_trial: bool,
}

impl SloSeen {
    /// Latest start that is worth it beside others; `None`: any is. What is let through to see is let through.
    pub fn worth_by(&self, config: &DeadlineConfig) -> Option<Micros> {
        let counts = config.mode == config::Mode::On && !self.is_trial;
        self.outlook.filter(|_| counts)?.worth_by
    }

    /// Latest start that is worth it where nothing runs; `None`: any is.
    pub fn alone_by(&self, config: &DeadlineConfig) -> Option<Micros> {
        let counts = config.mode == config::Mode::On && !self.is_trial;
        self.outlook.filter(|_| counts)?.alone_by
    }

    fn is_worth_a_start(&self, now: Micros, config: &DeadlineConfig) -> bool {
        self.worth_by(config).is_none_or(|by| by >= now)
    }
}

/// What the policies say.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Longest prefix the views believe cached where it may run; `None` without a usable view or an instance.
    pub predicted_hit_tokens: Option<u32>,
    pub classified: Classified,
    /// Variants that may serve it, best first.
    pub variants: Vec<String>,
    /// Where routing would place it now; nothing is reserved.
    pub preview: Result<Placement, RouteRejection>,
    pub admission: Admission,
    pub slo: Option<SloSeen>,
}

impl Verdict {
    /// Every candidate of the preview, cheapest first.
    pub fn candidates(&self) -> &[CandidateCost] {
        match &self.preview {
            Ok(placement) => &placement.candidates,
            Err(RouteRejection::NoRoom { candidates }) => candidates,
            Err(RouteRejection::NoInstance) => &[],
        }
    }
}

/// The saturation signal of a view and of what waits, and the throttle after it was looked at once.
pub fn press(
    (view, now): (&ClusterView, Micros),
    backlog: &Backlog,
    throttle: ThrottleState,
    policy: &config::Policy,
) -> (Option<f64>, ThrottleState) {
    let level = saturation(view, backlog, policy);
    (level, next_step(throttle, level, now, &policy.throttle))
}

/// Class, preview and admission of one arrival.
pub fn decide(arrival: &Arrival<'_>, policy: &config::Policy) -> Verdict {
    let (view, orders) = (arrival.view, &policy.variants);
    let hits = view.mode.is_usable().then_some(arrival.hits);
    // The tier decides about the variant: until it is known, a hit on any that may come counts.
    let hit = hits.map(|hits| longest_of(view, hits, &orders.possible_for(arrival.tenant)));
    let asked = ClassifyRequest {
        prompt_tokens: arrival.prompt_tokens,
        predicted_hit_tokens: hit,
        turns: arrival.turns,
        tenant_class: arrival.tenant_class,
        asked: arrival.asked.tier,
        asked_max: arrival.asked.tier_max,
    };
    let classified = classify(&asked, &policy.tiers);
    let variants = orders.order_for(RequestClass { tenant: arrival.tenant, tier: classified.tier }).to_vec();
    let chosen = choose_variant(view, arrival.model, &variants, &[]).map(|chosen| chosen.variant.to_string());
    let predicted_hit_tokens = hits.zip(chosen).map(|(hits, chosen)| longest_of(view, hits, &[chosen]));
    let request = RouteRequest {
        model: arrival.model,
        variants: &variants,
        tier: classified.tier,
        prompt_tokens: arrival.prompt_tokens,
        max_tokens: arrival.max_tokens,
        hits: arrival.hits,
        turn: arrival.turn,
        now: arrival.now,
        excluded: &[],
        spared: &[],
    };
    let preview = route(view, &request, &policy.route);
    let is_serving = |instance: &&crate::policy::InstanceView| {
        instance.is_ready && instance.model == arrival.model && is_one_of(&variants, &instance.variant)
    };
    let state = AdmitState {
        step: arrival.throttle.step,
        serving: view.instances.iter().filter(is_serving).count(),
        has_room: preview.is_ok(),
        queue: arrival.queue,
        saturation: arrival.saturation,
        drain_tokens_per_second: arrival.forecast.drain_tokens_per_second,
    };
    let ask = AdmitRequest {
        tier: classified.tier,
        prompt_tokens: arrival.prompt_tokens,
        max_tokens: arrival.max_tokens,
        bytes: arrival.bytes,
    };
    let admission = admit(&ask, &state, policy);
    let mut verdict = Verdict { predicted_hit_tokens, classified, variants, preview, admission, slo: None };
    if let Some(arrived) = arrival.arrived {
        keep_to_deadline(arrival, arrived, policy, &mut verdict);
    }
    verdict
}

/// Gives the request its deadline and refuses it if it would miss it on every instance (SPEC A4 c).
fn keep_to_deadline(arrival: &Arrival<'_>, arrived: Micros, policy: &config::Policy, verdict: &mut Verdict) {
    let tier = verdict.classified.tier;
    let deadline = deadline_of(arrived, &arrival.asked.slo, tier, &policy.deadline);
    let (max_tokens, wait) = match verdict.admission {
        Admission::Admit { max_tokens } => (max_tokens, Wait::None),
        Admission::Queue { max_tokens } => (max_tokens, Wait::Queue { weights: &policy.queue.weights, own_tokens: 0 }),
        Admission::Reject { .. } => (arrival.max_tokens, Wait::None),
    };
    let request = OutlookRequest {
        best: 0.0,
        now: arrival.now,
        deadline: &deadline,
        tier,
        prompt_tokens: arrival.prompt_tokens,
        max_tokens: max_tokens / arrival.sequences.max(1),
        sequences: arrival.sequences,
        candidates: verdict.candidates(),
        view: arrival.view,
        wait,
    };
    let found = outlook(&request, arrival.forecast, policy.deadline.chances(tier, arrival.forecast.missed_share));
    let mut seen = SloSeen { deadline, outlook: found, is_trial: false };
    if !matches!(verdict.admission, Admission::Reject { .. }) {
        match judge(&seen, arrival.now, (tier, arrival.lot), &policy.deadline) {
            Judgement::Keep if seen.is_worth_a_start(arrival.now, &policy.deadline) => {}
            Judgement::Keep => wait_for_idle(arrival, &seen, policy, verdict),
            Judgement::Try => seen.is_trial = true,
            Judgement::Refuse { retry_after } => {
                verdict.admission = Admission::Reject { reason: RejectReason::PredictedMiss, retry_after };
            }
        }
    }
    verdict.slo = Some(seen);
}

/// What can hardly make its deadline any more waits for an instance on which nothing runs, if a start is worth it there, where there is
/// room to wait.
fn wait_for_idle(arrival: &Arrival<'_>, seen: &SloSeen, policy: &config::Policy, verdict: &mut Verdict) {
    let (Admission::Admit { max_tokens }, Ok(placement)) = (&verdict.admission, &verdict.preview) else { return };
    let is_lost = seen.alone_by(&policy.deadline).is_some_and(|by| by < arrival.now);
    let runs = arrival.view.instance(placement.instance).is_none_or(|instance| instance.leased_requests > 0);
    let size = EntrySize { tokens: token_cost(arrival.prompt_tokens, *max_tokens), bytes: arrival.bytes };
    if (runs || is_lost) && policy.queue.has_room(arrival.queue, size) {
        verdict.admission = Admission::Queue { max_tokens: *max_tokens };
    }
}

/// What a chance comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Judgement {
    Keep,
    /// It would be refused; its lot says that it is let through to see.
    Try,
    Refuse {
        retry_after: Duration,
    },
}

/// Refuse, or not (SPEC A4 c). A request that is let through to see is let through to the end. Where nothing can be predicted a stated
/// deadline is missed when it is over, whatever the lot.
pub fn judge(seen: &SloSeen, now: Micros, (tier, lot): (Tier, f64), config: &DeadlineConfig) -> Judgement {
    if config.mode == config::Mode::Off || seen.is_trial {
        return Judgement::Keep;
    }
    match &seen.outlook {
        None if seen.deadline.is_stated && seen.deadline.first_token < now => {
            Judgement::Refuse { retry_after: retry_after(0.0) }
        }
        Some(outlook) if outlook.meet < config.meet_min.of(tier) => match lot < config.trial_share {
            true => Judgement::Try,
            false => Judgement::Refuse { retry_after: retry_after(outlook.excess_seconds) },
        },
        _ => Judgement::Keep,
    }
}

/// The lot of a request, from its id.
pub fn lot_of(request_id: &str) -> f64 {
    (xxh3_64(request_id.as_bytes()) >> 11) as f64 / (1u64 << 53) as f64
}
