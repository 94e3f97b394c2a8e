//! The routers under test and the workers behind them, each a process of its own on the loopback address.
//!
//! Peers are taken as they are installed (`DIR/venv/sglrouter`, `DIR/venv/vllmrouter`, see docs/measuring.md) and started
//! with their own policy for the case. Invariant: whatever was started is killed when its value drops. State: one folder for
//! logs and our server's data.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::{
    load::{self, Load},
    worker::Stats,
};
use crate::app::bench::figures::cpu_us;

pub(super) const WORKERS: usize = 4;
const START_WAIT: Duration = Duration::from_secs(40);

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Who {
    /// One worker, nothing in between.
    Direct,
    /// Bytes go on unread: the least that anything in between can cost.
    Relay,
    /// The same by HTTP's own library, and nothing else.
    HttpRelay,
    Evenkeel,
    SglangRouter,
    VllmRouter,
}

impl Who {
    pub(super) fn is_peer(self) -> bool {
        matches!(self, Who::SglangRouter | Who::VllmRouter)
    }
}

/// What peers are told to do; ours always does the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerPolicy {
    RoundRobin,
    CacheAware,
}

/// A process that ends with the value.
pub(super) struct Process {
    child: Child,
    name: String,
}

impl Process {
    fn start(name: &str, folder: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = File::create(folder.join(format!("{name}.log")))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Process { child, name: name.into() })
    }

    /// CPU of the process and its children, in microseconds.
    pub(super) fn cpu_us(&self) -> anyhow::Result<u64> {
        family(self.child.id()).into_iter().map(|pid| cpu_us(pid).or(Ok(0))).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        for pid in family(self.child.id()).into_iter().rev() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = self.child.wait();
    }
}

/// A process and all below it.
fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    for entry in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(entry.path().join("children")).unwrap_or_default();
        all.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).flat_map(family));
    }
    all
}

/// The workers that all routers share.
pub(super) struct Workers {
    pub(super) urls: Vec<String>,
    _processes: Vec<Process>,
}

impl Workers {
    pub(super) fn start(folder: &Path) -> anyhow::Result<Self> {
        let (mut urls, mut processes) = (Vec::new(), Vec::new());
        for number in 0..WORKERS {
            let (name, port) = (format!("worker{number}"), free_port()?);
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bench", "router-worker", "--port", &port.to_string()]);
            processes.push(Process::start(&name, folder, &mut command)?);
            let url = format!("http://127.0.0.1:{port}");
            wait_until(&format!("{url}/health"), &name, folder)?;
            urls.push(url);
        }
        Ok(Workers { urls, _processes: processes })
    }

    /// Empties the caches; from now on they hold `blocks`.
    pub(super) fn reset(&self, blocks: usize) -> anyhow::Result<()> {
        let request = |url: &String| -> anyhow::Result<()> {
            block_on(async {
                let sent = reqwest::Client::new().post(format!("{url}/reset")).body(blocks.to_string()).send();
                sent.await?.error_for_status()?;
                Ok(())
            })
        };
        self.urls.iter().try_for_each(request)
    }

    pub(super) fn stats(&self) -> anyhow::Result<Vec<Stats>> {
        let ask = |url: &String| block_on(async { Ok(reqwest::get(format!("{url}/stats")).await?.json().await?) });
        self.urls.iter().map(ask).collect()
    }
}

/// A router in front of the workers.
pub(super) struct Router {
    pub(super) who: Who,
    pub(super) url: String,
    process: Option<Process>,
}

impl Router {
    /// Starts it and waits until it answers `load`.
    pub(super) fn start(
        who: Who,
        (peers, policy): (Option<&Path>, PeerPolicy),
        workers: &Workers,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        if who == Who::Direct {
            return Ok(Router { who, url: workers.urls[0].clone(), process: None });
        }
        let (port, other) = (free_port()?.to_string(), free_port()?.to_string());
        let policy = match policy {
            PeerPolicy::RoundRobin => "round_robin",
            PeerPolicy::CacheAware => "cache_aware",
        };
        let peer = |path: &str| peers.map_or_else(PathBuf::new, |peers| peers.join(path));
        let peer_arguments = |command: &mut Command| {
            command.args(["--host", "127.0.0.1", "--port", &port, "--prometheus-host", "127.0.0.1"]);
            command.args(["--prometheus-port", &other, "--policy", policy, "--worker-urls"]);
            command.args(&workers.urls);
        };
        let (name, mut command) = match who {
            Who::Direct | Who::Evenkeel => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
                command.args(["--flight-listen", &format!("127.0.0.1:{other}"), "--pg-listen", "off"]);
                command.arg("--data-dir").arg(folder.join(format!("data-{port}")));
                for url in &workers.urls {
                    command.args(["--worker-url", url]);
                }
                ("evenkeel", command)
            }
            Who::Relay | Who::HttpRelay => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["bench", "router-relay", "--port", &port]);
                let is_http = who == Who::HttpRelay;
                command.args(is_http.then_some("--http"));
                for url in &workers.urls {
                    command.args(["--worker", url.trim_start_matches("http://")]);
                }
                (if is_http { "http-relay" } else { "relay" }, command)
            }
            Who::SglangRouter => {
                let mut command = Command::new(peer("venv/sglrouter/bin/python"));
                command.args(["-m", "sglang_router.launch_router"]);
                peer_arguments(&mut command);
                command.args(["--log-level", "warn"]);
                ("sglang-router", command)
            }
            Who::VllmRouter => {
                let mut command = Command::new(peer("venv/vllmrouter/bin/vllm-router"));
                peer_arguments(&mut command);
                command.args(["--log-level", "warning"]);
                ("vllm-router", command)
            }
        };
        let process = Process::start(name, folder, &mut command)?;
        let url = format!("http://127.0.0.1:{port}");
        let ready = if who == Who::Evenkeel { "ready" } else { "health" };
        wait_until(&format!("{url}/{ready}"), name, folder)?;
        Ok(Router { who, url, process: Some(process) })
    }

    /// Has it answer once; a router that has just started may not know its workers yet.
    pub(super) fn warm(&self, load: &Load, folder: &Path) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            match load::run(&self.url, load, 8, 64) {
                Ok(_) => return Ok(()),
                Err(error) if began.elapsed() > START_WAIT => {
                    let name = self.process.as_ref().map_or("worker0", |process| process.name.as_str());
                    bail!("{error:#}; it said:\n{}", tail(&folder.join(format!("{name}.log"))));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    pub(super) fn cpu_us(&self) -> anyhow::Result<u64> {
        self.process.as_ref().map_or(Ok(0), Process::cpu_us)
    }
}

fn wait_until(url: &str, name: &str, folder: &Path) -> anyhow::Result<()> {
    let began = Instant::now();
    while began.elapsed() < START_WAIT {
        let answers = block_on(async { Ok(reqwest::get(url).await?.status().is_success()) });
        if answers.unwrap_or(false) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("{name} did not answer at {url}; it said:\n{}", tail(&folder.join(format!("{name}.log"))))
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// A free port of this machine. Another program may take it before ours does, which then says so.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}
