//! The open loop: each row is sent at its recorded time over `speed`, whatever became of those before it.
//!
//! Invariant: a request starts late only when `concurrency_max` are in flight, and that is counted, so that a report never
//! hides that the client held back. Memory: one task and one prompt a request in flight.

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::Deserialize;
use tokio::{
    runtime,
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    options::LoadOptions,
    prompt::{Scale, prompt},
    report::{Report, Tally},
    request::{self, Endpoint, Outcome},
    trace::{self, TraceError},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{option} = {value}; expected {expected}")]
    Option { option: &'static str, value: String, expected: &'static str },
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("{url}: {problem}; is the endpoint up? Give --model to do without its list of models")]
    Endpoint { url: String, problem: String },
    #[error("cannot start: {0}")]
    Start(String),
}

/// The body of `evenkeel replay-load`: replays, prints the table and, if asked for, the JSON line.
pub fn execute(options: LoadOptions) -> Result<(), LoadError> {
    let json = options.json;
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| LoadError::Start(error.to_string()))?;
    let report = runtime.block_on(replay(options))?;
    print!("{}", report.table());
    if json {
        println!("{}", serde_json::to_string(&report).map_err(|error| LoadError::Start(error.to_string()))?);
    }
    Ok(())
}

/// Replays the trace and waits for the last answer.
pub async fn replay(options: LoadOptions) -> Result<Report, LoadError> {
    options.check()?;
    let (path, limit): (PathBuf, _) = (options.trace.clone(), options.limit);
    let rows = tokio::task::spawn_blocking(move || trace::read(&path, limit))
        .await
        .map_err(|error| LoadError::Start(error.to_string()))??;
    let endpoint = Arc::new(connect(&options).await?);
    let scale = Scale { lengths: options.scale_lengths, tokens_max: options.tokens_max.map(u64::from) };
    let places = Arc::new(Semaphore::new(options.concurrency_max));
    let mut tally = Tally::new();
    let mut running: JoinSet<(Outcome, u64)> = JoinSet::new();
    let started = Instant::now();
    for row in rows {
        let due = started + Duration::from_secs_f64(row.at_us as f64 / 1e6 / options.speed);
        sleep_until(due).await;
        let place = match places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                tally.late();
                places.clone().acquire_owned().await.expect("invariant: the semaphore is never closed")
            }
        };
        while let Some(ended) = running.try_join_next() {
            account(&mut tally, ended);
        }
        let made = prompt(&row, scale);
        if made.cut {
            tally.cut();
        }
        let endpoint = endpoint.clone();
        running.spawn(async move {
            let outcome = request::run(&endpoint, &made).await;
            drop(place);
            (outcome, made.words)
        });
    }
    while let Some(ended) = running.join_next().await {
        account(&mut tally, ended);
    }
    Ok(tally.finish(started.elapsed()))
}

fn account(tally: &mut Tally, ended: Result<(Outcome, u64), tokio::task::JoinError>) {
    let (outcome, words) = ended.unwrap_or_else(|error| {
        let kind = format!("client {error}");
        (Outcome { error: Some(kind), ..Outcome::default() }, 0)
    });
    tally.add(outcome, words);
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelName>,
}

#[derive(Deserialize)]
struct ModelName {
    id: String,
}

async fn connect(options: &LoadOptions) -> Result<Endpoint, LoadError> {
    // Only the first caller in a process installs a provider; a later one finds it there.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(options.concurrency_max)
        .build()
        .map_err(|error| LoadError::Start(error.to_string()))?;
    let url = options.url.trim_end_matches('/').to_string();
    let model = match &options.model {
        Some(model) => model.clone(),
        None => first_model(&client, &url, options.key.as_deref()).await?,
    };
    Ok(Endpoint { client, url, model, key: options.key.clone(), timeout: options.request_timeout })
}

async fn first_model(client: &reqwest::Client, url: &str, key: Option<&str>) -> Result<String, LoadError> {
    let list = format!("{url}/v1/models");
    let failed = |problem: String| LoadError::Endpoint { url: list.clone(), problem };
    let mut request = client.get(&list).timeout(CONNECT_TIMEOUT);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let response = request.send().await.map_err(|error| failed(error.to_string()))?;
    let status = response.status();
    if !status.is_success() {
        return Err(failed(format!("status {status}")));
    }
    let models: ModelList = response.json().await.map_err(|error| failed(error.to_string()))?;
    models.data.into_iter().next().map(|model| model.id).ok_or_else(|| failed("it serves no model".into()))
}
