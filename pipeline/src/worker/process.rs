//! The body of `evenkeel worker`: load the model, start the engine thread and the gRPC service, say so on stdout, serve
//! until told to end (SPEC A6 for the timed load, DESIGN §6).
//!
//! Life: one JSON line on stdout when ready ([`ReadyLine`]), nothing else is ever written there. The end of stdin ends the
//! process within [`ORPHAN_GRACE`], even while the model loads, so no worker outlives a killed supervisor. SIGTERM and
//! SIGINT drain first. A dead engine thread ends the process with an error, and the supervisor starts another.
//!
//! State: see `engine_thread` and `telemetry`; this file holds none.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    process,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use engine::config::{EngineConfig, SwapRates};
use serde::{Deserialize, Serialize};
use tokio::{
    net::TcpListener,
    runtime,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::timeout,
};
use tonic::transport::server::TcpIncoming;

use super::{
    engine_thread::{self, EngineHandle},
    grammars::Grammars,
    model::{self, ModelSetupError},
    options::{Lifetime, WorkerOptions},
    server::{WorkerInfo, WorkerService},
    step_rows::{RowOutlet, StepRows, StepSink},
    telemetry::{Telemetry, TelemetryConfig},
};
use crate::{
    http2,
    ids::{InstanceId, ProcessEpoch},
    proto::worker_server::WorkerServer,
    rows::{EngineStepRow, KvEventRow, SpeculationRow},
};

/// How long a worker lives on after its stdin has closed.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(2);
const TELEMETRY_FLUSH: Duration = Duration::from_secs(1);
const EXIT_ORPHANED: i32 = 75;

/// What a worker says on stdout once it serves, as one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyLine {
    pub address: SocketAddr,
    pub pid: u32,
    /// Longest sequence, in tokens.
    pub context: usize,
    pub vocab: usize,
    /// KV blocks.
    pub blocks: usize,
    /// Time to load the model, in microseconds.
    pub load_us: u64,
    /// L2, if there is one.
    pub l2: Option<ReadyL2>,
}

/// Host memory for the KV of sequences that give way, and the costs that were measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyL2 {
    pub blocks: usize,
    pub prefill_ns_per_token: u64,
    pub copy_ns_per_block: u64,
}

impl ReadyL2 {
    fn of(config: &EngineConfig) -> Option<Self> {
        let SwapRates { prefill_ns_per_token, copy_ns_per_block } = config.swap_rates;
        (config.l2_blocks > 0).then_some(Self { blocks: config.l2_blocks, prefill_ns_per_token, copy_ns_per_block })
    }
}

/// Why a worker ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error(transparent)]
    Model(#[from] ModelSetupError),
    #[error("--listen = {address}: {source}; expected a free address of this machine, or port 0")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot {what}: {source}")]
    Start { what: &'static str, source: io::Error },
    #[error("the engine thread has died; its panic message is above")]
    EngineDied,
}

fn start_error(what: &'static str) -> impl FnOnce(io::Error) -> ProcessError {
    move |source| ProcessError::Start { what, source }
}

/// Runs a worker until it is told to end. Blocks; call it from the main thread outside any async runtime.
pub fn run(options: WorkerOptions) -> Result<(), ProcessError> {
    let orphaned = watch_stdin(options.lifetime).map_err(start_error("start the thread that watches stdin"))?;
    let started = Instant::now();
    let engine = model::build(&options)?;
    let load_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("worker-io")
        .enable_all()
        .build()
        .map_err(start_error("start the async runtime"))?;
    let result = runtime.block_on(serve(options, engine, load_us, orphaned));
    runtime.shutdown_timeout(Duration::from_millis(500));
    result
}

async fn serve(
    options: WorkerOptions,
    engine: engine::engine::Engine,
    load_us: u64,
    mut orphaned: watch::Receiver<bool>,
) -> Result<(), ProcessError> {
    let (shape, l2) = (engine.shape(), ReadyL2::of(&engine.config()));
    let (sink, telemetry) = step_sink(&options);
    let handle = engine_thread::spawn(engine, shape.context, sink).map_err(start_error("start the engine thread"))?;
    let handle = handle.with_grammars(Arc::new(Grammars::of_model(&options.model, shape.vocab)));
    let service = WorkerService::new(
        handle.clone(),
        WorkerInfo {
            instance: InstanceId(options.instance),
            epoch: ProcessEpoch(options.epoch),
            model: options.model_name.clone(),
            variant: options.variant.clone(),
            shape,
            step_time_max: options.step_time_max,
        },
    );
    let listen_error = |source| ProcessError::Listen { address: options.listen, source };
    let listener = TcpListener::bind(options.listen).await.map_err(listen_error)?;
    let address = listener.local_addr().map_err(listen_error)?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let router = http2::server().add_service(WorkerServer::new(service.clone()));
    let server = tokio::spawn(router.serve_with_incoming(incoming));
    announce(&ReadyLine {
        address,
        pid: process::id(),
        context: shape.context,
        vocab: shape.vocab,
        blocks: shape.blocks,
        load_us,
        l2,
    })
    .map_err(start_error("write the ready line"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(start_error("listen for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(start_error("listen for SIGINT"))?;
    let result = tokio::select! {
        () = died(&handle) => Err(ProcessError::EngineDied),
        _ = orphaned.wait_for(|gone| *gone) => Ok(()),
        _ = terminate.recv() => drain(&service, &options).await,
        _ = interrupt.recv() => drain(&service, &options).await,
    };
    if let Some(telemetry) = telemetry {
        telemetry.finish(TELEMETRY_FLUSH).await;
    }
    server.abort();
    result
}

async fn died(handle: &EngineHandle) {
    handle.ended().await;
}

async fn drain(service: &WorkerService, options: &WorkerOptions) -> Result<(), ProcessError> {
    if timeout(options.drain_timeout, service.drain()).await.is_err() {
        tracing::warn!(after = ?options.drain_timeout, "sequences still ran; they are cut off");
    }
    Ok(())
}

fn step_sink(options: &WorkerOptions) -> (Box<dyn StepSink>, Option<Telemetry>) {
    let (instance, epoch) = (InstanceId(options.instance), ProcessEpoch(options.epoch));
    match options.flight {
        None => (Box::new(StepRows::new(instance, epoch, NoOutlet)), None),
        Some(flight) => {
            let (telemetry, outlet) = Telemetry::start(TelemetryConfig {
                flight,
                instance,
                epoch,
                flush_rows: options.flush_rows,
                flush_interval: options.flush_interval,
                queue_rows: options.queue_rows,
            });
            (Box::new(StepRows::new(instance, epoch, outlet)), Some(telemetry))
        }
    }
}

/// A worker without `--flight` publishes nothing.
struct NoOutlet;

impl RowOutlet for NoOutlet {
    fn engine_step(&self, _: EngineStepRow) {}
    fn kv_events(&self, _: Vec<KvEventRow>) {}
    fn kv_has_room(&self) -> bool {
        false
    }
    fn kv_account(&self, _: Vec<KvEventRow>) {}
    fn speculation(&self, _: SpeculationRow) {}
}

fn announce(ready: &ReadyLine) -> io::Result<()> {
    let mut line = serde_json::to_string(ready)?;
    line.push('\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    stdout.flush()
}

/// Turns true when stdin ends. The process is gone [`ORPHAN_GRACE`] later whatever it does.
fn watch_stdin(lifetime: Lifetime) -> io::Result<watch::Receiver<bool>> {
    let (gone, receiver) = watch::channel(false);
    thread::Builder::new().name("stdin".into()).spawn(move || {
        if lifetime == Lifetime::Signal {
            // Kept alive so that the receiver never sees a closed channel.
            loop {
                thread::park();
            }
        }
        let mut scratch = [0u8; 256];
        let mut stdin = io::stdin().lock();
        while matches!(stdin.read(&mut scratch), Ok(n) if n > 0) {}
        gone.send_replace(true);
        thread::sleep(ORPHAN_GRACE);
        process::exit(EXIT_ORPHANED);
    })?;
    Ok(receiver)
}
