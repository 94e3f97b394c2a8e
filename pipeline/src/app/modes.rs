//! In which mode each part works, and what is done while that is not its normal one (SPEC X5, DESIGN §7 rule 10).
//!
//! [`Watch`] looks at views, workers, their telemetry, the log and the process for SQL every [`LOOK_INTERVAL`]; a change is a row of `modes`, what is
//! so now is in `/metrics` (`evenkeel_mode_degraded`). It decides nothing: the branches are taken by who reads the same
//! signals, as `docs/operations.md` lists. Invariant: the newest row of a part is its mode, to within one look. Cost: one pass
//! over the instances a look. State: a mode a part, and when each instance became busy.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;

use super::{glue::Views, query_worker::SqlCounters};
use crate::{
    bus::{Bus, LogState},
    gateway::{
        deps::ViewSource,
        instances::{InstanceEntry, InstanceState},
    },
    ids::Micros,
    policy::ViewMode,
    rows::ModeRow,
};

/// How often the parts are looked at.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// A part of the process: what it is, and which one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub component: &'static str,
    /// An instance's name; empty where there is one of it.
    pub subject: String,
}

/// A mode, whether it is a lesser one, and what is done in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    pub name: &'static str,
    pub is_degraded: bool,
    pub branch: &'static str,
}

const fn normal(name: &'static str) -> Mode {
    Mode { name, is_degraded: false, branch: "" }
}

const fn lesser(name: &'static str, branch: &'static str) -> Mode {
    Mode { name, is_degraded: true, branch }
}

const SAFE: &str = "fewest leased tokens decide, no cache hit is believed, saturation is the leases' share";

fn of_views(mode: ViewMode) -> Mode {
    match mode {
        ViewMode::Exact => normal("exact"),
        ViewMode::Approximate => {
            lesser("approximate", "views are read; blocks without room in the index count as not cached")
        }
        ViewMode::Degraded => lesser("degraded", "views are read; lost cache events are asked for again"),
        ViewMode::Stale => lesser("stale", SAFE),
        ViewMode::Off => lesser("off", SAFE),
    }
}

fn of_worker(state: InstanceState) -> Mode {
    match state {
        InstanceState::Ready => normal("ready"),
        InstanceState::Draining => normal("draining"),
        InstanceState::Stopped => normal("stopped"),
        InstanceState::Starting => lesser("starting", "it gets no requests yet"),
        InstanceState::Dead => {
            lesser("dead", "its requests go on at other instances; it is started again after a pause")
        }
    }
}

fn of_log(state: LogState) -> Mode {
    match state {
        LogState::Healthy => normal("written"),
        LogState::Off => normal("off"),
        LogState::Faulted => lesser(
            "faulted",
            "serving and SQL go on; rows wait in memory and the oldest are given up; writing is tried again",
        ),
    }
}

fn of_sql(up: u64) -> Mode {
    match up {
        0 => lesser("restarting", "queries wait for the next process, at most `sql.timeout`; nothing else does"),
        _ => normal("answering"),
    }
}

const REPORTING: Mode = normal("reporting");
const UNREPORTED: Mode = lesser("unreported", "leases stand for its load, and the default rates for its speed");
const SILENT: Mode = lesser("silent", "leases stand for its load; what was learnt of its speed is kept");

/// The modes as of the last look, for `/metrics`.
pub type Modes = Arc<ArcSwap<BTreeMap<Part, Mode>>>;

/// See the module.
pub struct Watch {
    bus: Bus,
    views: Arc<Views>,
    modes: Modes,
    sql: Arc<SqlCounters>,
    /// Since when each incarnation has had requests, without a pause.
    busy: BTreeMap<(u32, u64), Micros>,
}

impl Watch {
    pub fn new((bus, views): (Bus, Arc<Views>), sql: Arc<SqlCounters>, modes: Modes) -> Self {
        Self { bus, views, modes, sql, busy: BTreeMap::new() }
    }

    /// Looks until the bus stops.
    pub async fn run(mut self, clock: impl Fn() -> Micros + Send) {
        let mut tick = tokio::time::interval(LOOK_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = clock();
            let modes = self.look(now);
            let before = self.modes.swap(Arc::new(modes.clone()));
            for row in changes(now, &before, &modes) {
                if self.bus.publish(row).await.is_err() {
                    return;
                }
            }
        }
    }

    fn look(&mut self, now: Micros) -> BTreeMap<Part, Mode> {
        let part = |component, subject: &str| Part { component, subject: subject.into() };
        let mut modes = BTreeMap::from([
            (part("views", ""), of_views(self.views.cluster(now).mode)),
            (part("log", ""), of_log(self.bus.counters().log_state)),
            (part("sql", ""), of_sql(self.sql.up.get())),
        ]);
        let entries = self.views.directory.load();
        self.busy.retain(|known, _| entries.iter().any(|entry| (entry.id.0, entry.epoch.0) == *known));
        for entry in entries.iter() {
            modes.insert(part("worker", &entry.name), of_worker(entry.state));
            // Nobody talks to foreign workers through this directory, and they tell no figures.
            if entry.state == InstanceState::Ready
                && entry.client.is_some()
                && let Some(mode) = self.telemetry(entry, now)
            {
                modes.insert(part("telemetry", &entry.name), mode);
            }
        }
        modes
    }

    /// How an instance that takes requests tells of its engine; `None` without a dataflow. One without requests has nothing to tell.
    fn telemetry(&mut self, entry: &InstanceEntry, now: Micros) -> Option<Mode> {
        let flow = self.views.flow.as_ref()?;
        let key = (entry.id.0, entry.epoch.0);
        if entry.leases.requests() == 0 {
            self.busy.remove(&key);
            return Some(REPORTING);
        }
        let since = *self.busy.entry(key).or_insert(now);
        let reported =
            flow.load().instances.get(&entry.id.0).map(|state| state.step).filter(|step| step.epoch == entry.epoch.0);
        let last = reported.map_or(since, |step| step.at_us.max(since));
        Some(match (now - last > self.views.silent_after_us, reported) {
            (false, _) => REPORTING,
            (true, Some(_)) => SILENT,
            (true, None) => UNREPORTED,
        })
    }
}

/// A row a part whose mode changed; a part that is gone has none.
fn changes(now: Micros, before: &BTreeMap<Part, Mode>, after: &BTreeMap<Part, Mode>) -> Vec<ModeRow> {
    let is_news = |(part, mode): &(&Part, &Mode)| before.get(*part) != Some(*mode);
    let row = |(part, mode): (&Part, &Mode)| ModeRow {
        at: now,
        component: part.component.into(),
        subject: part.subject.clone(),
        mode: mode.name.into(),
        is_degraded: mode.is_degraded,
        branch: mode.branch.into(),
    };
    after.iter().filter(is_news).map(row).collect()
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use engine::grammar::GrammarSource;
    use operators::PrefixIndexConfig;
    use queries::LiveTables;

    use super::*;
    use crate::{
        config::{Overrides, load},
        dataflow::{FlowViews, Names},
        gateway::{
            instances::{ChunkStream, GenerateCall, InstanceClient, InstanceDirectory, InstanceError},
            leases::Leases,
        },
        ids::{InstanceId, ProcessEpoch},
    };

    struct Mute;

    #[async_trait]
    impl InstanceClient for Mute {
        async fn generate_within(
            &self,
            _call: GenerateCall,
            _grammar: Option<GrammarSource>,
        ) -> Result<ChunkStream, InstanceError> {
            Err(InstanceError::Refused("it runs nothing".into()))
        }
    }

    /// Scenario: a worker of ours and a foreign one have requests for longer than an engine may be silent; neither tells figures.
    /// Guarantees: ours is unreported; the foreign one, of which none are expected, has no telemetry that could be.
    #[tokio::test]
    async fn foreign_workers_have_no_telemetry() {
        let config = load(None, Overrides::default()).unwrap();
        let (bus, _guard) = Bus::start(&config.bus, None, Arc::new(LiveTables::new(8)), Arc::new(|| 0)).unwrap();
        let flow = FlowViews::new(1, PrefixIndexConfig::default(), Names::default(), (0, 100_000));
        let (directory, silent_after_us) = (Arc::new(InstanceDirectory::default()), 1_000_000);
        let views = Views {
            directory: directory.clone(),
            flow: Some(Arc::new(flow)),
            plans: Arc::default(),
            stale_after_us: silent_after_us,
            silent_after_us,
        };
        let mut held = Vec::new();
        for (id, client) in [(0, Some(Arc::new(Mute) as Arc<dyn InstanceClient>)), (1, None)] {
            let leases = Arc::<Leases>::default();
            held.extend(leases.reserve(1, 10));
            directory.put(InstanceEntry {
                id: InstanceId(id),
                name: format!("w{id}"),
                epoch: ProcessEpoch(1),
                model: "m".into(),
                variant: "default".into(),
                state: InstanceState::Ready,
                client,
                leases,
                fetch: Default::default(),
            });
        }
        let mut watch = Watch::new((bus, Arc::new(views)), Arc::default(), Modes::default());
        watch.look(0);
        let modes = watch.look(2 * silent_after_us);
        let told = modes.iter().filter(|(part, _)| part.component == "telemetry");
        let told: Vec<_> = told.map(|(part, mode)| (part.subject.as_str(), mode.name)).collect();
        assert_eq!(told, [("w0", "unreported")]);
    }

    /// Scenario: a first look; one at which a worker has died and another has appeared; one that is the same.
    /// Guarantees: everything once, then what changed, then nothing.
    #[test]
    fn changes_are_told_once() {
        let worker = |subject: &str| Part { component: "worker", subject: subject.into() };
        let first = BTreeMap::from([(worker("w0"), of_worker(InstanceState::Ready))]);
        let second = BTreeMap::from([
            (worker("w0"), of_worker(InstanceState::Dead)),
            (worker("w1"), of_worker(InstanceState::Ready)),
        ]);
        let told = |before, after| -> Vec<(String, String, bool)> {
            let rows = changes(1, before, after);
            rows.into_iter().map(|row| (row.subject, row.mode, row.is_degraded)).collect()
        };
        let line = |subject: &str, mode: &str, is_degraded| (subject.to_string(), mode.to_string(), is_degraded);
        let nothing = BTreeMap::new();
        assert_eq!(told(&nothing, &first), [line("w0", "ready", false)]);
        assert_eq!(told(&first, &second), [line("w0", "dead", true), line("w1", "ready", false)]);
        assert!(told(&second, &second).is_empty());
    }

    /// Scenario: every mode there is. Guarantees: each lesser one says what is done in it, and the operations guide says the same.
    #[test]
    fn every_lesser_mode_states_its_branch() {
        let views = [ViewMode::Exact, ViewMode::Approximate, ViewMode::Degraded, ViewMode::Stale, ViewMode::Off];
        let workers = [InstanceState::Starting, InstanceState::Ready, InstanceState::Draining, InstanceState::Dead];
        let logs = [LogState::Off, LogState::Healthy, LogState::Faulted];
        let all = views.map(of_views).into_iter().chain(workers.map(of_worker)).chain(logs.map(of_log));
        let guide = include_str!("../../../docs/operations.md");
        let all = all.chain([0, 1].map(of_sql));
        for mode in all.chain([REPORTING, UNREPORTED, SILENT]).filter(|mode| mode.is_degraded) {
            let line =
                guide.lines().find(|line| line.contains(&format!("`{}`", mode.name)) && line.contains(mode.branch));
            assert!(!mode.branch.is_empty() && line.is_some(), "{mode:?} is not in docs/operations.md");
        }
    }
}
