//! One streamed completion, timed from outside.
//!
//! TTFT is the time to the first chunk with text, ITL the time between chunks with text. Invariant: every request ends as
//! `Ok` (seen `[DONE]`) or as one error kind. Bounds: a line of the stream at most `LINE_BYTES_MAX`, an error body at most
//! `BODY_BYTES_MAX`.

use std::time::{Duration, Instant};

use futures::StreamExt;
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::prompt::Prompt;

const LINE_BYTES_MAX: usize = 4 << 20;
const BODY_BYTES_MAX: usize = 64 << 10;

/// Where requests go.
pub(super) struct Endpoint {
    pub client: reqwest::Client,
    pub url: String,
    pub model: String,
    pub key: Option<String>,
    pub timeout: Duration,
}

/// What came of one request. Durations as seen by the client.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub ttft: Option<Duration>,
    pub gaps: Vec<Duration>,
    pub prompt_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    /// `None` if all went well.
    pub error: Option<String>,
}

#[derive(Deserialize, Default)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ApiError,
}

#[derive(Deserialize)]
struct ApiError {
    code: Option<serde_json::Value>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl ApiError {
    fn name(&self) -> String {
        match &self.code {
            Some(serde_json::Value::String(code)) => code.clone(),
            Some(code) if !code.is_null() => code.to_string(),
            _ => self.kind.clone().unwrap_or_else(|| "unnamed".into()),
        }
    }
}

/// Sends the request and reads its stream to the end, within the endpoint's time limit.
pub(super) async fn run(endpoint: &Endpoint, prompt: &Prompt) -> Outcome {
    let mut outcome = Outcome::default();
    let result = timeout(endpoint.timeout, stream(endpoint, prompt, &mut outcome)).await;
    outcome.error = match result {
        Ok(Ok(())) => None,
        Ok(Err(kind)) => Some(kind),
        Err(_) => Some("timeout".into()),
    };
    outcome
}

async fn stream(endpoint: &Endpoint, prompt: &Prompt, outcome: &mut Outcome) -> Result<(), String> {
    let body = json!({
        "model": endpoint.model,
        "prompt": prompt.text,
        "max_tokens": prompt.max_tokens,
        "temperature": 0,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    let mut request = endpoint.client.post(format!("{}/v1/completions", endpoint.url)).json(&body);
    if let Some(key) = &endpoint.key {
        request = request.bearer_auth(key);
    }
    let started = Instant::now();
    let response = request.send().await.map_err(|error| transport(&error))?;
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    let mut last = None;
    let mut line = Vec::new();
    let mut bytes = response.bytes_stream();
    while let Some(part) = bytes.next().await {
        let part = part.map_err(|_| "stream_cut".to_string())?;
        for byte in part {
            if byte != b'\n' {
                line.push(byte);
                if line.len() > LINE_BYTES_MAX {
                    return Err("line_too_long".into());
                }
                continue;
            }
            let done = take_line(&line, (started, &mut last), outcome)?;
            line.clear();
            if done {
                return Ok(());
            }
        }
    }
    Err("stream_cut".into())
}

/// One line of the stream; true at `[DONE]`. `clock` is the request's start and the last chunk with text.
fn take_line(line: &[u8], clock: (Instant, &mut Option<Instant>), outcome: &mut Outcome) -> Result<bool, String> {
    let Some(data) = line.strip_prefix(b"data:") else { return Ok(false) };
    let data = data.trim_ascii();
    if data == b"[DONE]" {
        return Ok(true);
    }
    let event: Event = serde_json::from_slice(data).map_err(|_| "bad_chunk".to_string())?;
    if let Some(error) = event.error {
        return Err(format!("stream_error {}", error.name()));
    }
    if event.choices.iter().any(|choice| !choice.text.is_empty()) {
        let (started, last) = clock;
        let now = Instant::now();
        match last.replace(now) {
            None => outcome.ttft = Some(now - started),
            Some(before) => outcome.gaps.push(now - before),
        }
    }
    if let Some(usage) = event.usage {
        outcome.prompt_tokens = Some(usage.prompt_tokens);
        outcome.output_tokens = Some(usage.completion_tokens);
        outcome.cached_tokens = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
    }
    Ok(false)
}

async fn refusal(response: reqwest::Response) -> String {
    let status = response.status().as_u16();
    let mut body = Vec::new();
    let mut bytes = response.bytes_stream();
    while let Some(Ok(part)) = bytes.next().await {
        if body.len() + part.len() > BODY_BYTES_MAX {
            break;
        }
        body.extend_from_slice(&part);
    }
    match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(body) => format!("http_{status} {}", body.error.name()),
        Err(_) => format!("http_{status}"),
    }
}

fn transport(error: &reqwest::Error) -> String {
    let kind = if error.is_connect() {
        "connect"
    } else if error.is_timeout() {
        "timeout"
    } else {
        "request"
    };
    kind.into()
}
