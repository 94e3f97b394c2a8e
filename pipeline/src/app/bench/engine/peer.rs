//! llama.cpp's `llama-server`, asked over HTTP with the same prompts, lengths and threads.
//!
//! Times are the server's own (`timings` of an answer), so HTTP is not counted against it. The server is stopped
//! (`SIGSTOP`) but for its turns, and ends with this process, however that ends: it is started through
//! `bench peer-side`, which asks the kernel for that and becomes the server. Cost: one process a peer, with KV for
//! [`CONTEXT_TOKENS`]. Bounds: [`START_MAX`] to load the model, [`ANSWER_MAX`] for an answer; then the bench ends with an
//! error.

use std::{
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use futures::future::try_join_all;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::Deserialize;
use serde_json::json;
use tokio::runtime::Runtime;

use super::{BATCHES, CONTEXT_TOKENS};
use crate::app::driver::prompt_tokens;

const START_MAX: Duration = Duration::from_secs(60);
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// Options of `bench peer-side`.
#[derive(clap::Args)]
pub struct PeerSideOptions {
    program: PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<std::ffi::OsString>,
}

/// Becomes the peer's program, to be killed when the process that started this one ends.
pub(in crate::app::bench) fn become_peer(options: PeerSideOptions) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let error = Command::new(&options.program).args(options.arguments).exec();
    Err(error).with_context(|| format!("--peer = {}: cannot be started", options.program.display()))
}

/// See the file's header. Dropping it ends the server.
pub(super) struct Peer {
    child: Child,
    url: String,
    client: reqwest::Client,
    runtime: Runtime,
    prompts: u64,
}

#[derive(Deserialize)]
struct Props {
    build_info: String,
}

#[derive(Deserialize)]
struct Completion {
    timings: Timings,
}

#[derive(Deserialize)]
struct Timings {
    prompt_n: usize,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_per_second: f64,
}

impl Peer {
    /// Errors: the program does not start, or does not answer its health check in time.
    pub(super) fn start(program: &Path, model: &Path, threads: usize) -> anyhow::Result<Self> {
        let shown = program.display();
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let slots = BATCHES.into_iter().max().unwrap_or(1);
        let child = Command::new(std::env::current_exe()?)
            .args(["bench", "peer-side"])
            .arg(program)
            .arg("-m")
            .arg(model)
            .args(["-t", &threads.to_string(), "-c", &CONTEXT_TOKENS.to_string(), "-np", &slots.to_string()])
            .args(["--kv-unified", "--no-cache-prompt", "--cache-ram", "0", "--host", "127.0.0.1"])
            .args(["--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the peer's process")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let url = format!("http://127.0.0.1:{port}");
        // The server closes idle connections while ours takes its turn.
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).timeout(ANSWER_MAX).build()?;
        let mut peer = Peer { child, url, client, runtime, prompts: 0 };
        peer.wait_until_healthy().with_context(|| format!("--peer = {shown}: expected llama.cpp's llama-server"))?;
        peer.signal(Signal::STOP)?;
        Ok(peer)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the server calls its build.
    pub(super) fn build(&mut self) -> anyhow::Result<String> {
        self.signal(Signal::CONT)?;
        let request = self.client.get(format!("{}/props", self.url));
        let props: Props = self.runtime.block_on(async { request.send().await?.json().await })?;
        Ok(format!("llama.cpp {}", props.build_info))
    }

    /// Prompt tokens a second.
    pub(super) fn prefill(&mut self, tokens: usize) -> anyhow::Result<f64> {
        let timings = self.complete(1, (tokens, 1))?;
        Ok(timings.iter().map(|timing| timing.prompt_per_second).sum())
    }

    /// Tokens a second over all sequences: the sum of their own speeds, which is no lower than the true one.
    pub(super) fn decode(&mut self, sequences: usize, tokens: usize) -> anyhow::Result<f64> {
        let timings = self.complete(sequences, (1, tokens + 1))?;
        Ok(timings.iter().map(|timing| timing.predicted_per_second).sum())
    }

    fn complete(&mut self, sequences: usize, (prompt, tokens): (usize, usize)) -> anyhow::Result<Vec<Timings>> {
        // As many as the smallest vocabulary that matters here.
        const VOCAB: usize = 32_000;
        let url = format!("{}/completion", self.url);
        let calls = (0..sequences).map(|_| {
            self.prompts += 1;
            let body = json!({
                "prompt": prompt_tokens(self.prompts, prompt, VOCAB), "n_predict": tokens, "temperature": 0,
                "samplers": ["temperature"], "ignore_eos": true, "cache_prompt": false,
            });
            let request = self.client.post(&url).json(&body);
            async move { anyhow::Ok(request.send().await?.error_for_status()?.json::<Completion>().await?.timings) }
        });
        let calls: Vec<_> = calls.collect();
        self.signal(Signal::CONT)?;
        let timings = self.runtime.block_on(try_join_all(calls)).context("the peer did not answer")?;
        self.signal(Signal::STOP)?;
        for timing in &timings {
            let done = (timing.prompt_n, timing.predicted_n);
            ensure!(done == (prompt, tokens), "the peer computed {done:?} tokens; expected {:?}", (prompt, tokens));
        }
        Ok(timings)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("the peer has no process id")?;
        kill_process(pid, signal).context("the peer has ended")
    }

    fn wait_until_healthy(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let request = self.client.get(format!("{}/health", self.url));
            let answer = self.runtime.block_on(async { request.send().await });
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("it ended with {status}");
            }
            ensure!(started.elapsed() < START_MAX, "it was not ready after {START_MAX:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
