//! A worker dies while it serves.

use std::process::Command;

use serde_json::{Value, json};
use tests::server::Server;
use tokio::sync::Notify;

use super::{completion, stream};

/// Scenario: a greedy, a seeded and a constrained stream, each with a neighbour on the other worker; the worker of the stream is killed with
/// SIGKILL in the middle.
/// Guarantees: the stream and its neighbour end as they do undisturbed, no token lost or repeated; the dead worker comes back
/// as a new incarnation; the loss is a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_is_not_noticed_by_its_clients() {
    let Some(server) = Server::start("[workers]\nrestart_backoff = \"50ms\"\n").await else { return };
    let greedy = completion("the quick brown fox", 2000);
    let mut seeded = completion("jumps over the lazy dog", 2000);
    seeded["temperature"] = json!(0.9);
    seeded["seed"] = json!(11);
    seeded["presence_penalty"] = json!(0.5);
    let mut constrained = completion("letters alone", 2000);
    constrained["guided_regex"] = json!("[a-z]{1990}");
    let neighbour = completion("another request", 2000);
    let calm = stream(&server, neighbour.clone(), |_| {}).await;
    for (round, body) in [greedy, seeded, constrained].into_iter().enumerate() {
        let undisturbed = stream(&server, body.clone(), |_| {}).await;
        let middle = Notify::new();
        let at_middle = |text: &str| {
            if text.len() > 20 {
                middle.notify_one();
            }
        };
        let kill = async {
            middle.notified().await;
            kill_serving_worker(&server, round).await;
        };
        let beside = stream(&server, neighbour.clone(), |_| {});
        let (disturbed, beside, ()) = tokio::join!(stream(&server, body, at_middle), beside, kill);
        assert_eq!(disturbed, undisturbed, "{}", server.log());
        assert_eq!(beside, calm, "{}", server.log());
        let dead = format!("select instance from instances where state = 'dead' offset {round}");
        server.until(&dead, |rows| !rows.is_empty()).await;
        let ready = "select 1 as one from instances where state = 'ready'";
        server.until(ready, |rows| rows.len() == 3 + round).await;
    }
    let moved = "select request_id from requests where event = 'dispatched' group by request_id having count(*) > 1";
    assert!(!server.sql(moved).await.is_empty(), "a request was dispatched again");
}

/// What a client puts together of a streamed answer: text or content, log-probabilities, the arguments of calls, finish reason.
fn joined(events: &str) -> Value {
    let (mut text, mut tokens, mut arguments, mut reason) = (String::new(), Vec::new(), String::new(), Value::Null);
    for data in events.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).filter(|data| *data != "[DONE]") {
        let chunk: Value = serde_json::from_str(data).unwrap();
        assert!(chunk.get("error").is_none(), "{chunk}");
        let choice = &chunk["choices"][0];
        text.push_str(choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default());
        tokens.extend(choice["logprobs"]["tokens"].as_array().into_iter().flatten().cloned());
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            arguments.push_str(call["function"]["name"].as_str().unwrap_or_default());
            arguments.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    json!({"text": text, "tokens": tokens, "calls": arguments, "reason": reason})
}

/// The whole answer, streamed or not, without what differs between any two.
async fn answered(server: &Server, path: &str, body: &Value) -> Value {
    let response = server.post(path, body).await;
    let (status, text) = (response.status(), response.text().await.unwrap());
    assert_eq!(status, 200, "{text}");
    if body["stream"] == true {
        return joined(&text);
    }
    let answer: Value = serde_json::from_str(&text).unwrap();
    let choices = answer["choices"].as_array().unwrap().iter();
    let choices: Vec<Value> = choices.map(|choice| json!([choice["text"], choice["finish_reason"]])).collect();
    json!([choices, answer["usage"]["completion_tokens"]])
}

/// Scenario: a stream with log-probabilities, a stream of a tool call, and the best two of three samples; in each the worker that
/// runs it is killed with SIGKILL.
/// Guarantees: tokens, texts, arguments, order of choices and usage are those of the undisturbed run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_every_shape_survive_their_worker() {
    let Some(server) = Server::start("[workers]\nrestart_backoff = \"50ms\"\n").await else { return };
    let mut logprobs = completion("the quick brown fox", 2500);
    (logprobs["stream"], logprobs["logprobs"]) = (json!(true), json!(2));
    let letters = json!({"type": "string", "pattern": "^[a-z]{1800}$"});
    let parameters = json!({"type": "object", "additionalProperties": false, "required": ["text"],
                            "properties": {"text": letters}});
    let call = json!({"model": "tiny", "stream": true, "temperature": 0, "max_tokens": 3000, "tool_choice": "required",
        "parallel_tool_calls": false, "messages": [{"role": "user", "content": "write"}],
        "tools": [{"type": "function", "function": {"name": "note", "parameters": parameters}}]});
    let mut best = completion("jumps over", 1200);
    (best["n"], best["best_of"], best["seed"], best["temperature"]) = (json!(2), json!(3), json!(5), json!(0.9));
    let rounds = [("/v1/completions", logprobs), ("/v1/chat/completions", call), ("/v1/completions", best)];
    let moved = "select request_id from requests where event = 'dispatched' group by request_id having count(*) > 1";
    let mut kills = 0;
    for (round, (path, body)) in rounds.into_iter().enumerate() {
        let undisturbed = answered(&server, path, &body).await;
        // A request may end before its worker does; then it is tried again.
        while server.sql(moved).await.len() <= round {
            let (disturbed, ()) = tokio::join!(answered(&server, path, &body), kill_serving_worker(&server, round));
            assert_eq!(disturbed, undisturbed, "{path} {body}: {}", server.log());
            kills += 1;
            assert!(kills < 12, "{kills} kills, and not one hit {path} {body}: {}", server.log());
            let ready = "select 1 as one from instances where state = 'ready'";
            server.until(ready, |rows| rows.len() == 2 + kills).await;
        }
    }
    server.stop();
}

/// Kills the process of one of the instances that run something now.
pub(super) async fn kill_serving_worker(server: &Server, round: usize) {
    let running = "select distinct instance from requests where event = 'grew' and request_id not in \
                   (select request_id from requests where event = 'finished') order by instance";
    let rows = server.until(running, |rows| !rows.is_empty()).await;
    let instance = rows[round % rows.len()]["instance"].clone();
    let process =
        format!("select pid from instances where state = 'ready' and instance = {instance} order by at desc limit 1");
    let pid = server.sql(&process).await[0]["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());
}
