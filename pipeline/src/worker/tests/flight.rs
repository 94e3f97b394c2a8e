//! Telemetry from the outlet to a sink over real Flight.

use std::sync::Mutex;

use arrow::array::{Array, UInt64Array};
use arrow_flight::{FlightData, FlightDescriptor, SchemaAsIpc, flight_service_client::FlightServiceClient};
use async_trait::async_trait;
use queries::schema::Topic;

use super::*;
use crate::{
    rows::{EngineStepRow, KvEventRow},
    worker::{
        flight_server::{self, RemoteBatch, RemoteRefused, RemoteSink},
        step_rows::RowOutlet,
        telemetry::{Telemetry, TelemetryConfig, batch_of},
    },
};

/// Keeps what arrives; refuses each `seq` in `refuse_once` the first time.
#[derive(Default)]
struct Kept {
    batches: Mutex<Vec<RemoteBatch>>,
    refuse_once: Mutex<Vec<u64>>,
}

#[async_trait]
impl RemoteSink for Kept {
    async fn publish(&self, batch: RemoteBatch) -> Result<(), RemoteRefused> {
        let mut refuse = self.refuse_once.lock().unwrap();
        if let Some(at) = refuse.iter().position(|seq| *seq == batch.seq) {
            refuse.remove(at);
            return Err(RemoteRefused("the bus is restarting".into()));
        }
        self.batches.lock().unwrap().push(batch);
        Ok(())
    }
}

impl Kept {
    /// The `seq` column of all `kv_events` rows, in order of arrival.
    fn kv_seqs(&self) -> Vec<u64> {
        let batches = self.batches.lock().unwrap();
        let kv = batches.iter().filter(|b| b.topic == Topic::KvEvents);
        kv.flat_map(|b| {
            let column = b.batch.column_by_name("seq").unwrap();
            column.as_any().downcast_ref::<UInt64Array>().unwrap().values().to_vec()
        })
        .collect()
    }
}

async fn flight(sink: Arc<Kept>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = tonic::transport::Server::builder().add_service(flight_server::service(sink));
    tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

fn config(flight: SocketAddr, queue_rows: usize) -> TelemetryConfig {
    TelemetryConfig {
        flight,
        instance: InstanceId(4),
        epoch: ProcessEpoch(11),
        flush_rows: 8,
        flush_interval: Duration::from_millis(1),
        queue_rows,
    }
}

fn kv(seq: u64) -> KvEventRow {
    KvEventRow {
        at: 1_700_000_000_000_000,
        instance: 4,
        epoch: 11,
        seq,
        event: "stored".into(),
        block_hash: Some(u64::MAX - seq),
        parent_hash: None,
        level: Some("L1".into()),
        tokens: Some(16),
        ..KvEventRow::default()
    }
}

fn step(number: u64) -> EngineStepRow {
    EngineStepRow {
        at: 1,
        instance: 4,
        epoch: 11,
        step: number,
        step_us: 10,
        prefill_tokens: 0,
        decode_tokens: 1,
        running: 1,
        waiting: 0,
        preempted: 0,
        cached_tokens: 0,
        scheduled_prompt_tokens: 0,
        queued_prefill_tokens: 0,
        context_tokens: 5,
        blocks_used: 1,
        blocks_cached: 0,
        blocks_total: 64,
        ..EngineStepRow::default()
    }
}

/// Scenario: 500 KV events and 100 steps, while the bus fails twice. Guarantees: every row arrives once and in order,
/// batches are numbered from 1 without gaps a topic, in the topic's own schema.
#[tokio::test]
async fn rows_arrive_once_and_in_order() {
    let sink = Arc::new(Kept { refuse_once: Mutex::new(vec![2, 5]), ..Kept::default() });
    let (telemetry, outlet) = Telemetry::start(config(flight(sink.clone()).await, 10_000));
    for number in 1..=100 {
        outlet.engine_step(step(number));
        outlet.kv_events((0..5).map(|i| kv((number - 1) * 5 + i + 1)).collect());
        tokio::task::yield_now().await;
        if number % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    telemetry.finish(PATIENCE).await;
    assert_eq!(sink.kv_seqs(), (1..=500).collect::<Vec<_>>());
    let batches = sink.batches.lock().unwrap();
    for topic in [Topic::KvEvents, Topic::EngineSteps] {
        let of: Vec<&RemoteBatch> = batches.iter().filter(|b| b.topic == topic).collect();
        assert_eq!(of.iter().map(|b| b.seq).collect::<Vec<_>>(), (1..=of.len() as u64).collect::<Vec<_>>());
        assert!(of.iter().all(|b| b.producer == "w4" && b.epoch == ProcessEpoch(11)));
        assert!(of.iter().all(|b| b.batch.schema() == topic.schema()));
    }
    let steps: usize = batches.iter().filter(|b| b.topic == Topic::EngineSteps).map(|b| b.batch.num_rows()).sum();
    assert_eq!(steps, 100);
}

/// Scenario: nobody listens and 50 rows meet a queue of 10. Guarantees: nothing blocks, what was lost is counted, and what
/// arrives later shows the gap.
#[tokio::test]
async fn an_unreachable_bus_costs_rows_not_time() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (telemetry, outlet) = Telemetry::start(config(free, 10));
    for number in 1..=50 {
        outlet.kv_events(vec![kv(number)]);
    }
    assert_eq!(telemetry.dropped(), 40);
    telemetry.finish(Duration::from_millis(50)).await;
}

/// Scenario: put streams with no topic, an unknown topic, a topic of `serve`, another topic's schema, and a batch without a
/// mark. Guarantees: each gets INVALID_ARGUMENT with a text that names the problem; nothing reaches the sink.
#[tokio::test]
async fn wrong_streams_are_refused() {
    let sink = Arc::new(Kept::default());
    let address = flight(sink.clone()).await;
    let mut client = FlightServiceClient::new(
        tonic::transport::Endpoint::new(format!("http://{address}")).unwrap().connect().await.unwrap(),
    );
    let schema = |topic: Topic| -> FlightData {
        SchemaAsIpc::new(&topic.schema(), &arrow::ipc::writer::IpcWriteOptions::default()).into()
    };
    let named = |data: FlightData, path: &[&str]| {
        data.with_descriptor(FlightDescriptor::new_path(path.iter().map(|p| p.to_string()).collect()))
    };
    let batch =
        arrow_flight::utils::batches_to_flight_data(&Topic::KvEvents.schema(), vec![batch_of(&[kv(1)]).unwrap()]);
    let mut unmarked = batch.unwrap();
    unmarked[0] = named(unmarked[0].clone(), &["kv_events"]);
    for (stream, word) in [
        (vec![schema(Topic::KvEvents)], "flight_descriptor.path"),
        (vec![named(schema(Topic::KvEvents), &["nonsense"])], "nonsense"),
        (vec![named(schema(Topic::Decisions), &["decisions"])], "engine_steps, kv_events"),
        (vec![named(schema(Topic::KvEvents), &["engine_steps"])], "column 4"),
        (unmarked, "app_metadata"),
    ] {
        let status = match client.do_put(futures::stream::iter(stream)).await {
            Err(status) => status,
            Ok(answers) => answers.into_inner().message().await.unwrap_err(),
        };
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
        assert!(status.message().contains(word), "{word}: {status}");
    }
    assert!(sink.batches.lock().unwrap().is_empty());
}
