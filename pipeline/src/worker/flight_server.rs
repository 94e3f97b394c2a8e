//! Where workers' telemetry arrives in `serve`: [`put`], which the Flight door of `serve` hands streams to whose descriptor names
//! a topic, and a Flight service that takes `DoPut` and nothing else.
//!
//! A stream's descriptor is `[topic]`; its first message is the schema, which must be the topic's; each batch carries a
//! [`BatchMark`] and is acknowledged by its `seq` once the [`RemoteSink`] has it. So a slow bus holds the worker's next
//! batch back, and the worker's own bound decides what is dropped.
//!
//! Invariant: a batch that reaches the sink has exactly the topic's column names and types.
//! Cost: no copy beyond decoding. Memory: one batch a stream (messages up to `MESSAGE_BYTES_MAX`).

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc};

use arrow::{
    array::RecordBatch,
    datatypes::{Schema, SchemaRef},
};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
    decode::{DecodedFlightData, DecodedPayload, FlightDataDecoder},
    error::FlightError,
    flight_service_server::{FlightService, FlightServiceServer},
};
use async_trait::async_trait;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use queries::schema::Topic;
use tonic::{Request, Response, Status, Streaming};

use super::telemetry::{BatchAck, BatchMark};
use crate::ids::ProcessEpoch;

/// Largest message taken.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Topics that workers publish; the others are written in `serve` alone.
pub const REMOTE_TOPICS: [Topic; 3] = [Topic::EngineSteps, Topic::KvEvents, Topic::Speculation];

/// A batch from another process.
#[derive(Debug, Clone)]
pub struct RemoteBatch {
    pub topic: Topic,
    pub producer: String,
    pub epoch: ProcessEpoch,
    /// Counts the producer's batches of the topic in this epoch, from 1. A batch may arrive twice.
    pub seq: u64,
    pub batch: RecordBatch,
}

/// Takes batches from other processes: the bus. Waits while it is full.
#[async_trait]
pub trait RemoteSink: Send + Sync {
    /// Errors end the stream with the text as its status; the producer connects and sends the batch again.
    async fn publish(&self, batch: RemoteBatch) -> Result<(), RemoteRefused>;
}

/// Why the sink did not take a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RemoteRefused(pub String);

/// The service, for `tonic::transport::Server::add_service`.
pub fn service(sink: Arc<dyn RemoteSink>) -> FlightServiceServer<TelemetryFlight> {
    FlightServiceServer::new(TelemetryFlight { sink }).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// See [`service`].
pub struct TelemetryFlight {
    sink: Arc<dyn RemoteSink>,
}

/// What a call of the service streams back.
pub type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct Put {
    sink: Arc<dyn RemoteSink>,
    topic: Topic,
    decoder: FlightDataDecoder,
}

impl Put {
    /// Publishes the next batch and answers with its acknowledgement; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Result<PutResult, Status>> {
        loop {
            let decoded = match next_message(&mut self.decoder).await? {
                Ok(decoded) => decoded,
                Err(error) => return Some(Err(decode_status(error))),
            };
            let metadata = decoded.app_metadata();
            match decoded.payload {
                DecodedPayload::None => {}
                DecodedPayload::Schema(schema) => {
                    if let Err(problem) = check_schema(self.topic, &schema) {
                        return Some(Err(Status::invalid_argument(problem)));
                    }
                }
                DecodedPayload::RecordBatch(batch) => {
                    return Some(publish(self.sink.clone(), self.topic, (&metadata, batch)).await);
                }
            }
        }
    }
}

/// The next message of a stream. Arrow's decoder panics on some damaged messages (buffers that lie outside the body): that is
/// an error of the stream like any other, and ends it.
pub(crate) async fn next_message<D>(decoder: &mut D) -> Option<Result<DecodedFlightData, FlightError>>
where
    D: Stream<Item = Result<DecodedFlightData, FlightError>> + Unpin,
{
    let next = AssertUnwindSafe(decoder.next()).catch_unwind().await;
    next.unwrap_or_else(|_| Some(Err(FlightError::DecodeError("the message is damaged".into()))))
}

async fn publish(
    sink: Arc<dyn RemoteSink>,
    topic: Topic,
    (metadata, batch): (&[u8], RecordBatch),
) -> Result<PutResult, Status> {
    let mark: BatchMark = serde_json::from_slice(metadata).map_err(|error| {
        Status::invalid_argument(format!(
            "app_metadata: {error}; expected JSON with producer, epoch and seq on each batch"
        ))
    })?;
    let batch = RecordBatch::try_new(topic.schema(), batch.columns().to_vec())
        .map_err(|error| Status::invalid_argument(format!("batch of `{}`: {error}", topic.name())))?;
    let seq = mark.seq;
    let remote = RemoteBatch { topic, producer: mark.producer, epoch: ProcessEpoch(mark.epoch), seq, batch };
    sink.publish(remote).await.map_err(|refused| Status::unavailable(refused.to_string()))?;
    let app_metadata = serde_json::to_vec(&BatchAck { seq }).map_err(|error| Status::internal(error.to_string()))?;
    Ok(PutResult { app_metadata: app_metadata.into() })
}

/// The topic a stream's first message names.
fn topic_of(descriptor: Option<&FlightDescriptor>) -> Result<Topic, String> {
    let known = REMOTE_TOPICS.map(Topic::name).join(", ");
    let path = descriptor.map(|d| d.path.as_slice()).unwrap_or_default();
    let [name] = path else {
        return Err(format!("flight_descriptor.path = {path:?}; expected one of {known} on the first message"));
    };
    Topic::from_name(name)
        .filter(|topic| REMOTE_TOPICS.contains(topic))
        .ok_or_else(|| format!("topic `{name}` is not written from outside; expected one of {known}"))
}

/// Names, types and nullability must be the topic's; metadata may differ.
fn check_schema(topic: Topic, given: &SchemaRef) -> Result<(), String> {
    let wanted = topic.schema();
    let columns = |schema: &Schema| -> Vec<String> {
        let field = |f: &Arc<arrow::datatypes::Field>| {
            format!("{} {}{}", f.name(), f.data_type(), if f.is_nullable() { "?" } else { "" })
        };
        schema.fields().iter().map(field).collect()
    };
    let (wanted, given) = (columns(&wanted), columns(given));
    if wanted == given {
        return Ok(());
    }
    let at = wanted.iter().zip(&given).position(|(w, g)| w != g).unwrap_or(wanted.len().min(given.len()));
    let show = |list: &[String]| list.get(at).cloned().unwrap_or_else(|| "nothing".into());
    Err(format!("schema of `{}`: column {} is {}; expected {}", topic.name(), at + 1, show(&given), show(&wanted)))
}

fn decode_status(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        other => Status::invalid_argument(other.to_string()),
    }
}

/// Takes one stream of telemetry, and answers with its acknowledgements.
pub async fn put<S>(sink: Arc<dyn RemoteSink>, mut messages: S) -> Result<Answers<PutResult>, Status>
where
    S: Stream<Item = Result<FlightData, Status>> + Send + Unpin + 'static,
{
    let first = messages.next().await.ok_or_else(|| Status::invalid_argument("the stream is empty"))??;
    let topic = topic_of(first.flight_descriptor.as_ref()).map_err(Status::invalid_argument)?;
    let all = stream::iter([Ok(first)]).chain(messages.map_err(FlightError::from));
    let put = Put { sink, topic, decoder: FlightDataDecoder::new(all) };
    // An error ends the stream: tonic sends it as the status.
    let answers = stream::unfold(Some(put), |put| async move {
        let mut put = put?;
        let answer = put.next().await?;
        let open = answer.is_ok();
        Some((answer, open.then_some(put)))
    });
    Ok(Box::pin(answers))
}

fn only_do_put<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("this Flight service takes telemetry by DoPut; for queries use POST /sql"))
}

#[tonic::async_trait]
impl FlightService for TelemetryFlight {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        put(self.sink.clone(), request.into_inner()).await.map(Response::new)
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        only_do_put()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        only_do_put()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        only_do_put()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        only_do_put()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        only_do_put()
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        only_do_put()
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        only_do_put()
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        only_do_put()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        only_do_put()
    }
}
