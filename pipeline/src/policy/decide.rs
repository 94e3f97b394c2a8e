//! All that policies are asked when a request arrives, as one pure call: class, preview of the routing, admission (DESIGN §2
//! steps 2 and 4; SPEC X1, X2).
//!
//! Invariant: the verdict is a function of the arrival and the policy's settings, so that a shadow runner and a replay call
//! what the gateway called. The throttle is moved before, by [`press`], since its state is shared by all requests.
//! Cost: that of one routing. No state.

use crate::{
    config,
    ids::Micros,
    policy::{
        Admission, AdmitRequest, AdmitState, CandidateCost, Classified, ClassifyRequest, ClusterView, Placement,
        PrefixHits, QueueLoad, RequestClass, RouteRejection, RouteRequest, ThrottleState, Tier, admit, choose_variant,
        classify, is_one_of, longest_of, next_step, route, saturation,
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

/// The saturation signal of a view, and the throttle after it was looked at once.
pub fn press(
    view: &ClusterView,
    throttle: ThrottleState,
    now: Micros,
    policy: &config::Policy,
) -> (Option<f64>, ThrottleState) {
    let level = saturation(view, policy);
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
    };
    let ask = AdmitRequest {
        tier: classified.tier,
        prompt_tokens: arrival.prompt_tokens,
        max_tokens: arrival.max_tokens,
        bytes: arrival.bytes,
    };
    let admission = admit(&ask, &state, policy);
    Verdict { predicted_hit_tokens, classified, variants, preview, admission }
}
