//! Feed, service and client over their real connections, in one process: what needs no process to be killed.

use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

use queries::{
    Caller, LiveTables, QueryResult, Question, ScalarValue, SqlAnswers, SqlEngine, SqlError, SqlLimits, Topic, encode,
    query_runtime,
};
use tempfile::TempDir;
use tokio::{
    runtime::Runtime,
    sync::{Notify, watch},
    task::JoinHandle,
};

use super::{
    client::SqlProcess,
    feed,
    keeper::{Counters, Life, connect},
    process::serve,
    service::QueryService,
};
use crate::{
    bus::{Bus, BusGuard, LogWriter},
    config,
    query_proto::{FeedRows, QueryHealthRequest, query_worker_client::QueryWorkerClient},
    rows::FaultRow,
};

/// The server's side: a bus and its tables.
struct Server {
    bus: Bus,
    tables: Arc<LiveTables>,
    wanted: Arc<Notify>,
    _guard: BusGuard,
    _folder: Option<TempDir>,
}

/// Rows of a topic that a process is given to keep.
const LIVE_ROWS: usize = 100_000;

impl Server {
    /// A watcher of the bus loses what is more than `batches` behind.
    fn start(batches: usize, live_rows: usize) -> Server {
        Server::start_on(batches, live_rows, None)
    }

    /// With a log.
    fn logged(batches: usize, live_rows: usize) -> Server {
        Server::start_on(batches, live_rows, Some(tempfile::tempdir().unwrap()))
    }

    fn start_on(batches: usize, live_rows: usize, folder: Option<TempDir>) -> Server {
        let config = config::Bus {
            flush_rows: 4,
            flush_interval: Duration::from_millis(1),
            queue_rows: 1024,
            subscriber_batches: batches,
            live_rows,
        };
        let tables = Arc::new(LiveTables::new(live_rows));
        let log_config = config::load(None, config::Overrides::default()).unwrap().log;
        let log = folder.as_ref().map(|folder| LogWriter::open(folder.path(), &log_config).unwrap());
        let (bus, guard) = Bus::start(&config, log, tables.clone(), Arc::new(|| 0)).unwrap();
        Server { bus, tables, wanted: Arc::default(), _guard: guard, _folder: folder }
    }

    fn source(&self) -> (Arc<LiveTables>, Arc<Notify>) {
        (self.tables.clone(), self.wanted.clone())
    }

    async fn publish(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let (component, kind) = ("test".into(), "number".into());
            let row = FaultRow { at: number as i64, component, kind, detail: "d".repeat(100), count: number };
            self.bus.publish(row).await.unwrap();
        }
        self.bus.flush().await.unwrap();
    }
}

fn limits() -> SqlLimits {
    SqlLimits {
        timeout: Duration::from_secs(20),
        memory_bytes: 64 << 20,
        rows_max: 100_000,
        statement_bytes_max: 1 << 14,
        concurrent_max: 2,
    }
}

/// The process's side, served on tasks; its query threads end with it.
struct Worker {
    engine: Arc<SqlEngine>,
    rows: QueryWorkerClient<tonic::transport::Channel>,
    questions: QueryWorkerClient<tonic::transport::Channel>,
    tables: Arc<LiveTables>,
    connections: Vec<JoinHandle<std::io::Result<()>>>,
    queries: Option<Runtime>,
}

impl Worker {
    async fn start(limits: SqlLimits) -> Worker {
        let queries = query_runtime(2).unwrap();
        let tables = Arc::new(LiveTables::for_sql(LIVE_ROWS));
        let engine = Arc::new(SqlEngine::new(limits, tables.clone(), queries.handle().clone()));
        let service = QueryService::new(engine.clone(), tables.clone());
        let (mut clients, mut connections) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (ours, its) = UnixStream::pair().unwrap();
            its.set_nonblocking(true).unwrap();
            connections.push(tokio::spawn(serve(its, service.clone())));
            clients.push(connect(ours).await.unwrap());
        }
        let (questions, rows) = (clients.pop().unwrap(), clients.pop().unwrap());
        Worker { engine, rows, questions, tables, connections, queries: Some(queries) }
    }

    /// Answers by this worker over the server's tables.
    fn answers(&self, server: &Server) -> (SqlProcess, watch::Sender<Life>) {
        let (sender, life) = watch::channel(Life::Up(self.questions.clone()));
        (SqlProcess::new(limits(), server.source(), (life, watch::channel(String::new()).1)), sender)
    }

    fn feed(&self, server: &Server) -> (JoinHandle<String>, Arc<Counters>) {
        self.feed_of(server, LIVE_ROWS)
    }

    /// As if the process kept so many rows.
    fn feed_of(&self, server: &Server, live_rows: usize) -> (JoinHandle<String>, Arc<Counters>) {
        let (counters, bus, tables) = (Arc::new(Counters::default()), server.bus.clone(), server.tables.clone());
        let (rows, told, wanted) = (self.rows.clone(), counters.clone(), server.wanted.clone());
        (tokio::spawn(async move { feed::run(rows, (&bus, &tables, live_rows), (&wanted, told)).await }), counters)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(queries) = self.queries.take() {
            queries.shutdown_background();
        }
    }
}

fn json(answer: &QueryResult) -> String {
    String::from_utf8(encode::json(&answer.schema, &answer.batches).unwrap()).unwrap()
}

async fn ask(answers: &SqlProcess, sql: &str) -> Result<QueryResult, SqlError> {
    answers.answer(Question::new(sql, Caller::new("local"))).await
}

const NUMBERS: &str =
    "select count(*) as n, count(distinct \"count\") as d, max(\"count\") as m from faults where kind = 'number'";

/// Scenario: rows before the process is there; then, again and again, some rows and at once a question.
/// Guarantees: each answer knows every row published before it, each once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_sees_what_was_there_when_it_was_asked() {
    let server = Server::start(64, 100_000);
    server.publish(0..500).await;
    let worker = Worker::start(limits()).await;
    let (answers, _life) = worker.answers(&server);
    let (_feed, _) = worker.feed(&server);
    for round in 1..40u64 {
        let all = 500 + round * 7;
        server.publish(all - 7..all).await;
        let answer = json(&ask(&answers, NUMBERS).await.unwrap());
        assert_eq!(answer, format!(r#"[{{"n":{all},"d":{all},"m":{}}}]"#, all - 1));
    }
}

/// Scenario: rows of which nobody asks anything. Guarantees: they come all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_nobody_asks_about_come() {
    let server = Server::start(4096, 100_000);
    let worker = Worker::start(limits()).await;
    let (_feed, counters) = worker.feed(&server);
    for rows in [3, 700] {
        let there = || worker.tables.snapshot().table(Topic::Faults).rows_live();
        let before = there() as u64;
        server.publish(before..rows).await;
        until(|| there() as u64 == rows).await;
    }
    assert_eq!(counters.catch_ups.get(), 0);
}

/// Scenario: a feed whose watcher may be two batches behind, while hundreds are published; then one whose tables have let go of what it
/// missed.
/// Guarantees: the first takes what it missed from the tables, each row once, and counts that; the second ends and says so. The bus
/// goes on in both.
#[tokio::test(flavor = "current_thread")]
async fn a_feed_that_fell_behind_catches_up_or_ends() {
    let server = Server::start(2, 100_000);
    let worker = Worker::start(limits()).await;
    let (answers, _life) = worker.answers(&server);
    let (_feed, counters) = worker.feed(&server);
    server.publish(0..4).await;
    ask(&answers, NUMBERS).await.unwrap();
    // One thread: the feed does not run while the bus, on its own, is given rows.
    blocking_publish(&server.bus, 4..1500);
    server.publish(1500..1501).await;
    let answer = json(&ask(&answers, NUMBERS).await.unwrap());
    assert_eq!(answer, r#"[{"n":1501,"d":1501,"m":1500}]"#);
    assert!(counters.catch_ups.get() > 0);

    let server = Server::start(2, 8);
    let worker = Worker::start(limits()).await;
    let (feed, _) = worker.feed(&server);
    server.publish(0..4).await;
    ask(&worker.answers(&server).0, NUMBERS).await.unwrap();
    blocking_publish(&server.bus, 4..1500);
    server.publish(1500..1501).await;
    let why = tokio::time::timeout(Duration::from_secs(20), feed).await.expect("it ends").unwrap();
    // Which rows depends on how far the bus had come when the feed ran again.
    assert!(why.contains("it fell behind: rows ") && why.contains(" of faults are no longer in memory"), "{why}");
}

/// Scenario: a server with a log whose tables keep 8 rows; a process that keeps all comes when there are 500, misses a thousand, and another
/// that keeps 100 comes then.
/// Guarantees: each is given what the tables have let go of from the log, each row once and no more than it keeps.
#[tokio::test(flavor = "current_thread")]
async fn what_left_the_tables_comes_from_the_log() {
    let server = Server::logged(2, 8);
    server.publish(0..500).await;
    let worker = Worker::start(limits()).await;
    let (feed, _) = worker.feed(&server);
    let answers = worker.answers(&server).0;
    let answer = json(&ask(&answers, NUMBERS).await.unwrap());
    assert_eq!(answer, r#"[{"n":500,"d":500,"m":499}]"#);
    blocking_publish(&server.bus, 500..1500);
    server.publish(1500..1501).await;
    let answer = json(&ask(&answers, NUMBERS).await.unwrap());
    assert_eq!(answer, r#"[{"n":1501,"d":1501,"m":1500}]"#);
    assert!(!feed.is_finished());

    let worker = Worker::start(limits()).await;
    let (_feed, _) = worker.feed_of(&server, 100);
    let answer = json(&ask(&worker.answers(&server).0, NUMBERS).await.unwrap());
    assert_eq!(answer, r#"[{"n":100,"d":100,"m":1500}]"#);
}

/// Publishes without giving way to other tasks of this thread.
fn blocking_publish(bus: &Bus, numbers: std::ops::Range<u64>) {
    let bus = bus.clone();
    let publish = move || {
        for number in numbers {
            let (component, kind) = ("test".into(), "number".into());
            bus.blocking_publish(FaultRow { at: 0, component, kind, detail: "d".into(), count: number }).unwrap();
        }
    };
    std::thread::spawn(publish).join().unwrap();
}

/// Scenario: a question with parameters, one whose caller has narrower limits, one that is wrong, one that is described.
/// Guarantees: answers, their types and errors are those of an engine in this process over the server's own tables, where text is plain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_and_errors_are_the_engines_own() {
    let server = Server::start(64, 1000);
    server.publish(0..5).await;
    let worker = Worker::start(limits()).await;
    let (answers, _life) = worker.answers(&server);
    let (_feed, _) = worker.feed(&server);
    ask(&answers, NUMBERS).await.unwrap();
    let parameters = vec![ScalarValue::UInt64(Some(3)), ScalarValue::Utf8(Some("number".into()))];
    let above = "select count(*) as n from faults where \"count\" >= $1 and kind = $2";
    let above = Question { parameters, ..Question::new(above, Caller::new("local")) };
    let local = worker.queries.as_ref().expect("a worker that lives").handle().clone();
    let own_engine = SqlEngine::new(limits(), server.tables.clone(), local);
    let narrow = Question::new("select * from faults", Caller { rows_max: Some(2), ..Caller::new("acme") });
    let questions = [
        above.clone(),
        narrow,
        Question::new("select * from faults where detail like 'd%' order by \"count\"", Caller::new("local")),
        Question::new("select kind || 'x' as k, array_agg(detail) as d from faults group by 1", Caller::new("local")),
        Question::new("describe faults", Caller::new("local")),
        Question::new("select * from information_schema.columns where table_name = 'faults'", Caller::new("local")),
        Question::new("select 'a' as a where false", Caller::new("local")),
        Question::new("selec", Caller::new("local")),
        Question::new("delete from faults", Caller::new("local")),
        Question::new("x".repeat(1 << 15), Caller::new("local")),
        Question::new("select * from nothing", Caller::new("local")),
        Question::new("select 1 / (\"count\" - \"count\") from faults", Caller::new("local")),
    ];
    for question in questions {
        let (theirs, own) = (answers.answer(question.clone()).await, own_engine.answer(question).await);
        let told = |answer: Result<QueryResult, SqlError>| answer.map(|answer| (answer.schema.clone(), json(&answer)));
        assert_eq!(told(theirs), told(own));
    }
    let (theirs, own) = (answers.describe(above.clone()).await.unwrap(), own_engine.describe(above).await.unwrap());
    assert_eq!((theirs.schema, theirs.parameters), (own.schema, own.parameters));
}

/// Scenario: a query without end is dropped by who asked; another runs when the process's connections end; one is asked after that.
/// Guarantees: the first gives its place back; the others get `EngineRestarted`, which is transient.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_question_stops_and_a_lost_one_is_told() {
    let server = Server::start(64, 1000);
    let short = SqlLimits { timeout: Duration::from_millis(500), ..limits() };
    let worker = Worker::start(limits()).await;
    let (answers, life) = worker.answers(&server);
    let answers = Arc::new(answers);
    let forever = "select sum(value) from generate_series(1, 100000000000)";
    let start = |answers: Arc<SqlProcess>| tokio::spawn(async move { ask(&answers, forever).await });
    let dropped = start(answers.clone());
    until(|| worker.engine.running() == 1).await;
    dropped.abort();
    until(|| worker.engine.running() == 0).await;
    let lost = start(answers.clone());
    until(|| worker.engine.running() == 1).await;
    worker.connections.iter().for_each(JoinHandle::abort);
    let error = lost.await.unwrap().unwrap_err();
    assert!(matches!(&error, SqlError::EngineRestarted(_)) && error.is_transient(), "{error:?}");
    life.send_replace(Life::Down("it was ended by signal 9".into()));
    let down = SqlProcess::new(short, server.source(), (life.subscribe(), watch::channel(String::new()).1));
    let error = ask(&down, "select 1").await.unwrap_err();
    assert_eq!(error, SqlError::EngineRestarted("it was ended by signal 9".into()));
}

/// Scenario: hundreds of callers hang up before the process, which gives way to others, looks at their questions.
/// Guarantees: its connection stays, so that it goes on, and answers the next one.
#[tokio::test]
async fn callers_that_hang_up_end_no_process() {
    let worker = Worker::start(limits()).await;
    let (ours, its) = UnixStream::pair().unwrap();
    its.set_nonblocking(true).unwrap();
    let client = connect(ours).await.unwrap();
    let ask = |mut client: QueryWorkerClient<_>| async move { client.health(QueryHealthRequest {}).await };
    for _ in 0..300 {
        let hung_up = tokio::time::timeout(Duration::from_millis(2), ask(client.clone())).await;
        assert!(hung_up.is_err(), "nobody has answered");
    }
    let served = tokio::spawn(serve(its, QueryService::new(worker.engine.clone(), worker.tables.clone())));
    ask(client.clone()).await.unwrap();
    assert!(!served.is_finished());
}

async fn until(holds: impl Fn() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("it comes about");
}

/// Scenario: a feed with a topic that is none, with bytes that are no rows, with rows of another topic, and with rows twice.
/// Guarantees: each is refused with what is wrong, and nothing of it is in the tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_do_not_fit_are_refused() {
    let schema = Topic::Faults.schema();
    let row = FaultRow { at: 0, component: "test".into(), kind: "k".into(), detail: "d".into(), count: 1 };
    let rows = serde_arrow::to_record_batch(schema.fields(), &[row]).unwrap();
    let piece = |topic: Topic, first_row: u64| {
        let ipc = super::wire::Pieces::new(&rows.schema()).unwrap().batch(&rows).unwrap();
        FeedRows { topic: topic.index() as u32, first_row, ipc }
    };
    let nonsense = [[0xff; 4], [8, 0, 0, 0], [7; 4], [7; 4]].concat();
    let nonsense = FeedRows { topic: 0, first_row: 0, ipc: nonsense };
    let unknown = FeedRows { topic: 1000, first_row: 0, ipc: Vec::new() };
    let counted = FeedRows { topic: Topic::Faults.index() as u32, first_row: 10, ipc: Vec::new() };
    for (messages, word) in [
        (vec![unknown], "there is no topic 1000"),
        (vec![nonsense], ""),
        (vec![piece(Topic::Requests, 0)], "requests"),
        (vec![counted, piece(Topic::Faults, 3)], "faults: row 3 came after row 10"),
    ] {
        let worker = Worker::start(limits()).await;
        let status = worker.rows.clone().feed(futures::stream::iter(messages)).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(!status.message().is_empty() && status.message().contains(word), "{status:?}");
        assert!(worker.tables.snapshot().tables().all(|table| table.rows_live() == 0), "{word}");
    }
}
