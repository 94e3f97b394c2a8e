//! A modelled fleet that serves a recorded trace: the policies of the gateway route, lease and plan, the instances are modelled.
//!
//! Time is the simulation's own. Invariants: the same trace and settings give the same figures; every request is served. Views
//! are exact and of this moment. Cost: O(steps × sequences), and a routing a request. State: the trace, a number or two a request.

use std::{collections::VecDeque, time::Duration};

use engine::runner::simulated::CostModel;
use operators::{ATOM_TOKENS, atom_of};

use super::instance::{Instance, KV_TOKENS, RUNNING_MAX, Sequence};
use crate::{
    config,
    ids::{InstanceId, Micros, ProcessEpoch},
    load::trace::TraceRow,
    policy::{
        BucketSeat, CapacityCurve, CapacityPoint, ClusterView, CutPolicy, EngineView, FetchTimes, Fit, InstanceView,
        LoadAverage, PlanInForce, PlanLook, PrefixHits, Replan, RouteRequest, Tier, ViewMode, atom_work, imbalance,
        optimal_cut, range_of, replan, route, scan_cut,
    },
};

const LOOK_US: u64 = 1_000_000;
/// How often the plans that would be made are measured.
const PLAN_LOOK_US: Micros = 10_000_000;
/// Longest time between two tokens that is good service, for the capacity curve.
const ITL_MAX_US: f64 = 50_000.0;

/// How the fleet is driven.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drive<'a> {
    pub rows: &'a [TraceRow],
    pub instances: u32,
    pub cut: CutPolicy,
    /// Times as fast as recorded.
    pub speed: f64,
    pub policy: &'a config::Policy,
}

/// What came of one request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcome {
    pub prompt: u32,
    pub output: u32,
    pub arrived_us: u64,
    pub first_us: u64,
    pub finished_us: u64,
}

/// What came of a drive.
#[derive(Debug, Default)]
pub(super) struct Driven {
    pub outcomes: Vec<Outcome>,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// Largest over mean load of the instances, once a second while there is load.
    pub imbalance: Vec<f64>,
    /// The same of the plans that the scan and the optimal partition would make then, of an uncut fleet.
    pub plan_imbalance: [Vec<f64>; 2],
    pub plans: usize,
    pub moved: usize,
    pub borrowed: usize,
    /// Looks of the gateway at a request that had to wait.
    pub waits: usize,
    /// Instance time spent in steps, over that of the whole drive.
    pub utilisation: f64,
}

/// The capacity curve of the modelled instance, as `evenkeel calibrate` measures it.
pub(super) fn curve(cost: &CostModel) -> CapacityCurve {
    let point = |length: u32| {
        let each = cost.decode_sequence_us + cost.context_token_us * f64::from(length);
        let in_time = (ITL_MAX_US - cost.base_us) / each;
        let in_memory = KV_TOKENS as f64 / f64::from(length);
        let sequences = in_time.min(in_memory).clamp(1.0, RUNNING_MAX as f64).floor();
        CapacityPoint { length_tokens: length, share_per_token: 1.0 / (sequences * f64::from(length)) }
    };
    let lengths = (5..18).map(|power| 1 << power);
    CapacityCurve::new(lengths.map(point).collect()).expect("invariant: lengths rise, fractions are within 0 and 1")
}

struct Fleet<'a> {
    drive: Drive<'a>,
    cost: CostModel,
    curve: CapacityCurve,
    instances: Vec<Instance>,
    ids: Vec<InstanceId>,
    queue: VecDeque<usize>,
    average: LoadAverage,
    plan: Option<PlanInForce>,
    turn: u64,
    busy_us: u64,
    driven: Driven,
}

/// Serves the trace.
pub(super) fn serve(drive: Drive<'_>) -> Driven {
    let cost = CostModel::default();
    let mut fleet = Fleet {
        drive,
        cost,
        curve: curve(&cost),
        instances: (0..drive.instances).map(|_| Instance::default()).collect(),
        ids: (0..drive.instances).map(InstanceId).collect(),
        queue: VecDeque::new(),
        average: LoadAverage::default(),
        plan: None,
        turn: 0,
        busy_us: 0,
        driven: Driven { outcomes: vec![Outcome::default(); drive.rows.len()], ..Driven::default() },
    };
    let arrival = |row: &TraceRow| (row.at_us as f64 / drive.speed) as u64;
    let (mut next, mut look_us, mut now) = (0, 0, 0);
    loop {
        let step = fleet.instances.iter().filter_map(|instance| instance.step_end_us).min();
        let arrives = drive.rows.get(next).map(arrival);
        let Some(event) = step.into_iter().chain(arrives).min() else { break };
        if look_us <= event {
            fleet.look(look_us);
            look_us += LOOK_US;
            continue;
        }
        now = event;
        if arrives == Some(now) {
            fleet.arrive(next, now);
            next += 1;
        } else {
            fleet.end_steps(now);
        }
        fleet.pump(now);
        fleet.begin_steps(now);
    }
    let mut driven = fleet.driven;
    driven.utilisation = fleet.busy_us as f64 / (now.max(1) * u64::from(drive.instances)) as f64;
    driven
}

impl Fleet<'_> {
    fn arrive(&mut self, request: usize, now: u64) {
        let row = &self.drive.rows[request];
        let (prompt, output) = (row.input.clamp(1, 300_000) as u32, row.output.clamp(1, 100_000) as u32);
        self.driven.outcomes[request] = Outcome { prompt, output, arrived_us: now, ..Outcome::default() };
        self.driven.prompt_tokens += u64::from(prompt);
        self.queue.push_back(request);
    }

    fn end_steps(&mut self, now: u64) {
        let rows = self.drive.rows;
        for instance in self.instances.iter_mut().filter(|instance| instance.step_end_us == Some(now)) {
            let result = instance.end(|request| &rows[request].blocks);
            for request in result.first {
                self.driven.outcomes[request].first_us = now;
            }
            for sequence in result.finished {
                self.driven.outcomes[sequence.request].finished_us = now;
            }
        }
    }

    fn begin_steps(&mut self, now: u64) {
        for instance in self.instances.iter_mut().filter(|instance| instance.step_end_us.is_none()) {
            instance.begin(now, &self.cost);
            self.busy_us += instance.step_end_us.map_or(0, |end| end - now);
        }
    }

    /// Routes from the head of the queue while there is room.
    fn pump(&mut self, now: u64) {
        while let Some(request) = self.queue.front().copied() {
            if !self.place(request, now) {
                self.driven.waits += 1;
                return;
            }
            self.queue.pop_front();
        }
    }

    fn place(&mut self, request: usize, now: u64) -> bool {
        let Outcome { prompt, output, .. } = self.driven.outcomes[request];
        let blocks = &self.drive.rows[request].blocks;
        let hits = self.instances.iter().map(|instance| instance.cache.hit_tokens(blocks));
        let hits = self.ids.iter().copied().zip(hits).filter(|(_, tokens)| *tokens > 0);
        let hits = PrefixHits::near(hits);
        let ask = RouteRequest {
            model: "m",
            variants: &[],
            tier: Tier::Medium,
            prompt_tokens: prompt,
            max_tokens: output,
            hits: &hits,
            turn: self.turn,
            now: now as Micros,
            excluded: &[],
            spared: &[],
        };
        let Ok(placement) = route(&self.view(now), &ask, &self.drive.policy.route) else { return false };
        self.turn += 1;
        let cost = placement.candidates.iter().find(|cost| cost.instance == placement.instance);
        let cached = cost.map_or(0, |cost| cost.hit_tokens).min(prompt - 1);
        let is_borrowed = cost.is_some_and(|cost| cost.bucket.fit == Fit::Borrows);
        self.driven.borrowed += usize::from(is_borrowed);
        self.driven.cached_tokens += u64::from(cached);
        let foreign = placement.borrowed.map_or(0, |borrowed| borrowed.tokens);
        self.instances[placement.instance.0 as usize].take(Sequence::new(request, (prompt, cached), output, foreign));
        true
    }

    fn view(&self, now: u64) -> ClusterView {
        let rate = 1e6 / self.cost.prefill_token_us;
        let seat = |id: InstanceId, foreign_tokens: u64| {
            let range = range_of(&self.plan.as_ref()?.buckets, id)?;
            let (from_tokens, to_tokens) =
                (range.from_atom * ATOM_TOKENS, range.to_atom.map(|atom| atom * ATOM_TOKENS));
            Some(BucketSeat { plan: 1, from_tokens, to_tokens, foreign_tokens })
        };
        let instance = |(id, instance): (&InstanceId, &Instance)| InstanceView {
            instance: *id,
            epoch: ProcessEpoch(1),
            model: "m".into(),
            variant: "default".into(),
            is_ready: true,
            leased_tokens: instance.leased_tokens,
            leased_requests: (instance.running.len() + instance.waiting.len()) as u32,
            fetch: FetchTimes::default(),
            bucket: seat(*id, instance.foreign_tokens),
            prompts: Vec::new(),
            cached_blocks: None,
            engine: Some(EngineView {
                running: instance.running.len() as u32,
                waiting: instance.waiting.len() as u32,
                queued_prefill_tokens: instance.queued_prefill(),
                prefill_tokens_per_second: Some(rate),
                decode_step_seconds: Some((self.cost.base_us + self.cost.decode_sequence_us) / 1e6),
                prefill_error: Some(0.0),
                decode_error: Some(0.0),
                ..EngineView::default()
            }),
        };
        let instances = self.ids.iter().zip(&self.instances).map(instance).collect();
        ClusterView { mode: ViewMode::Exact, as_of: Some(now as Micros), instances, least_loaded: Vec::new() }
    }

    /// Measures the load, and plans.
    fn look(&mut self, now: u64) {
        let work = |s: &Sequence| {
            let uncached = f64::from(s.context() - s.cached);
            (atom_of(s.context()), uncached, uncached * self.curve.share_per_token(s.context()))
        };
        let loads: Vec<f64> =
            self.instances.iter().map(|instance| instance.sequences().map(|s| work(s).2).sum()).collect();
        let mean = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
        if mean > 0.0 {
            self.driven.imbalance.push(loads.iter().copied().fold(0.0, f64::max) / mean);
        }
        let live = self.instances.iter().flat_map(Instance::sequences).map(work);
        let live: Vec<_> = live.map(|(atom, tokens, _)| (atom, tokens)).collect();
        let (config, now) = (&self.drive.policy.buckets, now as Micros);
        self.average.take(now, live, config.average);
        let atoms = atom_work(self.average.tokens(), &self.curve, ATOM_TOKENS);
        if self.drive.cut == CutPolicy::Off && now % PLAN_LOOK_US == 0 {
            let cuts = [scan_cut(&atoms, self.ids.len()), optimal_cut(&atoms, self.ids.len())];
            let samples = self.driven.plan_imbalance.iter_mut().zip(cuts);
            samples.for_each(|(samples, cut)| samples.extend(imbalance(&cut)));
        }
        let look = PlanLook { now, policy: self.drive.cut, atoms: &atoms, fleet: &self.ids, variants: 1 };
        match replan(self.plan.as_ref(), &look, config) {
            Replan::Keep => {}
            Replan::KeepCompared => self.plan.iter_mut().for_each(|plan| plan.looked = now),
            Replan::Replace(new) => {
                self.driven.plans += 1;
                self.driven.moved += new.moved;
                self.plan = Some(new.plan);
            }
            Replan::Off(_) => self.plan = None,
        }
    }
}

/// The time between two tokens that a request saw, on average.
pub(super) fn inter_token(outcome: &Outcome) -> Option<Duration> {
    let gaps = outcome.output.checked_sub(1).filter(|gaps| *gaps > 0)?;
    Some(Duration::from_micros((outcome.finished_us - outcome.first_us) / u64::from(gaps)))
}
