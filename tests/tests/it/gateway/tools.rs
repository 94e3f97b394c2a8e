//! Tools: what the model is shown and held to, and its calls on the way out.

use std::sync::Arc;

use axum::http::StatusCode;
use engine::grammar::GrammarSource;
use pipeline::gateway::instances::InstanceError;
use serde_json::{Value, json};
use tests::gateway_kit::{Fault, Kit, Speaker, defaults};

const CHAT: &str = "/v1/chat/completions";
const CALLS: &str = "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
                     <tool_call>\n{\"name\": \"sky\", \"arguments\": {}}\n</tool_call>";
const ONE_CALL: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";

fn kit(reply: &str) -> (Kit, Arc<Speaker>) {
    let speaker = Arc::new(Speaker::new(reply));
    (Kit::new(defaults(), vec![speaker.clone()]), speaker)
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    json!([{"type": "function", "function": {"name": "add", "parameters": parameters}},
           {"type": "function", "function": {"name": "sky"}}])
}

fn ask(extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}], "tools": tools(),
                          "max_tokens": 200});
    body["tools"] = tools();
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn prompt(speaker: &Speaker) -> String {
    let calls = speaker.calls.lock().unwrap();
    String::from_utf8(calls.last().unwrap().prompt.iter().map(|token| *token as u8).collect()).unwrap()
}

/// A streamed choice put together as OpenAI's clients do: content, calls as (id, name, arguments), finish reason.
fn joined(chunks: &[Value]) -> (String, Vec<(String, String, String)>, String) {
    let (mut text, mut calls, mut reason) = (String::new(), Vec::new(), String::new());
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        let delta = &choice["delta"];
        text.push_str(delta["content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            let of = |value: &Value| value.as_str().unwrap_or_default().to_string();
            if index == calls.len() {
                assert_eq!(call["type"], "function");
                calls.push((of(&call["id"]), of(&call["function"]["name"]), String::new()));
            } else {
                assert!(call.get("id").is_none(), "an id comes once: {call}");
            }
            calls[index].2.push_str(&of(&call["function"]["arguments"]));
        }
        reason = choice["finish_reason"].as_str().map_or(reason, str::to_string);
    }
    (text, calls, reason)
}

/// Scenario: a reply with text and two calls, whole and streamed byte by byte.
/// Guarantees: text, calls, ids and finish reason are the same both ways; arguments come in several deltas.
#[tokio::test]
async fn calls_whole_and_streamed() {
    let (kit, _) = kit(CALLS);
    let whole = kit.post(CHAT, ask(json!({}))).await;
    assert_eq!(whole.status, StatusCode::OK, "{}", whole.text);
    let choice = whole.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me see.\n");
    let calls = choice["message"]["tool_calls"].as_array().unwrap().clone();
    let functions: Vec<&Value> = calls.iter().map(|call| &call["function"]).collect();
    assert_eq!(
        functions,
        [&json!({"name": "add", "arguments": "{\"a\": 1}"}), &json!({"name": "sky", "arguments": "{}"})]
    );
    assert!(calls.iter().all(|call| call["type"] == "function" && call["id"].as_str().unwrap().starts_with("call_")));
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    let chunks = kit.post(CHAT, ask(json!({"stream": true}))).await.chunks();
    let (text, streamed, reason) = joined(&chunks);
    assert_eq!((text.as_str(), reason.as_str()), ("Let me see.\n", "tool_calls"));
    let names: Vec<(&str, &str)> = streamed.iter().map(|(_, name, text)| (name.as_str(), text.as_str())).collect();
    assert_eq!(names, [("add", "{\"a\": 1}"), ("sky", "{}")]);
    let pieces = chunks.iter().filter(|chunk| chunk.to_string().contains("\"arguments\"")).count();
    assert!(pieces > 6, "the arguments came in {pieces} chunks");
}

/// Scenario: a reply that is one call; a reply without a call; one that `max_tokens` cuts inside a call.
/// Guarantees: null content beside calls; plain text ends with `stop`; what is cut ends with `length`.
#[tokio::test]
async fn content_and_finish_reason() {
    let (kit, _) = kit(ONE_CALL);
    let only = kit.post(CHAT, ask(json!({"tool_choice": "required"}))).await.json()["choices"][0].clone();
    assert_eq!((&only["message"]["content"], &only["finish_reason"]), (&Value::Null, &json!("tool_calls")));
    let chunks = kit.post(CHAT, ask(json!({"tool_choice": "required", "stream": true}))).await.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"]["content"], Value::Null);
    let cut = kit.post(CHAT, ask(json!({"max_tokens": 45}))).await.json()["choices"][0].clone();
    assert_eq!(cut["finish_reason"], "length");
    assert_eq!(cut["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\"");
    let (kit, _) = self::kit("Blue.");
    let plain = kit.post(CHAT, ask(json!({}))).await.json()["choices"][0].clone();
    assert_eq!((&plain["message"]["content"], &plain["finish_reason"]), (&json!("Blue."), &json!("stop")));
    assert!(plain["message"].get("tool_calls").is_none());
}

/// Scenario: each tool choice, with and without parallel calls.
/// Guarantees: the grammar that the instance gets allows what was asked for; `none` hides the tools and reads no calls.
#[tokio::test]
async fn choices_become_grammars() {
    for (extra, has, lacks) in [
        (json!({}), "tool_1", "nothing"),
        (json!({"tool_choice": "auto", "parallel_tool_calls": false}), "close){0,1} tail", "tool_2"),
        (json!({"tool_choice": "required"}), "start: call (", "tail"),
        (json!({"tool_choice": "required", "parallel_tool_calls": false}), "start: call\n", "tail"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "sky"}}}), "sky", "add"),
    ] {
        let (kit, speaker) = kit(ONE_CALL);
        let answer = kit.post(CHAT, ask(extra.clone())).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        let Some(GrammarSource::Lark(lark)) = speaker.grammars.lock().unwrap()[0].clone() else { panic!("no grammar") };
        assert!(lark.contains(has) && !lark.contains(lacks), "{extra}: {lark}");
    }
    for format in
        [json!({"type": "json_object"}), json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}})]
    {
        let (kit, speaker) = kit("{}");
        let answer = kit.post(CHAT, ask(json!({"response_format": format}))).await;
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "{}", "{}", answer.text);
        let Some(GrammarSource::Lark(lark)) = speaker.grammars.lock().unwrap()[0].clone() else { panic!("no grammar") };
        assert!(
            lark.starts_with("start: called | answer\ncalled: call (") && lark.contains("answer: %json {"),
            "{lark}"
        );
    }
    let (kit, speaker) = kit(ONE_CALL);
    let answer = kit.post(CHAT, ask(json!({"tool_choice": "none"}))).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], ONE_CALL);
    assert_eq!(speaker.grammars.lock().unwrap()[0], None);
    assert_eq!(prompt(&speaker), "user: a\nassistant: ");
}

/// Scenario: a conversation with calls and their results, for a template that knows no tools; with and without a system
/// message of its own.
/// Guarantees: tools are explained in the system message; calls and results are text in their place.
#[tokio::test]
async fn a_template_without_tools_is_helped() {
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "add", "arguments": arguments}});
    let history = json!([
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": null, "tool_calls": [call("c1", "{\"a\":1}"), call("c2", "oops")]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "?"}]},
    ]);
    let said = "user: 1 + 1?\nassistant: <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
                <tool_call>\n{\"name\": \"add\", \"arguments\": \"oops\"}\n</tool_call>\n\
                user: <tool_response>\n2\n</tool_response>\n<tool_response>\n?\n</tool_response>\nassistant: ";
    let (kit, speaker) = kit("2");
    let sky = json!([{"type": "function", "function": {"name": "sky", "description": "Its colour."}}]);
    let with_tools = ask(json!({"messages": history, "tools": sky}));
    assert_eq!(kit.post(CHAT, with_tools.clone()).await.status, StatusCode::OK);
    let shown = prompt(&speaker);
    let list = "<tools>\n{\"name\": \"sky\", \"description\": \"Its colour.\"}\n</tools>";
    assert!(shown.starts_with("system: You can use") && shown.contains(list) && shown.ends_with(said), "{shown}");
    let mut own = with_tools;
    own["messages"].as_array_mut().unwrap().insert(0, json!({"role": "system", "content": "Be brief."}));
    assert_eq!(kit.post(CHAT, own).await.status, StatusCode::OK);
    assert!(prompt(&speaker).starts_with("system: Be brief.\n\nYou can use"), "{}", prompt(&speaker));
    let answer = kit.post(CHAT, json!({"model": "tiny", "messages": history})).await;
    assert_eq!((answer.status, prompt(&speaker).as_str()), (StatusCode::OK, said));
}

/// Scenario: tools and choices that are wrong, and calls in messages that are.
/// Guarantees: 400 that names the field; no instance is asked.
#[tokio::test]
async fn wrong_tools_are_refused() {
    let tool = |function: Value| json!([{"type": "function", "function": function}]);
    let called = |call: Value| json!([{"role": "assistant", "tool_calls": [call]}]);
    let bad_schema = json!({"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "strin"}}}});
    let cases = [
        ("tools", json!("f"), "tools", "an array"),
        ("tools", json!([{"type": "retrieval"}]), "tools[0].type", "\"function\""),
        ("tools", tool(json!({})), "tools[0].function.name", "but got nothing"),
        ("tools", tool(json!({"name": "a b"})), "tools[0].function.name", "1 to 64 letters"),
        ("tools", tool(json!({"name": "f", "parameters": 3})), "tools[0].function.parameters", "a JSON schema"),
        ("tools", tool(bad_schema), "tools[0].function.parameters", "strin"),
        ("tool_choice", json!("always"), "tool_choice", "\"required\" or a function by name"),
        ("tool_choice", json!({"type": "function", "function": {"name": "g"}}), "tool_choice", "names \"g\""),
        ("parallel_tool_calls", json!("no"), "parallel_tool_calls", "a boolean"),
        ("messages", called(json!({"id": "c"})), "messages[0].tool_calls[0].function", "name and arguments"),
        ("messages", called(json!({"function": {}})), "messages[0].tool_calls[0].function.name", "a string"),
        ("guided_regex", json!("a"), "guided_regex", "'tool_choice' to \"none\""),
    ];
    let (kit, speaker) = kit("hi");
    for (field, value, param, words) in cases {
        let answer = kit.post(CHAT, ask(json!({field: value}))).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{field} = {value}: {}", answer.text);
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    let none = json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}], "tool_choice": "required"});
    assert_eq!(kit.post(CHAT, none).await.json()["error"]["param"], "tool_choice");
    let completion = json!({"model": "tiny", "prompt": "a", "tools": tools()});
    assert_eq!(kit.post("/v1/completions", completion).await.json()["error"]["code"], "unsupported_parameter");
    assert!(speaker.calls.lock().unwrap().is_empty());
}

/// Scenario: an instance is lost inside a streamed call.
/// Guarantees: the call goes on where it was; its id and name come once.
#[tokio::test]
async fn a_call_survives_the_loss_of_its_instance() {
    let (kit, first) = kit(ONE_CALL);
    *first.fault.lock().unwrap() = Fault::After(46, InstanceError::Lost("gone".into()));
    kit.put(1, 1, Some(Arc::new(Speaker::new(ONE_CALL))));
    let (text, calls, reason) = joined(&kit.post(CHAT, ask(json!({"stream": true}))).await.chunks());
    assert_eq!((text.as_str(), calls.len(), reason.as_str()), ("", 1, "tool_calls"));
    assert_eq!((calls[0].1.as_str(), calls[0].2.as_str()), ("add", "{\"a\": 1}"));
}

/// Scenario: an answer that ends with a call, whole and streamed; one that ends with text.
/// Guarantees: the row of the request's end has the finish reason that the client saw.
#[tokio::test]
async fn rows_end_for_the_reason_the_client_saw() {
    for (reply, expected) in [(CALLS, "tool_calls"), ("no call", "stop")] {
        for streams in [false, true] {
            let (kit, _) = kit(reply);
            let answer = kit.post(CHAT, ask(json!({"stream": streams}))).await;
            assert!(answer.text.contains(&format!("\"finish_reason\":\"{expected}\"")), "{}", answer.text);
            let rows = kit.rows.requests.lock().unwrap();
            assert_eq!(rows.last().unwrap().finish_reason.as_deref(), Some(expected));
        }
    }
}
