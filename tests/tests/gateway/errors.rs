//! Wrong input: each gives its status, code and a message that names field, value and what would be right.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use pipeline::{
    config::{Config, Key},
    policy::Tier,
};
use serde_json::{Value, json};
use tests::gateway_kit::{Answer, Kit, Speaker, defaults, post};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn kit(config: Config) -> Kit {
    Kit::new(config, vec![Arc::new(Speaker::new("hi"))])
}

fn line(answer: &Answer) -> String {
    let error = answer.json()["error"].clone();
    let keys: Vec<&String> = error.as_object().expect("an error").keys().collect();
    assert_eq!(keys.len(), 4, "message, type, param, code: {error}");
    assert!(answer.header("x-evenkeel-request-id").starts_with("req-"));
    assert!(!answer.header("x-evenkeel-decision").is_empty());
    let text = |key: &str| error[key].as_str().unwrap_or("-").to_string();
    format!("{} {} {}: {}", answer.status.as_u16(), text("code"), text("param"), text("message"))
}

/// Scenario: bodies that are not a request at all.
/// Guarantees: 400 with the position or the kind of what was sent.
#[tokio::test]
async fn bodies_that_are_no_request() {
    let kit = kit(defaults());
    let mut lines = Vec::new();
    let deep = format!("{{\"messages\": {}", "[".repeat(1000));
    for body in ["", "[]", "null", "hello", "{\"model\": \"tiny\",}", "{\"model\": \"tiny\"", "{} {}", &deep] {
        lines.push(line(&kit.send(post(CHAT, body)).await));
    }
    let bad = Request::post(CHAT).header("content-type", "application/json").body(Body::from(vec![b'{', 0xff, 0xfe]));
    lines.push(line(&kit.send(bad.unwrap()).await));
    expect_test::expect![[r#""#]].assert_eq(&lines.join("\n"));
}

/// Scenario: each field of a chat request with a wrong type or out of range.
/// Guarantees: the message names the path, the value and what would be right.
#[tokio::test]
async fn chat_fields() {
    let kit = kit(defaults());
    let base = json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}]});
    let mut lines = Vec::new();
    for (field, value) in [
        ("model", json!(5)),
        ("model", json!("other")),
        ("model", Value::Null),
        ("messages", Value::Null),
        ("messages", json!([])),
        ("messages", json!("hi")),
        ("messages", json!(["hi"])),
        ("messages", json!([["user", "hi"]])),
        ("messages", json!([{"content": "a"}])),
        ("messages", json!([{"role": "robot", "content": "a"}])),
        ("messages", json!([{"role": "user", "content": null}])),
        ("messages", json!([{"role": "user", "content": 5}])),
        ("messages", json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-5)),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!(1e30)),
        ("max_tokens", json!("10")),
        ("max_tokens", json!(100_000)),
        ("max_completion_tokens", json!(0)),
        ("temperature", json!("hot")),
        ("temperature", json!(-0.5)),
        ("temperature", json!(2.1)),
        ("top_p", json!(0)),
        ("top_k", json!(-2)),
        ("min_p", json!(1.5)),
        ("n", json!(0)),
        ("n", json!(128)),
        ("seed", json!(0.5)),
        ("stop", json!("")),
        ("stop", json!(5)),
        ("stop", json!(vec!["x"; 17])),
        ("logprobs", json!(3)),
        ("top_logprobs", json!(2)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-3)),
        ("repetition_penalty", json!(0)),
        ("logit_bias", json!({"999": 1})),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"1": 101})),
        ("stream", json!("yes")),
        ("stream_options", json!({"include_usage": true})),
        ("response_format", json!({"type": "json_object"})),
        ("tools", json!([{"type": "function"}])),
    ] {
        let mut body = base.clone();
        body[field] = value;
        lines.push(line(&kit.post(CHAT, body).await));
    }
    expect_test::expect![[r#""#]].assert_eq(&lines.join("\n"));
}

/// Scenario: the same for what completions have alone, and prompts that do not fit.
/// Guarantees: as above; a prompt longer than the context gets OpenAI's code and numbers.
#[tokio::test]
async fn completion_fields() {
    let kit = kit(defaults());
    let mut lines = Vec::new();
    for (field, value) in [
        ("prompt", Value::Null),
        ("prompt", json!("")),
        ("prompt", json!([])),
        ("prompt", json!([[]])),
        ("prompt", json!([1, -2])),
        ("prompt", json!([1, 257])),
        ("prompt", json!({"a": 1})),
        ("prompt", json!("x".repeat(512))),
        ("prompt", json!(vec!["x"; 33])),
        ("echo", json!(true)),
        ("suffix", json!("s")),
        ("best_of", json!(3)),
        ("logprobs", json!(true)),
        ("logprobs", json!(21)),
    ] {
        let mut body = json!({"model": "tiny", "prompt": "a"});
        body[field] = value;
        lines.push(line(&kit.post(COMPLETIONS, body).await));
    }
    expect_test::expect![[r#""#]].assert_eq(&lines.join("\n"));
}

/// Scenario: wrong method, wrong path, wrong content type, a body over the limit (announced, and not announced).
/// Guarantees: 405, 404, 415 and 413 in OpenAI's shape.
#[tokio::test]
async fn http_errors() {
    let mut config = defaults();
    config.server.body_max = bytes_max(200);
    let kit = kit(config);
    let code = |answer: &Answer| format!("{} {}", answer.status.as_u16(), answer.json()["error"]["code"]);
    let get = kit.get(CHAT).await;
    assert_eq!(code(&get), r#"405 "method_not_allowed""#);
    assert_eq!(get.header("allow"), "POST");
    assert_eq!(code(&kit.get("/v1/nothing").await), r#"404 "unknown_url""#);
    let form = Request::post(CHAT).header("content-type", "application/x-www-form-urlencoded").body(Body::from("{}"));
    assert_eq!(code(&kit.send(form.unwrap()).await), r#"415 "unsupported_media_type""#);
    let none = Request::post(CHAT).body(Body::from("{}")).unwrap();
    assert_eq!(code(&kit.send(none).await), r#"415 "unsupported_media_type""#);
    let long = format!("{{\"model\": \"{}\"}}", "x".repeat(300));
    assert_eq!(code(&kit.send(post(CHAT, &long)).await), r#"413 "request_too_large""#);
    let parts = futures::stream::iter(vec![Ok::<_, std::io::Error>(long.clone()); 2]);
    let chunked = Request::post(CHAT).header("content-type", "application/json").body(Body::from_stream(parts));
    assert_eq!(code(&kit.send(chunked.unwrap()).await), r#"413 "request_too_large""#);
}

fn bytes_max(bytes: u64) -> bytesize::ByteSize {
    bytesize::ByteSize::b(bytes)
}

/// Scenario: keys are configured; requests without, with a wrong, and with the right one.
/// Guarantees: 401 with a challenge and no rows; the right key gives its tenant and bounds the tier by its class.
#[tokio::test]
async fn keys() {
    let mut config = defaults();
    config.server.keys = vec![Key { key: "secret".into(), tenant: "acme".into(), class: Tier::Low }];
    let kit = kit(config);
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}]}).to_string();
    for value in [None, Some("Bearer wrong"), Some("secret"), Some("Basic secret")] {
        let mut request = post(CHAT, &body);
        if let Some(value) = value {
            request.headers_mut().insert("authorization", value.parse().unwrap());
        }
        let answer = kit.send(request).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{value:?}");
        assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        line(&answer);
    }
    assert!(kit.rows.requests.lock().unwrap().is_empty());
    assert_eq!(kit.get("/v1/models").await.status, StatusCode::UNAUTHORIZED);
    let mut request = post(CHAT, &body);
    request.headers_mut().insert("authorization", "Bearer secret".parse().unwrap());
    assert_eq!(kit.send(request).await.status, StatusCode::OK);
    let rows = kit.rows.requests.lock().unwrap();
    assert_eq!((rows[0].tenant.as_str(), rows[0].tier.as_str()), ("acme", "Low"));
}

/// Scenario: a request that is refused for its fields.
/// Guarantees: it has a decision row that says why, and one last event; no lease was touched.
#[tokio::test]
async fn a_refusal_can_be_explained() {
    let kit = kit(defaults());
    let answer = kit.post(CHAT, json!({"model": "tiny", "messages": []})).await;
    let decision = kit.rows.decisions.lock().unwrap()[0].clone();
    assert_eq!(decision.decision_id, answer.header("x-evenkeel-decision"));
    assert_eq!((decision.outcome.as_str(), decision.tier.as_str()), ("reject", "none"));
    assert!(decision.reason.contains("'messages'"), "{}", decision.reason);
    assert_eq!(kit.rows.events(), ["rejected"]);
    assert_eq!(kit.leased(), (0, 0));
}
