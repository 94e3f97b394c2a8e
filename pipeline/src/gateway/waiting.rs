//! A request in the queue looks again, now and then, at what is to be expected of it (SPEC A4 b): its latest start moves with
//! what is cached and with the load, and once its chance is gone it goes, too.
//!
//! Invariant: what a refusal, or a trial in its place, was decided from is a row; a look that changes nothing but the order in
//! the queue is none. Bound: `policy.queue.wait_max`. Cost: one look at views and cache index each [`RECONSIDER`] in which the
//! views have changed, and a few more as its time runs out.

use std::{sync::Arc, time::Duration};

use super::{
    Gateway,
    dispatcher::{Demand, Grant, place_by},
    queue_place::QueuePlace,
    reading::WaitReading,
    serve::Case,
    slo::SloCase,
};
use crate::policy::{
    Chances, Judgement, Outlook, OutlookRequest, RouteRejection, SloSeen, Wait, judge, outlook, token_cost,
};

/// How a wait ended.
pub enum Waited {
    Granted(Grant),
    /// It can no longer make its deadline.
    GivenUp(Duration),
    TooLong,
}

/// A request that waits looks again at what is to be expected after this, and when something has changed in the views; one with
/// little time left after a quarter of it.
const RECONSIDER: Duration = Duration::from_millis(500);
const RECONSIDER_MIN: Duration = Duration::from_millis(20);

/// Waits, and looks again now and then: its latest start moves with what is cached and with the load (SPEC A4 b), and once
/// its chance is gone it goes, too.
pub async fn wait_for_grant(
    gateway: &Arc<Gateway>,
    case: &mut Case,
    (demand, place): (&Demand, &mut QueuePlace),
) -> Waited {
    let end = tokio::time::Instant::now() + demand.model.policy.queue.wait_max;
    let (mut seen_as_of, mut looks) = (None, 0u32);
    loop {
        let left = end.saturating_duration_since(tokio::time::Instant::now());
        if left.is_zero() {
            return Waited::TooLong;
        }
        if let Some(grant) = place.wait(left.min(until_next_look(gateway, demand))).await {
            return Waited::Granted(grant);
        }
        looks += 1;
        let reading = gateway.dispatcher.read_waiting(demand);
        // Without news the chance still falls as time passes: a second later at the latest it is looked at anyway.
        if reading.forecast.as_of.is_some() && reading.forecast.as_of == seen_as_of && !looks.is_multiple_of(2) {
            continue;
        }
        seen_as_of = reading.forecast.as_of;
        let Some(slo) = &mut case.slo else { continue };
        match reconsider(&reading, slo) {
            Judgement::Keep => {}
            Judgement::Try => case.readings.push(Box::new(reading.row())),
            Judgement::Refuse { retry_after } => {
                case.readings.push(Box::new(reading.row()));
                return Waited::GivenUp(retry_after);
            }
        }
        place.retime(case.starts());
    }
}

fn until_next_look(gateway: &Gateway, demand: &Demand) -> Duration {
    let Some(due) = demand.due else { return RECONSIDER };
    let left = u64::try_from(due.at - gateway.deps.clock.now()).unwrap_or(0);
    Duration::from_micros(left / 4).clamp(RECONSIDER_MIN, RECONSIDER)
}

/// What is to be expected of a request that waits, and what that comes to. Where nothing can be predicted it waits on until its deadline is over.
fn reconsider(reading: &WaitReading, slo: &mut SloCase) -> Judgement {
    let policy = &slo.model.policy;
    let outlook = outlook_of(reading, &slo.seen, (slo.model.name(), policy));
    let judged = judge(&SloSeen { outlook, ..slo.seen }, reading.place.now, (slo.tier, slo.lot), &policy.deadline);
    match judged {
        // The rows go on telling what was predicted on arrival; only the order in the queue follows.
        Judgement::Keep => {
            if let (Some(seen), Some(outlook)) = (&mut slo.seen.outlook, &outlook) {
                (seen.start_by, seen.worth_by) = (outlook.start_by, outlook.worth_by);
                seen.alone_by = outlook.alone_by;
            }
        }
        Judgement::Try | Judgement::Refuse { .. } => {
            slo.seen.outlook = outlook;
            slo.seen.is_trial = judged == Judgement::Try;
        }
    }
    judged
}

/// What policies expect of a request that waits.
pub fn outlook_of(
    reading: &WaitReading,
    seen: &SloSeen,
    (model, policy): (&str, &crate::config::Policy),
) -> Option<Outlook> {
    let place = &reading.place;
    let candidates = match place_by(place, model, &policy.route) {
        Ok(placement) => placement.candidates,
        Err(RouteRejection::NoRoom { candidates }) => candidates,
        Err(RouteRejection::NoInstance) => Vec::new(),
    };
    let request = OutlookRequest {
        now: place.now,
        deadline: &seen.deadline,
        best: seen.outlook.map_or(0.0, |outlook| outlook.best),
        tier: place.tier,
        prompt_tokens: place.prompt_tokens,
        max_tokens: place.max_tokens / reading.sequences.max(1),
        sequences: reading.sequences,
        candidates: &candidates,
        view: &place.view,
        wait: Wait::Queue {
            weights: &policy.queue.weights,
            own_tokens: token_cost(place.prompt_tokens, place.max_tokens),
        },
    };
    let forecast = &reading.forecast.forecast;
    let chances = policy.deadline.chances(place.tier, forecast.missed_share);
    // What has waited long enough goes whoever is refused for it.
    let has_aged = reading.since.is_some_and(|since| policy.queue.has_aged(since, place.now));
    let displaced_max = if has_aged { f64::INFINITY } else { chances.displaced_max };
    outlook(&request, forecast, Chances { displaced_max, ..chances })
}
