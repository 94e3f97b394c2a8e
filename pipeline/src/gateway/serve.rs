//! The life of a request from its prepared prompts to running sequences (DESIGN §2 steps 2 to 5): classify, throttle,
//! admit, queue, route, dispatch. Every decision on the way is a row.
//!
//! Bounds: `policy.queue.wait_max` in the queue, [`SEQUENCES_MAX`](super::parse::SEQUENCES_MAX) sequences.

use std::{sync::Arc, time::Duration};

use engine::request::{Lane, SamplingParams, StopConditions};
use futures::future::try_join_all;

use super::{
    Gateway,
    auth::Tenant,
    claims::Due,
    decision::{self, Inputs, Outcome},
    dispatcher::{Demand, Grant, Pressure},
    error::ApiError,
    instances::GenerateCall,
    parse::ParsedRequest,
    prepare::Prepared,
    reading::{ArrivalReading, ForecastReading, LeaseFate, PlaceReading, wait_over_row},
    recorder::{Recorder, RequestArrival},
    registry::Model,
    sequence::{Sequence, SequencePlan},
    slo::{SloCase, SloEnd},
    waiting::{Waited, wait_for_grant},
};
use crate::{
    config::Mode,
    ids::{Micros, Name},
    policy::{
        Admission, Arrival, Asked, Came, CandidateCost, Classified, DeadlineConfig, Placement, QueueLoad, RejectReason,
        SloSeen, Starts, Tier, Verdict, ViewMode, decide, lot_of,
    },
    rows::PolicyInputRow,
};

/// A request on its way, with what became known of it. Boxed from its start: it is handed on often, and large.
pub struct Case {
    pub tenant: Tenant,
    pub recorder: Recorder,
    /// Id of the newest decision, for the response's header.
    pub decision_id: Name,
    /// What its headers ask for, as far as its key allows.
    pub asked: Asked,
    pub(super) slo: Option<SloCase>,
    classified: Option<Classified>,
    pressure: Option<Pressure>,
    prompt_tokens: u32,
    max_tokens: u32,
    predicted_hit_tokens: u32,
    turns: u32,
    /// What was read for the decision under way.
    #[expect(clippy::vec_box, reason = "rows go to the bus in these boxes")]
    pub(super) readings: Vec<Box<PolicyInputRow>>,
}

impl Case {
    pub fn new(tenant: Tenant, recorder: Recorder) -> Box<Self> {
        Box::new(Self {
            tenant,
            recorder,
            decision_id: Name::new_static(super::recorder::UNCLASSED),
            asked: Asked::default(),
            slo: None,
            classified: None,
            pressure: None,
            prompt_tokens: 0,
            max_tokens: 0,
            predicted_hit_tokens: 0,
            turns: 0,
            readings: Vec::new(),
        })
    }

    /// Mode of the views that the policies read, once they were asked.
    pub fn view_mode(&self) -> Option<ViewMode> {
        self.pressure.as_ref().map(|pressure| pressure.view.mode)
    }

    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    async fn decided(&mut self, gateway: &Gateway, outcome: Outcome<'_>) {
        let inputs = Inputs {
            request_id: self.recorder.request_id(),
            tenant: &self.tenant.name,
            model: self.recorder.model(),
            classified: self.classified.as_ref(),
            pressure: self.pressure.as_ref(),
            prompt_tokens: self.prompt_tokens,
            max_tokens: self.max_tokens,
            predicted_hit_tokens: self.predicted_hit_tokens,
            turns: self.turns,
            slo: self.slo.as_ref().map(|slo| &slo.seen),
        };
        let row = decision::row(gateway.deps.clock.now(), decision::new_id("dec"), &inputs, outcome);
        self.decision_id = row.decision_id.clone();
        self.recorder.decided(&row);
        for mut reading in self.readings.drain(..) {
            reading.decision_id = row.decision_id.clone();
            reading.request_id = row.request_id.clone();
            reading.model = Some(row.model.clone());
            reading.settings = gateway.dispatcher.settings().clone();
            gateway.deps.events.policy_input(reading).await;
        }
        gateway.deps.events.decision(row).await;
    }

    /// The arrival's row says how full the queue was.
    fn came_to_queue(&mut self, before: QueueLoad) {
        if let Some(arrival) = self.readings.first_mut() {
            arrival.pushed_requests = Some(before.requests as u64);
            arrival.pushed_tokens = Some(before.tokens);
            arrival.pushed_bytes = Some(before.bytes);
        }
    }

    /// The arrival's row says that what routing chose then was reserved.
    fn took_the_first(&mut self) {
        if let Some(arrival) = self.readings.first_mut() {
            arrival.lease = Some(Name::new_static(LeaseFate::Reserved.name()));
        }
    }

    /// A refusal before any decision of a policy: a decision all the same, so that every id can be explained.
    pub async fn refused(&mut self, gateway: &Gateway, error: &ApiError) {
        self.decided(gateway, Outcome::Reject { error, candidates: &[] }).await;
        self.recorder.rejected(error).await;
    }

    /// A sequence was moved: a decision that names the instance it left.
    pub async fn moved(&mut self, gateway: &Gateway, (placement, reading): (&Placement, &PlaceReading), because: &str) {
        let because = format!("moved, since {because}");
        self.readings.push(Box::new(reading.row(LeaseFate::Reserved, &because)));
        self.decided(gateway, Outcome::Admit { placement, because }).await;
        self.recorder.dispatched(placement).await;
    }

    async fn overloaded(
        &mut self,
        gateway: &Gateway,
        refusal: (RejectReason, Duration),
        candidates: &[CandidateCost],
    ) -> ApiError {
        let tier = self.classified.as_ref().map(|classified| classified.tier);
        let outlook = self.slo.as_ref().and_then(|slo| slo.seen.outlook.as_ref());
        let error = decision::overloaded(refusal, (tier, outlook), self.recorder.model());
        self.decided(gateway, Outcome::Reject { error: &error, candidates }).await;
        self.recorder.rejected(&error).await;
        let slo = self.slo.as_ref().filter(|_| refusal.0 == RejectReason::PredictedMiss);
        if let Some(slo) = slo {
            let engines = gateway.dispatcher.engines_for(&slo.model, &slo.variants);
            self.settled(gateway, SloEnd::Refused(engines)).await;
        }
        error
    }

    /// It got its lease: what it takes from here is predicted once more.
    pub(super) fn started(&mut self, gateway: &Gateway, grant: &Grant) {
        if let Some(slo) = &mut self.slo {
            if slo.seen.is_trial {
                grant.lease.for_a_trial();
            }
            slo.started(gateway, grant, (&self.tenant.name, self.tenant.class));
        }
    }

    /// The request has ended: how its deadline fared is a row, and teaches.
    pub async fn settled(&mut self, gateway: &Gateway, end: SloEnd) {
        let Some(slo) = &self.slo else { return };
        let now = gateway.deps.clock.now();
        gateway.dispatcher.learn(&slo.model, |learnt| slo.teach(&self.recorder, (end, now), learnt));
        let row = slo.row(&self.recorder, (end, now));
        gateway.deps.events.slo(row).await;
    }

    /// By when it must start for others to let it go first; `None`: deadlines do not count.
    pub(super) fn start_by(&self) -> Option<Micros> {
        let SloCase { seen, model, .. } = self.slo.as_ref()?;
        let due = seen.deadline.whole.map_or(seen.deadline.first_token, |whole| whole.min(seen.deadline.first_token));
        match model.policy.deadline.mode {
            Mode::On => Some(seen.outlook.map_or(due, |outlook| outlook.start_by)),
            Mode::Off => None,
        }
    }

    /// By when its engine must start it. What is let through to see goes behind what can make it there, too.
    fn engine_by(&self) -> Option<Micros> {
        let SloCase { seen, model, .. } = self.slo.as_ref()?;
        let counts = model.policy.deadline.mode == Mode::On && !seen.is_trial;
        seen.outlook.filter(|_| counts).map(|outlook| outlook.engine_by)
    }

    /// What its coming says of those to come, if it has a deadline of its own that counts.
    fn came(&self, demand: &Demand, candidates: &[CandidateCost]) -> Option<Came> {
        let (due, best) = (demand.due?, candidates.first()?);
        let is_stated = self.slo.as_ref().is_some_and(|slo| slo.seen.deadline.is_stated);
        is_stated.then(|| Came {
            at: demand.since,
            budget_seconds: (due.at - demand.since) as f64 / 1e6,
            prefill_seconds: best.prefill.seconds + best.fetch.seconds,
            tokens: due.tokens,
        })
    }

    /// By when it must start for others to let it go first, and to be worth it.
    pub(super) fn starts(&self) -> Starts {
        let of = |worth: fn(&SloSeen, &DeadlineConfig) -> Option<Micros>| {
            self.slo.as_ref().and_then(|slo| worth(&slo.seen, &slo.model.policy.deadline))
        };
        Starts {
            start_by: self.start_by(),
            worth_by: of(SloSeen::worth_by),
            alone_by: of(SloSeen::alone_by),
            engine_by: self.engine_by(),
        }
    }

    /// What its deadline asks of an instance's time: by when it is due, at the length expected of it.
    fn due(&self, demand: &Demand) -> Option<Due> {
        let slo = self.slo.as_ref().filter(|slo| slo.model.policy.deadline.mode == Mode::On)?;
        let SloCase { seen, sequences, .. } = slo;
        let lengths = &demand.known.lengths[usize::from(demand.tier.number())];
        let most = demand.max_tokens / (*sequences).max(1);
        let expected =
            lengths.iter().map(|length| u64::from((*length).min(most))).sum::<u64>() / lengths.len().max(1) as u64;
        let tokens = if lengths.is_empty() { most } else { expected as u32 }.max(1);
        let at = seen.deadline.whole_by(tokens).unwrap_or(seen.deadline.first_token);
        Some(Due { at, tokens, sequences: *sequences })
    }
}

/// What policies are told of a request.
pub struct Ask {
    pub model: Arc<Model>,
    /// Sum over the prompts.
    pub prompt_tokens: u32,
    /// Most tokens to generate, over all sequences.
    pub max_tokens: u32,
    /// Block hashes, a list a prompt.
    pub hashes: Vec<Vec<u64>>,
    pub turns: u32,
    /// Sequences that it runs.
    pub sequences: u32,
    /// What it holds in memory while it waits.
    pub bytes: u64,
}

/// Decides, waits where it must, and starts the sequences. On `Err` the case has its last event already.
pub async fn serve(
    gateway: &Arc<Gateway>,
    case: &mut Case,
    request: &ParsedRequest,
    prepared: &Prepared,
) -> Result<Vec<Sequence>, ApiError> {
    let ask = Ask {
        model: prepared.model.clone(),
        prompt_tokens: prepared.prompt_tokens,
        max_tokens: total_max_tokens(prepared, request.common.samples),
        hashes: prepared.prompts.iter().map(|prompt| prompt.hashes.clone()).collect(),
        turns: request.turns,
        sequences: (prepared.prompts.len() as u32).saturating_mul(request.common.samples),
        bytes: held_bytes(request, prepared),
    };
    let mut arrived = decide_case(gateway, case, ask).await;
    let demand = &arrived.demand;
    let sequences = prepared.prompts.len() * request.common.samples as usize;
    case.recorder.hashed(prepared.model.text.block_size(), &demand.hashes);
    let arrival = RequestArrival {
        tier: demand.tier.name(),
        prompt_tokens: prepared.prompt_tokens,
        choices: sequences,
        session: request.session,
        turns: request.turns,
    };
    case.recorder.arrived(arrival).await;
    let grant = seat(gateway, case, &mut arrived).await?;
    let demand = &arrived.demand;
    case.recorder.dispatched(&grant.placement).await;
    case.started(gateway, &grant);
    let deadline = &demand.model.policy.deadline;
    let drop_at = case.slo.as_ref().and_then(|slo| deadline.drop_at(&slo.seen.deadline));
    let (request_id, traceparent) = (case.recorder.request_id(), case.recorder.traceparent());
    let source = Plans { request, prepared, demand, drop_at, request_id, traceparent };
    let plans = source.make();
    let starts = plans.into_iter().map(|plan| Sequence::start(&gateway.deps, &gateway.dispatcher, plan, &grant));
    match try_join_all(starts).await {
        Ok(sequences) => {
            case.recorder.started();
            Ok(sequences)
        }
        Err(error) => {
            case.recorder.failed(&error).await;
            case.settled(gateway, SloEnd::Failed).await;
            Err(error)
        }
    }
}

/// A request that the policies were asked about.
pub(super) struct Arrived {
    pub demand: Demand,
    verdict: Verdict,
    /// What routing looked at, until it is used.
    reading: Option<Box<PlaceReading>>,
}

/// Reads the views, asks the policies, and says what the request needs.
pub(super) async fn decide_case(gateway: &Gateway, case: &mut Case, ask: Ask) -> Arrived {
    let now = gateway.deps.clock.now();
    case.recorder.parsed(now);
    let model = &ask.model;
    let pressure = gateway.dispatcher.pressure(model, now).await;
    let mut demand = Demand {
        model: model.clone(),
        tier: Tier::Low,
        tenant: case.tenant.name.clone(),
        tenant_class: case.tenant.class,
        sequences: ask.sequences.max(1),
        starts: Starts::default(),
        due: None,
        known: Arc::default(),
        since: case.recorder.arrived_at(),
        bytes: ask.bytes,
        variants: Vec::new().into(),
        prompt_tokens: ask.prompt_tokens,
        max_tokens: ask.max_tokens,
        hashes: Arc::new(ask.hashes),
    };
    let mut reading = ArrivalReading {
        now,
        prefixes: gateway.dispatcher.prefixes(&pressure.view, &demand),
        view: pressure.view.clone(),
        throttle: pressure.before,
        hashes: demand.hashes.clone(),
        prompt_tokens: demand.prompt_tokens,
        max_tokens: demand.max_tokens,
        turns: ask.turns,
        tenant: case.tenant.name.clone(),
        tenant_class: case.tenant.class,
        turn: gateway.dispatcher.turn(model),
        queue: pressure.backlog.queue,
        bytes: demand.bytes,
        arrived: Some(case.recorder.arrived_at()),
        asked: case.asked,
        sequences: demand.sequences,
        forecast: forecast_on_arrival(gateway, case, (&pressure, now), &demand),
        lot: lot_of(case.recorder.request_id()),
    };
    let verdict = decide_by(&reading, &pressure, model.name(), &model.policy);
    demand.tier = verdict.classified.tier;
    demand.variants = verdict.variants.clone().into();
    case.readings.push(Box::new(reading.row()));
    case.prompt_tokens = demand.prompt_tokens;
    case.max_tokens = demand.max_tokens;
    case.predicted_hit_tokens = verdict.predicted_hit_tokens.unwrap_or(0);
    case.turns = ask.turns;
    demand.known = Arc::new(std::mem::take(&mut reading.forecast.forecast));
    case.slo = verdict.slo.map(|seen| SloCase::new(seen, &demand, (reading.lot, now)));
    demand.starts = case.starts();
    demand.due = case.due(&demand);
    if let Some(came) = case.came(&demand, verdict.candidates()) {
        gateway.dispatcher.learn(model, |learnt| learnt.upcoming.came(came));
    }
    case.classified = Some(verdict.classified.clone());
    case.pressure = Some(pressure);
    let reading = Some(Box::new(reading.into_place(&demand)));
    Arrived { demand, verdict, reading }
}

fn forecast_on_arrival(
    gateway: &Gateway,
    case: &Case,
    (pressure, now): (&Pressure, Micros),
    demand: &Demand,
) -> ForecastReading {
    let of = (case.tenant.name.as_str(), case.tenant.class);
    let look = (pressure.view.as_ref(), now);
    let mut reading = gateway.dispatcher.forecast(&demand.model, look, of, demand.prompt_tokens);
    // One look at the drain for throttle and outlook.
    reading.forecast.drain_tokens_per_second = pressure.backlog.drain_tokens_per_second;
    reading
}

/// What the policies say to a reading and the throttle it led to.
pub fn decide_by(
    reading: &ArrivalReading,
    pressure: &Pressure,
    model: &str,
    policy: &crate::config::Policy,
) -> Verdict {
    let arrival = Arrival {
        now: reading.now,
        view: &reading.view,
        saturation: pressure.saturation,
        throttle: pressure.throttle,
        model,
        prompt_tokens: reading.prompt_tokens,
        max_tokens: reading.max_tokens,
        turns: reading.turns,
        tenant: &reading.tenant,
        tenant_class: reading.tenant_class,
        hits: &reading.prefixes.hits,
        turn: reading.turn,
        queue: reading.queue,
        bytes: reading.bytes,
        arrived: reading.arrived,
        asked: reading.asked,
        sequences: reading.sequences,
        forecast: &reading.forecast.forecast,
        lot: reading.lot,
    };
    decide(&arrival, policy)
}

/// The lease, after the queue if need be. The demand's `max_tokens` and the case's are capped as admission says.
pub(super) async fn seat(gateway: &Arc<Gateway>, case: &mut Case, arrived: &mut Arrived) -> Result<Grant, ApiError> {
    let Arrived { demand, verdict, reading } = arrived;
    let (max_tokens, may_go) = match verdict.admission {
        Admission::Admit { max_tokens } => (max_tokens, true),
        Admission::Queue { max_tokens } => (max_tokens, false),
        Admission::Reject { reason, retry_after } => {
            return Err(case.overloaded(gateway, (reason, retry_after), verdict.candidates()).await);
        }
    };
    let is_capped = max_tokens != demand.max_tokens;
    (demand.max_tokens, case.max_tokens) = (max_tokens, max_tokens);
    // What routing chose on arrival, a moment ago, is taken as it is where it can be; else it is asked again.
    let chosen = verdict.preview.as_ref().ok().filter(|_| may_go && !is_capped).zip(reading.take());
    if let Some(grant) = chosen.and_then(|(placement, reading)| gateway.dispatcher.take(demand, placement, reading)) {
        case.took_the_first();
        case.decided(gateway, Outcome::Admit { placement: &grant.placement, because: String::new() }).await;
        return Ok(grant);
    }
    if may_go {
        match gateway.dispatcher.place(demand, &[]) {
            Ok(grant) => {
                case.readings.push(Box::new(grant.reading.row(LeaseFate::Reserved, "")));
                case.decided(gateway, Outcome::Admit { placement: &grant.placement, because: String::new() }).await;
                return Ok(grant);
            }
            Err(no_place) => case.readings.push(Box::new(no_place.reading.row(no_place.fate, ""))),
        }
    }
    wait(gateway, case, demand, verdict.candidates()).await
}

async fn wait(
    gateway: &Arc<Gateway>,
    case: &mut Case,
    demand: &Demand,
    candidates: &[CandidateCost],
) -> Result<Grant, ApiError> {
    let (before, place) = gateway.dispatcher.enqueue(demand.clone());
    case.came_to_queue(before);
    let Some(mut place) = place else {
        return Err(case.overloaded(gateway, decision::FULL_AT_PUSH, candidates).await);
    };
    let because = decision::queue_reason(before, demand.size());
    case.decided(gateway, Outcome::Queue { candidates, because }).await;
    case.recorder.queued().await;
    let began = gateway.deps.clock.now();
    let waited = wait_for_grant(gateway, case, (demand, &mut place)).await;
    drop(place);
    let now = gateway.deps.clock.now();
    let waited_us = now - began;
    if let Some(slo) = &mut case.slo {
        slo.wait_us = waited_us;
    }
    gateway.deps.metrics.queue_wait.observe(waited_us as f64 / 1e6);
    let because = format!("waited {} ms", waited_us / 1000);
    match waited {
        Waited::Granted(grant) => {
            case.readings.push(Box::new(grant.reading.row(LeaseFate::Reserved, &because)));
            case.decided(gateway, Outcome::Admit { placement: &grant.placement, because }).await;
            Ok(grant)
        }
        Waited::GivenUp(retry_after) => {
            Err(case.overloaded(gateway, (RejectReason::PredictedMiss, retry_after), candidates).await)
        }
        Waited::TooLong => {
            case.readings.push(Box::new(wait_over_row(now, because)));
            Err(case.overloaded(gateway, decision::WAITED_TOO_LONG, candidates).await)
        }
    }
}

/// Where the plans of a request's sequences come from.
struct Plans<'a> {
    request: &'a ParsedRequest,
    prepared: &'a Prepared,
    demand: &'a Demand,
    /// When the engine may drop them.
    drop_at: Option<Micros>,
    request_id: &'a str,
    traceparent: Option<String>,
}

impl Plans<'_> {
    /// One plan a sequence: prompts in order, samples inside a prompt. The demand bounds the sum of all `max_tokens`.
    fn make(&self) -> Vec<SequencePlan> {
        let (common, model) = (&self.request.common, &self.prepared.model);
        let samples = common.samples as usize;
        let asked = total_max_tokens(self.prepared, common.samples);
        let count = (self.prepared.prompts.len() * samples).max(1) as u32;
        let most = if self.demand.max_tokens < asked { (self.demand.max_tokens / count).max(1) } else { u32::MAX };
        let seed = common.seed.unwrap_or_else(|| uuid::Uuid::now_v7().as_u64_pair().1);
        let prompts = self.prepared.prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, samples));
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
                        stop_tokens: model.text.stop_tokens().to_vec(),
                        stop_strings: common.stop_strings.clone(),
                    },
                    lane: if self.demand.tier == Tier::High { Lane::L1 } else { Lane::L2 },
                    deadline: self.demand.starts.engine_by.or(self.demand.starts.start_by),
                    drop_at: self.drop_at,
                    cache_salt: model.cache_salt,
                    sampling_offset: 0,
                    class: Some(engine::request::RequestClass(self.demand.tier.number())),
                    traceparent: self.traceparent.clone(),
                };
                let demand = Demand {
                    model: model.clone(),
                    tier: self.demand.tier,
                    tenant: self.demand.tenant.clone(),
                    tenant_class: self.demand.tenant_class,
                    sequences: 1,
                    // It has begun: what it was worth is decided.
                    starts: Starts { start_by: self.demand.starts.start_by, ..Starts::default() },
                    since: self.demand.since,
                    known: self.demand.known.clone(),
                    due: self.demand.due.map(|due| Due { sequences: 1, ..due }),
                    bytes: 0,
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

/// Memory that a request holds while it waits: its body, its tokens and their hashes.
fn held_bytes(request: &ParsedRequest, prepared: &Prepared) -> u64 {
    let prompts = prepared.prompts.iter().map(|prompt| 4 * prompt.tokens.len() as u64 + 8 * prompt.hashes.len() as u64);
    request.body_bytes + prompts.sum::<u64>()
}

fn total_max_tokens(prepared: &Prepared, samples: u32) -> u32 {
    prepared.prompts.iter().fold(0, |sum: u32, prompt| sum.saturating_add(prompt.max_tokens.saturating_mul(samples)))
}
