//! One request's deadline from its arrival to how it fared: what was predicted, what came, and what is learnt from it (SPEC A4).
//!
//! Invariants: each request that ended, or was refused since a miss was predicted, has one row; one whose client left has none,
//! since nobody knows how it would have ended. Predictions are compared with the time that the actual length took, so that the
//! error of service times is learnt apart from that of lengths; a sequence that was dropped teaches what it had come to.
//! Cost: O(1) a request. State: a few numbers a request.

use std::sync::Arc;

use super::{
    Gateway,
    dispatcher::{Demand, Grant},
    recorder::Recorder,
    registry::Model,
};
use crate::{
    ids::{Micros, Name},
    policy::{
        Engines, Forecast, Learnt, Met, Outlook, OutlookRequest, Run, SloSeen, StartChance, Tier, Venture, Wait, chance,
    },
    rows::{SloReliabilityRow, SloRow},
};

/// How a request ended, as far as its deadline goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SloEnd {
    Finished,
    Failed,
    /// The engine dropped it.
    Late,
    /// A miss was predicted; what could have served it was doing this.
    Refused(Engines),
}

impl SloEnd {
    fn name(self) -> &'static str {
        match self {
            SloEnd::Finished => "finished",
            SloEnd::Failed => "failed",
            SloEnd::Late => "late",
            SloEnd::Refused(_) => "refused",
        }
    }
}

/// See the file's header.
#[derive(Debug, Clone)]
pub struct SloCase {
    pub seen: SloSeen,
    pub model: Arc<Model>,
    pub tier: Tier,
    pub sequences: u32,
    /// Variants of the model that may serve it.
    pub variants: Arc<[String]>,
    /// Decides whether a would-be refusal is let through to see.
    pub lot: f64,
    pub wait_us: Micros,
    /// What predictors said when it came, and when that was.
    known: (Micros, Arc<Forecast>),
    /// Engine seconds that it would take; `None`: not known, or it would be late where nothing runs, too.
    needs_seconds: Option<f64>,
    start: Option<Start>,
}

/// What was predicted when it got its lease.
#[derive(Debug, Clone, Copy)]
struct Start {
    at: Micros,
    run: Option<Run>,
    chance: Option<StartChance>,
    venture: Option<Venture>,
}

impl SloCase {
    /// `demand` came `at` then.
    pub fn new(seen: SloSeen, demand: &Demand, (lot, at): (f64, Micros)) -> Self {
        let (model, tier, sequences) = (demand.model.clone(), demand.tier, demand.sequences);
        let needs_seconds = seen.outlook.filter(|outlook| outlook.is_met_alone).map(|outlook| outlook.engine_seconds);
        let (known, variants) = ((at, demand.known.clone()), demand.variants.clone());
        Self { seen, model, tier, sequences, variants, lot, wait_us: 0, known, needs_seconds, start: None }
    }

    /// It got its lease; what it takes from here is predicted once more, to be compared.
    pub fn started(&mut self, gateway: &Gateway, grant: &Grant, (tenant, class): (&str, Tier)) {
        let reading = &grant.reading;
        // What it was placed by on arrival is not asked for again.
        let (read_at, known) = &self.known;
        let known = if *read_at == reading.now {
            known.clone()
        } else {
            let look = (reading.view.as_ref(), reading.now);
            Arc::new(gateway.dispatcher.forecast(&self.model, look, (tenant, class), reading.prompt_tokens).forecast)
        };
        let chosen = grant.placement.candidates.iter().find(|cost| cost.instance == grant.instance);
        let candidates = chosen.map(std::slice::from_ref).unwrap_or_default();
        let request = OutlookRequest {
            best: 0.0,
            now: reading.now,
            deadline: &self.seen.deadline,
            tier: self.tier,
            prompt_tokens: reading.prompt_tokens,
            max_tokens: reading.max_tokens / self.sequences.max(1),
            sequences: self.sequences,
            candidates,
            view: &reading.view,
            wait: Wait::None,
        };
        let run = chosen.and_then(|cost| Run::of(&request, cost, &known));
        let chance = run.as_ref().map(|run| chance(run, &request, &known));
        // An answer without a stated deadline is of use whenever it comes; what is let through to see is not started for its chance.
        let of_use = |meet: f64| if self.seen.deadline.is_stated { meet } else { 1.0 };
        let venture = chance.filter(|_| !self.seen.is_trial);
        let venture = venture.and_then(|chance| Venture::new(reading.now, chance.engine_seconds, of_use(chance.meet)));
        if let Some(venture) = &venture {
            gateway.dispatcher.learn(&self.model, |learnt| learnt.started(venture));
        }
        self.start = Some(Start { at: reading.now, run, chance, venture });
    }

    fn margin(&self, recorder: &Recorder, (end, now): (SloEnd, Micros)) -> Option<Micros> {
        let deadline = &self.seen.deadline;
        match (end, recorder.first_token_at()) {
            (SloEnd::Refused(_) | SloEnd::Failed, _) => None,
            (_, Some(first)) => Some(deadline.margin(first, (now, self.longest(recorder)))),
            (_, None) => Some(deadline.first_token - now),
        }
    }

    /// Tokens of one sequence, taking them to be alike.
    fn longest(&self, recorder: &Recorder) -> u32 {
        recorder.output_tokens() / self.sequences.max(1)
    }

    /// What its end teaches.
    pub fn teach(&self, recorder: &Recorder, (end, now): (SloEnd, Micros), learnt: &mut Learnt) {
        if let SloEnd::Refused(engines) = end {
            learnt.refused((now, self.tier), self.needs_seconds, engines);
        }
        if matches!(end, SloEnd::Refused(_) | SloEnd::Failed) {
            return;
        }
        if let Some(Start { at, run: Some(run), .. }) = &self.start {
            let seconds = |until: Micros| (until - at) as f64 / 1e6;
            let (prompt, predicted) = (recorder.prompt_tokens(), run.plain_first().mean);
            match recorder.first_token_at() {
                Some(first) => {
                    let predicted_whole = run.plain_whole(self.longest(recorder)).mean;
                    learnt.skill.learn_first(now, prompt, (predicted, seconds(first)));
                    learnt.skill.learn_whole(now, prompt, (predicted_whole, seconds(now)));
                }
                // It would have taken longer than this, and how long nobody knows.
                None if seconds(now) > predicted => learnt.skill.learn_first(now, prompt, (predicted, seconds(now))),
                None => {}
            }
        }
        let is_met = end == SloEnd::Finished && self.margin(recorder, (end, now)).is_some_and(|left| left >= 0);
        let met = |is_met: bool| if is_met { Met::Yes } else { Met::No };
        if let Some(outlook) = &self.seen.outlook {
            learnt.reliability.learn(self.tier, outlook.meet, met(is_met));
        }
        // What is let through to see goes behind all others: its chance is not that of those that start for it.
        let Some(start) = self.start.as_ref().filter(|_| !self.seen.is_trial) else { return };
        if let Some(chance) = start.chance {
            let is_of_use = met(is_met || !self.seen.deadline.is_stated);
            learnt.ended(now, (chance.plain, met(is_met)), start.venture.as_ref().map(|venture| (venture, is_of_use)));
        }
    }

    pub fn row(&self, recorder: &Recorder, (end, now): (SloEnd, Micros)) -> SloRow {
        let arrived = recorder.arrived_at();
        let seconds = |until: Micros| (until - arrived) as f64 / 1e6;
        let margin = self.margin(recorder, (end, now));
        let is_met = match end {
            SloEnd::Refused(_) => None,
            SloEnd::Failed | SloEnd::Late => Some(false),
            SloEnd::Finished => margin.map(|left| left >= 0),
        };
        let Outlooks { first, whole, meet } = Outlooks::of(self.seen.outlook.as_ref());
        SloRow {
            at: now,
            request_id: recorder.request_id().clone(),
            model: self.model.name().into(),
            tenant: recorder.tenant().clone(),
            tier: Name::new_static(self.tier.name()),
            instance: recorder.instance().map(|instance| instance.0),
            outcome: Name::new_static(end.name()),
            is_stated: self.seen.deadline.is_stated,
            is_met,
            margin_seconds: margin.map(|us| us as f64 / 1e6),
            first_token_budget_seconds: seconds(self.seen.deadline.first_token),
            whole_budget_seconds: self.seen.deadline.whole_by(self.longest(recorder).max(1)).map(seconds),
            first_token_seconds: recorder.first_token_at().map(seconds),
            whole_seconds: seconds(now),
            wait_seconds: self.wait_us as f64 / 1e6,
            predicted_first_token_seconds: first,
            predicted_whole_seconds: whole,
            meet_probability: meet,
            start_meet_probability: self.start.and_then(|start| start.chance).map(|chance| chance.meet),
            is_trial: self.seen.is_trial,
            prompt_tokens: recorder.prompt_tokens(),
            cached_tokens: recorder.cached_tokens(),
            output_tokens: recorder.output_tokens(),
        }
    }
}

struct Outlooks {
    first: Option<f64>,
    whole: Option<f64>,
    meet: Option<f64>,
}

impl Outlooks {
    fn of(outlook: Option<&Outlook>) -> Self {
        Self {
            first: outlook.map(|outlook| outlook.first_token_seconds),
            whole: outlook.map(|outlook| outlook.whole_seconds),
            meet: outlook.map(|outlook| outlook.meet),
        }
    }
}

/// The curve as rows.
pub fn reliability_rows(learnt: &Learnt, (model, as_of): (&str, Micros)) -> Vec<SloReliabilityRow> {
    let width = 1.0 / crate::policy::BINS as f64;
    let row = |(tier, place, bin): (Tier, usize, crate::policy::Bin)| SloReliabilityRow {
        as_of,
        model: model.into(),
        tier: tier.name().into(),
        predicted_from: place as f64 * width,
        predicted_to: (place + 1) as f64 * width,
        requests: bin.requests,
        met: bin.met,
        predicted_mean: bin.predicted / bin.requests as f64,
        met_share: bin.met as f64 / bin.requests as f64,
    };
    learnt.reliability.bins().map(row).collect()
}
