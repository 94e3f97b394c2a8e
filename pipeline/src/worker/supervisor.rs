//! Keeps the fleet's local workers alive (DESIGN §6, SPEC X5): starts them, registers them in the
//! [`InstanceDirectory`], watches exit and health, restarts with exponential back-off, drains and ends them at the end.
//!
//! Invariants: one task writes an instance's entries; each incarnation has a larger epoch than all before it, also over
//! restarts of the supervisor (epochs are start times in microseconds, made strictly increasing), and fresh leases; a worker
//! that never gets ready is killed after `start_timeout`; one that does not answer for `health_timeout` is killed; a state
//! change is one [`InstanceRow`]. A publisher that does not take a row in `PUBLISH_WAIT` loses it, with a warning: the
//! fleet is not held up by the bus.
//!
//! Cost: one task a worker, one health check a `health_interval`. State: one entry an instance.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    child::{Child, WorkerCommand},
    client::{ClientLimits, GrpcInstance},
    options::WorkerOptions,
    process::{ReadyL2, ReadyLine},
    wall_micros,
};
use crate::{
    config::{self, ModelGroup, Variant},
    gateway::{
        instances::{InstanceClient, InstanceDirectory, InstanceEntry, InstanceState},
        leases::Leases,
    },
    ids::{InstanceId, ProcessEpoch, micros},
    policy::FetchTimes,
    rows::InstanceRow,
};

const PUBLISH_WAIT: Duration = Duration::from_secs(1);
/// From closing a worker's stdin to killing it.
const END_GRACE: Duration = Duration::from_secs(3);

/// Takes a row for each change of an instance's state: the bus.
#[async_trait]
pub trait InstanceSink: Send + Sync {
    async fn instance(&self, row: InstanceRow);
}

/// What the supervisor runs. `options` are every worker's but for what its variant says; instance and epoch are set for each.
#[derive(Debug, Clone)]
pub struct SupervisorConfig {
    pub command: WorkerCommand,
    /// Number of its first worker.
    pub first: u32,
    pub count: u32,
    pub options: WorkerOptions,
    /// Variants of the model; the first ones' workers have the lowest numbers. Empty: one, as `options` say.
    pub variants: Vec<Variant>,
    pub start_timeout: Duration,
    pub restart_backoff: Duration,
    pub restart_backoff_max: Duration,
    pub health_interval: Duration,
    pub health_timeout: Duration,
    pub drain_timeout: Duration,
    pub limits: ClientLimits,
}

/// A model that workers load: `path` is a .gguf file or `simulated`, `name` what clients call it.
#[derive(Debug, Clone)]
pub struct ServedModel {
    pub name: String,
    pub path: String,
}

impl SupervisorConfig {
    /// The fleet of one model, from the configuration tree; its workers are numbered from 0. `flight` is where they publish.
    pub fn new(config: &config::Config, model: ServedModel, flight: SocketAddr, command: WorkerCommand) -> Self {
        let w = &config.workers;
        let options = WorkerOptions {
            model_name: model.name,
            flight: Some(flight),
            threads: w.threads,
            block_size: w.block_size,
            kv_bytes_max: w.kv_bytes_max.as_u64(),
            l2_bytes: w.l2_bytes.as_u64(),
            token_budget: w.token_budget,
            prefill_step_time: w.prefill_step_time,
            running_max: w.running_max,
            waiting_max: w.waiting_max,
            prefix_cache: w.prefix_cache.into(),
            arithmetic: w.arithmetic,
            kv: w.kv,
            speculation: w.speculation,
            draft_model: Some(w.draft_model.clone()).filter(|path| !path.is_empty()),
            draft_tokens_max: w.draft_tokens_max,
            verify_interval: w.verify_interval,
            drain_timeout: config.server.drain_timeout,
            flush_rows: config.bus.flush_rows,
            flush_interval: config.bus.flush_interval,
            queue_rows: config.bus.queue_rows,
            ..WorkerOptions::for_model(model.path)
        };
        SupervisorConfig {
            command,
            first: 0,
            count: w.count,
            options,
            variants: Vec::new(),
            start_timeout: w.start_timeout,
            restart_backoff: w.restart_backoff,
            restart_backoff_max: w.restart_backoff_max,
            health_interval: w.health_interval,
            health_timeout: w.health_timeout,
            drain_timeout: config.server.drain_timeout,
            limits: ClientLimits::default(),
        }
    }
}

impl SupervisorConfig {
    /// The same for a group's variants and numbers of workers, which begin with `first`.
    pub fn of_group(self, group: &ModelGroup, first: u32) -> Self {
        Self { first, count: group.worker_count(self.count), variants: group.variants.clone(), ..self }
    }

    /// The options of worker `number`; those beyond all variants' serve the first variant.
    fn options_of(&self, number: u32) -> WorkerOptions {
        let mut end = self.first;
        let own = self.variants.iter().find(|variant| {
            end += variant.workers;
            number < end
        });
        match own.or(self.variants.first()) {
            Some(variant) => self.options.clone().of_variant(variant),
            None => self.options.clone(),
        }
    }
}

/// The running fleet. Dropping it kills the workers; [`Supervisor::stop`] lets them finish.
pub struct Supervisor {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Supervisor {
    /// Starts all workers on the current runtime and returns at once; the directory shows when they are ready.
    pub fn start(config: SupervisorConfig, directory: Arc<InstanceDirectory>, sink: Arc<dyn InstanceSink>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let config = Arc::new(config);
        let mut tasks = JoinSet::new();
        for number in config.first..config.first + config.count {
            let keeper = Keeper {
                id: InstanceId(number),
                options: WorkerOptions { instance: number, ..config.options_of(number) },
                config: config.clone(),
                directory: directory.clone(),
                sink: sink.clone(),
                stopped: stopped.clone(),
                epoch: ProcessEpoch(0),
                leases: Arc::default(),
                entered: Instant::now(),
            };
            tasks.spawn(keeper.run());
        }
        Supervisor { tasks, stop }
    }

    /// Drains all workers for at most `drain_timeout`, then ends them.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a supervising task failed");
            }
        }
    }
}

/// What an instance looks like from now on.
struct Phase {
    state: InstanceState,
    client: Option<Arc<dyn InstanceClient>>,
    address: Option<SocketAddr>,
    pid: Option<u32>,
    detail: Option<String>,
    fetch: FetchTimes,
}

impl Phase {
    fn bare(state: InstanceState, detail: Option<String>) -> Self {
        Phase { state, client: None, address: None, pid: None, detail, fetch: FetchTimes::default() }
    }
}

/// How an incarnation ended.
enum End {
    Stopped,
    Died { detail: String, served: Duration },
}

struct Keeper {
    id: InstanceId,
    options: WorkerOptions,
    config: Arc<SupervisorConfig>,
    directory: Arc<InstanceDirectory>,
    sink: Arc<dyn InstanceSink>,
    stopped: watch::Receiver<bool>,
    epoch: ProcessEpoch,
    leases: Arc<Leases>,
    entered: Instant,
}

impl Keeper {
    async fn run(mut self) {
        let mut pause = self.config.restart_backoff;
        loop {
            self.epoch = next_epoch(self.epoch, wall_micros());
            self.leases = Arc::default();
            let End::Died { detail, served } = self.incarnation().await else { break };
            tracing::warn!(instance = %self.id, epoch = self.epoch.0, detail, "worker died");
            self.enter(Phase::bare(InstanceState::Dead, Some(detail))).await;
            // A worker that served for long enough gets a fresh start.
            if served >= self.config.restart_backoff_max {
                pause = self.config.restart_backoff;
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = stopped(&mut self.stopped) => break,
            }
            pause = (pause * 2).min(self.config.restart_backoff_max);
        }
        self.enter(Phase::bare(InstanceState::Stopped, None)).await;
    }

    /// One process from start to end.
    async fn incarnation(&mut self) -> End {
        self.enter(Phase::bare(InstanceState::Starting, None)).await;
        let options = WorkerOptions { epoch: self.epoch.0, ..self.options.clone() };
        let mut child = match Child::spawn(&self.config.command, &options) {
            Ok(child) => child,
            Err(error) => return died(error, Duration::ZERO),
        };
        let start_timeout = self.config.start_timeout;
        let ready = tokio::select! {
            ready = timeout(start_timeout, child.ready()) => ready,
            () = stopped(&mut self.stopped) => {
                child.kill().await;
                return End::Stopped;
            }
        };
        match ready {
            Ok(Ok(ready)) => self.serve(child, ready).await,
            Ok(Err(error)) => {
                child.kill().await;
                died(error, Duration::ZERO)
            }
            Err(_) => {
                child.kill().await;
                died(format!("not ready in {start_timeout:?}, so it was killed"), Duration::ZERO)
            }
        }
    }

    async fn serve(&mut self, mut child: Child, ready: ReadyLine) -> End {
        let client = match GrpcInstance::new(ready.address, self.config.limits) {
            Ok(client) => client,
            Err(error) => return died(error, Duration::ZERO),
        };
        let fetch = fetch_times(&ready, self.options.block_size);
        let phase = |state, detail| Phase {
            state,
            client: Some(Arc::new(client.clone())),
            address: Some(ready.address),
            pid: Some(ready.pid),
            detail,
            fetch,
        };
        let since = Instant::now();
        self.enter(phase(InstanceState::Ready, Some(in_words(&ready)))).await;
        tokio::select! {
            how = child.wait() => return died(how, since.elapsed()),
            detail = watch_health(&client, self.epoch, &self.config) => {
                child.kill().await;
                return died(detail, since.elapsed());
            }
            () = stopped(&mut self.stopped) => {}
        }
        self.enter(phase(InstanceState::Draining, None)).await;
        tokio::select! {
            _ = child.wait() => return End::Stopped,
            drained = client.drain(self.config.drain_timeout) => if let Err(error) = drained {
                tracing::warn!(instance = %self.id, %error, "worker not drained; its sequences are cut off");
            }
        }
        child.close_stdin();
        if timeout(END_GRACE, child.wait()).await.is_err() {
            child.kill().await;
        }
        End::Stopped
    }

    /// Makes the phase visible: in the directory first, then as a row.
    async fn enter(&mut self, phase: Phase) {
        let (model, variant) = (self.options.model_name.clone(), self.options.variant.clone());
        let name = self.id.to_string();
        self.directory.put(InstanceEntry {
            id: self.id,
            name: name.clone(),
            epoch: self.epoch,
            model: model.as_str().into(),
            variant: variant.as_str().into(),
            state: phase.state,
            client: phase.client,
            leases: self.leases.clone(),
            fetch: phase.fetch,
        });
        let spent = self.entered.elapsed();
        self.entered = Instant::now();
        let row = InstanceRow {
            at: wall_micros(),
            instance: self.id.0,
            name,
            epoch: self.epoch.0,
            state: phase.state.name().into(),
            model,
            address: phase.address.map(|address| address.to_string()),
            pid: phase.pid,
            detail: phase.detail,
            phase_us: Some(micros(spent)),
            variant: Some(variant),
        };
        tell(self.sink.as_ref(), row).await;
    }
}

/// Tells of a state. Who waits for the bus would hold up the fleet, so a row that it does not take soon is lost.
pub(super) async fn tell(sink: &dyn InstanceSink, row: InstanceRow) {
    let (instance, state) = (row.name.clone(), row.state.clone());
    if timeout(PUBLISH_WAIT, sink.instance(row)).await.is_err() {
        tracing::warn!(instance, state, "the bus is full; an instances row is lost");
    }
}

/// What a worker measured of its L2; it has no levels below.
fn fetch_times(ready: &ReadyLine, block_size: usize) -> FetchTimes {
    let seconds = |l2: &ReadyL2| l2.copy_ns_per_block as f64 / 1e9 / block_size as f64;
    FetchTimes([None, ready.l2.as_ref().map(seconds), None, None])
}

fn in_words(ready: &ReadyLine) -> String {
    let loaded = format!("model loaded in {} ms, {} KV blocks", ready.load_us / 1000, ready.blocks);
    match &ready.l2 {
        None => loaded,
        Some(l2) => {
            let (copy, compute) = (l2.copy_ns_per_block as f64 / 1e3, l2.prefill_ns_per_token as f64 / 1e3);
            format!("{loaded}, {} in L2 (to copy a block {copy:.1} us, to compute a token {compute:.1} us)", l2.blocks)
        }
    }
}

fn died(detail: impl ToString, served: Duration) -> End {
    End::Died { detail: detail.to_string(), served }
}

async fn stopped(stopped: &mut watch::Receiver<bool>) {
    // A closed channel means that the supervisor was dropped: stop as well.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// The start time in microseconds, or one more than the last epoch if the clock stands or goes back.
pub(super) fn next_epoch(last: ProcessEpoch, now: crate::ids::Micros) -> ProcessEpoch {
    ProcessEpoch(u64::try_from(now).unwrap_or(0).max(last.0 + 1))
}

/// Completes with the reason once the worker has not been healthy for `health_timeout`.
async fn watch_health(client: &GrpcInstance, epoch: ProcessEpoch, config: &SupervisorConfig) -> String {
    let mut healthy = Instant::now();
    loop {
        sleep(config.health_interval).await;
        let problem = match client.health(config.health_timeout).await {
            Ok(reply) if reply.epoch == epoch.0 => {
                healthy = Instant::now();
                continue;
            }
            Ok(reply) => format!("the process there has epoch {}, not {}", reply.epoch, epoch.0),
            Err(error) => error.to_string(),
        };
        if healthy.elapsed() >= config.health_timeout {
            return format!("not healthy for {:?}, so it was killed: {problem}", config.health_timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: variants of two and one workers over common options, and a worker beyond them; no variants at all.
    /// Guarantees: the first numbers serve the first variant; what a variant leaves out is as the common options say.
    #[test]
    fn numbers_belong_to_variants() {
        let config = config::load(None, config::Overrides::default()).unwrap();
        let command = WorkerCommand { program: "evenkeel".into(), leading: vec![] };
        let model = ServedModel { name: "m".into(), path: "m.gguf".into() };
        let mut fleet = SupervisorConfig::new(&config, model, ([127, 0, 0, 1], 1).into(), command);
        let seen = |fleet: &SupervisorConfig| -> Vec<String> {
            let line = |o: WorkerOptions| format!("{} {} {:?} {:?}", o.variant, o.model, o.arithmetic, o.weights);
            (0..4).map(|number| line(fleet.options_of(number))).collect()
        };
        assert_eq!(seen(&fleet), vec!["default m.gguf Int8 AsStored"; 4]);
        fleet.variants = ["q8=weights:q8_0,workers:2", "exact=arithmetic:f32,file:other.gguf"]
            .map(|text| config::parse_variant(text).unwrap())
            .to_vec();
        let q8 = "q8 m.gguf Int8 Q8";
        assert_eq!(seen(&fleet), [q8, q8, "exact other.gguf F32 AsStored", q8]);
    }

    /// Scenario: the clock stands still, goes back and jumps ahead. Guarantees: epochs strictly increase.
    #[test]
    fn epochs_grow_whatever_the_clock_does() {
        let mut epoch = ProcessEpoch(0);
        for now in [100, 100, 50, -1, 1_000] {
            let next = next_epoch(epoch, now);
            assert!(next > epoch, "{next:?} after {epoch:?} at {now}");
            epoch = next;
        }
        assert_eq!(epoch, ProcessEpoch(1_000));
    }
}
