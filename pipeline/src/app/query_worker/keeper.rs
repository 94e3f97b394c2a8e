//! Keeps a process for SQL: starts it, feeds it, watches it, ends it, starts it again after a pause.
//!
//! Invariants: at most one process at a time, gone with this task; it is ended when a query that nobody waits for does not stop within
//! `sql.stop_grace`, when it does not say how it is for [`SILENCE`], and when its feed ends. Each end is a row of `faults` and a log line.
//! The grace is time that the process has computed for: it gives way to everybody, and a query that got no turn cannot stop.
//! The pause doubles from [`PAUSE_MIN`] to [`PAUSE_MAX`] and is short again after [`STEADY`]: the process is back in about a second
//! whatever ended it, and one that cannot live takes no more than a start a second.
//! Cost: a question about its health every [`LOOK`]. State: one process.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper_util::rt::TokioIo;
use queries::{LiveTables, SqlLimits};
use tokio::{
    net::UnixStream,
    process::{Child, Command},
    sync::{Notify, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{
    CONNECTION_WINDOW_BYTES, MESSAGE_BYTES_MAX, QueryWorkerOptions, STREAM_WINDOW_BYTES, client::SqlProcess, feed,
};
use crate::{
    app::cpu_time,
    bus::{Bus, Clock, Count},
    http2,
    query_proto::{QueryHealthRequest, query_worker_client::QueryWorkerClient},
    rows::FaultRow,
};

/// How often the process is asked how it is.
const LOOK: Duration = Duration::from_millis(100);
/// One that has not answered, or not stopped a query, for this long is taken for dead. Long: it gives way to everybody on a busy machine.
const SILENCE: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
const STEADY: Duration = Duration::from_secs(10);
/// How long the system is given to say how a process ended whose connections have.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(500);

/// The process, as those who ask see it.
#[derive(Debug, Clone)]
pub(super) enum Life {
    Down(String),
    Up(QueryWorkerClient<Channel>),
}

/// Counts, for /metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Starts after the first.
    pub(crate) restarts: Count,
    /// Processes that were ended from here.
    pub(crate) ended: Count,
    /// Times that the feed fell behind the bus and took what it missed from the tables.
    pub(crate) catch_ups: Count,
    /// 1 while there is a process.
    pub(crate) up: Count,
    /// Statements that hold a place, as last heard; `sql.concurrent_max` is the bound.
    pub(crate) running: Count,
}

/// What a keeper needs.
pub struct KeeperSetup {
    /// The program with its subcommand.
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    pub limits: SqlLimits,
    pub stop_grace: Duration,
    pub bus: Bus,
    pub tables: Arc<LiveTables>,
    /// Rows of a topic that the process keeps.
    pub live_rows: usize,
    pub clock: Clock,
}

impl KeeperSetup {
    /// This program's own `query-worker`.
    ///
    /// # Errors
    /// The operating system does not tell the program's path.
    pub fn own(
        options: &QueryWorkerOptions,
        stop_grace: Duration,
        (bus, tables, clock): (Bus, Arc<LiveTables>, Clock),
    ) -> io::Result<Self> {
        let mut arguments: Vec<OsString> = vec!["query-worker".into()];
        arguments.extend(options.to_args());
        let (program, limits, live_rows) = (std::env::current_exe()?, options.limits(), options.live_rows);
        Ok(KeeperSetup { program, arguments, limits, stop_grace, bus, tables, live_rows, clock })
    }
}

/// See the file's header. Dropping it ends the process.
pub struct Keeper {
    task: JoinHandle<()>,
    stop: CancellationToken,
    answers: Arc<SqlProcess>,
    counters: Arc<Counters>,
}

impl Keeper {
    /// Starts keeping, on the runtime it is called on.
    pub fn start(setup: KeeperSetup) -> Keeper {
        let (life, told) = watch::channel(Life::Down("it is being started".into()));
        let (ends, ended) = watch::channel(String::new());
        let wanted = Arc::new(Notify::new());
        let source = (setup.tables.clone(), wanted.clone());
        let answers = Arc::new(SqlProcess::new(setup.limits, source, (told, ended)));
        let (stop, counters) = (CancellationToken::new(), Arc::new(Counters::default()));
        let keeping = Keeping { setup, life, ends, wanted, counters: counters.clone() };
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = keeping.run() => {}
                () = stopped.cancelled() => {}
            }
        });
        Keeper { task, stop, answers, counters }
    }

    pub fn answers(&self) -> Arc<SqlProcess> {
        self.answers.clone()
    }

    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Ends the process.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Keeping {
    setup: KeeperSetup,
    life: watch::Sender<Life>,
    /// How the last one ended.
    ends: watch::Sender<String>,
    /// Says that a question waits for rows.
    wanted: Arc<Notify>,
    counters: Arc<Counters>,
}

impl Keeping {
    async fn run(&self) {
        let mut pause = PAUSE_MIN;
        loop {
            let started = Instant::now();
            let why = match Process::start(&self.setup).await {
                Ok(process) => self.keep(process).await,
                Err(error) => format!("it cannot be started: {error}"),
            };
            self.counters.up.set(0);
            self.counters.running.set(0);
            self.counters.restarts.add(1);
            self.life.send_replace(Life::Down(why.clone()));
            self.ends.send_replace(why.clone());
            if started.elapsed() >= STEADY {
                pause = PAUSE_MIN;
            }
            self.tell(&why, pause);
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Keeps one process to its end; says why it ended.
    async fn keep(&self, process: Process) -> String {
        let Process { mut child, rows, questions } = process;
        tracing::info!(pid = child.id(), "process for SQL started");
        self.counters.up.set(1);
        let pid = child.id();
        self.life.send_replace(Life::Up(questions.clone()));
        let source = (&self.setup.bus, self.setup.tables.as_ref(), self.setup.live_rows);
        let why = tokio::select! {
            ended = child.wait() => return how(ended),
            why = feed::run(rows, source, (&self.wanted, self.counters.clone())) => why,
            why = self.watch(pid, questions) => {
                self.counters.ended.add(1);
                let _ = child.start_kill();
                let _ = child.wait().await;
                return why;
            }
        };
        // A feed ends with its process, as a rule, and that is the better reason.
        match timeout(LAST_WORDS, child.wait()).await {
            Ok(ended) => how(ended),
            Err(_) => {
                self.counters.ended.add(1);
                let _ = child.start_kill();
                let _ = child.wait().await;
                why
            }
        }
    }

    /// Waits until the process has to be ended; says why.
    async fn watch(&self, pid: Option<u32>, mut questions: QueryWorkerClient<Channel>) -> String {
        // Of each query that nobody waits for: since when, and how long the process had computed for.
        let mut left: BTreeMap<u64, (Instant, Option<Duration>)> = BTreeMap::new();
        let mut heard = Instant::now();
        loop {
            tokio::time::sleep(LOOK).await;
            match timeout(SILENCE, questions.health(QueryHealthRequest {})).await {
                Ok(Ok(reply)) => {
                    heard = Instant::now();
                    let reply = reply.into_inner();
                    self.counters.running.set(u64::from(reply.running));
                    left.retain(|number, _| reply.left.contains(number));
                    let worked = pid.filter(|_| !reply.left.is_empty()).and_then(|pid| cpu_time::of(pid).ok());
                    for number in reply.left {
                        let (since, worked_then) = *left.entry(number).or_insert((heard, worked));
                        let worked = worked.zip(worked_then).map(|(now, then)| now.saturating_sub(then));
                        let grace = self.setup.stop_grace;
                        if is_stuck((heard - since, worked), grace) {
                            return format!("a query did not stop within {grace:?} (sql.stop_grace) of its end");
                        }
                    }
                }
                // If its connection is gone, the system tells how it ended.
                Ok(Err(_)) if heard.elapsed() < SILENCE => {}
                Ok(Err(_)) | Err(_) => return format!("it was not heard for {SILENCE:?}"),
            }
        }
    }

    fn tell(&self, why: &str, pause: Duration) {
        tracing::warn!(?pause, "the process for SQL is started again: {why}");
        let row = FaultRow {
            at: (self.setup.clock)(),
            component: "sql".into(),
            kind: "engine_restarted".into(),
            detail: why.into(),
            count: 1,
        };
        // A full bus counts what it refuses; the log has the line.
        let _ = self.setup.bus.try_publish(row);
    }
}

/// Whether a query that nobody waits for has had its chance to stop: it was left that long ago, and its process has computed for so
/// long since, where that is known.
fn is_stuck((left, worked): (Duration, Option<Duration>), grace: Duration) -> bool {
    left >= grace && (left >= SILENCE || worked.is_none_or(|worked| worked >= grace))
}

fn how(ended: io::Result<std::process::ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match ended {
        Ok(status) => match status.signal() {
            Some(6) => {
                "it aborted: a statement took more address space than sql.worker_memory, or more stack than there is"
                    .into()
            }
            Some(signal) => format!("it was ended by signal {signal}"),
            None => format!("it ended: {status}"),
        },
        Err(error) => format!("it was lost: {error}"),
    }
}

/// A process and its two connections.
struct Process {
    child: Child,
    rows: QueryWorkerClient<Channel>,
    questions: QueryWorkerClient<Channel>,
}

impl Process {
    async fn start(setup: &KeeperSetup) -> io::Result<Process> {
        let ((rows, its_rows), (questions, its_questions)) = (StdStream::pair()?, StdStream::pair()?);
        let child = Command::new(&setup.program)
            .args(&setup.arguments)
            // Allocators reserve address space ahead: ours 1 GiB at a time, the C library 64 MiB a thread. Here it is counted.
            .env("MIMALLOC_ARENA_RESERVE", "128MiB")
            // Buffers come and go with every batch of rows; as huge pages the kernel would zero many times what they use.
            .env("MIMALLOC_ALLOW_THP", "0")
            .env("MALLOC_ARENA_MAX", "1")
            .stdin(Stdio::from(OwnedFd::from(its_rows)))
            .stdout(Stdio::from(OwnedFd::from(its_questions)))
            .kill_on_drop(true)
            .spawn()?;
        Ok(Process { child, rows: connect(rows).await?, questions: connect(questions).await? })
    }
}

/// A client over a connection that is there; there is no second one after it.
pub(super) async fn connect(stream: StdStream) -> io::Result<QueryWorkerClient<Channel>> {
    stream.set_nonblocking(true)?;
    let mut stream = Some(UnixStream::from_std(stream)?);
    let connector = tower::service_fn(move |_: Uri| {
        let stream = stream.take().map(TokioIo::new);
        async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    let endpoint = Endpoint::from_static("http://query-worker")
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let channel = http2::client_of(endpoint).connect_with_connector(connector).await.map_err(io::Error::other)?;
    Ok(QueryWorkerClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a query that nobody waits for, in a process that computes, in one that gets no turn, and where nobody can tell.
    /// Guarantees: the first and the last have `sql.stop_grace`, the second until it got turns, or [`SILENCE`] is over.
    #[test]
    fn who_gets_no_turn_has_time_to_stop() {
        let (ms, grace) = (Duration::from_millis, Duration::from_secs(2));
        assert!(!is_stuck((ms(1_999), Some(ms(4_000))), grace));
        assert!(is_stuck((ms(2_000), Some(ms(2_000))), grace));
        assert!(!is_stuck((ms(29_999), Some(ms(100))), grace));
        assert!(is_stuck((SILENCE, Some(ms(100))), grace));
        assert!(is_stuck((ms(2_000), None), grace));
    }
}
