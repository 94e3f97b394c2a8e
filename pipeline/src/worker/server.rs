//! The gRPC `Worker` service over an engine thread.
//!
//! Invariants: a stream either ends with a chunk that has `finish` or with a status; dropping it drops the sequence's
//! receiver, which cancels the sequence; once `drain` was called no new sequence starts (check and count are one step under
//! one lock), and `drain` answers when none is left. A stuck step is reported by `health` as `UNAVAILABLE`.
//!
//! Cost: one message copy a chunk. State: one counter; streams are bounded by the engine's own bounds.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use engine::{grammar::GrammarError, request::SubmitRejection, runner::RunnerShape, step::SequenceOutput};
use futures::Stream;
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status};

use super::{
    engine_thread::{EngineHandle, StartError},
    wire,
};
use crate::{
    gateway::trace::TRACEPARENT,
    ids::{InstanceId, ProcessEpoch, micros},
    proto::{self, worker_server::Worker},
};

/// What a worker is, for `health`.
#[derive(Debug, Clone)]
pub struct WorkerInfo {
    pub instance: InstanceId,
    pub epoch: ProcessEpoch,
    pub model: String,
    pub variant: String,
    pub shape: RunnerShape,
    /// A step that takes longer is reported as a fault.
    pub step_time_max: Duration,
}

#[derive(Debug, Clone, Copy, Default)]
struct Admission {
    draining: bool,
    in_flight: u32,
}

/// The service. Clones share everything.
#[derive(Clone)]
pub struct WorkerService {
    engine: EngineHandle,
    info: Arc<WorkerInfo>,
    admission: Arc<watch::Sender<Admission>>,
}

impl WorkerService {
    pub fn new(engine: EngineHandle, info: WorkerInfo) -> Self {
        let (admission, _) = watch::channel(Admission::default());
        WorkerService { engine, info: Arc::new(info), admission: Arc::new(admission) }
    }

    /// Takes no new sequences and completes when the running ones have ended.
    pub async fn drain(&self) {
        self.admission.send_modify(|admission| admission.draining = true);
        let mut changes = self.admission.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = changes.wait_for(|admission| admission.in_flight == 0).await;
    }

    fn enter(&self) -> Option<InFlight> {
        let entered = self.admission.send_if_modified(|admission| {
            if !admission.draining {
                admission.in_flight += 1;
            }
            !admission.draining
        });
        entered.then(|| InFlight(self.admission.clone()))
    }
}

/// One sequence in flight; counted until dropped.
struct InFlight(Arc<watch::Sender<Admission>>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|admission| admission.in_flight -= 1);
    }
}

#[tonic::async_trait]
impl Worker for WorkerService {
    type GenerateStream = GenerateStream;

    async fn generate(&self, request: Request<proto::GenerateRequest>) -> Result<Response<GenerateStream>, Status> {
        let traceparent = request.metadata().get(TRACEPARENT).and_then(|value| value.to_str().ok()).map(String::from);
        let message = request.into_inner();
        let request_id = message.request_id.clone();
        if let Some(traceparent) = traceparent {
            tracing::debug!(request_id, traceparent, "sequence of a traced request");
        }
        let start = wire::start_from_proto(message).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let in_flight = self.enter().ok_or_else(|| Status::resource_exhausted("this worker is draining"))?;
        let outputs = self.engine.start(start).await.map_err(|error| {
            tracing::debug!(request_id, %error, "sequence refused");
            status_of(&error)
        })?;
        Ok(Response::new(GenerateStream { outputs, in_flight: Some(in_flight) }))
    }

    async fn health(&self, _: Request<proto::HealthRequest>) -> Result<Response<proto::HealthReply>, Status> {
        let status = self.engine.status();
        if status.is_dead() {
            return Err(Status::unavailable("the engine thread has died"));
        }
        let limit_us = micros(self.info.step_time_max);
        if let Some(age_us) = status.step_age_us().filter(|age| *age > limit_us) {
            return Err(Status::unavailable(format!(
                "the engine step has run for {} ms; the bound is {} ms",
                age_us / 1000,
                limit_us / 1000
            )));
        }
        let shape = &self.info.shape;
        Ok(Response::new(proto::HealthReply {
            instance: self.info.instance.0,
            epoch: self.info.epoch.0,
            model: self.info.model.clone(),
            context: clamp(shape.context),
            vocab: clamp(shape.vocab),
            block_size: clamp(shape.block_size),
            blocks: clamp(shape.blocks),
            running: status.running(),
            waiting: status.waiting(),
            draining: self.admission.borrow().draining,
            variant: self.info.variant.clone(),
        }))
    }

    async fn tell_kv(&self, request: Request<proto::TellKvRequest>) -> Result<Response<proto::TellKvReply>, Status> {
        let message = request.into_inner();
        if message.epoch != self.info.epoch.0 {
            let own = self.info.epoch.0;
            return Err(Status::failed_precondition(format!("epoch is {}; this worker's is {own}", message.epoch)));
        }
        let ask = wire::kv_ask_from_proto(&message);
        let told = self.engine.tell(ask).await.map_err(|error| status_of(&error))?;
        Ok(Response::new(proto::TellKvReply { rows: told as u64 }))
    }

    async fn cancel(&self, request: Request<proto::CancelRequest>) -> Result<Response<proto::CancelReply>, Status> {
        self.engine.cancel(&request.into_inner().request_id).await.map_err(|error| status_of(&error))?;
        Ok(Response::new(proto::CancelReply {}))
    }

    async fn drain(&self, _: Request<proto::DrainRequest>) -> Result<Response<proto::DrainReply>, Status> {
        WorkerService::drain(self).await;
        Ok(Response::new(proto::DrainReply {}))
    }
}

fn clamp(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// A full queue may be tried elsewhere; everything else of a rejection would be refused by any instance of the model.
fn status_of(error: &StartError) -> Status {
    let text = error.to_string();
    match error {
        StartError::Stopped => Status::unavailable(text),
        StartError::Grammar(GrammarError::Vocabulary(_)) => Status::internal(text),
        StartError::Grammar(_) => Status::invalid_argument(text),
        StartError::Rejected(rejection) => match rejection {
            SubmitRejection::QueueFull { .. } => Status::resource_exhausted(text),
            SubmitRejection::DuplicateId(_) => Status::internal(text),
            _ => Status::invalid_argument(text),
        },
    }
}

/// A sequence's chunks. Ends after the chunk with `finish`.
pub struct GenerateStream {
    outputs: mpsc::Receiver<SequenceOutput>,
    /// Taken when the sequence has ended; `None` ends the stream.
    in_flight: Option<InFlight>,
}

impl Stream for GenerateStream {
    type Item = Result<proto::GenerateChunk, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.in_flight.is_none() {
            return Poll::Ready(None);
        }
        match self.outputs.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(output)) => {
                if output.finish.is_some() {
                    self.in_flight = None;
                }
                Poll::Ready(Some(Ok(wire::chunk_to_proto(output))))
            }
            Poll::Ready(None) => {
                self.in_flight = None;
                Poll::Ready(Some(Err(Status::unavailable("the engine stopped before the sequence ended"))))
            }
        }
    }
}
