//! Timely workers on threads of their own, fed from the bus and advanced by the clock.
//!
//! bus → (bounded subscription) → feeder thread → (bounded queue per worker, waits when full) → worker → `FlowViews`
//!
//! The feeder owns the clock's ticks: an epoch is closed when its time has passed and every row received before that was
//! handed on; which rows came in it is a row of `epochs`, so that a replay closes the same epochs (SPEC X2). Rows enter at
//! worker 0 and are exchanged by key inside. Cost: one message per batch and one per worker and epoch. State:
//! [`QUEUE_MESSAGES`] messages per worker.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use operators::{
    ArrivalTrendConfig, AtomLoadConfig, CacheIndexConfig, DiagnosisConfig, DistributionConfig, FlowConfig, FlowRows,
    Forgetting, FunnelConfig, FunnelWindowConfig, PrefixIndexConfig, ReuseDistanceConfig, SessionConfig, views::build,
};
use timely::{CommunicationConfig, WorkerConfig, worker::Worker};
use tokio::sync::mpsc;

use super::{
    epoch_log::EpochLog,
    feed::{Feed, Names, TOPICS},
    views::FlowViews,
};
use crate::{
    bus::{Bus, Clock, Published, Subscription},
    config,
    rows::FaultRow,
};

/// Messages on their way to one timely worker; the feeder, and behind it the bus, waits at the bound.
const QUEUE_MESSAGES: usize = 256;
/// Longest sleep of an idle worker; messages wake it.
const PARK: Duration = Duration::from_millis(100);

/// The dataflow could not start.
#[derive(Debug, thiserror::Error)]
pub enum FlowError {
    #[error("cannot start timely: {0}")]
    Timely(String),
    #[error("cannot start the feeder's thread: {0}")]
    Thread(#[from] std::io::Error),
}

enum Message {
    Rows(FlowRows),
    Advance(u64),
}

/// A running dataflow. Dropping it ends the workers once the bus has ended the subscription.
pub struct Dataflow {
    views: Arc<FlowViews>,
    feeder: Option<thread::JoinHandle<()>>,
}

impl Dataflow {
    /// Subscribes to the bus and starts the workers.
    pub fn start(config: &config::Dataflow, bus: &Bus, clock: Clock) -> Result<Self, FlowError> {
        let epoch_us = config.epoch.as_micros() as i64;
        let origin = clock() / epoch_us * epoch_us;
        let names = Names::default();
        let prefixes = PrefixIndexConfig {
            max_entries: config.cache_entries_max,
            // Unknown outside, lest crafted prompts aim at one place of the map.
            seed: rand::random(),
            ..PrefixIndexConfig::default()
        };
        let views = Arc::new(FlowViews::new(config.workers, prefixes, names.clone(), (origin, epoch_us)));
        let (ports, receivers): (Vec<_>, Vec<_>) = (0..config.workers).map(|_| Port::new()).unzip();
        let guards = spawn_workers(config, receivers, &ports, views.clone())?;
        let feeder = Feeder {
            subscription: bus.subscribe(&TOPICS),
            bus: bus.clone(),
            feed: Feed::new(names, config.open_requests_max),
            ports,
            clock,
            epochs: EpochLog::start(bus.clone(), origin, epoch_us),
            origin,
            epoch_us,
            open: 0,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let handle = thread::Builder::new().name("dataflow-feed".into()).spawn(move || {
            runtime.block_on(feeder.run());
            for result in guards.join() {
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

/// The sending end of one worker's queue, and the means to wake the worker.
struct Port {
    messages: mpsc::Sender<Message>,
    thread: Arc<OnceLock<thread::Thread>>,
}

impl Port {
    fn new() -> (Self, mpsc::Receiver<Message>) {
        let (messages, receiver) = mpsc::channel(QUEUE_MESSAGES);
        (Self { messages, thread: Arc::default() }, receiver)
    }

    /// False if the worker is gone.
    async fn send(&self, message: Message) -> bool {
        let sent = self.messages.send(message).await.is_ok();
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        sent
    }
}

struct Feeder {
    subscription: Subscription,
    bus: Bus,
    feed: Feed,
    epochs: EpochLog,
    ports: Vec<Port>,
    clock: Clock,
    origin: i64,
    epoch_us: i64,
    open: u64,
}

impl Feeder {
    async fn run(mut self) {
        let mut tick = tokio::time::interval(Duration::from_micros(self.epoch_us as u64));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_alive = tokio::select! {
                biased;
                _ = tick.tick() => self.advance().await,
                published = self.subscription.recv() => match published {
                    Some(published) => self.hand_on(published).await,
                    None => false,
                },
            };
            if !is_alive {
                break;
            }
        }
        let threads: Vec<_> = self.ports.iter().filter_map(|port| port.thread.get().cloned()).collect();
        drop(self.ports);
        threads.iter().for_each(thread::Thread::unpark);
    }

    async fn hand_on(&mut self, published: Published) -> bool {
        let mut rows = FlowRows::default();
        self.epochs.came(&published);
        if let Err(error) = self.feed.take(&published, &mut rows) {
            self.report("malformed_batch", format!("{}: {error}", published.topic.name()));
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
        for worker in 0..self.ports.len() {
            if !self.send(worker, Message::Advance(epoch)).await {
                return false;
            }
        }
        true
    }

    /// False if the worker is gone, which is a row.
    async fn send(&self, worker: usize, message: Message) -> bool {
        let is_alive = self.ports[worker].send(message).await;
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

type Guards = timely::communication::WorkerGuards<()>;

fn spawn_workers(
    config: &config::Dataflow,
    receivers: Vec<mpsc::Receiver<Message>>,
    ports: &[Port],
    views: Arc<FlowViews>,
) -> Result<Guards, FlowError> {
    let flow = flow_config(config);
    let communication =
        if config.workers == 1 { CommunicationConfig::Thread } else { CommunicationConfig::Process(config.workers) };
    let receivers = Mutex::new(receivers.into_iter().map(Some).collect::<Vec<_>>());
    let threads: Vec<_> = ports.iter().map(|port| port.thread.clone()).collect();
    timely::execute(timely::Config { communication, worker: WorkerConfig::default() }, move |worker| {
        let index = worker.index();
        let taken = receivers.lock().unwrap_or_else(PoisonError::into_inner)[index].take();
        let receiver = taken.expect("invariant: each worker starts once");
        let _ = threads[index].set(thread::current());
        let views = views.clone();
        work(worker, &flow, receiver, move |worker, changes| views.take(worker, changes));
    })
    .map_err(FlowError::Timely)
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

fn work(
    worker: &mut Worker,
    flow: &FlowConfig,
    mut receiver: mpsc::Receiver<Message>,
    on_changes: impl FnMut(usize, operators::ViewChanges) + 'static,
) {
    let mut flow = build(worker, flow, on_changes);
    loop {
        let mut budget = QUEUE_MESSAGES;
        let is_open = loop {
            match receiver.try_recv() {
                Ok(message) => take(worker, &mut flow.inputs, message),
                Err(mpsc::error::TryRecvError::Empty) => break true,
                Err(mpsc::error::TryRecvError::Disconnected) => break false,
            }
            budget -= 1;
            if budget == 0 {
                break true;
            }
        };
        if !is_open {
            break;
        }
        worker.step_or_park(Some(if budget == 0 { Duration::ZERO } else { PARK }));
    }
}

/// Takes rows of the open epoch in. Full: it holds as many rows as it may; closing it makes room at the cost of a finer epoch.
pub fn take_rows(worker: &mut Worker, inputs: &mut operators::FlowInputs, mut rows: FlowRows) {
    while inputs.send(&mut rows).is_err() {
        let next = inputs.open() + 1;
        if inputs.advance(next).is_err() {
            break;
        }
        worker.step();
    }
}

fn take(worker: &mut Worker, inputs: &mut operators::FlowInputs, message: Message) {
    match message {
        Message::Rows(rows) => take_rows(worker, inputs, rows),
        // Backward only if epochs were closed early above; the clock catches up.
        Message::Advance(epoch) => drop(inputs.advance(epoch.max(inputs.open()))),
    }
}
