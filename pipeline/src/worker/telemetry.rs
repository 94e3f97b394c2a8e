//! A worker's rows on their way to the bus: Arrow Flight `DoPut`, one long-lived stream a topic.
//!
//! Batches carry `(producer, epoch, seq)` in `app_metadata`, so that the bus sees duplicates, gaps and restarts (DESIGN §3).
//! One batch a topic is under way at a time; it is sent again with the same `seq` after a lost connection, until it is
//! acknowledged. Rows wait in a bounded queue. At the bound the oldest are dropped and counted: `step` and
//! `kv_events.seq` then show the gap, and a view built on `kv_events` knows that it is incomplete (SPEC C4, X5).
//!
//! A worker that is asked for its KV blocks answers as a whole: its answer may pass the bound, one at a time.
//!
//! Invariant: the engine thread only takes a short lock, it never waits for the network.
//! Cost: a row is copied once into Arrow columns. Memory: `queue_rows` rows a topic and one batch.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arrow::{
    array::RecordBatch,
    error::ArrowError,
    ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions},
};
use arrow_flight::{FlightData, FlightDescriptor, PutResult, SchemaAsIpc, flight_service_client::FlightServiceClient};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Endpoint};

use super::step_rows::RowOutlet;
use crate::{
    ids::{InstanceId, ProcessEpoch},
    rows::{EngineStepRow, KvEventRow, Row, SpeculationRow},
};

/// Most rows in one batch.
const BATCH_ROWS_MAX: usize = 4096;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The bus may hold a batch back while it is full; after this long the connection is taken for lost.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Marks a batch: `(producer, epoch)` is an incarnation, `seq` counts its batches of the topic from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchMark {
    pub producer: String,
    pub epoch: u64,
    pub seq: u64,
}

/// The acknowledgement of a batch: its `seq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchAck {
    pub seq: u64,
}

/// Rows could not become a batch. The rows' types and the topic's schema disagree, which a test rules out.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    #[error("rows of `{topic}` do not fit its schema: {source}")]
    Rows { topic: &'static str, source: serde_arrow::Error },
    #[error("rows of `{topic}` do not fit its schema: {source}")]
    Columns { topic: &'static str, source: ArrowError },
}

/// Rows as one batch in the topic's schema.
pub fn batch_of<R: Row>(rows: &[R]) -> Result<RecordBatch, BatchError> {
    let topic = R::TOPIC.name();
    let schema = R::TOPIC.schema();
    let batch =
        serde_arrow::to_record_batch(schema.fields(), &rows).map_err(|source| BatchError::Rows { topic, source })?;
    RecordBatch::try_new(schema, batch.columns().to_vec()).map_err(|source| BatchError::Columns { topic, source })
}

/// Where and how a worker publishes.
#[derive(Debug, Clone)]
pub struct TelemetryConfig {
    pub flight: SocketAddr,
    pub instance: InstanceId,
    pub epoch: ProcessEpoch,
    /// A batch leaves at this many rows …
    pub flush_rows: usize,
    /// … or after this time.
    pub flush_interval: Duration,
    /// Rows of a topic that may wait; at the bound the oldest are dropped and counted.
    pub queue_rows: usize,
}

/// A topic's waiting rows.
struct RowQueue<R> {
    rows: Mutex<VecDeque<R>>,
    /// Rows beyond the bound that wait: an answer is told as a whole.
    beyond: AtomicUsize,
    bound: usize,
    arrived: Notify,
    dropped: AtomicU64,
}

impl<R> RowQueue<R> {
    fn new(bound: usize) -> Self {
        RowQueue {
            rows: Mutex::default(),
            beyond: AtomicUsize::new(0),
            bound: bound.max(1),
            arrived: Notify::new(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Takes rows; at the bound the oldest go, or while an answer waits, the newest.
    fn push(&self, new: impl IntoIterator<Item = R>) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.extend(new);
        let beyond = self.beyond.load(Ordering::Relaxed);
        let excess = rows.len().saturating_sub(self.bound + beyond);
        if beyond > 0 {
            rows.truncate(self.bound + beyond);
        } else {
            rows.drain(..excess);
        }
        drop(rows);
        self.dropped.fetch_add(excess as u64, Ordering::Relaxed);
        self.arrived.notify_one();
    }

    /// Takes rows that are not dropped at the bound.
    fn push_beyond(&self, new: Vec<R>) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        self.beyond.fetch_add(new.len(), Ordering::Relaxed);
        rows.extend(new);
        drop(rows);
        self.arrived.notify_one();
    }

    fn has_room(&self) -> bool {
        self.len() < self.bound
    }

    fn len(&self) -> usize {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn take(&self, most: usize) -> Vec<R> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let count = rows.len().min(most);
        let beyond = self.beyond.load(Ordering::Relaxed);
        self.beyond.store(beyond.min((rows.len() - count).saturating_sub(self.bound)), Ordering::Relaxed);
        rows.drain(..count).collect()
    }
}

struct Queues {
    steps: RowQueue<EngineStepRow>,
    kv: RowQueue<KvEventRow>,
    speculation: RowQueue<SpeculationRow>,
}

/// The engine thread's end of the telemetry.
#[derive(Clone)]
pub struct TelemetryOutlet(Arc<Queues>);

impl RowOutlet for TelemetryOutlet {
    fn engine_step(&self, row: EngineStepRow) {
        self.0.steps.push([row]);
    }

    fn kv_events(&self, rows: Vec<KvEventRow>) {
        self.0.kv.push(rows);
    }

    fn kv_has_room(&self) -> bool {
        self.0.kv.has_room()
    }

    fn kv_account(&self, rows: Vec<KvEventRow>) {
        self.0.kv.push_beyond(rows);
    }

    fn speculation(&self, row: SpeculationRow) {
        self.0.speculation.push([row]);
    }
}

/// Three tasks that publish, one a topic.
pub struct Telemetry {
    queues: Arc<Queues>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Telemetry {
    /// Starts publishing on the current runtime.
    pub fn start(config: TelemetryConfig) -> (Telemetry, TelemetryOutlet) {
        let queues = Arc::new(Queues {
            steps: RowQueue::new(config.queue_rows),
            kv: RowQueue::new(config.queue_rows),
            speculation: RowQueue::new(config.queue_rows),
        });
        let (stop, stopped) = watch::channel(false);
        let (steps, kv, speculation) = (queues.clone(), queues.clone(), queues.clone());
        let tasks = vec![
            tokio::spawn(Publisher::new(config.clone()).run(move || steps.clone(), |q| &q.steps, stopped.clone())),
            tokio::spawn(Publisher::new(config.clone()).run(move || kv.clone(), |q| &q.kv, stopped.clone())),
            tokio::spawn(Publisher::new(config).run(move || speculation.clone(), |q| &q.speculation, stopped)),
        ];
        (Telemetry { queues: queues.clone(), stop, tasks }, TelemetryOutlet(queues))
    }

    /// Rows dropped at the bound so far, over all topics.
    pub fn dropped(&self) -> u64 {
        let Queues { steps, kv, speculation } = &*self.queues;
        [&steps.dropped, &kv.dropped, &speculation.dropped].iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Sends what waits and ends, within `wait`; what could not be sent by then is lost with the process.
    pub async fn finish(self, wait: Duration) {
        self.stop.send_replace(true);
        let mut tasks = self.tasks;
        let all = futures::future::join_all(tasks.iter_mut());
        if timeout(wait, all).await.is_err() {
            for task in tasks {
                task.abort();
            }
        }
    }
}

struct Publisher {
    config: TelemetryConfig,
    seq: u64,
    link: Option<Link>,
}

impl Publisher {
    fn new(config: TelemetryConfig) -> Self {
        Publisher { config, seq: 0, link: None }
    }

    /// Publishes until `stopped`, then until the queue is empty. `queues` and `pick` name the topic's queue.
    async fn run<R: Row>(
        mut self,
        queues: impl Fn() -> Arc<Queues> + Send,
        pick: fn(&Queues) -> &RowQueue<R>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let queues = queues();
        let queue = pick(&queues);
        loop {
            if queue.len() == 0 {
                if *stopped.borrow() {
                    return;
                }
                tokio::select! {
                    () = queue.arrived.notified() => {}
                    _ = stopped.wait_for(|stop| *stop) => continue,
                }
            }
            if queue.len() < self.config.flush_rows && !*stopped.borrow() {
                tokio::select! {
                    () = sleep(self.config.flush_interval) => {}
                    _ = stopped.wait_for(|stop| *stop) => {}
                }
            }
            let rows = queue.take(BATCH_ROWS_MAX.max(self.config.flush_rows));
            if rows.is_empty() {
                continue;
            }
            match batch_of(&rows) {
                Ok(batch) => self.send::<R>(batch).await,
                Err(error) => tracing::error!(%error, rows = rows.len(), "telemetry rows lost"),
            }
        }
    }

    /// Sends one batch until it is acknowledged.
    async fn send<R: Row>(&mut self, batch: RecordBatch) {
        self.seq += 1;
        let mark = BatchMark { producer: self.config.instance.to_string(), epoch: self.config.epoch.0, seq: self.seq };
        let mut pause = BACKOFF_FIRST;
        loop {
            match self.attempt::<R>(&batch, &mark).await {
                Ok(()) => return,
                Err(LinkError::Refused(reason)) => {
                    tracing::error!(topic = R::TOPIC.name(), seq = self.seq, reason, "telemetry batch refused");
                    self.link = None;
                    return;
                }
                Err(LinkError::Lost(reason)) => {
                    tracing::warn!(topic = R::TOPIC.name(), reason, "telemetry connection lost; trying again");
                    self.link = None;
                    sleep(pause).await;
                    pause = (pause * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    async fn attempt<R: Row>(&mut self, batch: &RecordBatch, mark: &BatchMark) -> Result<(), LinkError> {
        let link = match &mut self.link {
            Some(link) => link,
            slot => slot.insert(Link::open::<R>(self.config.flight).await?),
        };
        link.put(batch, mark).await
    }
}

enum LinkError {
    /// The other side will never take this batch.
    Refused(String),
    Lost(String),
}

impl From<Status> for LinkError {
    fn from(status: Status) -> Self {
        let text = format!("{}: {}", status.code(), status.message());
        match status.code() {
            tonic::Code::InvalidArgument | tonic::Code::Unimplemented => LinkError::Refused(text),
            _ => LinkError::Lost(text),
        }
    }
}

/// An open `DoPut`.
struct Link {
    outgoing: mpsc::Sender<FlightData>,
    acks: Streaming<PutResult>,
    options: IpcWriteOptions,
    dictionaries: DictionaryTracker,
    scratch: IpcWriteContext,
}

impl Link {
    async fn open<R: Row>(flight: SocketAddr) -> Result<Link, LinkError> {
        let endpoint = Endpoint::from_shared(format!("http://{flight}"))
            .map_err(|error| LinkError::Lost(error.to_string()))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(|error| LinkError::Lost(chain(&error)))?;
        let options = IpcWriteOptions::default();
        let (outgoing, stream) = mpsc::channel(2);
        let schema = R::TOPIC.schema();
        let mut first: FlightData = SchemaAsIpc::new(&schema, &options).into();
        first.flight_descriptor = Some(FlightDescriptor::new_path(vec![R::TOPIC.name().to_string()]));
        outgoing.try_send(first).map_err(|_| LinkError::Lost("the stream closed at once".into()))?;
        let mut client = FlightServiceClient::new(channel);
        let acks = timeout(ACK_TIMEOUT, client.do_put(ReceiverStream::new(stream)))
            .await
            .map_err(|_| LinkError::Lost(format!("no answer in {ACK_TIMEOUT:?}")))??
            .into_inner();
        let dictionaries = DictionaryTracker::new(false);
        Ok(Link { outgoing, acks, options, dictionaries, scratch: IpcWriteContext::default() })
    }

    async fn put(&mut self, batch: &RecordBatch, mark: &BatchMark) -> Result<(), LinkError> {
        let (_, encoded) = IpcDataGenerator::default()
            .encode(batch, &mut self.dictionaries, &self.options, &mut self.scratch)
            .map_err(|error| LinkError::Refused(error.to_string()))?;
        let metadata = serde_json::to_vec(mark).map_err(|error| LinkError::Refused(error.to_string()))?;
        let data = FlightData::from(encoded).with_app_metadata(metadata);
        // A closed stream shows its reason as the next acknowledgement.
        let _ = self.outgoing.send(data).await;
        loop {
            let answer = timeout(ACK_TIMEOUT, self.acks.message()).await;
            let answer = answer.map_err(|_| LinkError::Lost(format!("no acknowledgement in {ACK_TIMEOUT:?}")))??;
            let answer = answer.ok_or_else(|| LinkError::Lost("the stream was closed".into()))?;
            let ack: BatchAck = serde_json::from_slice(&answer.app_metadata)
                .map_err(|error| LinkError::Lost(format!("acknowledgement: {error}")))?;
            if ack.seq == mark.seq {
                return Ok(());
            }
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: 10 rows into a queue of 4. Guarantees: the newest 4 are kept in order and 6 are counted as dropped.
    #[test]
    fn a_full_queue_drops_the_oldest_and_counts() {
        let queue = RowQueue::new(4);
        queue.push(0..3);
        queue.push(3..10);
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 6);
        assert_eq!(queue.take(3), [6, 7, 8]);
        assert_eq!((queue.take(3), queue.len()), (vec![9], 0));
    }

    /// Scenario: an answer of 6 rows and rows after it, into a queue of 4. Guarantees: the answer is kept whole, of the rows
    /// after it those that fit; once it is taken the bound is the old one.
    #[test]
    fn an_answer_is_kept_whole() {
        let queue = RowQueue::new(4);
        queue.push([0]);
        assert!(queue.has_room());
        queue.push_beyond((1..7).collect());
        queue.push(7..12);
        assert!(!queue.has_room());
        assert_eq!(queue.take(6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 2);
        queue.push(12..20);
        assert_eq!(queue.take(9), [16, 17, 18, 19]);
    }
}
