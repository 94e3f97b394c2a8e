//! Recorded inputs become the decision row again, by the functions the gateway calls (SPEC X2).
//!
//! Invariant: nothing of the recorded row goes into the new one but its id, its time and whose request it was.
//! Cost: that of the policies. State: what was decided on arrival, for later decisions on the same request, at most
//! [`CASES_MAX`] requests; at the bound the oldest is forgotten, and a later decision on it is not replayable.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::recording::{Made, Settings, Under};
use crate::{
    config::Recorded,
    gateway::{
        decision::{self, FULL_AT_PUSH, Inputs, Outcome, WAITED_TOO_LONG},
        dispatcher::{Pressure, place_by},
        reading::{ArrivalReading, LeaseFate, PlaceReading, WaitReading, backlog_of, view_of},
        serve::decide_by,
        waiting::outlook_of,
    },
    ids::Name,
    policy::{
        Admission, EntrySize, Judgement, Placement, QueueLoad, RejectReason, RouteRejection, ThrottleState, Verdict,
        judge, lot_of, press, token_cost,
    },
    rows::{DecisionRow, PolicyInputRow},
};

/// Requests remembered.
const CASES_MAX: usize = 200_000;

/// Why a decision was not made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// No policy was asked: a malformed request, a wrong key.
    NoPolicy,
    Cannot(String),
    /// The inputs say that there is no such decision.
    Contradiction {
        expected: String,
        got: String,
    },
}

fn cannot(reason: impl Into<String>) -> Obstacle {
    Obstacle::Cannot(reason.into())
}

/// What was decided when a request arrived.
#[derive(Debug, Clone)]
struct Case {
    pressure: Pressure,
    verdict: Verdict,
    prompt_tokens: u32,
    /// As admitted.
    max_tokens: u32,
    turns: u32,
}

/// A decision made again, owned.
enum Decided {
    Admit { placement: Placement, because: String },
    Queue { because: String },
    Reject { refusal: (RejectReason, Duration) },
}

/// See the module.
#[derive(Default)]
pub struct Rebuilder {
    cases: HashMap<Name, Case>,
    order: VecDeque<Name>,
}

impl Rebuilder {
    /// Makes the decision again.
    pub fn rebuild(&mut self, made: &Made, settings: &Settings) -> Result<DecisionRow, Obstacle> {
        let recorded = &made.decision;
        let Some(first) = made.inputs.first() else {
            return Err(match recorded.view_mode == "none" {
                true => Obstacle::NoPolicy,
                false => cannot("no row of policy_inputs: written by an earlier version, or cut off"),
            });
        };
        let under = Under::of(settings.get(&first.settings).map_err(cannot)?, first);
        let decided = self.decide(made, &under)?;
        let case = self.cases.get(&recorded.request_id).ok_or_else(|| cannot("its arrival is not in the log"))?;
        Ok(row(recorded, case, &under.model, decided))
    }

    fn decide(&mut self, made: &Made, under: &Under) -> Result<Decided, Obstacle> {
        let request = &made.decision.request_id;
        let placement = made.inputs.iter().rev().find(|row| row.reading == "placement");
        let waited = self.waited(made, under)?;
        if let Some(arrival) = made.inputs.iter().find(|row| row.reading == "arrival") {
            let (case, decided) = on_arrival(arrival, placement, under)?;
            self.remember(request, case);
            return Ok(decided);
        }
        if let Some(row) = placement {
            let placement = placed(row, under)?.map_err(|rejection| Obstacle::Contradiction {
                expected: "a placement".into(),
                got: format!("{rejection:?}"),
            })?;
            let because = row.because.clone().unwrap_or_default();
            return Ok(Decided::Admit { placement, because });
        }
        if let Some(retry_after) = waited {
            return Ok(Decided::Reject { refusal: (RejectReason::PredictedMiss, retry_after) });
        }
        match made.inputs.iter().any(|row| row.reading == "wait_over") {
            true => Ok(Decided::Reject { refusal: WAITED_TOO_LONG }),
            false => Err(cannot("its row of policy_inputs names a reading this version does not know")),
        }
    }

    /// Looks again at what was looked at in the queue; gives when to come back, if that ended the wait.
    fn waited(&mut self, made: &Made, under: &Under) -> Result<Option<Duration>, Obstacle> {
        let mut given_up = None;
        for row in made.inputs.iter().filter(|row| row.reading == "wait") {
            let reading = WaitReading::from_row(row).ok_or_else(|| cannot("a wait that this version cannot read"))?;
            let case = self.cases.get_mut(&made.decision.request_id).map(|case| &mut case.verdict);
            let Some(Verdict { slo: Some(seen), classified, .. }) = case else {
                return Err(cannot("its arrival is not in the log"));
            };
            let of = (under.model.as_str(), &under.policy);
            seen.outlook = outlook_of(&reading, seen, of);
            let lot = lot_of(&made.decision.request_id);
            match judge(seen, reading.place.now, (classified.tier, lot), &under.policy.deadline) {
                Judgement::Try => seen.is_trial = true,
                Judgement::Refuse { retry_after } => given_up = Some(retry_after),
                Judgement::Keep => {
                    let got = format!("{:?}", seen.outlook);
                    return Err(Obstacle::Contradiction { expected: "too small a chance, as recorded".into(), got });
                }
            }
        }
        Ok(given_up)
    }

    fn remember(&mut self, request_id: &str, case: Case) {
        if self.cases.insert(request_id.into(), case).is_none() {
            self.order.push_back(request_id.into());
        }
        while self.cases.len() > CASES_MAX {
            match self.order.pop_front() {
                Some(oldest) => drop(self.cases.remove(&oldest)),
                None => return,
            }
        }
    }
}

/// The throttle after a look without a request.
pub fn tick(row: &PolicyInputRow, under: &Recorded, before: ThrottleState) -> Option<ThrottleState> {
    Some(press((&view_of(row)?, row.at), &backlog_of(row), before, &Under::of(under, row).policy).1)
}

fn on_arrival(
    row: &PolicyInputRow,
    placement: Option<&PolicyInputRow>,
    under: &Under,
) -> Result<(Case, Decided), Obstacle> {
    let reading = ArrivalReading::from_row(row).ok_or_else(|| cannot("an arrival that this version cannot read"))?;
    let backlog = backlog_of(row);
    let (saturation, throttle) = press((reading.view.as_ref(), reading.now), &backlog, reading.throttle, &under.policy);
    let pressure = Pressure { view: reading.view.clone(), before: reading.throttle, throttle, saturation, backlog };
    let verdict = decide_by(&reading, &pressure, &under.model, &under.policy);
    let asked = reading.max_tokens;
    let case = |verdict: Verdict, max_tokens| Case {
        pressure: pressure.clone(),
        verdict,
        prompt_tokens: reading.prompt_tokens,
        max_tokens,
        turns: reading.turns,
    };
    let (max_tokens, may_go) = match verdict.admission {
        Admission::Reject { reason, retry_after } => {
            return Ok((case(verdict, asked), Decided::Reject { refusal: (reason, retry_after) }));
        }
        Admission::Admit { max_tokens } => (max_tokens, true),
        Admission::Queue { max_tokens } => (max_tokens, false),
    };
    if may_go && row.lease.as_deref() == Some(LeaseFate::Reserved.name()) {
        return match verdict.preview.clone() {
            Ok(placement) => Ok((case(verdict, max_tokens), Decided::Admit { placement, because: String::new() })),
            Err(rejection) => {
                let expected = "a placement on arrival, as recorded".into();
                Err(Obstacle::Contradiction { expected, got: format!("{rejection:?}") })
            }
        };
    }
    if let Some(row) = placement.filter(|_| may_go) {
        let fate = row.lease.as_deref().unwrap_or_default();
        match placed(row, under)? {
            Ok(placement) if fate == LeaseFate::Reserved.name() => {
                return Ok((case(verdict, max_tokens), Decided::Admit { placement, because: String::new() }));
            }
            Ok(_) if fate == LeaseFate::Lost.name() => {}
            Err(_) if fate == LeaseFate::None.name() => {}
            other => {
                let expected = format!("a placement with lease {fate}");
                return Err(Obstacle::Contradiction { expected, got: format!("{other:?}") });
            }
        }
    } else if may_go && row.pushed_requests.is_none() {
        return Err(Obstacle::Contradiction { expected: "admission, as recorded".into(), got: "none recorded".into() });
    }
    let (Some(requests), Some(tokens)) = (row.pushed_requests, row.pushed_tokens) else {
        let got = format!("{:?}", verdict.admission);
        return Err(Obstacle::Contradiction { expected: "an admission that does not wait".into(), got });
    };
    let pushed = QueueLoad { requests: requests as usize, tokens, bytes: row.pushed_bytes.unwrap_or(0) };
    let size = EntrySize { tokens: token_cost(reading.prompt_tokens, max_tokens), bytes: reading.bytes };
    let decided = match under.policy.queue.has_room(pushed, size) {
        true => Decided::Queue { because: decision::queue_reason(pushed, size) },
        false => Decided::Reject { refusal: FULL_AT_PUSH },
    };
    Ok((case(verdict, max_tokens), decided))
}

fn placed(row: &PolicyInputRow, under: &Under) -> Result<Result<Placement, RouteRejection>, Obstacle> {
    let reading = PlaceReading::from_row(row).ok_or_else(|| cannot("a placement that this version cannot read"))?;
    Ok(place_by(&reading, &under.model, &under.policy.route))
}

fn row(recorded: &DecisionRow, case: &Case, model: &Name, decided: Decided) -> DecisionRow {
    let classified = &case.verdict.classified;
    let inputs = Inputs {
        request_id: &recorded.request_id,
        tenant: &recorded.tenant,
        model,
        classified: Some(classified),
        pressure: Some(&case.pressure),
        prompt_tokens: case.prompt_tokens,
        max_tokens: case.max_tokens,
        predicted_hit_tokens: case.verdict.predicted_hit_tokens.unwrap_or(0),
        turns: case.turns,
        slo: case.verdict.slo.as_ref(),
    };
    let outlook = case.verdict.slo.as_ref().and_then(|slo| slo.outlook.as_ref());
    let (at, id, candidates) = (recorded.at, recorded.decision_id.clone(), case.verdict.candidates());
    match decided {
        Decided::Admit { placement, because } => {
            decision::row(at, id, &inputs, Outcome::Admit { placement: &placement, because })
        }
        Decided::Queue { because } => decision::row(at, id, &inputs, Outcome::Queue { candidates, because }),
        Decided::Reject { refusal } => {
            let error = decision::overloaded(refusal, (Some(classified.tier), outlook), model);
            decision::row(at, id, &inputs, Outcome::Reject { error: &error, candidates })
        }
    }
}
