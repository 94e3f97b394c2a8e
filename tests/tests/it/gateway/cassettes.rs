//! Our answers against recorded ones of the hosted API: every key that was recorded is here, with a value of the same type.

use std::{path::PathBuf, sync::Arc};

use serde_json::{Value, json};
use tests::gateway_kit::{Kit, Speaker, defaults};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// Keys of the hosted service alone.
const THEIRS: &[&str] = &["obfuscation"];

/// The folder of recordings, or why the test cannot run.
fn folder() -> Option<PathBuf> {
    tests::shared_data::find("data/openai-streams/cassettes")
}

/// The body of the recorded response.
fn recorded(folder: &std::path::Path, name: &str) -> String {
    let text = std::fs::read_to_string(folder.join(format!("{name}.yaml"))).expect("the recording is there");
    let (_, response) = text.split_once("response:").expect("a response");
    body(response)
}

/// The body of the recorded request.
fn asked(folder: &std::path::Path, name: &str) -> Value {
    let text = std::fs::read_to_string(folder.join(format!("{name}.yaml"))).expect("the recording is there");
    let (request, _) = text.split_once("response:").expect("a response");
    serde_json::from_str(&body(request)).expect("a JSON body")
}

/// The first body in a part of a recording.
fn body(part: &str) -> String {
    let mut lines = part.lines().skip_while(|line| !line.trim_start().starts_with("body:"));
    let head = lines.next().expect("a body");
    let indent = head.len() - head.trim_start().len();
    let value = head.trim_start().trim_start_matches("body:").trim();
    if value.starts_with('"') {
        return serde_json::from_str(value).expect("a quoted body");
    }
    let block = lines.take_while(|line| line.trim().is_empty() || line.len() - line.trim_start().len() > indent);
    block.map(|line| format!("{}\n", line.trim_start_matches(' '))).collect()
}

fn data(text: &str) -> Vec<Value> {
    let events = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    events.map(|data| serde_json::from_str(data).expect("a chunk")).collect()
}

/// Every recorded key is ours too, with the same type; null is any type. Arrays compare by their first elements.
fn same_shape(path: &str, theirs: &Value, ours: &Value) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            for (key, value) in theirs.iter().filter(|(key, _)| !THEIRS.contains(&key.as_str())) {
                let path = format!("{path}.{key}");
                same_shape(&path, value, ours.get(key).unwrap_or_else(|| panic!("{path} is missing")));
            }
        }
        (Value::Array(theirs), Value::Array(ours)) => {
            if let Some(first) = theirs.first() {
                same_shape(&format!("{path}[0]"), first, ours.first().unwrap_or_else(|| panic!("{path} is empty")));
            }
        }
        (Value::Null, _) | (_, Value::Null) if theirs.is_null() || path.ends_with("fingerprint") => {}
        _ => assert_eq!(std::mem::discriminant(theirs), std::mem::discriminant(ours), "{path}: {theirs} and {ours}"),
    }
}

fn kit() -> Kit {
    Kit::new(defaults(), vec![Arc::new(Speaker::new("Hi there"))])
}

fn messages() -> Value {
    json!([{"role": "user", "content": "Hello!"}])
}

/// Scenario: the recorded chat and completion exchanges that are not streamed, and their errors.
/// Guarantees: the shape of our body is the recorded one; of an unknown model it is that to the letter, and then its message says
/// what there is.
#[tokio::test]
async fn bodies_have_the_recorded_shape() {
    let Some(folder) = folder() else { return };
    let kit = kit();
    let chat = json!({"model": "tiny", "messages": messages()});
    let unknown = json!({"model": "gpt-4.1-nano-wrong", "messages": messages()});
    let invalid = json!({"model": "tiny", "messages": messages(), "max_tokens": 0});
    for (name, path, ask) in [
        ("chat-basic", CHAT, chat.clone()),
        ("chat-multiturn", CHAT, chat),
        ("chat-unknown-model", CHAT, unknown.clone()),
        ("chat-bad-request", CHAT, invalid),
        ("completion-basic", COMPLETIONS, json!({"model": "tiny", "prompt": "a"})),
        ("completion-unknown-model", COMPLETIONS, json!({"model": "babbage-002-wrong", "prompt": "a"})),
    ] {
        let theirs: Value = serde_json::from_str(&recorded(&folder, name)).expect("a JSON body");
        let mut ours = kit.post(path, ask).await.json();
        same_shape(name, &theirs, &ours);
        if name.ends_with("unknown-model") {
            let message = ours["error"]["message"].as_str().unwrap().strip_suffix(" Served here: `tiny`.");
            ours["error"]["message"] = json!(message);
            assert_eq!(theirs, ours, "{name}");
        }
    }
}

/// Scenario: the recorded streams, with and without usage.
/// Guarantees: first, middle, finish and usage chunks have the recorded shape; the delta keys come in the recorded order of
/// chunks; without the option there is no usage.
#[tokio::test]
async fn chunks_have_the_recorded_shape() {
    let Some(folder) = folder() else { return };
    let kit = kit();
    let plain = kit.post(CHAT, json!({"model": "tiny", "messages": messages(), "stream": true})).await.chunks();
    let theirs = data(&recorded(&folder, "chat-streaming"));
    same_shape("first", &theirs[0], &plain[0]);
    same_shape("middle", &theirs[1], &plain[1]);
    same_shape("finish", theirs.last().expect("chunks"), plain.last().expect("chunks"));
    assert_eq!(plain.last().expect("chunks")["choices"][0]["delta"], json!({}));
    let asked = json!({
        "model": "tiny", "messages": messages(), "stream": true, "stream_options": {"include_usage": true},
        "max_completion_tokens": 2,
    });
    let detailed = kit.post(CHAT, asked).await.chunks();
    let theirs = data(&recorded(&folder, "chat-streaming-detailed-usage"));
    same_shape("first", &theirs[0], &detailed[0]);
    same_shape("finish", &theirs[1], &detailed[detailed.len() - 2]);
    same_shape("usage", &theirs[2], &detailed[detailed.len() - 1]);
    assert_eq!(detailed[detailed.len() - 1]["choices"], theirs[2]["choices"]);
}

/// Scenario: the recorded exchanges with a JSON object asked for, and with a tool that is called; their requests are sent
/// to us as they were recorded, but for the model's name.
/// Guarantees: they are understood, and the shape of our body is the recorded one.
#[tokio::test]
async fn json_mode_and_tools_have_the_recorded_shape() {
    let Some(folder) = folder() else { return };
    let call =
        "<tool_call>\n{\"name\": \"get_current_weather\", \"arguments\": {\"location\": \"Boston\"}}\n</tool_call>";
    for (name, reply) in [("chat-json-mode", "{\"name\": \"Alex\"}"), ("chat-tools", call)] {
        let kit = Kit::new(defaults(), vec![Arc::new(Speaker::new(reply))]);
        let mut ask = asked(&folder, name);
        ask["model"] = json!("tiny");
        let theirs: Value = serde_json::from_str(&recorded(&folder, name)).expect("a JSON body");
        let ours = kit.post(CHAT, ask).await.json();
        same_shape(name, &theirs, &ours);
        assert_eq!(ours["choices"][0]["finish_reason"], theirs["choices"][0]["finish_reason"], "{ours}");
    }
}
