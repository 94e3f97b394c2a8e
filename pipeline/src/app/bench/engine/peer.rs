//! llama.cpp's `llama-server`, asked over HTTP with the same prompts, lengths and threads.
//!
//! Times are the server's own (`timings` of an answer), so HTTP is not counted against it. Cost: one process a peer,
//! alive to the end of the bench, with KV for [`CONTEXT_TOKENS`]. Bound: [`START_MAX`] to load the model.

use std::{
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::json;
use tokio::runtime::Runtime;

use super::{BATCHES, CONTEXT_TOKENS};
use crate::app::driver::prompt_tokens;

const START_MAX: Duration = Duration::from_secs(60);

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
        let child = Command::new(program)
            .arg("-m")
            .arg(model)
            .args(["-t", &threads.to_string(), "-c", &CONTEXT_TOKENS.to_string(), "-np", &slots.to_string()])
            .args(["--kv-unified", "--no-cache-prompt", "--cache-ram", "0", "--host", "127.0.0.1"])
            .args(["--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("--peer = {shown}: cannot be started"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let url = format!("http://127.0.0.1:{port}");
        // The server closes idle connections while ours takes its turn.
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).build()?;
        let mut peer = Peer { child, url, client, runtime, prompts: 0 };
        peer.wait_until_healthy().with_context(|| format!("--peer = {shown}: expected llama.cpp's llama-server"))?;
        Ok(peer)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the server calls its build.
    pub(super) fn build(&self) -> anyhow::Result<String> {
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
        let timings = self.runtime.block_on(try_join_all(calls)).context("the peer did not answer")?;
        for timing in &timings {
            let done = (timing.prompt_n, timing.predicted_n);
            ensure!(done == (prompt, tokens), "the peer computed {done:?} tokens; expected {:?}", (prompt, tokens));
        }
        Ok(timings)
    }

    fn wait_until_healthy(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let request = self.client.get(format!("{}/health", self.url));
            let answer = self.runtime.block_on(request.send());
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
