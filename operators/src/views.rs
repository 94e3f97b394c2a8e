//! All operators on one worker, and their changes epoch by epoch.
//!
//! Invariant: the callback gets each epoch's changes once, in order, whole as far as this worker's keys go, and only
//! when all workers have closed the epoch; keys of different workers are disjoint. Each advance of the epoch ends in a
//! call for the last epoch closed, with or without changes, so that readers can tell "nothing changed" from "nothing
//! came".
//! Cost: one sort per epoch of what changed. State: the changes of epochs not yet closed.
use std::{cell::Cell, collections::BTreeMap, rc::Rc};

use differential_dataflow::{AsCollection, VecCollection};
use serde::{Deserialize, Serialize};
use timely::{
    dataflow::{
        StreamVec,
        channels::pact::Pipeline,
        operators::{Concat, Exchange, generic::builder_rc::OperatorBuilder},
    },
    worker::Worker,
};

use crate::{
    ArrivalTrend, ArrivalTrendConfig, ArrivalTrendRow, AtomLoad, AtomLoadConfig, BlocksHeld, BucketLoad,
    BucketLoadConfig, BucketPlan, CacheIndex, CacheIndexConfig, CacheKey, CacheReport, CurveRow, Diagnosis,
    DiagnosisConfig, DiagnosisInput, DiagnosisRow, DistributionConfig, DistributionRow, Funnel, FunnelCase,
    FunnelConfig, FunnelRow, FunnelWindow, FunnelWindowConfig, FunnelWindowRow, InstanceState, InstanceStateConfig,
    InstanceStates, LoadKey, LoadTotal, OutputLength, OutputLengthConfig, OutputLengthRow, Refused,
    RequestDistribution, ReuseDistance, ReuseDistanceConfig, ServiceTimeConfig, ServiceTimeRow, ServiceTimes,
    SessionActivity, SessionConfig, SessionRow, atom_load,
    inputs::{FeedConfig, FlowInputs},
    rows::{KvRow, LoadRow, PromptRow, StepRow, TrafficRow},
};

/// Where a worker's changes are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// On the worker that has the key.
    #[default]
    Stay,
    /// All on worker 0: for dataflows over several processes, where one process reads the views. Costs one exchange of what
    /// changed.
    ToFirst,
}

/// Bounds and windows of everything on a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowConfig {
    pub feed: FeedConfig,
    pub load: AtomLoadConfig,
    pub buckets: BucketLoadConfig,
    pub cache: CacheIndexConfig,
    pub distribution: DistributionConfig,
    pub sessions: SessionConfig,
    pub instances: InstanceStateConfig,
    pub reuse: ReuseDistanceConfig,
    pub funnel: FunnelConfig,
    pub funnel_window: FunnelWindowConfig,
    pub diagnosis: DiagnosisConfig,
    pub service_time: ServiceTimeConfig,
    pub output_length: OutputLengthConfig,
    pub arrival_trend: ArrivalTrendConfig,
    pub gather: Gather,
}

/// The inputs of a dataflow under construction.
pub struct InputStreams<'scope> {
    pub load: StreamVec<'scope, u64, LoadRow>,
    pub kv: StreamVec<'scope, u64, KvRow>,
    pub traffic: StreamVec<'scope, u64, TrafficRow>,
    pub steps: StreamVec<'scope, u64, StepRow>,
    pub prompts: StreamVec<'scope, u64, PromptRow>,
    pub funnel: StreamVec<'scope, u64, FunnelRow>,
    pub diagnosis: StreamVec<'scope, u64, DiagnosisInput>,
    pub plans: StreamVec<'scope, u64, BucketPlan>,
    /// Reports of the feeder itself.
    pub late: StreamVec<'scope, u64, Refused>,
}

/// The outputs of all operators.
#[derive(Clone)]
pub struct ViewStreams<'scope> {
    pub totals: VecCollection<'scope, u64, (LoadKey, LoadTotal), isize>,
    pub blocks: VecCollection<'scope, u64, CacheKey, isize>,
    pub cache_reports: StreamVec<'scope, u64, CacheReport>,
    pub distribution: StreamVec<'scope, u64, DistributionRow>,
    pub sessions: StreamVec<'scope, u64, SessionRow>,
    pub instances: StreamVec<'scope, u64, InstanceState>,
    pub curves: StreamVec<'scope, u64, CurveRow>,
    pub funnel: StreamVec<'scope, u64, FunnelCase>,
    pub funnel_windows: StreamVec<'scope, u64, FunnelWindowRow>,
    pub diagnosis: StreamVec<'scope, u64, DiagnosisRow>,
    pub service_times: StreamVec<'scope, u64, ServiceTimeRow>,
    pub output_lengths: StreamVec<'scope, u64, OutputLengthRow>,
    pub arrival_trends: StreamVec<'scope, u64, ArrivalTrendRow>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

impl ViewStreams<'_> {
    /// Everything on worker 0.
    fn gathered(self) -> Self {
        Self {
            totals: self.totals.inner.exchange(|_| 0).as_collection(),
            blocks: self.blocks.inner.exchange(|_| 0).as_collection(),
            cache_reports: self.cache_reports.exchange(|_| 0),
            distribution: self.distribution.exchange(|_| 0),
            sessions: self.sessions.exchange(|_| 0),
            instances: self.instances.exchange(|_| 0),
            curves: self.curves.exchange(|_| 0),
            funnel: self.funnel.exchange(|_| 0),
            funnel_windows: self.funnel_windows.exchange(|_| 0),
            diagnosis: self.diagnosis.exchange(|_| 0),
            service_times: self.service_times.exchange(|_| 0),
            output_lengths: self.output_lengths.exchange(|_| 0),
            arrival_trends: self.arrival_trends.exchange(|_| 0),
            refused: self.refused.exchange(|_| 0),
        }
    }
}

/// What changed in one epoch, for the keys of one worker; each list is sorted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ViewChanges {
    /// Everything up to this epoch is complete.
    pub epoch: u64,
    /// New total per `(instance, atom)`; zero where nothing is left.
    pub atom: Vec<((u32, u32), LoadTotal)>,
    /// New total per atom over all instances.
    pub atom_total: Vec<(u32, LoadTotal)>,
    /// New total per instance over all atoms.
    pub instance_total: Vec<(u32, LoadTotal)>,
    pub region_total: Vec<(u16, LoadTotal)>,
    pub model_total: Vec<(u32, LoadTotal)>,
    /// New total per `(model, tier)`.
    pub group_total: Vec<((u32, u8), LoadTotal)>,
    /// New total per `(model, atom)`: what a bucket plan is cut from.
    pub model_atom: Vec<((u32, u32), LoadTotal)>,
    /// New total per `(model, bucket)` of the plan in force.
    pub bucket_total: Vec<((u32, u32), LoadTotal)>,
    /// Blocks that came (+1) and went (-1), by `(hash, instance, level)`; feed for `PrefixIndex::apply`.
    pub cache: Vec<(CacheKey, i64)>,
    /// Trust, audits and requests of the cache index.
    pub cache_reports: Vec<CacheReport>,
    pub distribution: Vec<DistributionRow>,
    /// At the end of each window.
    pub sessions: Vec<SessionRow>,
    pub instances: Vec<InstanceState>,
    pub curves: Vec<CurveRow>,
    pub funnel: Vec<FunnelCase>,
    pub funnel_windows: Vec<FunnelWindowRow>,
    pub diagnosis: Vec<DiagnosisRow>,
    pub service_times: Vec<ServiceTimeRow>,
    pub output_lengths: Vec<OutputLengthRow>,
    /// At the end of each period.
    pub arrival_trends: Vec<ArrivalTrendRow>,
    pub refused: Vec<Refused>,
}

impl ViewChanges {
    /// True if nothing but the epoch changed.
    pub fn is_empty(&self) -> bool {
        *self == Self { epoch: self.epoch, ..Self::default() }
    }
}

/// What the worker's thread holds while the dataflow lives.
pub struct FlowHandles {
    pub inputs: FlowInputs,
    closed: Closed,
}

impl FlowHandles {
    /// The last epoch handed to the callback; `None` before the first.
    pub fn closed(&self) -> Option<u64> {
        self.closed.get()
    }
}

type Closed = Rc<Cell<Option<u64>>>;

/// Builds the dataflow on a worker; every worker must, in the same order as its other dataflows. `on_changes` gets the
/// worker's index and each closed epoch's changes, on the worker's thread. A worker that rows never enter at may drop its
/// inputs at once: those of the others then say how far time is.
///
/// ```
/// use operators::{FlowConfig, FlowRows, LoadRow, views};
///
/// timely::execute_directly(|worker| {
///     let mut flow = views::build(worker, &FlowConfig::default(), |_worker, changes| {
///         println!("as of {}: {} atoms changed", changes.epoch, changes.atom.len());
///     });
///     let row = LoadRow { request: 1, instance: 0, seq: 1, tokens: 900, ..LoadRow::default() };
///     flow.inputs.send(&mut FlowRows { load: vec![row], ..FlowRows::default() }).unwrap();
///     flow.inputs.advance(1).unwrap();
///     while flow.closed().is_none() {
///         worker.step_or_park(None);
///     }
///     assert_eq!(flow.closed(), Some(0));
/// });
/// ```
pub fn build(
    worker: &mut Worker,
    config: &FlowConfig,
    on_changes: impl FnMut(usize, ViewChanges) + 'static,
) -> FlowHandles {
    build_beside(worker, (config, BlocksHeld::Own), on_changes)
}

/// [`build`] beside an index of the blocks held, which `on_changes` or somebody behind it keeps.
pub fn build_beside(
    worker: &mut Worker,
    (config, held): (&FlowConfig, BlocksHeld),
    on_changes: impl FnMut(usize, ViewChanges) + 'static,
) -> FlowHandles {
    let (index, closed) = (worker.index(), Closed::default());
    let inputs = worker.dataflow_named("Views", |scope| {
        let (inputs, streams) = FlowInputs::new(scope, config.feed);
        let mut outputs = wire(streams, (config, held));
        if config.gather == Gather::ToFirst {
            outputs = outputs.gathered();
        }
        deliver(outputs, closed.clone(), (index, on_changes));
        inputs
    });
    FlowHandles { inputs, closed }
}

/// Puts the operators on the inputs; for dataflows that have more to add.
pub fn wire<'scope>(inputs: InputStreams<'scope>, (config, held): (&FlowConfig, BlocksHeld)) -> ViewStreams<'scope> {
    let load = inputs.load.atom_load(config.load);
    let cache = inputs.kv.cache_index(config.cache);
    let buckets = load.changes.clone().bucket_load(inputs.plans, config.buckets);
    let sessions = inputs.traffic.clone().session_activity(config.sessions);
    let output_lengths = inputs.traffic.clone().output_length(config.output_length);
    let arrival_trends = inputs.traffic.clone().arrival_trend(config.arrival_trend);
    let distribution = inputs.traffic.request_distribution(config.distribution);
    let service_times = inputs.steps.clone().service_time(config.service_time);
    let instances = inputs.steps.instance_state(config.instances);
    let reuse = inputs.prompts.reuse_distance(config.reuse);
    let funnel = inputs.funnel.funnel(cache.blocks.clone(), held, config.funnel);
    let diagnosis = inputs.diagnosis.diagnosis(config.diagnosis);
    let loads = inputs
        .late
        .concat(funnel.refused)
        .concat(diagnosis.refused)
        .concat(load.refused)
        .concat(buckets.refused)
        .concat(cache.refused);
    let traffic = distribution.refused.concat(sessions.refused).concat(output_lengths.refused);
    let steps = instances.refused.concat(service_times.refused);
    ViewStreams {
        totals: atom_load::totals(&load.changes.concat(buckets.changes)),
        blocks: cache.blocks,
        cache_reports: cache.reports,
        distribution: distribution.rows,
        sessions: sessions.rows,
        instances: instances.rows,
        curves: reuse.curves,
        funnel_windows: funnel.cases.clone().funnel_window(config.funnel_window),
        funnel: funnel.cases,
        diagnosis: diagnosis.rows,
        service_times: service_times.rows,
        output_lengths: output_lengths.rows,
        arrival_trends: arrival_trends.rows,
        refused: loads.concat(traffic).concat(arrival_trends.refused).concat(steps).concat(reuse.refused),
    }
}

/// One epoch in the making.
#[derive(Default)]
struct Pending {
    totals: Vec<(LoadKey, isize, LoadTotal)>,
    changes: ViewChanges,
}

impl Pending {
    fn into_changes(mut self, epoch: u64) -> ViewChanges {
        self.changes.epoch = epoch;
        // Per key, the retraction of the old total sorts before the new total; alone, it means that nothing is left.
        self.totals.sort_unstable();
        for group in self.totals.chunk_by(|a, b| a.0 == b.0) {
            let (key, diff, total) = group[group.len() - 1];
            let total = if diff > 0 { total } else { LoadTotal::default() };
            match key {
                LoadKey::Cell { instance, atom } => self.changes.atom.push(((instance, atom), total)),
                LoadKey::Atom(atom) => self.changes.atom_total.push((atom, total)),
                LoadKey::Instance(instance) => self.changes.instance_total.push((instance, total)),
                LoadKey::Region(region) => self.changes.region_total.push((region, total)),
                LoadKey::Model(model) => self.changes.model_total.push((model, total)),
                LoadKey::Group { model, tier } => self.changes.group_total.push(((model, tier), total)),
                LoadKey::ModelAtom { model, atom } => self.changes.model_atom.push(((model, atom), total)),
                LoadKey::Bucket { model, bucket } => self.changes.bucket_total.push(((model, bucket), total)),
            }
        }
        self.changes.cache.sort_unstable();
        self.changes.cache_reports.sort_unstable();
        self.changes.distribution.sort_unstable();
        self.changes.sessions.sort_unstable();
        self.changes.instances.sort_unstable();
        self.changes.curves.sort_unstable();
        self.changes.funnel.sort_unstable();
        self.changes.funnel_windows.sort_unstable();
        self.changes.diagnosis.sort_unstable();
        self.changes.service_times.sort_unstable_by_key(|row| row.shape);
        self.changes.output_lengths.sort_unstable_by_key(|row| row.key);
        self.changes.arrival_trends.sort_unstable_by_key(|row| (row.epoch, row.model));
        self.changes.refused.sort_unstable();
        self.changes
    }
}

/// All epochs in the making.
#[derive(Default)]
struct PendingEpochs(BTreeMap<u64, Pending>);

impl PendingEpochs {
    fn at(&mut self, epoch: u64) -> &mut Pending {
        self.0.entry(epoch).or_default()
    }

    /// Hands out what lies before `upper`, in order; `None` means that nothing more will ever come.
    fn hand_out(&mut self, upper: Option<u64>, closed: &Closed, mut on_changes: impl FnMut(ViewChanges)) {
        while let Some(entry) = self.0.first_entry().filter(|entry| upper.is_none_or(|upper| *entry.key() < upper)) {
            let (epoch, changes) = entry.remove_entry();
            on_changes(changes.into_changes(epoch));
            closed.set(Some(epoch));
        }
        let Some(last) = upper.and_then(|upper| upper.checked_sub(1)) else { return };
        if closed.get().is_none_or(|closed| closed < last) {
            on_changes(ViewChanges { epoch: last, ..ViewChanges::default() });
            closed.set(Some(last));
        }
    }
}

/// The sink over all outputs.
fn deliver(
    streams: ViewStreams<'_>,
    closed: Closed,
    (index, mut on_changes): (usize, impl FnMut(usize, ViewChanges) + 'static),
) {
    let mut builder = OperatorBuilder::new("Deliver".to_owned(), streams.refused.scope());
    let mut totals = builder.new_input(streams.totals.inner, Pipeline);
    let mut blocks = builder.new_input(streams.blocks.inner, Pipeline);
    let mut reports = builder.new_input(streams.cache_reports, Pipeline);
    let mut distribution = builder.new_input(streams.distribution, Pipeline);
    let mut sessions = builder.new_input(streams.sessions, Pipeline);
    let mut instances = builder.new_input(streams.instances, Pipeline);
    let mut curves = builder.new_input(streams.curves, Pipeline);
    let mut funnel = builder.new_input(streams.funnel, Pipeline);
    let mut funnel_windows = builder.new_input(streams.funnel_windows, Pipeline);
    let mut diagnosis = builder.new_input(streams.diagnosis, Pipeline);
    let mut service_times = builder.new_input(streams.service_times, Pipeline);
    let mut output_lengths = builder.new_input(streams.output_lengths, Pipeline);
    let mut arrival_trends = builder.new_input(streams.arrival_trends, Pipeline);
    let mut refused = builder.new_input(streams.refused, Pipeline);
    builder.build(move |_no_outputs| {
        let mut pending = PendingEpochs::default();
        move |frontiers| {
            totals.for_each(|_, batch| {
                batch
                    .drain(..)
                    .for_each(|((key, total), epoch, diff)| pending.at(epoch).totals.push((key, diff, total)));
            });
            blocks.for_each(|_, batch| {
                batch.drain(..).for_each(|(key, epoch, diff)| pending.at(epoch).changes.cache.push((key, diff as i64)));
            });
            reports.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch()).changes.cache_reports.push(row));
            });
            distribution.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.distribution.push(row));
            });
            sessions.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.sessions.push(row));
            });
            instances.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.instances.push(row));
            });
            curves.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.curves.push(row));
            });
            funnel.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.funnel.push(row));
            });
            funnel_windows.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.funnel_windows.push(row));
            });
            diagnosis.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.diagnosis.push(row));
            });
            service_times.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.service_times.push(row));
            });
            output_lengths.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.output_lengths.push(row));
            });
            arrival_trends.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.arrival_trends.push(row));
            });
            refused.for_each(|_, batch| {
                batch.drain(..).for_each(|row| pending.at(row.epoch).changes.refused.push(row));
            });
            // While some inputs have ended and others not, the end is under way: what comes before it is not known yet.
            let ended = frontiers.iter().filter(|frontier| frontier.is_empty()).count();
            if ended != 0 && ended != frontiers.len() {
                return;
            }
            let upper = frontiers.iter().filter_map(|frontier| frontier.frontier().first().copied()).min();
            pending.hand_out(upper, &closed, |changes| on_changes(index, changes));
        }
    });
}
