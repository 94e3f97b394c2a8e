//! The dataflow's feeder: from the bus to timely workers, and the clock that closes epochs.
//!
//! bus → (bounded subscription) → feeder thread → (bounded queue per worker, waits when full) → worker → `FlowViews`
//!
//! The feeder owns the clock's ticks: an epoch is closed when its time has passed and every row received before that was
//! handed on; which rows came in it is a row of `epochs`, so that a replay closes the same epochs (SPEC X2). Rows enter at
//! worker 0 and are exchanged by key inside. The workers are threads here (`threads`) or processes of their own (`cluster`).
//! Cost: O(rows) to give them integer keys. State: that of the feed, and of the workers' queues.

use std::{sync::Arc, thread, time::Duration};

use operators::{
    ArrivalTrendConfig, AtomLoadConfig, CacheIndexConfig, DiagnosisConfig, DistributionConfig, FlowConfig, FlowRows,
    Forgetting, FunnelConfig, FunnelWindowConfig, PrefixIndexConfig, ReuseDistanceConfig, SessionConfig,
};
use tokio::sync::mpsc::error::TryRecvError;

use super::{
    cluster::{ChildCommand, Notice, Parts, Seat},
    epoch_log::EpochLog,
    feed::{Feed, Names, TOPICS},
    threads::{Guards, Message, Port, spawn_workers},
    views::FlowViews,
};
use crate::{
    bus::{Bus, Clock, LogReader, Published, Subscription},
    config,
    rows::FaultRow,
};

/// The dataflow could not start.
#[derive(Debug, thiserror::Error)]
pub enum FlowError {
    #[error("cannot start timely: {0}")]
    Timely(String),
    #[error("cannot start the feeder's thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running dataflow. Dropping it ends the workers once the bus has ended the subscription.
pub struct Dataflow {
    views: Arc<FlowViews>,
    feeder: Option<thread::JoinHandle<()>>,
}

impl Dataflow {
    /// Subscribes to the bus and starts the workers: threads, or processes, which come back from the log.
    pub fn start(
        config: &config::Dataflow,
        bus: &Bus,
        (log, clock): (Option<LogReader>, Clock),
    ) -> Result<Self, FlowError> {
        let epoch_us = config.epoch.as_micros() as i64;
        let origin = clock() / epoch_us * epoch_us;
        let names = Names::default();
        let prefixes = PrefixIndexConfig {
            max_entries: config.cache_entries_max,
            // Unknown outside, lest crafted prompts aim at one place of the map.
            seed: rand::random(),
            ..PrefixIndexConfig::default()
        };
        let is_cluster = config.processes > 1 || !config.hosts_file.as_os_str().is_empty();
        // Over processes all changes come by way of one worker.
        let tellers = if is_cluster { 1 } else { config.workers };
        let views = Arc::new(FlowViews::new(tellers, prefixes, names.clone(), (origin, epoch_us)));
        let (outlet, guards) = if is_cluster {
            let parts = Parts {
                bus: bus.clone(),
                log,
                views: views.clone(),
                names: names.clone(),
                clock: clock.clone(),
                flow_start: origin,
            };
            (Outlet::Processes(Box::new(Seat::new(config, ChildCommand::own()?, parts))), None)
        } else {
            let (ports, receivers): (Vec<_>, Vec<_>) = (0..config.workers).map(|_| Port::new()).unzip();
            let guards = spawn_workers(config, receivers, &ports, views.clone())?;
            (Outlet::Threads(ports), Some(guards))
        };
        let feeder = Feeder {
            subscription: bus.subscribe(&TOPICS),
            bus: bus.clone(),
            views: views.clone(),
            feed: Feed::new(names, config.open_requests_max),
            outlet,
            clock,
            epochs: EpochLog::start(bus.clone(), origin, epoch_us),
            origin,
            epoch_us,
            open: 0,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = thread::Builder::new().name("dataflow-feed".into()).spawn(move || {
            runtime.block_on(feeder.run());
            for result in guards.into_iter().flat_map(Guards::join) {
                if let Err(panic) = result {
                    tracing::error!(%panic, "a dataflow worker died");
                }
            }
        })?;
        Ok(Self { views, feeder: Some(handle) })
    }

    pub fn views(&self) -> Arc<FlowViews> {
        self.views.clone()
    }

    /// Waits until the workers have ended; the bus must have been stopped before.
    pub fn join(mut self) {
        if let Some(feeder) = self.feeder.take() {
            let _ = feeder.join();
        }
    }
}

/// Where rows go.
enum Outlet {
    Threads(Vec<Port>),
    Processes(Box<Seat>),
}

impl Outlet {
    /// What the processes have to say; threads say nothing.
    async fn step(&mut self) -> Notice {
        match self {
            Outlet::Threads(_) => std::future::pending().await,
            Outlet::Processes(seat) => seat.step().await,
        }
    }
}

struct Feeder {
    subscription: Subscription,
    bus: Bus,
    views: Arc<FlowViews>,
    feed: Feed,
    epochs: EpochLog,
    outlet: Outlet,
    clock: Clock,
    origin: i64,
    epoch_us: i64,
    open: u64,
}

impl Feeder {
    async fn run(mut self) {
        let mut due = self.epoch_end();
        loop {
            if matches!(&self.outlet, Outlet::Processes(seat) if seat.is_reading()) {
                if self.read_on().await {
                    continue;
                }
                break;
            }
            let is_alive = tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => {
                    due = self.epoch_end();
                    self.advance().await
                }
                notice = self.outlet.step() => self.heed(&notice),
                published = self.subscription.recv() => match published {
                    Some(published) => self.hand_on(published).await,
                    None => false,
                },
            };
            if !is_alive {
                break;
            }
        }
        if let Outlet::Threads(ports) = self.outlet {
            let threads: Vec<_> = ports.iter().filter_map(Port::thread).collect();
            drop(ports);
            threads.iter().for_each(thread::Thread::unpark);
        }
    }

    /// When the open epoch's time has passed, by the clock.
    fn epoch_end(&self) -> tokio::time::Instant {
        let left = self.epoch_us - ((self.clock)() - self.origin).rem_euclid(self.epoch_us);
        tokio::time::Instant::now() + Duration::from_micros(left as u64)
    }

    /// One part of the log, then what has come meanwhile. False at the end of the bus.
    async fn read_on(&mut self) -> bool {
        let notice = self.outlet.step().await;
        self.heed(&notice);
        loop {
            match self.subscription.try_recv() {
                Ok(published) => drop(self.hand_on(published).await),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        // Lets the task that reads the answers run.
        tokio::task::yield_now().await;
        self.advance().await
    }

    fn heed(&mut self, notice: &Notice) -> bool {
        if let (Notice::Behind, Outlet::Processes(seat)) = (notice, &mut self.outlet) {
            seat.catch_up(self.open, self.epochs.unlogged(self.open));
        }
        true
    }

    async fn hand_on(&mut self, published: Published) -> bool {
        self.epochs.came(&published);
        if let Outlet::Processes(seat) = &mut self.outlet {
            seat.came(published).await;
            return true;
        }
        let mut rows = FlowRows::default();
        self.feed.take(&published, (self.clock)(), (&mut rows, self.views.refused()));
        if rows.is_empty() {
            return true;
        }
        self.send(0, Message::Rows(rows)).await
    }

    async fn advance(&mut self) -> bool {
        let epoch = ((self.clock)() - self.origin).max(0) as u64 / self.epoch_us as u64;
        if epoch <= self.open {
            return true;
        }
        self.epochs.close(self.open, (self.clock)());
        self.open = epoch;
        let workers = match &mut self.outlet {
            Outlet::Threads(ports) => ports.len(),
            Outlet::Processes(seat) => {
                seat.closed(epoch).await;
                0
            }
        };
        for worker in 0..workers {
            if !self.send(worker, Message::Advance(epoch)).await {
                return false;
            }
        }
        true
    }

    /// False if the worker is gone, which is a row.
    async fn send(&self, worker: usize, message: Message) -> bool {
        let Outlet::Threads(ports) = &self.outlet else { return true };
        let is_alive = ports[worker].send(message).await;
        if !is_alive {
            let detail = format!("dataflow worker {worker} is gone; views are stale from now on");
            self.report("worker_died", detail);
        }
        is_alive
    }

    /// Never waits: this thread empties a subscription of the same bus.
    fn report(&self, kind: &str, detail: String) {
        tracing::warn!(kind, detail, "dataflow fault");
        let at = (self.clock)();
        let _ =
            self.bus.try_publish(FaultRow { at, component: "dataflow".into(), kind: kind.into(), detail, count: 1 });
    }
}

/// What the operators are configured with.
pub fn flow_config(config: &config::Dataflow) -> FlowConfig {
    let epoch_us = config.epoch.as_micros() as u64;
    let window_epochs = (config.window.as_micros() as u64 / epoch_us / WINDOWS).max(1);
    let epochs = |span: Duration| (span.as_micros() as u64).div_ceil(epoch_us).max(1);
    FlowConfig {
        load: AtomLoadConfig { max_open: config.open_requests_max, ..AtomLoadConfig::default() },
        cache: CacheIndexConfig { max_entries: config.cache_entries_max, ..CacheIndexConfig::default() },
        distribution: DistributionConfig { window_epochs, windows: WINDOWS, epoch_us, ..DistributionConfig::default() },
        reuse: reuse_config(config),
        funnel: FunnelConfig {
            max_open: config.open_requests_max,
            max_hashes: config.funnel_hashes_max,
            max_holders: config.cache_entries_max,
            close_after_epochs: epochs(FUNNEL_CLOSES_AFTER),
            settle_epochs: epochs(FUNNEL_SETTLES_AFTER),
            ..FunnelConfig::default()
        },
        funnel_window: FunnelWindowConfig {
            window_epochs: epochs(config.funnel_window),
            ..FunnelWindowConfig::default()
        },
        diagnosis: DiagnosisConfig { window_epochs: epochs(config.funnel_window), ..DiagnosisConfig::default() },
        sessions: SessionConfig { window_epochs, windows: WINDOWS, ..SessionConfig::default() },
        arrival_trend: ArrivalTrendConfig {
            period_epochs: trend_epochs(config),
            season_periods: (config.trend_season.as_micros() / config.trend_period.as_micros().max(1)) as usize,
            horizon: horizon_periods(config),
            ..ArrivalTrendConfig::default()
        },
        ..FlowConfig::default()
    }
}

/// A request whose end did not come by then is closed without it; longer than a request may live by default.
const FUNNEL_CLOSES_AFTER: Duration = Duration::from_secs(15 * 60);
/// What a worker did before a decision is known to the dataflow by then.
const FUNNEL_SETTLES_AFTER: Duration = Duration::from_millis(500);

/// Epochs in a period of the arrival trend.
pub fn trend_epochs(config: &config::Dataflow) -> u64 {
    (config.trend_period.as_micros() / config.epoch.as_micros().max(1)).max(1) as u64
}

/// Periods that the arrival trend is forecast ahead.
pub fn horizon_periods(config: &config::Dataflow) -> u32 {
    config.trend_horizon.as_micros().div_ceil(config.trend_period.as_micros().max(1)).max(1) as u32
}

fn reuse_config(config: &config::Dataflow) -> ReuseDistanceConfig {
    let epochs = |span: Duration| (span.as_micros() / config.epoch.as_micros().max(1)).max(1) as u64;
    let window = Forgetting::Windows { epochs: epochs(config.mrc_window / WINDOWS as u32), count: WINDOWS };
    ReuseDistanceConfig {
        exact_blocks: config.mrc_exact_blocks,
        sample_max: config.mrc_sample_max,
        forgetting: window,
        emit_epochs: epochs(config.mrc_interval),
        ..ReuseDistanceConfig::default()
    }
}

/// The running distribution and the miss-ratio curve are merged from this many tumbling windows.
const WINDOWS: u64 = 6;
