//! The body of `evenkeel query-worker`: bounds first, then the engine between two inherited connections.
//!
//! Invariants: the address space is bounded before anything large is allocated; beyond the bound an allocation fails and the process
//! aborts; it ends when either connection does, so it never outlives its server; it prefers to be the one that the system ends when
//! memory is short ([`BADNESS`]), and gives way to what serves. It writes no core file: that would hold every row.
//! State: see `service`.

use std::{
    io,
    os::{fd::AsFd, unix::net::UnixStream as StdStream},
    sync::Arc,
    time::Duration,
};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use queries::{LiveTables, SqlEngine, query_runtime, query_runtime_whose};
use rustix::process::{Resource, Rlimit, nice, setrlimit};
use tokio::{net::UnixStream, runtime};

use super::{
    CONNECTION_WINDOW_BYTES, MESSAGE_BYTES_MAX, QueryWorkerOptions, STREAM_WINDOW_BYTES, service::QueryService, slice,
};
use crate::{bus::LogFollower, http2::CANCELLED_MAX, query_proto::query_worker_server::QueryWorkerServer};

/// What is added to its badness when the system looks for a process to end, of 1000.
const BADNESS: &str = "500";
/// Threads for rows and messages; light and heavy queries each have their own.
const MESSAGE_THREADS: usize = 2;

/// Runs until its server ends. Blocks; call it from the main thread outside any async runtime.
///
/// # Errors
/// Its stdin and stdout are no sockets: it was not started by a server. Limits or threads were refused by the system.
pub fn run(options: &QueryWorkerOptions) -> io::Result<()> {
    confine(options)?;
    let (rows, questions) = (inherited(io::stdin().as_fd())?, inherited(io::stdout().as_fd())?);
    let limits = options.limits();
    let queries = query_runtime(options.light_threads)?;
    let niceness = i32::from(options.niceness);
    // Where it is not allowed, they take turns like others.
    let heavy = query_runtime_whose(options.threads, move || drop(slice::take_turns_of(slice::LONGEST, niceness)))?;
    let tables = Arc::new(LiveTables::for_sql(options.live_rows));
    if let Some(folder) = &options.data_dir {
        tables.set_history(Arc::new(LogFollower::new(folder)));
    }
    let engine = SqlEngine::new(limits, tables.clone(), queries.handle().clone());
    let engine = Arc::new(engine.with_heavy_on(heavy.handle().clone()));
    let service = QueryService::new(engine, tables);
    let messages = runtime::Builder::new_multi_thread()
        .worker_threads(MESSAGE_THREADS)
        .thread_name("query-worker")
        .enable_all()
        .build()?;
    messages.block_on(async {
        // A terminal's interrupt reaches every process; the server decides when this one ends.
        tokio::spawn(async { while tokio::signal::ctrl_c().await.is_ok() {} });
        tokio::select! {
            ended = serve(rows, service.clone()) => ended,
            ended = serve(questions, service.clone()) => ended,
        }
    })?;
    messages.shutdown_timeout(Duration::ZERO);
    queries.shutdown_timeout(Duration::ZERO);
    heavy.shutdown_timeout(Duration::ZERO);
    Ok(())
}

fn confine(options: &QueryWorkerOptions) -> io::Result<()> {
    let within = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::As, within(options.memory_bytes))?;
    setrlimit(Resource::Core, within(0))?;
    // Where either is not allowed, it still answers.
    let _ = nice(i32::from(options.niceness));
    let _ = std::fs::write("/proc/self/oom_score_adj", BADNESS);
    Ok(())
}

fn inherited(handle: std::os::fd::BorrowedFd<'_>) -> io::Result<StdStream> {
    let stream = StdStream::from(handle.try_clone_to_owned()?);
    let not_ours =
        |error: io::Error| io::Error::new(error.kind(), format!("{error}; `evenkeel serve` starts this process"));
    stream.local_addr().map_err(not_ours)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Serves one connection to its end.
pub(super) async fn serve(stream: StdStream, service: QueryService) -> io::Result<()> {
    let service = QueryWorkerServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let ended = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_pending_accept_reset_streams(CANCELLED_MAX)
        .max_local_error_reset_streams(CANCELLED_MAX)
        .serve_connection(TokioIo::new(UnixStream::from_std(stream)?), TowerToHyperService::new(service))
        .await;
    // A server that is gone is how it is told to end, in whatever words the connection says so.
    if let Err(error) = ended {
        tracing::debug!(%error, "the server is gone");
    }
    Ok(())
}
