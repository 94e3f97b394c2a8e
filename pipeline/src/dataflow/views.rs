//! What the gateway reads: one consistent state per epoch behind an `ArcSwap`, and the prefix index.
//!
//! Invariant: a state holds the changes of all workers up to its epoch and of none after it; reading it takes no lock, nor
//! does the prefix index; a reader that saw half an epoch of it is told so, and looks again
//! ([`FlowViews::read_prefixes`]).
//! Cost: publishing copies those maps of the state that have changed since the last epoch, O(instances + live atoms + groups) at
//! most; reading is one atomic load.
//! State: bounded by the operators' bounds, plus changes of epochs that not all workers have closed yet.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::Hash,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use operators::{
    ArrivalTrendRow, CacheAudit, CacheCause, CacheReport, CacheTrust, CurveGroup, CurveRow, DiagnosisRow,
    DistributionRow, FunnelCase, FunnelWindowRow, InstanceState, LengthKey, LoadTotal, OutputLengthRow, PrefixIndex,
    PrefixIndexConfig, ReplayRequest, ServiceTimeRow, SessionRow, Span, ViewChanges,
};

use super::{
    curve_rows::{EpochClock, curve_rows},
    feed::Names,
    refused::{self, RefusedRows},
};
use crate::{ids::Micros, rows::MrcRow};

/// Looks at the prefix index before one that fell between two epochs is taken as it is.
const LOOKS_MAX: usize = 3;

/// No moment.
const NEVER: Micros = Micros::MIN;
/// Reports of the cache index kept until somebody takes them; the oldest go first.
const REPORTS_MAX: usize = 1024;

/// Something the cache index said, with the trust in its instance at that moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheSays {
    pub at: Micros,
    pub trust: (CacheTrust, CacheCause),
    pub report: CacheReport,
}

/// Closed requests kept until somebody takes them; further ones are only counted.
const CASES_MAX: usize = 16_384;

/// What the funnel and the diagnosis told since it was last asked.
#[derive(Debug, Default)]
pub struct FunnelNews {
    pub cases: Vec<FunnelCase>,
    pub windows: Vec<FunnelWindowRow>,
    pub diagnoses: Vec<DiagnosisRow>,
    /// Cases that did not fit.
    pub dropped: u64,
}

impl FunnelNews {
    fn take(&mut self, changes: &mut ViewChanges) {
        let room = CASES_MAX.saturating_sub(self.cases.len());
        self.dropped += changes.funnel.len().saturating_sub(room) as u64;
        self.cases.extend(changes.funnel.drain(..).take(room));
        // Bounded by the operators' groups and models, a few windows of them.
        self.windows.append(&mut changes.funnel_windows);
        self.diagnoses.append(&mut changes.diagnosis);
    }
}

/// All views as of one moment. Each map is shared with the states before and after it between which it did not change.
#[derive(Debug, Clone, Default)]
pub struct ViewState {
    /// Everything that reached the dataflow before this moment is in; `None` before the first epoch closed.
    pub as_of: Option<Micros>,
    /// Live load per `(instance, atom)`; no zero entries.
    pub atoms: Arc<BTreeMap<(u32, u32), LoadTotal>>,
    pub instance_load: Arc<HashMap<u32, LoadTotal>>,
    /// Live load by region; no zero entries here and in the next ones.
    pub region_load: Arc<BTreeMap<u16, LoadTotal>>,
    pub model_load: Arc<BTreeMap<u32, LoadTotal>>,
    /// Live load per `(model, tier)`.
    pub group_load: Arc<BTreeMap<(u32, u8), LoadTotal>>,
    /// Live load per `(model, atom)`: what a bucket plan is cut from.
    pub model_atoms: Arc<BTreeMap<(u32, u32), LoadTotal>>,
    /// Live load per `(model, bucket)` of the plan in force.
    pub bucket_load: Arc<BTreeMap<(u32, u32), LoadTotal>>,
    pub instances: Arc<HashMap<u32, InstanceState>>,
    /// Blocks of the cache index per instance; no zero entries.
    pub cached_blocks: Arc<HashMap<u32, i64>>,
    /// How far each instance's part of the cache index can be trusted, and why; those dropped are not here.
    pub trust: Arc<HashMap<u32, (CacheTrust, CacheCause)>>,
    /// The last audit of each instance.
    pub audits: Arc<HashMap<u32, CacheAudit>>,
    /// Running distribution per `(model, tier)`.
    pub distribution: Arc<HashMap<(u32, u8), DistributionRow>>,
    /// Active sessions per model at the end of the latest window.
    pub sessions: Arc<BTreeMap<u32, SessionRow>>,
    /// Service times by shape: the number of the model's name, or `UNKNOWN_SHAPE`.
    pub service_times: Arc<BTreeMap<u32, ServiceTimeRow>>,
    /// Output lengths; `operators::output_length::predict` reads them.
    pub output_lengths: Arc<BTreeMap<LengthKey, OutputLengthRow>>,
    /// Trend of arrivals per model.
    pub arrival_trends: Arc<BTreeMap<u32, ArrivalTrendRow>>,
}

impl ViewState {
    /// Trust in the cache index as a whole: that in the instance which is trusted least.
    pub fn cache_trust(&self) -> CacheTrust {
        self.trust.values().map(|(trust, _)| *trust).max().unwrap_or(CacheTrust::Exact)
    }
}

#[derive(Default)]
struct Building {
    /// The latest epoch with changes, and the latest one before the workers began again.
    applied: Option<u64>,
    told: Option<u64>,
    /// Per worker: changes not applied yet, and the last epoch it closed.
    waiting: Vec<(VecDeque<ViewChanges>, Option<u64>)>,
    state: ViewState,
    /// The newest curve of each group since they were last taken.
    curves: BTreeMap<CurveGroup, CurveRow>,
    funnel: FunnelNews,
    reports: VecDeque<CacheSays>,
    /// The last request to each instance.
    replays: BTreeMap<u32, ReplayRequest>,
}

/// See the module.
pub struct FlowViews {
    building: Mutex<Building>,
    state: ArcSwap<ViewState>,
    prefixes: ArcSwap<PrefixIndex>,
    prefix_config: PrefixIndexConfig,
    /// Odd while changes go into the prefix index.
    version: AtomicU64,
    /// State of the prefix index; [`NEVER`] before the first.
    prefixes_as_of: AtomicI64,
    refused: RefusedRows,
    names: Names,
    /// End of epoch 0, and length of an epoch, in microseconds.
    origin: Micros,
    epoch_us: i64,
}

impl FlowViews {
    /// `origin`: start of epoch 0.
    pub fn new(workers: usize, prefixes: PrefixIndexConfig, names: Names, (origin, epoch_us): (Micros, i64)) -> Self {
        let building = Building { waiting: vec![(VecDeque::new(), None); workers], ..Building::default() };
        Self {
            building: Mutex::new(building),
            state: ArcSwap::default(),
            prefixes: ArcSwap::from_pointee(PrefixIndex::new(prefixes)),
            prefix_config: prefixes,
            version: AtomicU64::new(0),
            prefixes_as_of: AtomicI64::new(NEVER),
            refused: RefusedRows::default(),
            names,
            origin,
            epoch_us,
        }
    }

    pub fn load(&self) -> Arc<ViewState> {
        self.state.load_full()
    }

    pub fn prefixes(&self) -> Arc<PrefixIndex> {
        self.prefixes.load_full()
    }

    /// Reads the prefix index, and says as of when; `None`: it was changed meanwhile, each time, or is empty yet.
    pub fn read_prefixes<T>(&self, read: impl Fn(&PrefixIndex) -> T) -> (T, Option<Micros>) {
        let mut looks = 1;
        loop {
            let before = self.version.load(Ordering::Acquire);
            let as_of = self.prefixes_as_of.load(Ordering::Acquire);
            let found = read(&self.prefixes.load());
            let is_whole = before.is_multiple_of(2) && self.version.load(Ordering::Acquire) == before;
            if is_whole {
                return (found, (as_of != NEVER).then_some(as_of));
            }
            if looks == LOOKS_MAX {
                return (found, None);
            }
            looks += 1;
        }
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Rows that were not taken.
    pub fn refused(&self) -> &RefusedRows {
        &self.refused
    }

    /// What the cache index said of itself since the last call, at most a bounded number of things.
    pub fn take_cache_reports(&self) -> Vec<CacheSays> {
        self.building.lock().unwrap_or_else(PoisonError::into_inner).reports.drain(..).collect()
    }

    /// What the cache index wants to hear again, as of the last call: at most one request an instance.
    pub fn take_replays(&self) -> Vec<ReplayRequest> {
        let replays = std::mem::take(&mut self.building.lock().unwrap_or_else(PoisonError::into_inner).replays);
        replays.into_values().collect()
    }

    /// The newest miss-ratio curves since the last call, as rows.
    pub fn take_curves(&self) -> Vec<MrcRow> {
        let curves = std::mem::take(&mut self.building.lock().unwrap_or_else(PoisonError::into_inner).curves);
        curves.values().flat_map(|curve| curve_rows(curve, &self.names, self.epochs())).collect()
    }

    /// Start of epoch 0, and length of an epoch.
    pub(super) fn epochs(&self) -> EpochClock {
        EpochClock { origin: self.origin, epoch_us: self.epoch_us }
    }

    /// What the funnel told since the last call, at most a bounded number of requests.
    pub fn take_funnel(&self) -> FunnelNews {
        std::mem::take(&mut self.building.lock().unwrap_or_else(PoisonError::into_inner).funnel)
    }

    /// Forgets everything: the workers begin again.
    pub fn reset(&self) {
        let mut building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        self.version.fetch_add(1, Ordering::AcqRel);
        self.prefixes.store(Arc::new(PrefixIndex::new(self.prefix_config)));
        self.prefixes_as_of.store(NEVER, Ordering::Release);
        self.version.fetch_add(1, Ordering::AcqRel);
        building.waiting.iter_mut().for_each(|waiting| *waiting = (VecDeque::new(), None));
        building.told = building.told.max(building.applied);
        building.state = ViewState::default();
        self.state.store(Arc::default());
    }

    /// Takes one worker's changes; publishes when all workers are as far.
    pub fn take(&self, worker: usize, changes: ViewChanges) {
        let mut building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        let (queue, closed) = &mut building.waiting[worker];
        *closed = Some(changes.epoch);
        if !changes.is_empty() {
            queue.push_back(changes);
        }
        let Some(complete) = building.waiting.iter().map(|(_, closed)| *closed).min().flatten() else { return };
        let mut ready = Vec::new();
        for (queue, _) in &mut building.waiting {
            while queue.front().is_some_and(|changes| changes.epoch <= complete) {
                ready.extend(queue.pop_front());
            }
        }
        let as_of = self.origin + (complete as i64 + 1) * self.epoch_us;
        if building.state.as_of.is_some_and(|old| old >= as_of) && ready.is_empty() {
            return;
        }
        self.version.fetch_add(1, Ordering::AcqRel);
        for changes in ready {
            self.prefixes.load().apply(&changes.cache);
            let at = self.origin + (changes.epoch as i64 + 1) * self.epoch_us;
            // Workers that began again come to it a second time.
            if building.told.is_none_or(|told| changes.epoch > told) {
                self.refused.push(changes.refused.iter().map(|refused| refused::row(refused, at)).collect());
            }
            building.apply(changes, at);
        }
        self.prefixes.load().complete(complete);
        self.prefixes_as_of.store(as_of, Ordering::Release);
        self.version.fetch_add(1, Ordering::AcqRel);
        building.state.as_of = Some(as_of);
        self.state.store(Arc::new(building.state.clone()));
    }
}

impl Building {
    fn apply(&mut self, mut changes: ViewChanges, at: Micros) {
        self.applied = self.applied.max(Some(changes.epoch));
        if self.told.is_some_and(|told| changes.epoch <= told) {
            // Workers that began again come to it a second time; it is news no more.
            changes.funnel.clear();
            changes.funnel_windows.clear();
            changes.diagnosis.clear();
            changes.curves.clear();
            changes.refused.clear();
        }
        changes.cache_reports.iter().for_each(|report| self.cache_report(*report, at));
        self.funnel.take(&mut changes);
        self.curves.extend(changes.curves.into_iter().map(|curve| (curve.group, curve)));
        let state = &mut self.state;
        lay(&mut state.atoms, changes.atom);
        lay(&mut state.region_load, changes.region_total);
        lay(&mut state.model_load, changes.model_total);
        lay(&mut state.group_load, changes.group_total);
        lay(&mut state.model_atoms, changes.model_atom);
        lay(&mut state.bucket_load, changes.bucket_total);
        learn(&mut state.sessions, changes.sessions, |row| row.model);
        put(&mut state.instance_load, changes.instance_total);
        put(&mut state.instances, changes.instances.into_iter().map(|row| (row.step.instance, row)));
        // Summed up first: there are many more changes than instances.
        let mut blocks = HashMap::<u32, i64>::new();
        changes.cache.iter().for_each(|(key, difference)| *blocks.entry(key.1).or_default() += difference);
        for (instance, difference) in blocks.into_iter().filter(|(_, difference)| *difference != 0) {
            let cached = Arc::make_mut(&mut state.cached_blocks);
            let held = cached.entry(instance).or_default();
            *held += difference;
            if *held == 0 {
                cached.remove(&instance);
            }
        }
        let running = changes.distribution.into_iter().filter(|row| row.span == Span::Running);
        put(&mut state.distribution, running.map(|row| ((row.model, row.tier), row)));
        learn(&mut state.service_times, changes.service_times, |row| row.shape);
        learn(&mut state.output_lengths, changes.output_lengths, |row| row.key);
        learn(&mut state.arrival_trends, changes.arrival_trends, |row| row.model);
    }

    fn cache_report(&mut self, report: CacheReport, at: Micros) {
        let state = &mut self.state;
        let instance = match report {
            CacheReport::Health(health) => {
                Arc::make_mut(&mut state.trust).insert(health.instance, (health.trust, health.cause));
                health.instance
            }
            CacheReport::Audit(audit) => {
                Arc::make_mut(&mut state.audits).insert(audit.instance, audit);
                audit.instance
            }
            CacheReport::Replay(request) => {
                self.replays.insert(request.instance, request);
                return;
            }
        };
        let trust = state.trust.get(&instance).copied().unwrap_or((CacheTrust::Degraded, CacheCause::Lost));
        if trust.0 == CacheTrust::Dropped {
            Arc::make_mut(&mut state.trust).remove(&instance);
            Arc::make_mut(&mut state.audits).remove(&instance);
            self.replays.remove(&instance);
        }
        self.reports.push_back(CacheSays { at, trust, report });
        if self.reports.len() > REPORTS_MAX {
            self.reports.pop_front();
        }
    }
}

/// Puts new rows in the place of old ones; readers keep the map they have.
fn learn<K: Ord + Clone, R: Clone>(map: &mut Arc<BTreeMap<K, R>>, rows: Vec<R>, key: fn(&R) -> K) {
    if !rows.is_empty() {
        Arc::make_mut(map).extend(rows.into_iter().map(|row| (key(&row), row)));
    }
}

/// The same for a hash map.
fn put<K: Eq + Hash + Clone, V: Clone>(map: &mut Arc<HashMap<K, V>>, rows: impl IntoIterator<Item = (K, V)>) {
    let mut rows = rows.into_iter().peekable();
    if rows.peek().is_some() {
        Arc::make_mut(map).extend(rows);
    }
}

/// Lays new totals over a map that has no zero entries.
fn lay<K: Ord + Clone>(map: &mut Arc<BTreeMap<K, LoadTotal>>, changes: Vec<(K, LoadTotal)>) {
    if changes.is_empty() {
        return;
    }
    let map = Arc::make_mut(map);
    for (key, total) in changes {
        if total == LoadTotal::default() {
            map.remove(&key);
        } else {
            map.insert(key, total);
        }
    }
}
