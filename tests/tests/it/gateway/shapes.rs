//! Answers: bodies, chunks, usage, log-probabilities, choices, and the small routes.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Value, json};
use tests::gateway_kit::{Kit, Speaker, defaults};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn kit() -> (Kit, Arc<Speaker>) {
    let speaker = Arc::new(Speaker { cached_tokens: 16, ..Speaker::new("Grüß dich!") });
    (Kit::new(defaults(), vec![speaker.clone()]), speaker)
}

fn hello() -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]})
}

fn with(mut body: Value, extra: Value) -> Value {
    let fields = extra.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}

/// Scenario: a chat request, not streamed.
/// Guarantees: text, finish reason, usage with cached tokens, ids in the headers that name rows; leases are back.
#[tokio::test]
async fn chat_whole() {
    let (kit, speaker) = kit();
    let answer = kit.post(CHAT, hello()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let body = answer.json();
    assert_eq!(body["choices"][0]["message"]["content"], "Grüß dich!");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    // "user: Hello\nassistant: " is 23 bytes; the reply is 12 bytes and the stop token.
    assert_eq!(body["usage"]["prompt_tokens"], 23);
    assert_eq!(body["usage"]["completion_tokens"], 13);
    assert_eq!(body["usage"]["total_tokens"], 36);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 16);
    let rows = kit.rows.requests.lock().unwrap();
    assert!(rows.iter().all(|row| row.request_id == answer.header("x-evenkeel-request-id")));
    let decisions = kit.rows.decisions.lock().unwrap();
    assert_eq!(decisions[0].decision_id, answer.header("x-evenkeel-decision"));
    let call = speaker.calls.lock().unwrap()[0].clone();
    assert_eq!(call.stop.max_tokens, 2048 - 23, "the default is all that the context leaves");
    assert_eq!(call.sampling.temperature, 1.0);
    assert_eq!(call.class.map(|class| class.0), Some(0), "its tier is High");
    assert_eq!(kit.leased(), (0, 0));
}

/// Scenario: the same, streamed with usage.
/// Guarantees: the role comes first, text never cuts a character, then an empty delta with the reason, then usage without
/// choices, then `[DONE]`; the ids are the same in all chunks.
#[tokio::test]
async fn chat_streamed() {
    let (kit, _) = kit();
    let asked = with(hello(), json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer = kit.post(CHAT, asked).await;
    assert_eq!(answer.header("content-type"), "text/event-stream; charset=utf-8");
    let chunks = answer.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": "", "refusal": null}));
    assert_eq!(answer.streamed_text(0), "Grüß dich!");
    assert!(!answer.text.contains('\u{fffd}'));
    let [.., last, usage] = chunks.as_slice() else { panic!("{chunks:?}") };
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 13);
    assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk["object"] == "chat.completion.chunk"));
    let plain = kit.post(CHAT, with(hello(), json!({"stream": true}))).await;
    assert!(plain.chunks().iter().all(|chunk| chunk.get("usage").is_none()));
}

/// Scenario: two choices of one prompt, streamed and whole.
/// Guarantees: each choice is complete and in its place, seeds differ by one, the prompt is counted once, one lease.
#[tokio::test]
async fn choices_are_sequences() {
    let (kit, speaker) = kit();
    let body = kit.post(CHAT, with(hello(), json!({"n": 2, "seed": 7}))).await.json();
    assert_eq!(body["choices"][1]["message"]["content"], "Grüß dich!");
    assert_eq!(body["choices"][1]["index"], 1);
    assert_eq!(body["usage"]["prompt_tokens"], 23);
    assert_eq!(body["usage"]["completion_tokens"], 26);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 16);
    let seeds: Vec<u64> = speaker.calls.lock().unwrap().iter().map(|call| call.sampling.seed).collect();
    assert_eq!(seeds, [7, 8]);
    let answer = kit.post(CHAT, with(hello(), json!({"n": 2, "stream": true}))).await;
    assert_eq!((answer.streamed_text(0), answer.streamed_text(1)), ("Grüß dich!".into(), "Grüß dich!".into()));
    assert_eq!(kit.leased(), (0, 0));
}

/// Scenario: completions from a string, several strings, token ids and several lists of them, with `max_tokens`.
/// Guarantees: choices in the order of the prompts; the length ends them; token ids go to the engine as they are.
#[tokio::test]
async fn completions_of_every_kind_of_prompt() {
    let (kit, speaker) = kit();
    let ask = |prompt: Value| json!({"model": "tiny", "prompt": prompt, "max_tokens": 2, "temperature": 0});
    for (prompt, count) in [(json!("ab"), 1), (json!(["ab", "c"]), 2), (json!([1, 2]), 1), (json!([[1], [2, 3]]), 2)] {
        let body = kit.post(COMPLETIONS, ask(prompt.clone())).await.json();
        assert_eq!(body["object"], "text_completion", "{body}");
        let choices = body["choices"].as_array().expect("choices");
        assert_eq!(choices.len(), count, "{prompt}");
        assert!(choices.iter().all(|choice| choice["text"] == "Gr" && choice["finish_reason"] == "length"));
    }
    let prompts: Vec<Vec<u32>> = speaker.calls.lock().unwrap().iter().map(|call| call.prompt.to_vec()).collect();
    assert_eq!(prompts, [vec![97, 98], vec![97, 98], vec![99], vec![1, 2], vec![1], vec![2, 3]]);
    let streamed = kit.post(COMPLETIONS, with(ask(json!("ab")), json!({"stream": true}))).await;
    assert_eq!(streamed.streamed_text(0), "Gr");
    assert_eq!(streamed.chunks().last().expect("chunks")["choices"][0]["finish_reason"], "length");
}

/// Scenario: log-probabilities in chat and completions, whole and streamed.
/// Guarantees: one entry a token of the text with its bytes and alternatives; the stop token has none.
#[tokio::test]
async fn logprobs_follow_the_text() {
    let (kit, _) = kit();
    let body = kit.post(CHAT, with(hello(), json!({"logprobs": true, "top_logprobs": 2}))).await.json();
    let content = body["choices"][0]["logprobs"]["content"].as_array().expect("content").clone();
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|e| e["bytes"].as_array().expect("bytes").clone())
        .map(|b| b.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), "Grüß dich!");
    assert_eq!(content[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
    assert_eq!(content[0]["top_logprobs"][0]["token"], "G");
    let asked = json!({"model": "tiny", "prompt": "ab", "logprobs": 1, "max_tokens": 2, "stream": true});
    let chunks = kit.post(COMPLETIONS, asked).await.chunks();
    assert_eq!(chunks[0]["choices"][0]["logprobs"]["text_offset"], json!([0]));
    assert_eq!(chunks[1]["choices"][0]["logprobs"]["text_offset"], json!([1]));
    assert_eq!(chunks[1]["choices"][0]["logprobs"]["tokens"], json!(["r"]));
}

/// Scenario: every parameter at once, with fields nobody knows.
/// Guarantees: they reach the engine as given; unknown fields are ignored.
#[tokio::test]
async fn parameters_reach_the_engine() {
    let (kit, speaker) = kit();
    let asked = json!({
        "model": "tiny", "max_completion_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
        "presence_penalty": 0.25, "frequency_penalty": -0.5, "repetition_penalty": 1.5, "seed": -1, "stop": ["x", "yz"],
        "logit_bias": {"65": -100}, "user": "u", "response_format": {"type": "text"}, "tools": [], "store": true,
        "tool_choice": "none", "metadata": {"a": "b"},
        "messages": [
            {"role": "developer", "content": "be brief", "name": "x"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null},
            {"role": "tool", "content": "t", "tool_call_id": "1"},
        ],
    });
    let answer = kit.post(CHAT, asked).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let call = speaker.calls.lock().unwrap()[0].clone();
    let prompt: Vec<u8> = call.prompt.iter().map(|token| *token as u8).collect();
    assert_eq!(
        String::from_utf8(prompt).unwrap(),
        "system: be brief\nuser: ab\nassistant: \nuser: <tool_response>\nt\n</tool_response>\nassistant: "
    );
    let s = &call.sampling;
    assert_eq!((s.temperature, s.top_p, s.top_k, s.min_p), (0.5, 0.9, Some(5), 0.1));
    assert_eq!((s.presence_penalty, s.frequency_penalty, s.repetition_penalty), (0.25, -0.5, 1.5));
    assert_eq!((s.seed, &s.logit_bias), (u64::MAX, &vec![(65, -100.0)]));
    assert_eq!((call.stop.max_tokens, call.stop.stop_strings), (3, vec!["x".to_string(), "yz".to_string()]));
    assert_eq!(call.stop.stop_tokens, [256]);
}

/// Scenario: models, health, readiness with and without an instance, metrics after requests of several outcomes.
/// Guarantees: OpenAI's list, 200 and 503 where they belong, metric names with units.
#[tokio::test]
async fn small_routes() {
    let (kit, speaker) = kit();
    assert_eq!(kit.get("/v1/models").await.json()["data"][0]["id"], "tiny");
    assert_eq!(kit.get("/v1/models/tiny").await.json()["object"], "model");
    let unknown = kit.get("/v1/models/a/b").await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    assert_eq!(kit.get("/health").await.status, StatusCode::OK);
    assert_eq!(kit.get("/ready").await.status, StatusCode::OK);
    kit.post(CHAT, hello()).await;
    kit.post(CHAT, json!({})).await;
    let metrics = kit.get("/metrics").await;
    assert!(metrics.header("content-type").starts_with("text/plain; version=0.0.4"));
    for line in [
        r#"evenkeel_requests_total{route="/v1/chat/completions",outcome="ok"} 1"#,
        r#"evenkeel_requests_total{route="/v1/chat/completions",outcome="missing_required_parameter"} 1"#,
        "evenkeel_time_to_first_token_seconds_count 1",
        "evenkeel_inter_token_latency_seconds_count 12",
        "evenkeel_generation_tokens_total 13",
        "evenkeel_cached_prompt_tokens_total 16",
        r#"evenkeel_leased_tokens{engine="w0"} 0"#,
        "evenkeel_ready_instances 1",
        "evenkeel_requests_running 0",
    ] {
        assert!(metrics.text.lines().any(|l| l == line), "no `{line}` in\n{}", metrics.text);
    }
    kit.put(0, 2, None);
    assert_eq!(kit.get("/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    drop(speaker);
}

/// Scenario: four samples of each of two prompts of which two are returned, with and without log-probabilities; the best two
/// are the second and the fourth.
/// Guarantees: the likeliest a token come back, best first and numbered from 0; usage counts all four; one lease, given back;
/// log-probabilities are shown only if they were asked for.
#[tokio::test]
async fn the_best_of_several_are_returned() {
    let replies = [("a long and unlikely one", -3.0), ("good", -0.25), ("bad", -2.0), ("better", -0.125)];
    let by_seed = replies.map(|(reply, logprob)| (reply.to_string(), logprob)).to_vec();
    let speaker = Arc::new(Speaker { by_seed, ..Speaker::new("") });
    let kit = Kit::new(defaults(), vec![speaker.clone()]);
    let body = json!({"model": "tiny", "prompt": ["x", "y"], "n": 2, "best_of": 4, "seed": 0, "max_tokens": 50});
    let answer = kit.post(COMPLETIONS, body.clone()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let (choices, usage) = (answer.json()["choices"].clone(), answer.json()["usage"].clone());
    let texts: Vec<&str> = choices.as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["better", "good", "better", "good"]);
    let places: Vec<u64> = choices.as_array().unwrap().iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(places, [0, 1, 2, 3]);
    assert!(choices[0]["logprobs"].is_null());
    let generated: usize = replies.iter().map(|(reply, _)| reply.len() + 1).sum();
    assert_eq!(
        (usage["completion_tokens"].as_u64(), usage["prompt_tokens"].as_u64()),
        (Some(2 * generated as u64), Some(2))
    );
    assert_eq!((speaker.calls.lock().unwrap().len(), kit.leased()), (8, (0, 0)));
    let shown = kit.post(COMPLETIONS, with(body, json!({"logprobs": 1}))).await.json();
    assert_eq!(shown["choices"][0]["logprobs"]["token_logprobs"][0], -0.125);
}
