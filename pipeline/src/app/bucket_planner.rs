//! The bucket planner: from the live load by length to plans in force, and to rows of `buckets` (SPEC B1 to B3, B5).
//!
//! Every [`LOOK`] each model's live uncached load by atom goes into its moving average, weighed by the capacity curve, and
//! `policy::replan` says what becomes of its plan. A new plan is in the book that the gateway's views read, and a row a
//! bucket, from which the dataflow keeps the load of each bucket. A model that is not cut is one bucket, and its row says why.
//!
//! Invariants: what the policies read of a plan is in their recorded inputs (SPEC X2); views that are stale teach nothing and
//! change no plan. Cost: O(live atoms) a look, and a cut when one is due. State: a plan and an average a model with instances,
//! at most [`MODELS_MAX`]; further models have no plan.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use operators::ATOM_TOKENS;

use super::{
    capacity_file::{self, Calibrated},
    glue::{Views, WallClock},
};
use crate::{
    bus::Bus,
    config::Config,
    dataflow::{Names, ViewState},
    gateway::{
        deps::{Clock, ViewSource},
        instances::{InstanceEntry, InstanceState},
    },
    ids::{InstanceId, Micros},
    policy::{
        AtomRange, AtomWork, BucketConfig, BucketSeat, CapacityCurve, CapacitySource, CutPolicy, LoadAverage, NewPlan,
        NotCut, PlanInForce, PlanLook, Replan, Trigger, atom_work, replan,
    },
    rows::{BucketRow, FaultRow},
};

/// How often the load is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Models that are planned.
const MODELS_MAX: usize = 256;

/// What is known of a model when the server starts.
#[derive(Debug, Clone)]
pub(super) struct ModelFacts {
    /// Its family, as in its file; empty: unknown.
    pub family: String,
    pub curve: CapacityCurve,
    pub source: CapacitySource,
}

#[derive(Default)]
struct ModelPlan {
    average: LoadAverage,
    plan: Option<PlanInForce>,
    id: u64,
    /// Why there is no plan, as last told.
    told: Option<NotCut>,
}

/// See the module.
pub(super) struct Planner {
    config: BucketConfig,
    facts: BTreeMap<String, ModelFacts>,
    models: BTreeMap<String, ModelPlan>,
}

/// What of a model serves now.
struct Fleet {
    ready: Vec<InstanceId>,
    variants: usize,
}

impl Planner {
    pub(super) fn new(config: BucketConfig, facts: BTreeMap<String, ModelFacts>) -> Self {
        Self { config, facts, models: BTreeMap::new() }
    }

    /// One look: new plans as rows.
    fn look(
        &mut self,
        now: Micros,
        state: &ViewState,
        (entries, names): (&[Arc<InstanceEntry>], &Names),
    ) -> Vec<BucketRow> {
        let mut rows = Vec::new();
        let fleets = fleets(entries);
        self.models.retain(|model, _| fleets.contains_key(model.as_str()));
        for (model, fleet) in fleets {
            if self.models.len() >= MODELS_MAX && !self.models.contains_key(model) {
                continue;
            }
            let number = names.number(model);
            let atoms = state.model_atoms.range((number, 0)..=(number, u32::MAX));
            let load = atoms.map(|((_, atom), total)| (*atom, total.uncached as f64));
            rows.extend(self.look_at(now, (model, &fleet), load));
        }
        rows
    }

    fn look_at(
        &mut self,
        now: Micros,
        (model, fleet): (&str, &Fleet),
        load: impl Iterator<Item = (u32, f64)>,
    ) -> Vec<BucketRow> {
        let facts = self.facts.get(model);
        let family = facts.map_or("", |facts| &facts.family);
        let curve = facts.map_or_else(|| CapacityCurve::flat(1), |facts| facts.curve.clone());
        let known = self.models.entry(model.to_string()).or_default();
        known.average.take(now, load, self.config.average);
        let atoms = atom_work(known.average.tokens(), &curve, ATOM_TOKENS);
        let policy = self.config.policy_of(family);
        let look = PlanLook { now, policy, atoms: &atoms, fleet: &fleet.ready, variants: fleet.variants };
        let capacity = facts.map_or("default", |facts| facts.source.name());
        let next_id = (known.id + 1).max(now.max(0) as u64);
        match replan(known.plan.as_ref(), &look, &self.config) {
            Replan::Keep => Vec::new(),
            Replan::KeepCompared => {
                known.plan.iter_mut().for_each(|plan| plan.looked = now);
                Vec::new()
            }
            Replan::Replace(new) => {
                (known.id, known.told) = (next_id, None);
                let rows = cut_rows(&new, BucketRow { capacity: capacity.into(), ..head(now, (known.id, model)) });
                known.plan = Some(new.plan);
                rows
            }
            Replan::Off(reason) if known.told == Some(reason) => Vec::new(),
            Replan::Off(reason) => {
                (known.id, known.told, known.plan) = (next_id, Some(reason), None);
                let row = BucketRow { capacity: capacity.into(), ..head(now, (known.id, model)) };
                vec![uncut_row(reason, row, (policy, &atoms, &fleet.ready))]
            }
        }
    }

    /// The places of all instances that are in a plan.
    fn seats(&self) -> HashMap<InstanceId, BucketSeat> {
        let plans = self.models.values().filter_map(|known| Some((known.id, known.plan.as_ref()?)));
        let buckets = plans.flat_map(|(id, plan)| plan.buckets.iter().map(move |bound| (id, bound)));
        buckets
            .flat_map(|(plan, bound)| {
                let (from_tokens, to_tokens) = tokens(bound.bucket.range);
                let seat = BucketSeat { plan, from_tokens, to_tokens, foreign_tokens: 0 };
                bound.instances.iter().map(move |instance| (*instance, seat))
            })
            .collect()
    }
}

fn fleets(entries: &[Arc<InstanceEntry>]) -> BTreeMap<&str, Fleet> {
    let mut fleets: BTreeMap<&str, Vec<&InstanceEntry>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.state == InstanceState::Ready) {
        fleets.entry(&entry.model).or_default().push(entry);
    }
    let fleet = |entries: Vec<&InstanceEntry>| {
        let mut ready: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        let mut variants: Vec<_> = entries.iter().map(|entry| &entry.variant).collect();
        ready.sort_unstable();
        variants.sort_unstable();
        variants.dedup();
        Fleet { ready, variants: variants.len() }
    };
    fleets.into_iter().map(|(model, entries)| (model, fleet(entries))).collect()
}

/// A range of atoms in tokens.
fn tokens(range: AtomRange) -> (u32, Option<u32>) {
    let tokens = |atom: u32| atom.saturating_mul(ATOM_TOKENS);
    (tokens(range.from_atom), range.to_atom.map(tokens))
}

fn head(at: Micros, (plan, model): (u64, &str)) -> BucketRow {
    BucketRow { at, plan, model: model.into(), ..BucketRow::default() }
}

fn cut_rows(new: &NewPlan, head: BucketRow) -> Vec<BucketRow> {
    let buckets = &new.plan.buckets;
    (0..)
        .zip(buckets)
        .map(|(bucket, bound)| {
            let (from_tokens, to_tokens) = tokens(bound.bucket.range);
            BucketRow {
                state: "cut".into(),
                trigger: new.trigger.name().into(),
                cut: new.plan.policy.name().into(),
                bucket,
                buckets: buckets.len() as u32,
                from_tokens,
                to_tokens,
                instances: bound.instances.iter().map(|instance| instance.0).collect(),
                load: bound.bucket.load,
                target_load: new.target,
                imbalance: Some(new.imbalance),
                imbalance_before: new.imbalance_before,
                moved: new.moved as u32,
                ..head.clone()
            }
        })
        .collect()
}

fn uncut_row(
    reason: NotCut,
    head: BucketRow,
    (policy, atoms, fleet): (CutPolicy, &[AtomWork], &[InstanceId]),
) -> BucketRow {
    let load = AtomRange::ALL.load(atoms);
    BucketRow {
        state: reason.name().into(),
        trigger: Trigger::Fleet.name().into(),
        cut: policy.name().into(),
        buckets: 1,
        instances: fleet.iter().map(|instance| instance.0).collect(),
        load,
        target_load: load / fleet.len().max(1) as f64,
        ..head
    }
}

/// What the configuration and the calibration say of a model served.
async fn facts(config: &Config, (model, family): (&str, &str), bus: &Bus) -> ModelFacts {
    let path = match &config.workers.capacity_file {
        path if path.as_os_str().is_empty() => config.server.data_dir.join("capacity.parquet"),
        path => path.clone(),
    };
    let default_tokens_max = config.policy.route.lease_tokens_max;
    let wanted = Calibrated { model, threads: config.workers.threads as u32, default_tokens_max };
    let (curve, source) = capacity_file::load(&path, wanted);
    if let (CapacitySource::Default(detail), true) = (&source, path.exists()) {
        tracing::warn!(detail, "no capacity curve");
        let (component, kind) = ("policy".into(), "capacity_curve".into());
        let row = FaultRow { at: WallClock.now(), component, kind, detail: detail.clone(), count: 1 };
        let _ = bus.publish(row).await;
    }
    ModelFacts { family: family.into(), curve, source }
}

/// Plans until the server ends. `models`: names and families. Without a dataflow there is nothing to plan from, and
/// nothing is cut.
pub(super) async fn run(config: Arc<Config>, models: Vec<(String, String)>, (bus, views): (Bus, Arc<Views>)) {
    let Some(flow) = views.flow.clone() else { return };
    let mut known = BTreeMap::new();
    for (model, family) in models {
        let facts = facts(&config, (&model, &family), &bus).await;
        known.insert(model, facts);
    }
    let mut planner = Planner::new(config.policy.buckets.clone(), known);
    let mut interval = tokio::time::interval(LOOK);
    loop {
        interval.tick().await;
        let now = WallClock.now();
        if !views.cluster(now).mode.is_usable() {
            continue;
        }
        let (state, entries) = (flow.load(), views.directory.load());
        let rows = planner.look(now, &state, (&entries, flow.names()));
        if !rows.is_empty() {
            views.plans.set(planner.seats());
        }
        for row in rows {
            let _ = bus.publish(row).await;
        }
    }
}

#[cfg(test)]
#[path = "bucket_planner_tests.rs"]
mod tests;
