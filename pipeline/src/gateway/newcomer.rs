//! What a request would do to others on the instance that routing chose (SPEC A4): the view, the claims and the predictors of the
//! moment, given to `policy::turned_away`, `policy::harm` and `policy::upcoming`.
//!
//! Invariant: where nothing runs and nobody was refused lately nobody is harmed, so every request can start; what has waited `aging`
//! minds only those that run. Cost: that of the three policies. No state.

use operators::{DecodeWork, PrefillWork};

use super::{
    dispatcher::{Demand, Dispatcher},
    instances::InstanceEntry,
    reading::PlaceReading,
};
use crate::policy::{
    CandidateCost, Forecast, InstanceView, Newcomer, Pace, Placement, PromptQueue, Skill, Stay, Takes, harms,
};

impl Dispatcher {
    /// Whether requests that run on the instance chosen, or as many as it counts for of those likely to come, would miss their
    /// deadlines by this one, or more would be refused for it than it may (its chance counts in its latest starts). What is not known does no harm; nor does what has waited long enough harm those that have not come.
    pub(super) fn would_harm(
        &self,
        demand: &Demand,
        entry: &InstanceEntry,
        (placement, reading): (&Placement, &PlaceReading),
    ) -> bool {
        let Some(due) = demand.due.filter(|_| !demand.known.services.is_empty()) else { return false };
        let instance = reading.view.instance(entry.id);
        let cost = placement.candidates.iter().find(|cost| cost.instance == entry.id);
        let (Some(instance), Some(cost)) = (instance, cost) else { return false };
        let learnt = self.group(&demand.model).learnt();
        let overall = learnt.skill.overall();
        let Some((pace, stay)) = pace_with(instance, (demand.sequences, due.tokens), (cost, &demand.known), overall)
        else {
            return false;
        };
        let prefill_seconds = cost.prefill.seconds + cost.fetch.seconds;
        let instances = reading.view.instances.iter().filter(|instance| instance.is_ready).count();
        let stay = Stay { instances, seconds: stay.seconds + prefill_seconds, ..stay };
        let has_aged = demand.model.policy.queue.has_aged(demand.since, reading.now);
        let takes = Takes {
            tier: demand.tier,
            engine_seconds: prefill_seconds + stay.decode_seconds(due.tokens, pace.next_step_seconds),
            stay_seconds: stay.seconds,
            instances,
        };
        let displaced_max = demand.model.policy.deadline.displaced_max;
        if !has_aged && learnt.turned_away.lately(reading.now).price(reading.now, &takes) > displaced_max {
            return true;
        }
        let claims = entry.leases.claims.read();
        if claims.is_empty() {
            return false;
        }
        harms(&claims, reading.now, &pace, &Newcomer { due: due.at, prefill_seconds }) > 0
            || !has_aged && learnt.upcoming.price(reading.now, &pace, &stay) >= 1.0
    }
}

/// An instance's pace as it is and with so many more sequences of so many tokens, by the service times of its variant and how their
/// predictions fared, and what their stay is, but for the prompt. `None`: not known.
fn pace_with(
    instance: &InstanceView,
    (more, tokens): (u32, u32),
    (cost, known): (&CandidateCost, &Forecast),
    skill: Skill,
) -> Option<(Pace, Stay)> {
    let (_, service) = known.services.iter().find(|(variant, _)| **variant == *instance.variant)?;
    let engine = instance.engine.as_ref()?;
    let running = engine.running.saturating_add(engine.waiting).max(instance.leased_requests);
    // Steps that prompts share take longer than those that only decode; who came late taught by how much.
    let factor = libm::exp(skill.whole.mean).max(1.0);
    let step = |sequences: u32| {
        let work = DecodeWork { tokens: 1, sequences, context_tokens: engine.context_tokens };
        service.decode(&work).map(|time| time.mean * factor)
    };
    // A token of a full chunk.
    let prefill =
        |uncached_tokens| service.prefill(&PrefillWork { uncached_tokens, cached_tokens: 0, beside: running });
    let token_seconds = prefill(service.chunk_tokens)?.mean / f64::from(service.chunk_tokens.max(1));
    let pace = Pace {
        step_seconds: step(running)?,
        next_step_seconds: step(running.saturating_add(more))?,
        prompts: match instance.prompts.is_empty() {
            true => PromptQueue::before_all(cost.queue.seconds),
            false => PromptQueue::new(instance.prompts.clone(), token_seconds),
        },
    };
    let seconds = cost.queue.seconds + f64::from(tokens) * pace.next_step_seconds;
    let alone_step_seconds = service.decode(&DecodeWork { tokens: 1, sequences: 1, context_tokens: 0 })?.mean;
    Some((pace, Stay { running, more, seconds, alone_step_seconds, instances: 1 }))
}
