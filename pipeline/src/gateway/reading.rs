//! What policies read, as a row of `policy_inputs`, and back (SPEC X2).
//!
//! Invariant: what is read back gives the policies the same inputs to the last bit; a test holds it. Block hashes after the
//! first that nobody was believed to hold play no part in a hit and are left out.
//! Cost: O(instances + cached blocks) a reading. State: none; a row has at most [`HASHES_MAX`] hashes, and says nothing of the
//! cache index's state beyond that (`hits_as_of` is NULL then: the hits are recorded, but cannot be derived again).

use std::sync::Arc;

use operators::{LinearFit, ServiceTime};

use super::dispatcher::{Demand, Pressure};
use crate::{
    ids::{InstanceId, Micros, Name, ProcessEpoch},
    policy::{
        Asked, Backlog, BucketSeat, Calibration, ClusterView, EngineView, FetchTimes, Forecast, InstanceView,
        LevelTokens, PrefixHit, PrefixHits, PrefixReading, PromptDue, QueueLoad, QueueProfile, QueueStep, Ratio,
        Refused, Rejects, Skill, SloAsk, ThrottleState, ThrottleStep, Tier, ViewMode, lot_of,
    },
    rows::{
        CachedRow, HitRow, InstanceInputRow, PolicyInputRow, PromptDueRow, QueueStepRow, RejectRow, SeatRow,
        ServiceInputRow,
    },
};

/// Hashes of one row.
pub const HASHES_MAX: usize = 1 << 16;

/// What routing read for one placement.
#[derive(Debug, Clone, PartialEq)]
pub struct PlaceReading {
    pub now: Micros,
    pub view: Arc<ClusterView>,
    pub prefixes: PrefixReading,
    pub hashes: Arc<Vec<Vec<u64>>>,
    /// Variants that may serve it, best first.
    pub variants: Arc<[String]>,
    pub tier: Tier,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub turn: u64,
    pub excluded: Vec<InstanceId>,
    /// Instances where others would have missed their deadlines, or been refused, by this one.
    pub spared: Vec<InstanceId>,
}

/// What became of the room that routing chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseFate {
    Reserved,
    /// Others were faster, each time, or more instances were to be spared than are tried.
    Lost,
    /// Routing chose nothing.
    None,
}

impl LeaseFate {
    pub fn name(self) -> &'static str {
        match self {
            LeaseFate::Reserved => "reserved",
            LeaseFate::Lost => "lost",
            LeaseFate::None => "none",
        }
    }
}

impl PlaceReading {
    /// The row; who decides puts request, decision and settings in.
    pub fn row(&self, fate: LeaseFate, because: &str) -> PolicyInputRow {
        PolicyInputRow {
            variants: self.variants.to_vec(),
            tier: Some(Name::new_static(self.tier.name())),
            prompt_tokens: self.prompt_tokens,
            max_tokens: self.max_tokens,
            tie_turn: Some(self.turn),
            excluded: self.excluded.iter().map(|id| id.0).collect(),
            spared: (!self.spared.is_empty()).then(|| self.spared.iter().map(|id| id.0).collect()),
            lease: Some(Name::new_static(fate.name())),
            because: Some(because.into()),
            ..looked("placement", (self.now, &self.view), &self.prefixes, &self.hashes)
        }
    }

    /// The reading of a row; `None` if the row is no placement or holds a name nobody knows.
    pub fn from_row(row: &PolicyInputRow) -> Option<PlaceReading> {
        Some(PlaceReading {
            now: row.at,
            view: Arc::new(view_of(row)?),
            prefixes: prefixes_of(row),
            hashes: Arc::new(row.block_hashes.clone()),
            variants: row.variants.clone().into(),
            tier: Tier::from_name(row.tier.as_deref()?)?,
            prompt_tokens: row.prompt_tokens,
            max_tokens: row.max_tokens,
            turn: row.tie_turn?,
            excluded: row.excluded.iter().map(|id| InstanceId(*id)).collect(),
            spared: row.spared.iter().flatten().map(|id| InstanceId(*id)).collect(),
        })
    }
}

/// What was read when a request arrived; the throttle's state is the one before.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrivalReading {
    pub now: Micros,
    pub view: Arc<ClusterView>,
    pub throttle: ThrottleState,
    pub prefixes: PrefixReading,
    pub hashes: Arc<Vec<Vec<u64>>>,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub turns: u32,
    pub tenant: Name,
    pub tenant_class: Tier,
    pub turn: u64,
    pub queue: QueueLoad,
    /// Memory it holds while it waits.
    pub bytes: u64,
    /// When it came; `None` in a row of an earlier version.
    pub arrived: Option<Micros>,
    pub asked: Asked,
    pub sequences: u32,
    pub forecast: ForecastReading,
    /// From the request's id.
    pub lot: f64,
}

/// What predictors said, and as of when.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ForecastReading {
    pub forecast: Forecast,
    pub as_of: Option<Micros>,
}

/// What was read for a request that still waits, when it came to nothing good.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitReading {
    pub place: PlaceReading,
    pub tenant: Name,
    pub tenant_class: Tier,
    /// When it came; `None` in a row of an earlier version.
    pub since: Option<Micros>,
    pub sequences: u32,
    pub forecast: ForecastReading,
}

impl WaitReading {
    pub fn row(&self) -> PolicyInputRow {
        let place = self.place.row(LeaseFate::None, "");
        PolicyInputRow {
            reading: Name::new_static("wait"),
            arrived_at: self.since,
            tenant: Some(self.tenant.clone()),
            tenant_class: Some(Name::new_static(self.tenant_class.name())),
            sequences: Some(self.sequences),
            ..with_forecast(place, &self.forecast)
        }
    }

    /// The reading of a row; `None` if the row is of another kind or holds a name nobody knows.
    pub fn from_row(row: &PolicyInputRow) -> Option<WaitReading> {
        if row.reading != "wait" {
            return None;
        }
        Some(WaitReading {
            place: PlaceReading::from_row(row)?,
            tenant: row.tenant.clone()?,
            tenant_class: Tier::from_name(row.tenant_class.as_deref()?)?,
            since: row.arrived_at,
            sequences: row.sequences?,
            forecast: forecast_of(row),
        })
    }
}

impl ArrivalReading {
    /// What routing looked at on arrival, as the reading of a placement.
    pub fn into_place(self, demand: &Demand) -> PlaceReading {
        PlaceReading {
            now: self.now,
            view: self.view,
            prefixes: self.prefixes,
            hashes: self.hashes,
            variants: demand.variants.clone(),
            tier: demand.tier,
            prompt_tokens: self.prompt_tokens,
            max_tokens: self.max_tokens,
            turn: self.turn,
            excluded: Vec::new(),
            spared: Vec::new(),
        }
    }

    pub fn row(&self) -> PolicyInputRow {
        PolicyInputRow {
            tenant: Some(self.tenant.clone()),
            tenant_class: Some(Name::new_static(self.tenant_class.name())),
            prompt_tokens: self.prompt_tokens,
            max_tokens: self.max_tokens,
            turns: Some(self.turns),
            tie_turn: Some(self.turn),
            throttle_step: Some(Name::new_static(self.throttle.step.name())),
            throttle_since_us: Some(self.throttle.since),
            queued_requests: Some(self.queue.requests as u64),
            queued_tokens: Some(self.queue.tokens),
            queued_bytes: Some(self.queue.bytes),
            request_bytes: Some(self.bytes),
            arrived_at: self.arrived,
            slo_first_token_us: self.asked.slo.first_token_us,
            slo_whole_us: self.asked.slo.whole_us,
            slo_per_token_us: self.asked.slo.per_token_us,
            tier_asked: self.asked.tier.map(|tier| Name::new_static(tier.name())),
            tier_asked_max: self.asked.tier_max.map(|tier| Name::new_static(tier.name())),
            sequences: Some(self.sequences),
            ..with_forecast(looked("arrival", (self.now, &self.view), &self.prefixes, &self.hashes), &self.forecast)
        }
    }

    /// The reading of a row; `None` if the row is no arrival or holds a name nobody knows.
    pub fn from_row(row: &PolicyInputRow) -> Option<ArrivalReading> {
        Some(ArrivalReading {
            now: row.at,
            view: Arc::new(view_of(row)?),
            throttle: throttle_of(row)?,
            prefixes: prefixes_of(row),
            hashes: Arc::new(row.block_hashes.clone()),
            prompt_tokens: row.prompt_tokens,
            max_tokens: row.max_tokens,
            turns: row.turns?,
            tenant: row.tenant.clone()?,
            tenant_class: Tier::from_name(row.tenant_class.as_deref()?)?,
            turn: row.tie_turn?,
            queue: QueueLoad {
                requests: usize::try_from(row.queued_requests?).ok()?,
                tokens: row.queued_tokens?,
                // Earlier versions had no bound of bytes.
                bytes: row.queued_bytes.unwrap_or(0),
            },
            bytes: row.request_bytes.unwrap_or(0),
            arrived: row.arrived_at,
            asked: asked_of(row),
            sequences: row.sequences.unwrap_or(1),
            forecast: forecast_of(row),
            lot: lot_of(&row.request_id),
        })
    }
}

fn asked_of(row: &PolicyInputRow) -> Asked {
    let tier = |name: &Option<Name>| name.as_deref().and_then(Tier::from_name);
    Asked {
        slo: SloAsk {
            first_token_us: row.slo_first_token_us,
            whole_us: row.slo_whole_us,
            per_token_us: row.slo_per_token_us,
        },
        tier: tier(&row.tier_asked),
        tier_max: tier(&row.tier_asked_max),
    }
}

fn with_forecast(row: PolicyInputRow, reading: &ForecastReading) -> PolicyInputRow {
    let Forecast {
        lengths,
        services,
        drain_tokens_per_second,
        skill,
        calibration,
        queue,
        missed_share,
        mean_seconds,
        turned_away,
    } = &reading.forecast;
    let steps = queue.tiers.iter().zip(0u8..).flat_map(|(steps, tier)| {
        steps.iter().map(move |step| QueueStepRow {
            tier,
            start_by_us: step.start_by,
            tokens: step.tokens,
            requests: step.requests,
        })
    });
    let is_refused = !turned_away.lately.is_empty();
    let refused_row =
        |one: &Refused| RejectRow { at_us: one.at, tier: one.tier.number(), engine_seconds: one.engine_seconds };
    PolicyInputRow {
        forecast_as_of: reading.as_of,
        output_lengths: Some(lengths.to_vec()),
        services: Some(services.iter().map(service_row).collect()),
        drain_tokens_per_second: *drain_tokens_per_second,
        skill: Some(vec![skill.first.mean, skill.first.variance, skill.whole.mean, skill.whole.variance]),
        chance_offset: Some(calibration.offset),
        chance_slope: Some(calibration.slope),
        queue_steps: Some(steps.collect()),
        missed_share: Some(*missed_share),
        request_seconds: *mean_seconds,
        refused_since: turned_away.since,
        refused_lately: is_refused.then(|| turned_away.lately.iter().map(refused_row).collect()),
        ..row
    }
}

/// A service time as a row has it.
pub fn service_row((variant, time): &(String, ServiceTime)) -> ServiceInputRow {
    fn numbers<const N: usize>(fit: LinearFit<N>) -> Vec<f64> {
        fit.coefficients.into_iter().chain([fit.noise]).collect()
    }
    ServiceInputRow {
        variant: variant.clone(),
        chunk_tokens: time.chunk_tokens,
        prefill: time.prefill.map(numbers),
        decode: time.decode.map(numbers),
    }
}

fn forecast_of(row: &PolicyInputRow) -> ForecastReading {
    fn fit<const N: usize>(numbers: &[f64]) -> Option<LinearFit<N>> {
        let (noise, coefficients) = numbers.split_last()?;
        let coefficients = coefficients.try_into().ok()?;
        Some(LinearFit { samples: 0, coefficients, covariance: [[0.0; N]; N], noise: *noise })
    }
    let service = |row: &ServiceInputRow| {
        let time = ServiceTime {
            prefill: row.prefill.as_deref().and_then(fit),
            decode: row.decode.as_deref().and_then(fit),
            chunk_tokens: row.chunk_tokens,
        };
        (row.variant.clone(), time)
    };
    let lengths = |tier: usize| row.output_lengths.iter().flatten().nth(tier).cloned().unwrap_or_default();
    let steps = |tier: u8| {
        let steps = row.queue_steps.iter().flatten().filter(|step| step.tier == tier);
        steps.map(|s| QueueStep { start_by: s.start_by_us, tokens: s.tokens, requests: s.requests }).collect()
    };
    let skill = match row.skill.as_deref() {
        Some(&[first_mean, first_variance, whole_mean, whole_variance]) => Skill {
            first: Ratio { mean: first_mean, variance: first_variance },
            whole: Ratio { mean: whole_mean, variance: whole_variance },
        },
        _ => Skill::default(),
    };
    let refused_of = |row: &RejectRow| {
        Some(Refused { at: row.at_us, tier: Tier::of_number(row.tier)?, engine_seconds: row.engine_seconds })
    };
    let calibration = row.chance_offset.zip(row.chance_slope);
    let calibration = calibration.and_then(|(offset, slope)| Calibration::new(offset, slope));
    let forecast = Forecast {
        lengths: [0, 1, 2].map(lengths),
        services: row.services.iter().flatten().map(service).collect(),
        drain_tokens_per_second: row.drain_tokens_per_second,
        skill,
        // Earlier versions took chances as they were predicted.
        calibration: calibration.unwrap_or_default(),
        queue: QueueProfile { tiers: [0, 1, 2].map(steps) },
        // Earlier versions did not measure it.
        missed_share: row.missed_share.unwrap_or(0.0),
        mean_seconds: row.request_seconds,
        turned_away: Rejects {
            since: row.refused_since,
            lately: row.refused_lately.iter().flatten().filter_map(refused_of).collect(),
        },
    };
    ForecastReading { forecast, as_of: row.forecast_as_of }
}

/// The row of a look that moved the throttle, and nothing else.
pub fn tick_row(now: Micros, pressure: &Pressure) -> PolicyInputRow {
    let (throttle, queue) = (pressure.before, pressure.backlog.queue);
    PolicyInputRow {
        throttle_step: Some(Name::new_static(throttle.step.name())),
        throttle_since_us: Some(throttle.since),
        queued_requests: Some(queue.requests as u64),
        queued_tokens: Some(queue.tokens),
        queued_bytes: Some(queue.bytes),
        drain_tokens_per_second: pressure.backlog.drain_tokens_per_second,
        ..looked("tick", (now, &pressure.view), &PrefixReading::default(), &[])
    }
}

/// What waited when a row was read.
pub fn backlog_of(row: &PolicyInputRow) -> Backlog {
    let queue = QueueLoad {
        requests: row.queued_requests.and_then(|requests| usize::try_from(requests).ok()).unwrap_or(0),
        tokens: row.queued_tokens.unwrap_or(0),
        bytes: row.queued_bytes.unwrap_or(0),
    };
    Backlog { queue, drain_tokens_per_second: row.drain_tokens_per_second }
}

/// The row of a wait that ended without a placement.
pub fn wait_over_row(now: Micros, because: String) -> PolicyInputRow {
    PolicyInputRow {
        at: now,
        reading: Name::new_static("wait_over"),
        view_mode: Name::new_static(ViewMode::Off.name()),
        because: Some(because),
        ..PolicyInputRow::default()
    }
}

/// The throttle's state before the look of a row.
pub fn throttle_of(row: &PolicyInputRow) -> Option<ThrottleState> {
    let step = ThrottleStep::from_name(row.throttle_step.as_deref()?)?;
    Some(ThrottleState { step, since: row.throttle_since_us? })
}

fn looked(
    reading: &'static str,
    (now, view): (Micros, &ClusterView),
    prefixes: &PrefixReading,
    hashes: &[Vec<u64>],
) -> PolicyInputRow {
    let is_whole = prefixes.block_hashes(hashes).map(|kept| kept.len()).sum::<usize>() <= HASHES_MAX;
    let block_hashes = match is_whole {
        true => prefixes.block_hashes(hashes).map(<[u64]>::to_vec).collect(),
        false => Vec::new(),
    };
    PolicyInputRow {
        at: now,
        reading: Name::new_static(reading),
        view_mode: Name::new_static(view.mode.name()),
        view_as_of: view.as_of,
        instances: view.instances.iter().map(instance_row).collect(),
        bucket_seats: seat_rows(view),
        prompts_due: prompt_rows(view),
        cached_blocks: cached_rows(view),
        least_loaded: view.least_loaded.iter().map(|id| id.0).collect(),
        hits: prefixes.hits.iter().map(hit_row).collect(),
        hits_as_of: prefixes.as_of.filter(|_| is_whole),
        block_hashes,
        ..PolicyInputRow::default()
    }
}

fn instance_row(view: &InstanceView) -> InstanceInputRow {
    let (engine, FetchTimes([_, l2, l25, l3])) = (view.engine.as_ref(), view.fetch);
    InstanceInputRow {
        instance: view.instance.0,
        epoch: view.epoch.0,
        model: view.model.clone(),
        variant: view.variant.clone(),
        is_ready: view.is_ready,
        leased_tokens: view.leased_tokens,
        leased_requests: view.leased_requests,
        reported_at: engine.map(|engine| engine.reported_at),
        running: engine.map(|engine| engine.running),
        waiting: engine.map(|engine| engine.waiting),
        queued_prefill_tokens: engine.map(|engine| engine.queued_prefill_tokens),
        context_tokens: engine.map(|engine| engine.context_tokens),
        blocks_used: engine.map(|engine| engine.blocks_used),
        blocks_total: engine.map(|engine| engine.blocks_total),
        prefill_tokens_per_second: engine.and_then(|engine| engine.prefill_tokens_per_second),
        decode_step_seconds: engine.and_then(|engine| engine.decode_step_seconds),
        prefill_error: engine.and_then(|engine| engine.prefill_error),
        decode_error: engine.and_then(|engine| engine.decode_error),
        l2_fetch_seconds_per_token: l2,
        l25_fetch_seconds_per_token: l25,
        l3_fetch_seconds_per_token: l3,
    }
}

/// The fleet as the policies of a row saw it.
pub fn view_of(row: &PolicyInputRow) -> Option<ClusterView> {
    Some(ClusterView {
        mode: ViewMode::from_name(&row.view_mode)?,
        as_of: row.view_as_of,
        instances: row.instances.iter().map(|instance| instance_of(instance, row)).collect(),
        least_loaded: row.least_loaded.iter().map(|id| InstanceId(*id)).collect(),
    })
}

/// `None` without a plan.
fn seat_rows(view: &ClusterView) -> Option<Vec<SeatRow>> {
    let seats = view.instances.iter().filter_map(|instance| {
        let BucketSeat { plan, from_tokens, to_tokens, foreign_tokens } = instance.bucket?;
        Some(SeatRow { instance: instance.instance.0, plan, from_tokens, to_tokens, foreign_tokens })
    });
    let seats: Vec<_> = seats.collect();
    (!seats.is_empty()).then_some(seats)
}

/// `None` without such prompts.
fn prompt_rows(view: &ClusterView) -> Option<Vec<PromptDueRow>> {
    let prompts = view.instances.iter().flat_map(|instance| {
        let row = |prompt: &PromptDue| PromptDueRow {
            instance: instance.instance.0,
            due_us: prompt.due,
            tokens: prompt.tokens,
        };
        instance.prompts.iter().map(row)
    });
    let prompts: Vec<_> = prompts.collect();
    (!prompts.is_empty()).then_some(prompts)
}

/// `None` if it is known of none.
fn cached_rows(view: &ClusterView) -> Option<Vec<CachedRow>> {
    let row = |view: &InstanceView| Some(CachedRow { instance: view.instance.0, blocks: view.cached_blocks? });
    let cached: Vec<_> = view.instances.iter().filter_map(row).collect();
    (!cached.is_empty()).then_some(cached)
}

fn instance_of(row: &InstanceInputRow, of: &PolicyInputRow) -> InstanceView {
    let seat = of.bucket_seats.iter().flatten().find(|seat| seat.instance == row.instance);
    let prompts = of.prompts_due.iter().flatten().filter(|prompt| prompt.instance == row.instance);
    // In the order of their ids, as the instances are.
    let cached = of.cached_blocks.as_deref().and_then(|all| {
        let place = all.binary_search_by_key(&row.instance, |cached| cached.instance).ok()?;
        Some(all[place])
    });
    let engine = || {
        Some(EngineView {
            reported_at: row.reported_at?,
            running: row.running?,
            waiting: row.waiting?,
            queued_prefill_tokens: row.queued_prefill_tokens?,
            context_tokens: row.context_tokens?,
            blocks_used: row.blocks_used?,
            blocks_total: row.blocks_total?,
            prefill_tokens_per_second: row.prefill_tokens_per_second,
            decode_step_seconds: row.decode_step_seconds,
            prefill_error: row.prefill_error,
            decode_error: row.decode_error,
        })
    };
    InstanceView {
        instance: InstanceId(row.instance),
        epoch: ProcessEpoch(row.epoch),
        model: row.model.clone(),
        variant: row.variant.clone(),
        is_ready: row.is_ready,
        leased_tokens: row.leased_tokens,
        leased_requests: row.leased_requests,
        fetch: FetchTimes([
            None,
            row.l2_fetch_seconds_per_token,
            row.l25_fetch_seconds_per_token,
            row.l3_fetch_seconds_per_token,
        ]),
        bucket: seat.map(|seat| BucketSeat {
            plan: seat.plan,
            from_tokens: seat.from_tokens,
            to_tokens: seat.to_tokens,
            foreign_tokens: seat.foreign_tokens,
        }),
        prompts: prompts.map(|prompt| PromptDue { due: prompt.due_us, tokens: prompt.tokens }).collect(),
        cached_blocks: cached.map(|cached| cached.blocks),
        engine: engine(),
    }
}

fn hit_row(hit: &PrefixHit) -> HitRow {
    let LevelTokens([_, l2_tokens, l25_tokens, l3_tokens]) = hit.tokens;
    HitRow { instance: hit.instance.0, tokens: hit.tokens.total(), l2_tokens, l25_tokens, l3_tokens }
}

fn hit_of(row: &HitRow) -> PrefixHit {
    let below = LevelTokens([0, row.l2_tokens, row.l25_tokens, row.l3_tokens]);
    let mut tokens = below;
    tokens.0[0] = row.tokens.saturating_sub(below.total());
    PrefixHit { instance: InstanceId(row.instance), tokens }
}

/// The look at the cache index of a row.
pub fn prefixes_of(row: &PolicyInputRow) -> PrefixReading {
    let blocks = row.block_hashes.iter().map(|hashes| hashes.len().saturating_sub(1)).collect();
    PrefixReading { hits: PrefixHits::new(row.hits.iter().map(hit_of).collect()), as_of: row.hits_as_of, blocks }
}

#[cfg(test)]
#[path = "reading_tests.rs"]
mod tests;
