//! Loss of an instance in the middle of answers of every shape: tool calls, structured text, the best of several, log-probabilities.

use std::sync::Arc;

use axum::http::StatusCode;
use pipeline::gateway::instances::InstanceError;
use serde_json::{Value, json};
use tests::gateway_kit::{Fault, Kit, Speaker, defaults};

const CALL: &str = "I look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"ü\"}}\n</tool_call>";

/// The same words from both instances; the first is lost after `count` tokens of one sequence.
fn kit(make: impl Fn() -> Speaker, count: usize) -> Kit {
    Kit::new(defaults(), speakers(make, count).to_vec())
}

fn speakers(make: impl Fn() -> Speaker, count: usize) -> [Arc<Speaker>; 2] {
    let first = make();
    *first.fault.lock().unwrap() = Fault::After(count, InstanceError::Lost("connection reset".into()));
    [Arc::new(first), Arc::new(make())]
}

fn undisturbed(make: impl Fn() -> Speaker) -> Kit {
    Kit::new(defaults(), vec![Arc::new(make()), Arc::new(make())])
}

/// What a client puts together from the chunks of one choice: content, log-probabilities, calls, finish reason.
fn joined(chunks: &[Value]) -> Value {
    let (mut text, mut logprobs, mut calls, mut reason) = (String::new(), Vec::new(), Vec::new(), Value::Null);
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        logprobs.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            if call["index"].as_u64() == Some(calls.len() as u64) {
                calls.push((function["name"].clone(), String::new()));
            }
            calls.last_mut().unwrap().1.push_str(function["arguments"].as_str().unwrap_or_default());
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    json!({"text": text, "logprobs": logprobs, "calls": calls, "reason": reason})
}

async fn streamed(kit: &Kit, body: &Value) -> Value {
    let answer = kit.post("/v1/chat/completions", body.clone()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    joined(&answer.chunks())
}

/// Scenario: an answer with text, then a tool call, with log-probabilities; the instance is lost after k tokens, for each k.
/// Guarantees: text, call, arguments, log-probabilities and finish reason are those of the undisturbed run.
#[tokio::test]
async fn tool_calls_and_log_probabilities_go_on() {
    let make = || Speaker::new(CALL);
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}});
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}], "stream": true, "max_tokens": 300,
        "logprobs": true, "top_logprobs": 2,
        "tools": [{"type": "function", "function": {"name": "add", "parameters": parameters}}]});
    let calm = streamed(&undisturbed(make), &body).await;
    assert_eq!((&calm["reason"], calm["calls"].as_array().unwrap().len()), (&json!("tool_calls"), 1));
    for count in 0..=CALL.len() {
        let kit = kit(make, count);
        assert_eq!(streamed(&kit, &body).await, calm, "lost after {count}");
        assert_eq!(kit.leased(), (0, 0));
    }
}

/// Scenario: an answer that must be JSON, lost after k tokens, for each k.
/// Guarantees: the text is that of the undisturbed run, and the second instance was told the same shape.
#[tokio::test]
async fn structured_text_goes_on() {
    let make = || Speaker::new("{\"name\": \"Köln\", \"depth\": 3}");
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}], "stream": true, "max_tokens": 300,
        "response_format": {"type": "json_object"}});
    let calm = streamed(&undisturbed(make), &body).await;
    for count in 0..30 {
        let speakers = speakers(make, count);
        let kit = Kit::new(defaults(), speakers.to_vec());
        assert_eq!(streamed(&kit, &body).await, calm, "lost after {count}");
        let [first, second] = speakers.map(|speaker| speaker.grammars.lock().unwrap().clone());
        assert!(first.len() == 1 && first[0].is_some() && first == second, "{first:?} {second:?}");
    }
}

/// Scenario: the best two of four samples of different likelihood; the instance is lost after k tokens of one of them.
/// Guarantees: the choices, their order, their log-probabilities and the usage are those of the undisturbed run.
#[tokio::test]
async fn the_best_of_several_is_the_same() {
    let make = || {
        let by_seed = [("fine words", -0.9), ("better words", -0.2), ("the best words", -0.1), ("words", -1.5)];
        let by_seed = by_seed.map(|(text, logprob): (&str, f32)| (text.to_string(), logprob)).to_vec();
        Speaker { by_seed, ..Speaker::new("") }
    };
    let body =
        json!({"model": "tiny", "prompt": "a", "max_tokens": 40, "n": 2, "best_of": 4, "logprobs": 1, "seed": 4});
    let run = async |kit: Kit| {
        let answer = kit.post("/v1/completions", body.clone()).await;
        assert_eq!((answer.status, kit.leased()), (StatusCode::OK, (0, 0)), "{}", answer.text);
        let body = answer.json();
        json!([body["choices"], body["usage"]["completion_tokens"], body["usage"]["prompt_tokens"]])
    };
    let calm = run(undisturbed(make)).await;
    assert_eq!(calm[0][0]["text"], "the best words", "{calm}");
    for count in 0..12 {
        assert_eq!(run(kit(make, count)).await, calm, "lost after {count}");
    }
}
