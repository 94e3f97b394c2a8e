//! What another policy would have decided, one row a decision (SPEC X1, X2).
//!
//! Each decision is asked again in the moment in which it was made: leases, queue and views are the recorded ones, so a row says
//! what would have been different *there*, not how the fleet would have gone on. The throttle alone goes on by itself, from
//! look to look. Costs of both choices are by the recorded settings, so that they can be compared.
//! Cost: two runs of the policies. State: one row, handed on as it is made; [`PROBLEMS_MAX`] reasons in words why decisions could
//! not be made again, further ones are counted.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    rebuild::tick,
    recording::{Made, Recording, Settings, Under},
};
use crate::{
    bus::Archive,
    config::Recorded,
    gateway::{
        dispatcher::{Pressure, place_by},
        reading::{ArrivalReading, LeaseFate, PlaceReading, throttle_of},
        serve::decide_by,
    },
    ids::{Micros, Name},
    policy::{Admission, Backlog, Placement, RequestClass, ThrottleState, press},
    rows::{CandidateRow, DecisionRow, PolicyInputRow},
};

/// One decision under both policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WhatIfRow {
    pub at: Micros,
    pub decision_id: Name,
    pub request_id: Name,
    pub recorded_tier: Name,
    pub other_tier: Name,
    pub recorded_outcome: Name,
    pub other_outcome: Name,
    pub recorded_reason: String,
    pub other_reason: String,
    pub recorded_throttle_step: Name,
    pub other_throttle_step: Name,
    pub recorded_instance: Option<u32>,
    pub other_instance: Option<u32>,
    /// Predicted seconds at the instance chosen, both by the recorded settings.
    pub recorded_seconds: Option<f64>,
    pub other_seconds: Option<f64>,
    /// Of the other choice less the recorded one.
    pub seconds_difference: Option<f64>,
    pub hit_tokens_difference: Option<i64>,
    pub is_changed: bool,
}

/// Reasons kept in words.
const PROBLEMS_MAX: usize = 100;

/// Why decisions were not made again.
#[derive(Debug, Default)]
pub struct Problems {
    pub said: BTreeSet<String>,
    /// Those that were not kept in words.
    pub more: u64,
}

impl Problems {
    fn add(&mut self, problem: String) {
        if self.said.len() < PROBLEMS_MAX || self.said.contains(&problem) {
            self.said.insert(problem);
        } else {
            self.more += 1;
        }
    }
}

/// Gives `each` the rows of all decisions that can be made again, in the order of the log, and says why others cannot. `other`: the
/// settings to use for a recorded text.
///
/// # Errors
/// That of `each`.
pub fn what_if<E>(
    archive: &Archive,
    other: &dyn Fn(&str) -> Result<Recorded, String>,
    mut each: impl FnMut(WhatIfRow) -> Result<(), E>,
) -> Result<Problems, E> {
    let mut problems = Problems::default();
    let settings = Settings::read_with(archive, &mut |error| problems.add(error.to_string()), other);
    // What is damaged in them was said by the first reading.
    let recorded = Settings::read(archive, &mut drop);
    let mut recording = Recording::open(archive);
    let (mut ticks, mut apart) = (Vec::new(), Apart::new());
    while let Some(made) = recording.next() {
        ticks.append(&mut recording.ticks);
        let Some(first) = made.inputs.first() else { continue };
        let under = match settings.get(&first.settings) {
            Ok(under) => under,
            Err(problem) => {
                problems.add(problem);
                continue;
            }
        };
        let due = ticks.iter().take_while(|row| row.at <= first.at).count();
        for row in ticks.drain(..due) {
            match recorded.get(&row.settings) {
                Ok(recorded) => look(&row, (recorded, under), &mut apart),
                Err(_) => drop(apart.remove(&Under::of(under, &row).model)),
            }
        }
        if let Some(row) = ask(&made, under, &mut apart) {
            each(row)?;
        }
        recording.damage.drain(..).for_each(|error| problems.add(error.to_string()));
    }
    recording.damage.iter().for_each(|error| problems.add(error.to_string()));
    Ok(problems)
}

/// Where the other policy's throttle stands, by model, while it is not the recorded one's step.
pub(crate) type Apart = BTreeMap<Name, ThrottleState>;

/// The other policy's throttle follows a look without a request.
pub(crate) fn look(row: &PolicyInputRow, (recorded, under): (&Recorded, &Recorded), apart: &mut Apart) {
    let model = Under::of(under, row).model;
    let before = apart.remove(&model);
    apart.extend(apart_after(row, (recorded, under), before).map(|state| (model, state)));
}

/// The other policy's throttle after a look without a request, if it stands at another step than the recorded one. While
/// both stand at one step the recorded state is used: it is exact, and needs no order among requests that came together.
fn apart_after(
    row: &PolicyInputRow,
    (recorded, under): (&Recorded, &Recorded),
    apart: Option<ThrottleState>,
) -> Option<ThrottleState> {
    let before = throttle_of(row)?;
    let other = tick(row, under, apart.unwrap_or(before))?;
    (other.step != tick(row, recorded, before)?.step).then_some(other)
}

/// What another policy says to a decision; `None`: nothing that a policy was asked about.
pub(crate) fn ask(made: &Made, under: &Recorded, apart: &mut Apart) -> Option<WhatIfRow> {
    let under = Under::of(under, made.inputs.first()?);
    let mut state = apart.remove(&under.model);
    let choice = decide(made, &under, &mut state);
    apart.extend(state.map(|state| (under.model, state)));
    choice.map(|choice| row(&made.decision, choice))
}

/// What the other policy chose.
struct Choice {
    tier: Name,
    throttle_step: Name,
    outcome: &'static str,
    reason: String,
    placement: Option<Placement>,
}

/// `None`: nothing that a policy was asked about, such as the end of a wait. `apart`: see [`apart_after`].
fn decide(made: &Made, under: &Under, apart: &mut Option<ThrottleState>) -> Option<Choice> {
    let (model, policy) = (under.model.as_str(), &under.policy);
    let mut placement =
        made.inputs.iter().rev().find(|row| row.reading == "placement").and_then(PlaceReading::from_row);
    if let Some(reading) = &mut placement {
        let class = RequestClass { tenant: &made.decision.tenant, tier: reading.tier };
        reading.variants = policy.variants.order_for(class).into();
    }
    let place = || placement.as_ref().and_then(|reading| place_by(reading, model, &policy.route).ok());
    let Some(arrival) = made.inputs.iter().find_map(ArrivalReading::from_row) else {
        placement.as_ref()?;
        let placed = place();
        return Some(Choice {
            tier: made.decision.tier.clone(),
            throttle_step: made.decision.throttle_step.clone(),
            outcome: if placed.is_some() { "admit" } else { "queue" },
            reason: placed.as_ref().map_or_else(String::new, |placed| placed.reason.clone()),
            placement: placed,
        });
    };
    let before = apart.unwrap_or(arrival.throttle);
    let backlog =
        Backlog { queue: arrival.queue, drain_tokens_per_second: arrival.forecast.forecast.drain_tokens_per_second };
    let (saturation, after) = press((arrival.view.as_ref(), arrival.now), &backlog, before, policy);
    *apart = (after.step.name() != made.decision.throttle_step).then_some(after);
    let pressure = Pressure { view: arrival.view.clone(), before, throttle: after, saturation, backlog };
    let verdict = decide_by(&arrival, &pressure, model, policy);
    let (outcome, reason, placement) = match verdict.admission {
        Admission::Reject { reason, .. } => ("reject", reason.name().to_string(), None),
        Admission::Queue { .. } => ("queue", String::new(), None),
        Admission::Admit { .. } => {
            // A lease that others took between the reading and the reservation was gone for any policy.
            let is_lost = made.inputs.iter().any(|row| row.lease.as_deref() == Some(LeaseFate::Lost.name()));
            let placed = match &placement {
                Some(_) if is_lost => None,
                Some(_) => place(),
                None => verdict.preview.ok(),
            };
            let reason = placed.as_ref().map_or_else(String::new, |placed| placed.reason.clone());
            (if placed.is_some() { "admit" } else { "queue" }, reason, placed)
        }
    };
    Some(Choice {
        tier: verdict.classified.tier.name().into(),
        throttle_step: after.step.name().into(),
        outcome,
        reason,
        placement,
    })
}

fn row(recorded: &DecisionRow, choice: Choice) -> WhatIfRow {
    let other_instance = choice.placement.as_ref().map(|placement| placement.instance.0);
    let candidate = |instance: Option<u32>| recorded.candidates.iter().find(|known| Some(known.instance) == instance);
    let (was, is) = (candidate(recorded.instance), candidate(other_instance));
    let seconds = |candidate: Option<&CandidateRow>| candidate.map(|candidate| candidate.total_seconds);
    let hit = |candidate: &CandidateRow| i64::from(candidate.hit_tokens);
    let is_changed = recorded.tier != choice.tier
        || recorded.outcome != choice.outcome
        || recorded.instance != other_instance
        || recorded.throttle_step != choice.throttle_step;
    WhatIfRow {
        at: recorded.at,
        decision_id: recorded.decision_id.clone(),
        request_id: recorded.request_id.clone(),
        recorded_tier: recorded.tier.clone(),
        other_tier: choice.tier,
        recorded_outcome: recorded.outcome.clone(),
        other_outcome: choice.outcome.into(),
        recorded_reason: recorded.reason.clone(),
        other_reason: choice.reason,
        recorded_throttle_step: recorded.throttle_step.clone(),
        other_throttle_step: choice.throttle_step,
        recorded_instance: recorded.instance,
        other_instance,
        recorded_seconds: seconds(was),
        other_seconds: seconds(is),
        seconds_difference: was.zip(is).map(|(was, is)| is.total_seconds - was.total_seconds),
        hit_tokens_difference: was.zip(is).map(|(was, is)| hit(is) - hit(was)),
        is_changed,
    }
}
