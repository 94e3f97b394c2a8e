//! The supervisor with real child processes: this test program runs again as the worker.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, sync::Mutex};

use async_trait::async_trait;
use clap::Parser;
use futures::StreamExt;

use super::*;
use crate::{
    gateway::instances::{InstanceDirectory, InstanceState},
    rows::InstanceRow,
    worker::{
        child::WorkerCommand,
        process,
        supervisor::{InstanceSink, Supervisor, SupervisorConfig},
    },
};

const ARGUMENTS: &str = "EVENKEEL_TEST_WORKER_ARGUMENTS";

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: WorkerOptions,
}

/// Not a test of its own: the worker that the tests below start, as a process of this program.
#[test]
#[ignore = "runs as a child process of the tests below"]
fn worker_child() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let line = Line::try_parse_from(std::iter::once("worker").chain(arguments.split_whitespace())).unwrap();
    process::run(line.options).unwrap();
}

#[derive(Default)]
struct Rows(Mutex<Vec<InstanceRow>>);

#[async_trait]
impl InstanceSink for Rows {
    async fn instance(&self, row: InstanceRow) {
        self.0.lock().unwrap().push(row);
    }
}

impl Rows {
    fn states(&self, instance: u32) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|r| r.instance == instance).map(|r| r.state.clone()).collect()
    }

    fn details(&self, state: &str) -> Vec<String> {
        let rows = self.0.lock().unwrap();
        rows.iter().filter(|r| r.state == state).map(|r| r.detail.clone().unwrap_or_default()).collect()
    }
}

fn script(folder: &Path, body: &str) -> WorkerCommand {
    let program = folder.join("worker.sh");
    fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    WorkerCommand { program, leading: vec!["worker".into()] }
}

/// This program as a worker; the shell only moves the arguments past the test harness. Two test threads: with one the
/// harness writes the test's name first, on the line where the ready line would begin.
fn real_worker(folder: &Path) -> WorkerCommand {
    let program = std::env::current_exe().unwrap();
    let test = "worker::tests::processes::worker_child";
    script(
        folder,
        &format!(
            "shift\nexport {ARGUMENTS}=\"$*\"\nexec '{}' --exact {test} --ignored --nocapture --test-threads=2",
            program.display()
        ),
    )
}

fn config(command: WorkerCommand, count: u32) -> SupervisorConfig {
    SupervisorConfig {
        first: 0,
        command,
        count,
        options: options(1.0),
        variants: Vec::new(),
        start_timeout: PATIENCE,
        restart_backoff: Duration::from_millis(10),
        restart_backoff_max: Duration::from_millis(40),
        health_interval: Duration::from_millis(100),
        health_timeout: PATIENCE,
        drain_timeout: PATIENCE,
        limits: ClientLimits::default(),
    }
}

fn ready(directory: &InstanceDirectory, count: usize) -> bool {
    directory.load().iter().filter(|e| e.state == InstanceState::Ready && e.client.is_some()).count() == count
}

fn pid_of(rows: &Rows, instance: u32) -> u32 {
    let rows = rows.0.lock().unwrap();
    rows.iter().rev().find(|r| r.instance == instance && r.pid.is_some()).unwrap().pid.unwrap()
}

fn alive(pid: u32) -> bool {
    // A zombie that nobody has waited for yet still has an entry; its state is Z.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Scenario: two workers; one is killed in the middle of a stream. Guarantees: its stream ends with `Lost`, the other serves on, the
/// dead one comes back with a larger epoch and fresh leases, and a drained stop lets a running stream complete and leaves
/// no process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, rows) = (Arc::new(InstanceDirectory::default()), Arc::new(Rows::default()));
    let supervisor = Supervisor::start(config(real_worker(folder.path()), 2), directory.clone(), rows.clone());
    eventually("both are ready", || ready(&directory, 2) && rows.details("ready").len() == 2).await;

    let first = directory.get(InstanceId(0)).unwrap();
    let lease = first.leases.reserve(100, 1000).unwrap();
    let mut stream = first.client.clone().unwrap().generate(call(vec![1, 2], 400)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let pid = i32::try_from(pid_of(&rows, 0)).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    let rest = collect(stream).await;
    assert!(matches!(rest.last(), Some(Err(InstanceError::Lost(_)))), "{rest:?}");

    let other = directory.get(InstanceId(1)).unwrap().client.clone().unwrap();
    assert_eq!(tokens(&collect(other.generate(call(vec![3], 5)).await.unwrap()).await).len(), 5);

    eventually("the dead one is back", || {
        let entry = directory.get(InstanceId(0)).unwrap();
        entry.epoch > first.epoch && ready(&directory, 2) && rows.details("ready").len() == 3
    })
    .await;
    let again = directory.get(InstanceId(0)).unwrap();
    assert_eq!(again.leases.tokens(), 0);
    drop(lease);
    assert_eq!(again.leases.tokens(), 0);
    assert_eq!(rows.states(0), ["starting", "ready", "dead", "starting", "ready"]);
    assert!(rows.details("dead")[0].contains("signal 9"), "{:?}", rows.details("dead"));

    let running = again.client.clone().unwrap().generate(call(vec![1, 2], 50)).await.unwrap();
    let reading = tokio::spawn(collect(running));
    tokio::time::timeout(PATIENCE, supervisor.stop()).await.unwrap();
    assert_eq!(tokens(&reading.await.unwrap()).len(), 50);
    assert_eq!(rows.states(1), ["starting", "ready", "draining", "stopped"]);
    assert!(!alive(pid_of(&rows, 0)) && !alive(pid_of(&rows, 1)));
}

/// Scenario: the worker program fails at once with a message, again and again. Guarantees: each failure is a `dead` row with
/// exit code and message, epochs grow, and stop does not wait for a success.
#[tokio::test]
async fn repeated_failures_are_visible() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, rows) = (Arc::new(InstanceDirectory::default()), Arc::new(Rows::default()));
    let command = script(folder.path(), "echo 'no such model' >&2\nexit 3");
    let supervisor = Supervisor::start(config(command, 1), directory.clone(), rows.clone());
    eventually("three failures", || rows.details("dead").len() >= 3).await;
    tokio::time::timeout(PATIENCE, supervisor.stop()).await.unwrap();
    assert!(rows.details("dead").iter().all(|d| d.contains("code 3") && d.contains("no such model")), "{:?}", rows.0);
    let epochs: Vec<u64> = rows.0.lock().unwrap().iter().filter(|r| r.state == "starting").map(|r| r.epoch).collect();
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
    assert_eq!(directory.get(InstanceId(0)).unwrap().state, InstanceState::Stopped);
}

/// Scenario: a worker that never gets ready, one that says nonsense, a program that is not there. Guarantees: each is
/// `dead` with the reason; nothing hangs.
#[tokio::test]
async fn workers_that_never_get_ready_are_given_up() {
    for (body, word) in [
        ("exec sleep 60", "not ready in"),
        ("echo '{\"address\": 1}'\nexec sleep 60", "ready line"),
        ("", "cannot start"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (directory, rows) = (Arc::new(InstanceDirectory::default()), Arc::new(Rows::default()));
        let mut command = script(folder.path(), &format!("exec 2>/dev/null\n{body}"));
        if body.is_empty() {
            command.program = folder.path().join("absent");
        }
        let config = SupervisorConfig { start_timeout: Duration::from_millis(200), ..config(command, 1) };
        let supervisor = Supervisor::start(config, directory, rows.clone());
        eventually(word, || rows.details("dead").iter().any(|d| d.contains(word))).await;
        tokio::time::timeout(PATIENCE, supervisor.stop()).await.unwrap();
    }
}

/// Scenario: a worker whose supervisor vanishes: its stdin closes. Guarantees: the process ends by itself.
#[tokio::test]
async fn no_worker_outlives_its_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let command = real_worker(folder.path());
    let mut child = crate::worker::child::Child::spawn(&command, &options(1.0)).unwrap();
    let ready = tokio::time::timeout(PATIENCE, child.ready()).await.unwrap().unwrap();
    assert_eq!((ready.context, ready.vocab, ready.blocks), (512, 512, 64));
    assert!(alive(ready.pid));
    child.close_stdin();
    let how = tokio::time::timeout(PATIENCE, child.wait()).await.unwrap();
    assert!(how.contains("code 0"), "{how}");
    assert!(!alive(ready.pid));
}
