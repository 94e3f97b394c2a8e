//! The door over real connections: how many there may be, which are cut, and an answer that nobody reads.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use arrow::{
    array::{RecordBatch, StringArray},
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use arrow_flight::{
    FlightData, FlightDescriptor, Ticket,
    error::FlightError,
    flight_service_client::FlightServiceClient,
    sql::{ProstMessageExt, TicketStatementQuery, client::FlightSqlServiceClient},
};
use async_trait::async_trait;
use futures::{StreamExt, stream};
use prost::Message as _;
use queries::{Described, QueryResult, Question, SqlAnswers, SqlError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};

use super::{Bounds, FlightDoor, serve};
use crate::{
    gateway::auth::Keys,
    worker::flight_server::{RemoteBatch, RemoteRefused, RemoteSink},
};

/// Longest wait for something that must come; a test that reaches it fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Rows and bytes of each of the answer's batches: more than HTTP/2 takes before it is read.
const BATCHES: usize = 40;
const ROW_BYTES: usize = 1 << 20;

/// Answers everything with the same batches, of which only the test knows beside the answer.
#[derive(Debug, Default)]
struct Wide(Mutex<Vec<Weak<Schema>>>);

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("text", DataType::Utf8, false)]))
}

#[async_trait]
impl SqlAnswers for Wide {
    async fn answer(&self, _: Question) -> Result<QueryResult, SqlError> {
        let own = || {
            // A schema of its own tells whether the batch is still there.
            let schema = schema();
            self.0.lock().unwrap().push(Arc::downgrade(&schema));
            let text = Arc::new(StringArray::from(vec!["x".repeat(ROW_BYTES)]));
            RecordBatch::try_new(schema, vec![text]).unwrap()
        };
        Ok(QueryResult { schema: schema(), batches: (0..BATCHES).map(|_| own()).collect() })
    }

    async fn describe(&self, _: Question) -> Result<Described, SqlError> {
        Ok(Described { schema: schema(), parameters: Vec::new() })
    }
}

struct Nowhere;

#[async_trait]
impl RemoteSink for Nowhere {
    async fn publish(&self, _: RemoteBatch) -> Result<(), RemoteRefused> {
        Ok(())
    }
}

/// Two places, and time enough for everything.
const PATIENT: Bounds = Bounds {
    sessions_max: 2,
    beside_max: 4,
    entry_timeout: PATIENCE,
    ping_interval: PATIENCE,
    ping_timeout: PATIENCE,
    stall_max: PATIENCE,
};

async fn door(bounds: Bounds) -> (SocketAddr, Arc<Wide>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, answers) = (listener.local_addr().unwrap(), Arc::new(Wide::default()));
    let (keys, telemetry, ingest) = (Keys::new(&[]), Arc::new(Nowhere), Handle::current());
    let door = FlightDoor { answers: answers.clone(), keys, telemetry, ingest, bounds };
    tokio::spawn(serve(listener, door, CancellationToken::new()));
    (address, answers)
}

async fn channel(address: SocketAddr) -> Channel {
    // The smallest window that HTTP/2 begins with.
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535).connect().await.unwrap()
}

/// A client's first question, over a connection of its own.
async fn ask(address: SocketAddr) -> Result<FlightSqlServiceClient<Channel>, FlightError> {
    let mut client = FlightSqlServiceClient::new(channel(address).await);
    client.execute("select 1".to_string(), None).await?;
    Ok(client)
}

/// Scenario: a third client at a door with two places, telemetry beside them, then a third client again when one has left.
/// Guarantees: the third is told so with RESOURCE_EXHAUSTED, telemetry is taken, and the place of who left is given anew.
#[tokio::test]
async fn a_crowded_door_says_so() {
    let (address, _) = door(PATIENT).await;
    let (first, _second) = (ask(address).await.unwrap(), ask(address).await.unwrap());
    let error = ask(address).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("server.flight_connections_max"), "{error}");

    let named = FlightDescriptor::new_path(vec!["no_topic".to_string()]);
    let message = FlightData { flight_descriptor: Some(named), ..FlightData::default() };
    let mut worker = FlightServiceClient::new(channel(address).await);
    let status = worker.do_put(stream::iter([message])).await.map(|_| ()).unwrap_err();
    assert!(status.code() == Code::InvalidArgument && status.message().contains("no_topic"), "{status}");

    drop(first);
    let enters = async {
        while ask(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, enters).await.expect("the place is free again");
}

/// Scenario: a client that has asked; then one that connects and says nothing, and one that speaks HTTP/2 and asks nothing.
/// Guarantees: the silent two are cut, and the first goes on.
#[tokio::test]
async fn who_does_not_ask_is_cut() {
    let (address, _) = door(Bounds { entry_timeout: Duration::from_millis(200), ..PATIENT }).await;
    let mut session = ask(address).await.unwrap();
    for said in [&b""[..], &greeting()] {
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(said).await.unwrap();
        timeout(PATIENCE, silent.read_to_end(&mut Vec::new())).await.expect("it is cut").ok();
    }
    session.execute("select 1".to_string(), None).await.unwrap();
}

/// What a client of HTTP/2 says first: that it is one, and that it sets nothing.
fn greeting() -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat()
}

/// Scenario: a client that speaks HTTP/2 and then answers no ping; one that does.
/// Guarantees: the first is cut; the second is not.
#[tokio::test]
async fn who_does_not_answer_pings_is_cut() {
    let ping = Duration::from_millis(100);
    let (address, _) = door(Bounds { ping_interval: ping, ping_timeout: PATIENCE / 60, ..PATIENT }).await;
    let mut alive = ask(address).await.unwrap();
    let mut dead = TcpStream::connect(address).await.unwrap();
    dead.write_all(&greeting()).await.unwrap();
    timeout(PATIENCE, dead.read_to_end(&mut Vec::new())).await.expect("it is cut").ok();
    alive.execute("select 1".to_string(), None).await.unwrap();
}

/// Scenario: a client reads the first message of a large answer, then nothing until the server has let go of it, then the rest.
/// Guarantees: the server holds none of its batches although the client is still there; the stream ends with DEADLINE_EXCEEDED.
#[tokio::test]
async fn an_answer_that_is_not_read_is_let_go() {
    let (address, answers) = door(Bounds { stall_max: Duration::from_millis(200), ..PATIENT }).await;
    let mut client = FlightServiceClient::new(channel(address).await);
    let query = TicketStatementQuery { statement_handle: "select 1".into() };
    let ticket = Ticket { ticket: query.as_any().encode_to_vec().into() };
    let mut messages = client.do_get(ticket).await.unwrap().into_inner();
    messages.next().await.unwrap().unwrap();
    let let_go = async {
        while answers.0.lock().unwrap().iter().any(|batch| batch.upgrade().is_some()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, let_go).await.expect("nothing is held");
    assert_eq!(answers.0.lock().unwrap().len(), BATCHES);
    let read: Vec<_> = messages.collect().await;
    assert!(read.len() < BATCHES, "{} messages came", read.len());
    let status = read.last().unwrap().as_ref().unwrap_err();
    assert!(status.code() == Code::DeadlineExceeded && status.message().contains("not read"), "{status}");
}
