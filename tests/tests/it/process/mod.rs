//! A real server with real workers: loss of a worker, hang-ups, restarts, wrong starts, slow clients, several variants, engines of
//! others (SPEC X5).

mod buckets;
mod clients;
mod cluster;
mod degrade;
mod explain;
mod foreign;
mod funnel;
mod loss;
mod models;
mod monitoring;
mod replay;
mod snapshots;
mod sql;
mod starts;
mod structure;
mod swap;
mod tools;
mod tracing;
mod variants;
mod views;

use futures::StreamExt;
use serde_json::{Value, json};
use tests::server::{Server, client};

/// A completion's body: raw bytes as text, greedy unless said otherwise.
fn completion(prompt: &str, max_tokens: u32) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0,
           "logit_bias": {"0": -100, "1": -100, "2": -100}})
}

/// Starts a streamed completion; its text so far is handed to `seen` after each event. Returns the whole text and the
/// finish reason.
async fn stream(server: &Server, mut body: Value, mut seen: impl FnMut(&str)) -> (String, String) {
    body["stream"] = json!(true);
    let response = client().post(format!("{}/v1/completions", server.url)).json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
    let (mut text, mut reason, mut buffer) = (String::new(), String::new(), Vec::new());
    let mut bytes = response.bytes_stream();
    while let Some(piece) = bytes.next().await {
        buffer.extend_from_slice(&piece.expect("the stream goes on"));
        while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = buffer.drain(..end + 2).collect();
            let event = String::from_utf8(event).unwrap();
            let Some(data) = event.trim().strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
            let chunk: Value = serde_json::from_str(data).unwrap();
            assert!(chunk.get("error").is_none(), "{chunk}");
            text.push_str(chunk["choices"][0]["text"].as_str().unwrap_or_default());
            if let Some(why) = chunk["choices"][0]["finish_reason"].as_str() {
                reason = why.to_string();
            }
            seen(&text);
        }
    }
    (text, reason)
}
