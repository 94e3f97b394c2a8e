//! Wrong input: each gives its status, code and a message that names field, value and what would be right.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use pipeline::{
    config::{Config, Key, TierHeader},
    policy::Tier,
};
use serde_json::{Value, json};
use tests::gateway_kit::{Answer, Kit, Speaker, defaults, post};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn kit(config: Config) -> Kit {
    Kit::new(config, vec![Arc::new(Speaker::new("hi"))])
}

/// Status, code, parameter and message of an error in OpenAI's shape, with the headers every answer has.
fn error_of(answer: &Answer) -> (u16, String, String, String) {
    let error = answer.json()["error"].clone();
    let keys: Vec<&String> = error.as_object().expect("an error").keys().collect();
    assert_eq!(keys.len(), 4, "message, type, param, code: {error}");
    assert!(answer.header("x-evenkeel-request-id").starts_with("req-"));
    assert!(!answer.header("x-evenkeel-decision").is_empty());
    let text = |key: &str| error[key].as_str().unwrap_or("-").to_string();
    (answer.status.as_u16(), text("code"), text("param"), text("message"))
}

/// A field with a wrong value: the code and parameter of the error, and what its message must say.
type Case = (&'static str, Value, &'static str, &'static str, &'static str);

async fn check(kit: &Kit, path: &str, base: &Value, cases: Vec<Case>) {
    for (field, value, code, param, words) in cases {
        let mut body = base.clone();
        body[field] = value.clone();
        let got = error_of(&kit.post(path, body).await);
        let shown = format!("{field} = {value}: {got:?}");
        let status = if code == "model_not_found" { 404 } else { 400 };
        assert_eq!((got.0, got.1.as_str(), got.2.as_str()), (status, code, param), "{shown}");
        assert!(got.3.contains(words), "{shown}");
    }
}

/// Scenario: bodies that are not a request at all.
/// Guarantees: 400 with the position or the kind of what was sent.
#[tokio::test]
async fn bodies_that_are_no_request() {
    let kit = kit(defaults());
    let deep = format!("{{\"x\": {}", "[".repeat(1000));
    for (body, words) in [
        ("", "is empty; expected a JSON object"),
        ("  ", "is empty"),
        ("[]", "is an array; expected a JSON object"),
        ("null", "is null; expected a JSON object"),
        ("hello", "is not JSON; expected a JSON object"),
        ("{\"model\": \"tiny\",}", "trailing comma at line 1 column"),
        ("{\"model\": \"tiny\"", "at line 1 column 16"),
        ("{} {}", "trailing characters at line 1 column 4"),
        ("{\"model\": \"a\", \"model\": \"b\"}", "duplicate field"),
        (&deep, "line 1 column"),
    ] {
        let (status, code, _, message) = error_of(&kit.send(post(CHAT, body)).await);
        assert_eq!((status, code.as_str()), (400, "invalid_json"), "{body}: {message}");
        assert!(message.contains(words), "{body}: {message}");
    }
    let bytes = vec![b'{', 0xff, 0xfe];
    let bad = Request::post(CHAT).header("content-type", "application/json").body(Body::from(bytes)).unwrap();
    let (status, _, _, message) = error_of(&kit.send(bad).await);
    assert_eq!(status, 400);
    assert!(message.contains("not valid UTF-8: bad byte at offset 1"), "{message}");
}

/// Scenario: each field of a chat request with a wrong type or out of range.
/// Guarantees: the error names the path, and its message the value and what would be right.
#[tokio::test]
async fn chat_fields() {
    let kit = kit(defaults());
    let base = json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}]});
    let (kind, range, gone, no) =
        ("invalid_type", "invalid_value", "missing_required_parameter", "unsupported_parameter");
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
    let context = "context length is 2048 tokens. However, you requested 100019 tokens (19 in the prompt, 100000";
    let cases: Vec<Case> = vec![
        ("model", json!(5), kind, "model", "got a number `5`"),
        ("model", json!("other"), "model_not_found", "-", "`other` does not exist"),
        ("model", Value::Null, gone, "model", "'model'"),
        ("messages", Value::Null, gone, "messages", "'messages'"),
        ("messages", json!([]), range, "messages", "got an empty one"),
        ("messages", json!("hi"), kind, "messages", "array of messages, but got a string `\"hi\"`"),
        ("messages", json!(["hi"]), kind, "messages[0]", "an object with role and content"),
        ("messages", json!([["user", "hi"]]), kind, "messages[0]", "got an array"),
        ("messages", json!([{"content": "a"}]), gone, "messages[0].role", "one of system, developer"),
        ("messages", json!([{"role": "robot", "content": "a"}]), range, "messages[0].role", "got `robot`"),
        ("messages", json!([{"role": "user", "content": null}]), range, "messages[0].content", "got null"),
        ("messages", json!([{"role": "user", "content": 5}]), kind, "messages[0].content", "a string or an array"),
        ("messages", image, no, "messages[0].content[0].type", "`image_url` are not supported"),
        ("max_tokens", json!(0), range, "max_tokens", "at least 1, but got 0"),
        ("max_tokens", json!(-5), range, "max_tokens", "got -5"),
        ("max_tokens", json!(1.5), kind, "max_tokens", "an integer of at least 1, but got a number `1.5`"),
        ("max_tokens", json!(1e30), kind, "max_tokens", "got a number `1e"),
        ("max_tokens", json!("10"), kind, "max_tokens", "got a string `\"10\"`"),
        ("max_tokens", json!(100_000), "context_length_exceeded", "messages", context),
        ("max_completion_tokens", json!(0), range, "max_completion_tokens", "got 0"),
        ("temperature", json!("hot"), kind, "temperature", "a number from 0 to 2, but got a string `\"hot\"`"),
        ("temperature", json!(-0.5), range, "temperature", "got -0.5"),
        ("temperature", json!(2.1), range, "temperature", "got 2.1"),
        ("top_p", json!(0), range, "top_p", "above 0 and up to 1"),
        ("top_k", json!(-2), range, "top_k", "got -2"),
        ("min_p", json!(1.5), range, "min_p", "got 1.5"),
        ("n", json!(0), range, "n", "from 1 to 8"),
        ("n", json!(128), range, "n", "got 128"),
        ("seed", json!(0.5), kind, "seed", "an integer"),
        ("stop", json!(""), range, "stop", "got an empty string"),
        ("stop", json!(5), kind, "stop", "got a number `5`"),
        ("stop", json!(vec!["x"; 17]), range, "stop", "got 17 strings"),
        ("logprobs", json!(3), kind, "logprobs", "a boolean for chat"),
        ("top_logprobs", json!(2), range, "top_logprobs", "needs 'logprobs'"),
        ("presence_penalty", json!(3), range, "presence_penalty", "from -2 to 2"),
        ("frequency_penalty", json!(-3), range, "frequency_penalty", "from -2 to 2"),
        ("repetition_penalty", json!(0), range, "repetition_penalty", "above 0"),
        ("logit_bias", json!({"999": 1}), range, "logit_bias", "999 is outside the vocabulary of 257"),
        ("logit_bias", json!({"x": 1}), range, "logit_bias", "`x: 1`"),
        ("logit_bias", json!({"1": 101}), range, "logit_bias", "from -100 to 100"),
        ("stream", json!("yes"), kind, "stream", "a boolean"),
        ("stream_options", json!({"include_usage": true}), range, "stream_options", "only allowed when 'stream'"),
        ("stream_options", json!([true]), kind, "stream_options", "an object, but got an array"),
        ("functions", json!([{"name": "f"}]), no, "functions", "use 'tools' instead"),
        ("best_of", json!(2), no, "best_of", "use /v1/completions"),
    ];
    check(&kit, CHAT, &base, cases).await;
}

/// Scenario: the same for what completions have alone, and prompts that do not fit.
/// Guarantees: as above; a prompt longer than the context gets OpenAI's code and numbers.
#[tokio::test]
async fn completion_fields() {
    let kit = kit(defaults());
    let base = json!({"model": "tiny", "prompt": "a"});
    let (kind, range, no) = ("invalid_type", "invalid_value", "unsupported_parameter");
    let context = "maximum context length is 2048 tokens. However, you requested 2049 tokens (2048 in the prompt, 1";
    let cases: Vec<Case> = vec![
        ("prompt", Value::Null, "missing_required_parameter", "prompt", "'prompt'"),
        ("prompt", json!(""), range, "prompt", "gives no tokens"),
        ("prompt", json!([]), range, "prompt", "got an empty array"),
        ("prompt", json!([[]]), range, "prompt", "got an empty"),
        ("prompt", json!([1, -2]), kind, "prompt", "an array of token ids"),
        ("prompt", json!([1, 257]), range, "prompt", "token id 257, outside the vocabulary of 257"),
        ("prompt", json!({"a": 1}), kind, "prompt", "got an object"),
        ("prompt", json!("x".repeat(2048)), "context_length_exceeded", "prompt", context),
        ("prompt", json!(vec!["x"; 33]), range, "prompt", "33 prompts"),
        ("echo", json!(true), no, "echo", "'echo' is not supported"),
        ("suffix", json!("s"), no, "suffix", "'suffix' is not supported"),
        ("best_of", json!(0), range, "best_of", "an integer from n to 20; n itself in chat, but got 0"),
        ("best_of", json!(21), range, "best_of", "but got 21"),
        ("best_of", json!("2"), kind, "best_of", "an integer from n to 20"),
        ("logprobs", json!(true), kind, "logprobs", "got a boolean `true`"),
        ("logprobs", json!(21), range, "logprobs", "got 21"),
    ];
    check(&kit, COMPLETIONS, &base, cases).await;
    let streamed = json!({"model": "tiny", "prompt": "a", "stream": true});
    let cases = vec![("best_of", json!(2), range, "best_of", "cannot be streamed")];
    check(&kit, COMPLETIONS, &streamed, cases).await;
    let many = json!({"model": "tiny", "best_of": 20});
    let cases = vec![("prompt", json!(["a", "b"]), range, "prompt", "2 prompts with n = 20 (or best_of), above 32")];
    check(&kit, COMPLETIONS, &many, cases).await;
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
    let parts = futures::stream::iter([long.clone(), long].map(Ok::<_, std::io::Error>));
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
    config.server.keys = vec![Key {
        key: "secret".into(),
        tenant: "acme".into(),
        class: Tier::Low,
        first_token_min: None,
        whole_min: None,
        tier_header: TierHeader::Lower,
        sql: Default::default(),
    }];
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
        error_of(&answer);
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
