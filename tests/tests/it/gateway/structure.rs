//! Structured output: what reaches the instances, and what is refused before it could.

use std::sync::{Arc, atomic::Ordering};

use axum::http::StatusCode;
use engine::grammar::GrammarSource;
use pipeline::gateway::instances::InstanceError;
use serde_json::{Value, json};
use tests::gateway_kit::{Fault, Kit, Speaker, defaults};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn kit() -> (Kit, Arc<Speaker>) {
    let speaker = Arc::new(Speaker::new(r#"{"a": 1}"#));
    (Kit::new(defaults(), vec![speaker.clone()]), speaker)
}

fn chat(field: &str, value: Value) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}], field: value})
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false})
}

fn format(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}})
}

/// Scenario: every way to ask for a shape, in chat and in completions, and ways to ask for none.
/// Guarantees: the instance gets the grammar that was asked for; the answer is an ordinary one.
#[tokio::test]
async fn what_is_asked_for_reaches_the_instance() {
    let text = schema().to_string();
    let cases = [
        ("response_format", json!({"type": "text"}), None),
        ("response_format", json!({"type": "json_object"}), Some(GrammarSource::JsonObject)),
        ("response_format", format(schema()), Some(GrammarSource::JsonSchema(text.clone()))),
        ("guided_json", schema(), Some(GrammarSource::JsonSchema(text.clone()))),
        ("guided_json", json!(text), Some(GrammarSource::JsonSchema(text.clone()))),
        ("guided_regex", json!("[0-9]+"), Some(GrammarSource::Regex("[0-9]+".into()))),
        ("guided_choice", json!(["yes", "n\"o"]), Some(GrammarSource::Lark("start: \"yes\" | \"n\\\"o\"\n".into()))),
        ("guided_grammar", json!("start: \"a\""), Some(GrammarSource::Lark("start: \"a\"".into()))),
        ("structured_outputs", json!({"json": schema()}), Some(GrammarSource::JsonSchema(text))),
        ("structured_outputs", json!({"json_object": true}), Some(GrammarSource::JsonObject)),
        ("structured_outputs", json!({"regex": "a|b", "json": null}), Some(GrammarSource::Regex("a|b".into()))),
        ("structured_outputs", json!({"json_object": false, "whitespace": " "}), None),
    ];
    for (field, value, wanted) in cases {
        let (kit, speaker) = kit();
        let whole = kit.post(CHAT, chat(field, value.clone())).await;
        assert_eq!(whole.status, StatusCode::OK, "{field} = {value}: {}", whole.text);
        assert_eq!(whole.json()["choices"][0]["message"]["content"], r#"{"a": 1}"#);
        assert_eq!(whole.json()["choices"][0]["finish_reason"], "stop");
        let completion = json!({"model": "tiny", "prompt": "a", field: value, "n": 2});
        assert_eq!(kit.post(COMPLETIONS, completion).await.status, StatusCode::OK);
        assert_eq!(*speaker.grammars.lock().unwrap(), vec![wanted; 3], "{field} = {value}");
    }
}

/// Scenario: an instance is lost in the middle of a structured answer.
/// Guarantees: the next one goes on under the same grammar, from what was shown.
#[tokio::test]
async fn the_grammar_moves_with_the_sequence() {
    let (kit, first) = kit();
    *first.fault.lock().unwrap() = Fault::After(3, InstanceError::Lost("gone".into()));
    let second = Arc::new(Speaker::new(r#"{"a": 1}"#));
    kit.put(1, 1, Some(second.clone()));
    let mut body = chat("response_format", json!({"type": "json_object"}));
    body["stream"] = json!(true);
    assert_eq!(kit.post(CHAT, body).await.streamed_text(0), r#"{"a": 1}"#);
    for speaker in [first, second] {
        assert_eq!(*speaker.grammars.lock().unwrap(), [Some(GrammarSource::JsonObject)]);
        kit.until("it is cancelled", || speaker.live.load(Ordering::SeqCst) == 0).await;
    }
}

/// Scenario: formats that are wrong, schemas that cannot be enforced, and two shapes at once.
/// Guarantees: 400 with the field, and the compiler's words where it refuses; no instance is asked.
#[tokio::test]
async fn what_cannot_be_enforced_is_refused_first() {
    const SCHEMA: &str = "response_format.json_schema.schema";
    let named = |name: Value| json!({"type": "json_schema", "json_schema": {"name": name, "schema": {}}});
    let cases = [
        ("response_format", json!({"type": "xml"}), "response_format.type", "json_schema, but got `\"xml\"`"),
        ("response_format", json!({}), "response_format.type", "but got nothing"),
        ("response_format", json!("json"), "response_format", "expected an object"),
        ("response_format", json!({"type": "json_schema"}), "response_format.json_schema", "with name and schema"),
        ("response_format", named(Value::Null), "response_format.json_schema.name", "1 to 64 letters"),
        ("response_format", named(json!("a b")), "response_format.json_schema.name", "got `\"a b\"`"),
        ("response_format", format(json!([1])), SCHEMA, "a JSON schema, an object, but got `[1]`"),
        ("response_format", format(json!({"type": "strin"})), SCHEMA, "strin"),
        ("response_format", format(json!({"$ref": "#/$defs/none"})), SCHEMA, "can't be enforced"),
        ("guided_regex", json!("(a"), "guided_regex", "regex can't be enforced"),
        ("guided_regex", json!(5), "guided_regex", "expected a string, but got a number"),
        ("guided_grammar", json!("start: nothing"), "guided_grammar", "grammar can't be enforced"),
        ("guided_choice", json!([]), "guided_choice", "a non-empty array of strings"),
        ("guided_json", json!("{"), "guided_json", "is not JSON"),
        ("guided_json", json!(3), "guided_json", "got `3`"),
        ("structured_outputs", json!({"choice": "a"}), "structured_outputs.choice", "a non-empty array"),
        ("structured_outputs", json!({"json_object": 1}), "structured_outputs.json_object", "a boolean"),
        ("structured_outputs", json!({"regex": "a", "json": {}}), "structured_outputs.json", "exclude each other"),
    ];
    let (kit, speaker) = kit();
    for (field, value, param, words) in cases {
        let answer = kit.post(CHAT, chat(field, value.clone())).await;
        let shown = format!("{field} = {value}: {}", answer.text);
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{shown}");
        let error = &answer.json()["error"];
        assert_eq!(
            (error["param"].as_str(), &error["type"]),
            (Some(param), &json!("invalid_request_error")),
            "{shown}"
        );
        assert!(error["message"].as_str().unwrap().contains(words), "{shown}");
    }
    assert!(speaker.calls.lock().unwrap().is_empty());
    assert_eq!(kit.leased(), (0, 0));
}
