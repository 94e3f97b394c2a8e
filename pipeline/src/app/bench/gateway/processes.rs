//! The two sides of the gateway's bench as processes: `serve` with one worker, and a worker alone with the same
//! options.
//!
//! Invariant: both workers are started from the options the supervisor would give them, so they compute and wait
//! alike; the lone worker has nowhere to send telemetry. Dropping either kills it. State: a folder that goes with
//! [`ServeProcess`].

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tokio::process::{Child as Process, Command};

use crate::{
    app::text::{ModelText, SIMULATED_CONTEXT},
    config::{self, Overrides},
    gateway::deps::TextModel,
    worker::{
        child::{Child, WorkerCommand},
        client::{ClientLimits, GrpcInstance},
        supervisor::{ServedModel, SupervisorConfig},
    },
};

const START_WAIT: Duration = Duration::from_secs(20);
const STOP_WAIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// `evenkeel serve` with one simulated worker.
pub(in super::super) struct ServeProcess {
    process: Process,
    pub(in super::super) pid: u32,
    /// `http://address`, without a path.
    pub(in super::super) url: String,
    folder: tempfile::TempDir,
}

impl ServeProcess {
    /// Starts it on free ports, with settings in TOML, and waits until `/ready` answers 200.
    pub(in super::super) async fn start(client: &reqwest::Client, settings: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the server's data")?;
        let (listen, flight) = (free_address()?, free_address()?);
        let log = File::create(folder.path().join("serve.log")).context("cannot make the server's log file")?;
        let config = folder.path().join("bench.toml");
        fs::write(&config, settings).context("cannot write the server's settings")?;
        let process = Command::new(std::env::current_exe()?)
            .args(["serve", "--model", "simulated", "--workers", "1"])
            .arg("--config")
            .arg(&config)
            .arg(format!("--listen={listen}"))
            .arg(format!("--flight-listen={flight}"))
            .arg("--pg-listen=off")
            .arg("--data-dir")
            .arg(folder.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start `evenkeel serve`")?;
        let pid = process.id().context("`evenkeel serve` ended at once")?;
        let mut serve = ServeProcess { process, pid, url: format!("http://{listen}"), folder };
        serve.wait_ready(client).await?;
        Ok(serve)
    }

    async fn wait_ready(&mut self, client: &reqwest::Client) -> anyhow::Result<()> {
        let (started, url) = (Instant::now(), format!("{}/ready", self.url));
        loop {
            let answer = client.get(&url).timeout(STOP_WAIT).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            let ended = self.process.try_wait()?;
            if ended.is_some() || started.elapsed() > START_WAIT {
                let log = fs::read_to_string(self.folder.path().join("serve.log")).unwrap_or_default();
                bail!("`evenkeel serve` did not get ready in {START_WAIT:?} (ended: {ended:?}); it said:\n{log}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Tells it to end and waits; what does not end in time is killed.
    pub(in super::super) async fn stop(mut self) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(STOP_WAIT, self.process.wait()).await.is_err() {
            let _ = self.process.kill().await;
        }
    }
}

/// A worker without a gateway, and a client for it.
pub(super) struct LoneWorker {
    child: Child,
    pub(super) pid: u32,
    pub(super) client: GrpcInstance,
}

impl LoneWorker {
    /// Starts it with the options that `serve` gives its own, telemetry aside.
    pub(super) async fn start(text: &ModelText) -> anyhow::Result<Self> {
        let config = config::load(None, Overrides::default().set("model.name", Some("simulated")))?;
        let model = ServedModel { name: "simulated".into(), path: "simulated".into() };
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let SupervisorConfig { command, mut options, .. } =
            SupervisorConfig::new(&config, model, nowhere, WorkerCommand::own()?);
        options.flight = None;
        options.simulated_vocab = text.vocab();
        options.simulated_context = SIMULATED_CONTEXT;
        let mut child = Child::spawn(&command, &options)?;
        let ready = tokio::time::timeout(START_WAIT, child.ready()).await.context("the worker did not get ready")??;
        let client = GrpcInstance::new(ready.address, ClientLimits::default())?;
        Ok(LoneWorker { child, pid: ready.pid, client })
    }

    pub(super) async fn stop(mut self) {
        self.child.close_stdin();
        if tokio::time::timeout(STOP_WAIT, self.child.wait()).await.is_err() {
            self.child.kill().await;
        }
    }
}

/// A free port of this machine. Another program may take it before ours does, which then says so.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?)
}
