//! [`InstanceClient`] over gRPC to a worker process.
//!
//! Invariants: a stream ends with a chunk that has `finish`, or with exactly one error; a connection that ends early is
//! [`InstanceError::Lost`], never a silent end; dropping the stream resets it, and the worker cancels the sequence.
//! An answer to `generate` is awaited for at most `answer_timeout`; tokens after that have no time limit here, since the
//! supervisor's health check ends a stuck worker.
//!
//! Cost: one HTTP/2 stream a sequence on one shared connection. State: the connection.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use engine::grammar::GrammarSource;
use futures::{FutureExt, Stream, StreamExt, future, stream};
use tokio::time::timeout;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use super::{engine_thread::EngineHandle, wire};
use crate::{
    gateway::{
        instances::{Chunk, ChunkStream, GenerateCall, InstanceClient, InstanceError, KvAsk},
        trace::TRACEPARENT,
    },
    http2,
    ids::ProcessEpoch,
    proto::{self, worker_client::WorkerClient},
};

/// Limits of a connection to a worker.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    pub connect_timeout: Duration,
    /// From sending a request to its acceptance or refusal: the worker answers between two engine steps.
    pub answer_timeout: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        ClientLimits { connect_timeout: Duration::from_secs(2), answer_timeout: Duration::from_secs(30) }
    }
}

/// A worker process, reached over gRPC. Connects on first use and again after a lost connection.
#[derive(Clone)]
pub struct GrpcInstance {
    client: WorkerClient<Channel>,
    limits: ClientLimits,
}

impl GrpcInstance {
    /// Errors: the address is no URI, which an address that was parsed rules out.
    pub fn new(address: SocketAddr, limits: ClientLimits) -> Result<Self, InstanceError> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| InstanceError::Lost(format!("address {address}: {error}")))?
            .connect_timeout(limits.connect_timeout)
            .tcp_nodelay(true);
        Ok(GrpcInstance { client: WorkerClient::new(http2::client_of(endpoint).connect_lazy()), limits })
    }

    /// The worker's health, awaited for at most `wait`.
    pub async fn health(&self, wait: Duration) -> Result<proto::HealthReply, InstanceError> {
        let mut client = self.client.clone();
        let answer = timeout(wait, client.health(proto::HealthRequest {})).await;
        let answer = answer.map_err(|_| InstanceError::Lost(format!("no answer to a health check in {wait:?}")))?;
        Ok(answer.map_err(|status| error_of(&status))?.into_inner())
    }

    async fn ask_kv(&self, epoch: ProcessEpoch, ask: KvAsk) -> Result<u64, InstanceError> {
        let mut client = self.client.clone();
        let wait = self.limits.answer_timeout;
        let answer = timeout(wait, client.tell_kv(wire::kv_ask_to_proto(epoch, ask))).await;
        let answer = answer.map_err(|_| InstanceError::Lost(format!("no answer to a question in {wait:?}")))?;
        Ok(answer.map_err(|status| error_of(&status))?.into_inner().rows)
    }

    /// Asks the worker to take nothing new and waits until its sequences have ended, at most for `wait`.
    pub async fn drain(&self, wait: Duration) -> Result<(), InstanceError> {
        let mut client = self.client.clone();
        let answer = timeout(wait, client.drain(proto::DrainRequest {})).await;
        let answer = answer.map_err(|_| InstanceError::Busy(format!("sequences still ran after {wait:?}")))?;
        answer.map(|_| ()).map_err(|status| error_of(&status))
    }
}

#[async_trait]
impl InstanceClient for GrpcInstance {
    async fn generate_within(
        &self,
        call: GenerateCall,
        grammar: Option<GrammarSource>,
    ) -> Result<ChunkStream, InstanceError> {
        let mut client = self.client.clone();
        let wait = self.limits.answer_timeout;
        let mut request = tonic::Request::new(wire::request_to_proto(&call, grammar.as_ref()));
        if let Some(traceparent) = call.traceparent.as_deref().and_then(|text| text.parse().ok()) {
            request.metadata_mut().insert(TRACEPARENT, traceparent);
        }
        let answer = timeout(wait, client.generate(request)).await;
        let answer = answer.map_err(|_| InstanceError::Lost(format!("no answer to a request in {wait:?}")))?;
        let messages = answer.map_err(|status| error_of(&status))?.into_inner();
        let chunks = messages.map(|message| match message {
            Ok(chunk) => wire::chunk_from_proto(chunk).map_err(|error| InstanceError::Lost(error.to_string())),
            Err(status) => Err(error_of(&status)),
        });
        Ok(Box::pin(complete(chunks)))
    }

    async fn tell_kv(&self, epoch: ProcessEpoch, ask: KvAsk) -> Result<u64, InstanceError> {
        self.ask_kv(epoch, ask).await
    }

    /// The stream is read to its end, which the cancelling brings: dropping a call that goes on costs more (see `http2`).
    async fn cancel(&self, request_id: &str, mut chunks: ChunkStream) -> Result<(), InstanceError> {
        let mut client = self.client.clone();
        let request = proto::CancelRequest { request_id: request_id.into() };
        let end = async { while chunks.next().await.is_some() {} };
        let (cancelled, ()) = future::join(client.cancel(request), end).await;
        cancelled.map(|_| ()).map_err(|status| error_of(&status))
    }
}

/// An engine in this process, for tests and simulation: the same contract without the network.
pub struct LocalInstance(pub EngineHandle);

#[async_trait]
impl InstanceClient for LocalInstance {
    async fn generate_within(
        &self,
        call: GenerateCall,
        grammar: Option<GrammarSource>,
    ) -> Result<ChunkStream, InstanceError> {
        use engine::{grammar::GrammarError, request::SubmitRejection};

        use super::engine_thread::{Start, StartError};
        let outputs = self.0.start(Start::new(call, grammar)).await.map_err(|error| match error {
            StartError::Stopped => InstanceError::Lost(error.to_string()),
            StartError::Rejected(SubmitRejection::QueueFull { .. }) => InstanceError::Busy(error.to_string()),
            StartError::Grammar(GrammarError::Vocabulary(_)) => InstanceError::Lost(error.to_string()),
            StartError::Rejected(_) | StartError::Grammar(_) => InstanceError::Refused(error.to_string()),
        })?;
        let chunks = stream::unfold(outputs, |mut outputs| async move {
            let output = outputs.recv().await?;
            let chunk = wire::chunk_from_proto(wire::chunk_to_proto(output));
            Some((chunk.map_err(|error| InstanceError::Lost(error.to_string())), outputs))
        });
        Ok(Box::pin(complete(chunks)))
    }

    async fn cancel(&self, request_id: &str, chunks: ChunkStream) -> Result<(), InstanceError> {
        drop(chunks);
        self.0.cancel(request_id).await.map_err(|error| InstanceError::Lost(error.to_string()))
    }
}

enum Progress<S> {
    Open(S),
    Ended,
}

/// How long the rest of an ended sequence's call is waited for: its last message says that it has ended well.
const REST_MAX: Duration = Duration::from_secs(30);

/// Ends the stream after the chunk with `finish` or the first error; adds the error if it ended before either. What comes after the
/// last chunk is read, too: to drop a call before its end is to cancel it (see `http2`).
fn complete<S>(chunks: S) -> impl Stream<Item = Result<Chunk, InstanceError>> + Send
where
    S: Stream<Item = Result<Chunk, InstanceError>> + Send + 'static,
{
    stream::unfold(Progress::Open(Box::pin(chunks)), |progress| async move {
        let Progress::Open(mut chunks) = progress else { return None };
        let item = match chunks.next().await {
            Some(item) => item,
            None => Err(InstanceError::Lost("the stream ended before its last chunk".into())),
        };
        let more = match &item {
            Ok(chunk) if chunk.finish.is_none() => Progress::Open(chunks),
            Ok(_) => {
                // As a rule it has come with the last chunk.
                if !matches!(chunks.next().now_or_never(), Some(None)) {
                    drop(tokio::spawn(timeout(REST_MAX, async move { while chunks.next().await.is_some() {} })));
                }
                Progress::Ended
            }
            Err(_) => Progress::Ended,
        };
        Some((item, more))
    })
}

/// `RESOURCE_EXHAUSTED` may be tried elsewhere, `INVALID_ARGUMENT` may not, anything else says nothing of the sequence.
fn error_of(status: &Status) -> InstanceError {
    let text = status.message().to_string();
    match status.code() {
        Code::ResourceExhausted => InstanceError::Busy(text),
        Code::InvalidArgument | Code::OutOfRange => InstanceError::Refused(text),
        code => InstanceError::Lost(if text.is_empty() { code.to_string() } else { text }),
    }
}

/// The client as the directory holds it.
pub fn shared(instance: GrpcInstance) -> Arc<dyn InstanceClient> {
    Arc::new(instance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::instances::ChunkFinish;

    fn last() -> Chunk {
        let finish = ChunkFinish {
            reason: engine::request::FinishReason::Stop,
            prompt_tokens: 1,
            completion_tokens: 1,
            cached_tokens: 0,
            error: None,
        };
        Chunk { finish: Some(finish), ..Chunk::default() }
    }

    /// Scenario: streams that end with a last chunk, without one, and with an error in between. Guarantees: each has
    /// exactly one end, and an end without a last chunk is `Lost`.
    #[tokio::test]
    async fn a_stream_has_exactly_one_end() {
        let collect = |items: Vec<Result<Chunk, InstanceError>>| complete(stream::iter(items)).collect::<Vec<_>>();
        assert_eq!(collect(vec![Ok(Chunk::default()), Ok(last()), Ok(Chunk::default())]).await.len(), 2);
        let cut = collect(vec![Ok(Chunk::default())]).await;
        assert!(matches!(cut.as_slice(), [Ok(_), Err(InstanceError::Lost(_))]), "{cut:?}");
        let failed = collect(vec![Err(InstanceError::Busy("b".into())), Ok(last())]).await;
        assert_eq!(failed, vec![Err(InstanceError::Busy("b".into()))]);
    }

    /// Scenario: the end of a call comes some time after its last chunk, when nobody waits for more.
    /// Guarantees: it is read all the same, so that the call is not cancelled.
    #[tokio::test]
    async fn a_call_is_read_to_its_end() {
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let (read, was_read) = tokio::sync::oneshot::channel();
        let rest = stream::once(async move {
            ended.await.unwrap();
            read.send(()).unwrap();
            Err(InstanceError::Lost("nobody sees this".into()))
        });
        let mut chunks = Box::pin(complete(stream::iter([Ok(last())]).chain(rest)));
        assert_eq!(chunks.next().await, Some(Ok(last())));
        drop(chunks);
        end.send(()).unwrap();
        timeout(Duration::from_secs(20), was_read).await.unwrap().unwrap();
    }

    /// Scenario: each status a worker gives. Guarantees: only a full queue is `Busy`, only bad arguments are `Refused`.
    #[test]
    fn statuses_become_typed_errors() {
        let kinds = [
            Status::resource_exhausted("x"),
            Status::invalid_argument("x"),
            Status::unavailable("x"),
            Status::internal("x"),
            Status::cancelled(""),
        ]
        .map(|status| match error_of(&status) {
            InstanceError::Busy(_) => "busy",
            InstanceError::Refused(_) => "refused",
            InstanceError::Lost(_) => "lost",
        });
        assert_eq!(kinds, ["busy", "refused", "lost", "lost", "lost"]);
    }
}
