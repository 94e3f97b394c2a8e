//! The server under load: a process of its own with a folder for its data, asked by SQL what it saw.
//!
//! State: the folder, which goes with it. Dropping it kills the process.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::OverloadOptions;

const START_WAIT: Duration = Duration::from_secs(60);
const STOP_WAIT: Duration = Duration::from_secs(15);
/// Sequences that one worker runs at once.
pub(super) const RUNNING_MAX: u32 = 16;
/// Share of would-be refusals that are let through.
const TRIAL_SHARE: f64 = 0.1;

/// Whether deadlines count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    On,
    Off,
}

pub(super) struct Serving {
    process: Child,
    pub(super) url: String,
    /// Name that requests give.
    pub(super) model: String,
    client: reqwest::Client,
    folder: tempfile::TempDir,
}

impl Serving {
    pub(super) async fn start(client: &reqwest::Client, options: &OverloadOptions, mode: Mode) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the server's data")?;
        let (listen, flight) = (free_address()?, free_address()?);
        let config = folder.path().join("overload.toml");
        fs::write(&config, settings(options, mode))?;
        let process = Command::new(std::env::current_exe()?)
            .args(["serve", "--model", &options.model, "--workers", &options.workers.to_string()])
            .arg("--config")
            .arg(&config)
            .arg(format!("--listen={listen}"))
            .arg(format!("--flight-listen={flight}"))
            .arg("--pg-listen=off")
            .arg("--data-dir")
            .arg(folder.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path().join("serve.log"))?)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start `evenkeel serve`")?;
        let (url, client) = (format!("http://{listen}"), client.clone());
        let mut serving = Serving { process, url, model: String::new(), client, folder };
        serving.wait_ready(options.workers).await?;
        let models: Value = serving.client.get(format!("{}/v1/models", serving.url)).send().await?.json().await?;
        serving.model = models["data"][0]["id"].as_str().context("the server names no model")?.to_string();
        Ok(serving)
    }

    async fn wait_ready(&mut self, workers: u32) -> anyhow::Result<()> {
        let (started, url) = (Instant::now(), format!("{}/metrics", self.url));
        let all = format!("evenkeel_ready_instances {workers}");
        loop {
            if let Ok(answer) = self.client.get(&url).timeout(STOP_WAIT).send().await
                && answer.text().await.is_ok_and(|text| text.lines().any(|line| line == all))
            {
                return Ok(());
            }
            let ended = self.process.try_wait()?;
            if ended.is_some() || started.elapsed() > START_WAIT {
                let log = fs::read_to_string(self.folder.path().join("serve.log")).unwrap_or_default();
                bail!("`evenkeel serve` did not get ready in {START_WAIT:?} (ended: {ended:?}); it said:\n{log}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Rows of a query.
    pub(super) async fn sql(&self, query: &str) -> anyhow::Result<Vec<Value>> {
        let answer = self.client.post(format!("{}/sql", self.url)).json(&json!({"query": query})).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "{query}: {status}: {text}");
        Ok(serde_json::from_str(&text)?)
    }

    /// Stops server and workers for so long (`SIGSTOP`), and has them go on.
    pub(super) async fn stand_still(&self, time: Duration) -> anyhow::Result<()> {
        let server = self.process.id().context("the server has ended")?;
        let mut pids = children(server)?;
        pids.push(server);
        signal(&pids, Signal::STOP)?;
        tokio::time::sleep(time).await;
        signal(&pids, Signal::CONT)
    }

    pub(super) async fn stop(mut self) {
        if let Some(pid) = self.process.id() {
            let _ = signal(&[pid], Signal::TERM);
        }
        if tokio::time::timeout(STOP_WAIT, self.process.wait()).await.is_err() {
            let _ = self.process.kill().await;
        }
    }
}

fn signal(pids: &[u32], signal: Signal) -> anyhow::Result<()> {
    for pid in pids {
        let pid = Pid::from_raw(i32::try_from(*pid)?).context("0 is no process")?;
        kill_process(pid, signal).with_context(|| format!("process {pid:?} has ended"))?;
    }
    Ok(())
}

/// Those that any of a process's threads started.
fn children(pid: u32) -> anyhow::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // One that ended meanwhile has none.
        let text = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        pids.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    ensure!(!pids.is_empty(), "process {pid} has no children, or this system does not list them");
    Ok(pids)
}

/// Few sequences at once on a worker, so that what does not run waits in the gateway's queue.
fn settings(options: &OverloadOptions, mode: Mode) -> String {
    let mode = match mode {
        Mode::On => "on",
        Mode::Off => "off",
    };
    let mean = super::load::mean_tokens(&super::load::classes(&options.model));
    let leased = (mean * f64::from(RUNNING_MAX)) as u64;
    // Pages of the simulated model cost next to nothing.
    let pages = if options.model == "simulated" { "8GiB" } else { "512MiB" };
    format!(
        "[workers]\nrunning_max = {RUNNING_MAX}\nkv_bytes_max = \"{pages}\"\n\
         [policy.route]\nlease_tokens_max = {leased}\n\
         [policy.deadline]\nmode = \"{mode}\"\ntrial_share = {TRIAL_SHARE}\n"
    )
}

/// A free port of this machine. Another program may take it before ours does, which then says so.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?)
}
