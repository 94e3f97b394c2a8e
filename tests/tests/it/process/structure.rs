//! Structured output through real processes: the gateway refuses, the worker compiles, the engine enforces.

use serde_json::{Value, json};
use tests::server::Server;

use super::{completion, stream};

/// Scenario: a schema, a regular expression and a choice, greedy and sampled, whole and streamed, for a model that knows
/// nothing; then a schema that is none.
/// Guarantees: every answer has its shape and ends by itself; both ways give the same text; the wrong one is a 400 that
/// names the field.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_have_the_shape_asked_for() {
    let Some(server) = Server::start("").await else { return };
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "depth"],
        "properties": {"name": {"type": "string", "maxLength": 8}, "depth": {"type": "integer", "maximum": 40, "minimum": 1}},
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "port", "schema": schema}});
    let shapes = [
        ("response_format", format),
        ("guided_regex", json!("[a-f]{5}-[0-9]{3}")),
        ("guided_choice", json!(["deep", "flat"])),
    ];
    for (field, value) in shapes {
        for temperature in [0.0, 1.5] {
            let mut body = completion("a port", 300);
            body[field] = value.clone();
            body["temperature"] = json!(temperature);
            body["seed"] = json!(7);
            let response = server.post("/v1/completions", &body).await;
            let status = response.status();
            let whole: Value = response.json().await.unwrap();
            assert_eq!(status, 200, "{whole}");
            let text = whole["choices"][0]["text"].as_str().unwrap().to_string();
            assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{text:?}");
            match field {
                "response_format" => check_port(&text),
                "guided_choice" => assert!(["deep", "flat"].contains(&text.as_str()), "{text:?}"),
                _ => {
                    let (letters, digits) = text.split_once('-').unwrap();
                    assert!(
                        letters.len() == 5 && letters.bytes().all(|byte| (b'a'..=b'f').contains(&byte)),
                        "{text:?}"
                    );
                    assert!(digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{text:?}");
                }
            }
            assert_eq!(stream(&server, body, |_| {}).await, (text, "stop".to_string()));
        }
    }
    let mut broken = completion("a port", 10);
    broken["guided_json"] = json!({"type": "strin"});
    let response = server.post("/v1/completions", &broken).await;
    assert_eq!(response.status(), 400);
    assert_eq!(response.json::<Value>().await.unwrap()["error"]["param"], "guided_json");
}

fn check_port(text: &str) {
    let port: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text:?}"));
    assert_eq!(port.as_object().map(|fields| fields.len()), Some(2), "{text:?}");
    assert!(port["name"].as_str().is_some_and(|name| name.chars().count() <= 8), "{text:?}");
    assert!(port["depth"].as_i64().is_some_and(|depth| (1..=40).contains(&depth)), "{text:?}");
}
