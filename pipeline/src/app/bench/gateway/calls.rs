//! One request both ways: over HTTP through the gateway, over gRPC to a worker.
//!
//! Invariant: both ask for the same token ids, greedily, with the same stop tokens, so they compute the same answer;
//! an answer of another length than asked for is an error and never a sample. Bounds: a line of a stream has at most
//! [`LINE_BYTES_MAX`] bytes.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, bail, ensure};
use engine::request::{Lane, SamplingParams, StopConditions};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    app::{bench::figures::millis, text::ModelText},
    gateway::{
        deps::{ChatMessage, Role, TextModel},
        instances::{GenerateCall, InstanceClient},
    },
    worker::client::GrpcInstance,
};

/// Tokens of an answer.
pub(super) const OUTPUT_TOKENS: u32 = 32;
const LINE_BYTES_MAX: usize = 1 << 20;

/// How the gateway is asked to answer; a worker always streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum AnswerForm {
    Whole,
    Stream,
}

/// Times of one request, in milliseconds from before it was sent.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Sample {
    pub(in super::super) total_ms: f64,
    /// To the first text or token; `None` for an answer that comes whole.
    pub(super) first_ms: Option<f64>,
}

/// What both sides are asked.
#[derive(Clone)]
pub(in super::super) struct Question {
    content: String,
    prompt: Arc<[u32]>,
    stop_tokens: Vec<u32>,
}

impl Question {
    /// A chat of one user message, and its token ids as the gateway makes them.
    pub(in super::super) fn new(text: &ModelText, content: String) -> anyhow::Result<Self> {
        let rendered = text.render_chat(&[ChatMessage { role: Role::User, content: content.clone() }])?;
        let prompt = text.encode_chat(&rendered)?.into();
        Ok(Question { content, prompt, stop_tokens: text.stop_tokens().to_vec() })
    }

    pub(super) fn prompt_tokens(&self) -> usize {
        self.prompt.len()
    }

    fn call(&self) -> GenerateCall {
        GenerateCall {
            request_id: "bench".into(),
            prompt: self.prompt.clone(),
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            stop: StopConditions {
                max_tokens: OUTPUT_TOKENS,
                stop_tokens: self.stop_tokens.clone(),
                stop_strings: Vec::new(),
            },
            lane: Lane::L1,
            deadline: None,
            drop_at: None,
            cache_salt: 0,
            sampling_offset: 0,
            class: None,
            traceparent: None,
        }
    }

    fn body(&self, form: AnswerForm) -> Value {
        json!({
            "model": "simulated",
            "messages": [{ "role": "user", "content": self.content }],
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0,
            "stream": form == AnswerForm::Stream,
        })
    }
}

/// Asks a worker and takes its stream to the end.
///
/// Errors: the worker refuses or is lost, or the answer has another length.
pub(super) async fn direct(worker: &GrpcInstance, question: &Question) -> anyhow::Result<Sample> {
    let started = Instant::now();
    let mut chunks = worker.generate(question.call()).await?;
    let (mut first_ms, mut tokens) = (None, 0);
    while let Some(chunk) = chunks.next().await {
        tokens += chunk?.tokens.len();
        if tokens > 0 {
            first_ms.get_or_insert_with(|| millis(started.elapsed()));
        }
    }
    let total_ms = millis(started.elapsed());
    ensure!(tokens == OUTPUT_TOKENS as usize, "the worker gave {tokens} tokens; expected {OUTPUT_TOKENS}");
    Ok(Sample { total_ms, first_ms })
}

/// Asks the gateway.
///
/// Errors: a status other than 200, a stream that is cut, an answer that ended before it had its length.
pub(in super::super) async fn through_gateway(
    (client, url): (&reqwest::Client, &str),
    question: &Question,
    form: AnswerForm,
) -> anyhow::Result<Sample> {
    let started = Instant::now();
    let request = client.post(format!("{url}/v1/chat/completions")).json(&question.body(form));
    let response = request.send().await?;
    let status = response.status();
    if !status.is_success() {
        bail!("the gateway answered {status}: {}", response.text().await?);
    }
    match form {
        AnswerForm::Whole => {
            let answer: Value = serde_json::from_slice(&response.bytes().await?)?;
            let total_ms = millis(started.elapsed());
            ensure_full(&answer["choices"][0]["finish_reason"])?;
            let prompt = &answer["usage"]["prompt_tokens"];
            ensure!(
                prompt.as_u64() == Some(question.prompt_tokens() as u64),
                "the gateway counts {prompt} prompt tokens; the worker is asked with {}",
                question.prompt_tokens()
            );
            Ok(Sample { total_ms, first_ms: None })
        }
        AnswerForm::Stream => stream(response, started).await,
    }
}

async fn stream(response: reqwest::Response, started: Instant) -> anyhow::Result<Sample> {
    let mut bytes = response.bytes_stream();
    let (mut line, mut first_ms, mut finish) = (Vec::new(), None, Value::Null);
    while let Some(part) = bytes.next().await {
        line.extend_from_slice(&part.context("the stream was cut")?);
        ensure!(line.len() <= LINE_BYTES_MAX, "a line of the stream has over {LINE_BYTES_MAX} bytes");
        while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            let rest = line.split_off(end + 1);
            let whole = std::mem::replace(&mut line, rest);
            let Some(data) = whole.trim_ascii().strip_prefix(b"data: ") else { continue };
            if data == b"[DONE]" {
                let total_ms = millis(started.elapsed());
                ensure_full(&finish)?;
                return Ok(Sample { total_ms, first_ms });
            }
            let event: Value = serde_json::from_slice(data).context("an event of the stream is no JSON")?;
            let choice = &event["choices"][0];
            if first_ms.is_none() && choice["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()) {
                first_ms = Some(millis(started.elapsed()));
            }
            if !choice["finish_reason"].is_null() {
                finish = choice["finish_reason"].clone();
            }
        }
    }
    bail!("the stream ended before [DONE]")
}

/// Ended by its length, so it has all the tokens asked for.
fn ensure_full(finish: &Value) -> anyhow::Result<()> {
    ensure!(finish == "length", "the gateway's answer ended with {finish}; expected \"length\"");
    Ok(())
}
