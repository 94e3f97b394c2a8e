//! Tests of the worker's parts together: a real engine with the simulated runner, real gRPC and Flight over loopback, real
//! child processes. No part is mocked.

mod flight;
mod processes;
mod sequences;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use engine::{
    engine::Engine,
    request::{Lane, SamplingParams, StopConditions},
};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

use super::{
    client::{ClientLimits, GrpcInstance},
    engine_thread::{self, EngineHandle},
    grammars::Grammars,
    model,
    options::WorkerOptions,
    server::{WorkerInfo, WorkerService},
    step_rows::StepSink,
};
use crate::{
    gateway::instances::{Chunk, ChunkStream, GenerateCall, InstanceError},
    http2,
    ids::{InstanceId, ProcessEpoch},
    proto::worker_server::WorkerServer,
};

/// A wait that only ends a test that hangs; it measures nothing.
const PATIENCE: Duration = Duration::from_secs(30);

/// A small simulated engine; `pace` 0 does not wait for modelled time.
fn options(pace: f64) -> WorkerOptions {
    WorkerOptions {
        model_name: "toy".into(),
        simulated_vocab: 512,
        simulated_context: 512,
        simulated_pace: pace,
        kv_bytes_max: 64 * 16 * 46_080,
        token_budget: 64,
        running_max: 8,
        waiting_max: 8,
        ..WorkerOptions::for_model(model::SIMULATED)
    }
}

fn engine(options: &WorkerOptions) -> Engine {
    model::build(options).unwrap()
}

/// Keeps the last step's figures.
#[derive(Clone, Default)]
struct LastStep(Arc<std::sync::Mutex<engine::step::StepStats>>);

impl StepSink for LastStep {
    fn step(&mut self, _: i64, _: i64, stats: engine::step::StepStats, _: Vec<engine::events::KvEvent>) {
        *self.0.lock().unwrap() = stats;
    }

    fn tell(
        &mut self,
        _: i64,
        _: (crate::gateway::instances::KvAsk, Vec<engine::events::KvEvent>),
        held: &dyn Fn() -> (Vec<engine::events::HeldBlock>, u32),
    ) -> usize {
        held().0.len()
    }

    fn speculation(&mut self, _: i64, _: Vec<engine::speculation::report::SpeculationChange>) {}
}

struct Served {
    handle: EngineHandle,
    service: WorkerService,
    client: GrpcInstance,
    last: LastStep,
}

/// An engine thread behind the gRPC service on a free port.
async fn served(options: &WorkerOptions) -> Served {
    let last = LastStep::default();
    let engine = engine(options);
    let shape = engine.shape();
    let handle = engine_thread::spawn(engine, shape.context, Box::new(last.clone())).unwrap();
    let handle = handle.with_grammars(Arc::new(Grammars::of_model(&options.model, shape.vocab)));
    let info = WorkerInfo {
        instance: InstanceId(0),
        epoch: ProcessEpoch(7),
        model: "toy".into(),
        variant: "default".into(),
        shape,
        step_time_max: PATIENCE,
    };
    let service = WorkerService::new(handle.clone(), info);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    serve_on(listener, service.clone());
    Served { handle, service, client: GrpcInstance::new(address, ClientLimits::default()).unwrap(), last }
}

fn serve_on(listener: TcpListener, service: WorkerService) {
    let router = http2::server().add_service(WorkerServer::new(service));
    tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
}

fn call(prompt: Vec<u32>, max_tokens: u32) -> GenerateCall {
    GenerateCall {
        request_id: "r".into(),
        prompt: prompt.into(),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        stop: StopConditions { max_tokens, ..StopConditions::default() },
        lane: Lane::L2,
        deadline: None,
        drop_at: None,
        cache_salt: 0,
        sampling_offset: 0,
        class: None,
        traceparent: None,
    }
}

async fn collect(mut stream: ChunkStream) -> Vec<Result<Chunk, InstanceError>> {
    use futures::StreamExt;
    let mut items = Vec::new();
    while let Some(item) = tokio::time::timeout(PATIENCE, stream.next()).await.expect("the stream hangs") {
        items.push(item);
    }
    items
}

fn tokens(items: &[Result<Chunk, InstanceError>]) -> Vec<u32> {
    items.iter().flat_map(|item| item.as_ref().unwrap().tokens.clone()).collect()
}

/// Looks again until `done` holds; a test that waits in vain fails here.
async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let look = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("never happened: {what}"));
}
