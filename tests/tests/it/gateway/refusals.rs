//! Rules of refusals (DESIGN §7): every one has a typed reason and a metric; a client's error says nothing of an instance.

use std::sync::Arc;

use pipeline::gateway::instances::InstanceError;
use serde_json::{Value, json};
use tests::gateway_kit::{Fault, Kit, Speaker, defaults, post};

const COMPLETIONS: &str = "/v1/completions";

fn ask() -> Value {
    json!({"model": "tiny", "prompt": "hello", "max_tokens": 5})
}

fn with(field: &str, value: Value) -> Value {
    let mut body = ask();
    body[field] = value;
    body
}

/// Value of a counter of `/metrics`; 0 if there is none.
async fn counted(kit: &Kit, series: &str) -> u64 {
    let text = kit.get("/metrics").await.text;
    let value = text.lines().find_map(|line| line.strip_prefix(series)).map_or("0", str::trim);
    value.parse().unwrap_or_else(|error| panic!("{series}: {error} in {value:?}"))
}

/// Scenario: bodies that are refused before any policy is asked, a model that is not there, a policy's refusal and an engine's.
/// Guarantees: each refusal's code is in the body, in the reason of its decision, in the row of the request and in a metric, the
/// same word; a policy's has a count of its own.
#[tokio::test]
async fn every_refusal_has_a_reason_and_a_metric() {
    let speaker = Arc::new(Speaker::new("hi"));
    let kit = Kit::new(defaults(), vec![speaker.clone()]);
    let long = with("prompt", json!("x".repeat(5000)));
    let cases = [
        ("{", "invalid_json"),
        (&with("temperature", json!(9)).to_string(), "invalid_value"),
        (&with("suffix", json!("s")).to_string(), "unsupported_parameter"),
        (&with("model", json!("huge")).to_string(), "model_not_found"),
        (&long.to_string(), "context_length_exceeded"),
    ];
    let check = async |body: &str, code: &str| {
        let answer = kit.send(post(COMPLETIONS, body)).await;
        assert_eq!(answer.json()["error"]["code"], code, "{body}");
        let decision = kit.rows.decisions.lock().unwrap().last().unwrap().clone();
        let request = kit.rows.requests.lock().unwrap().last().unwrap().clone();
        assert_eq!(decision.decision_id, answer.header("x-evenkeel-decision"));
        let told = request.error.unwrap();
        assert!(told.starts_with(&format!("{code}: ")), "{told}");
        let series = format!(r#"evenkeel_requests_total{{route="{COMPLETIONS}",outcome="{code}"}}"#);
        assert_eq!(counted(&kit, &series).await, 1, "{series}");
        decision
    };
    for (body, code) in cases {
        let decision = check(body, code).await;
        assert!(decision.outcome == "reject" && decision.reason.starts_with(code), "{decision:?}");
    }
    *speaker.fault.lock().unwrap() = Fault::AtStart(InstanceError::Refused("too long for its pool".into()));
    assert_eq!(check(&ask().to_string(), "engine_refused").await.outcome, "admit");
    kit.put(0, 2, None);
    let decision = check(&ask().to_string(), "no_instance").await;
    assert!(decision.reason.starts_with("no_instance: "), "{decision:?}");
    assert_eq!(counted(&kit, r#"evenkeel_rejections_total{reason="no_instance"}"#).await, 1);
}

/// Scenario: many requests in a row that the engine refuses, and many that the gateway does; then good ones.
/// Guarantees (a client's error never trips a breaker): nothing is sent elsewhere, the instance stays where it was in the routing,
/// and the good ones are served by it; nothing waits for anything.
#[tokio::test]
async fn client_errors_leave_the_instance_alone() {
    let (blamed, other) = (Arc::new(Speaker::new("hi")), Arc::new(Speaker::new("hi")));
    let kit = Kit::new(defaults(), vec![blamed.clone(), other.clone()]);
    // Its prefix is cached there, so routing prefers it.
    *kit.views.hits.lock().unwrap() = pipeline::policy::PrefixHits::near([(pipeline::ids::InstanceId(0), 4)]);
    *blamed.fault.lock().unwrap() = Fault::AtStart(InstanceError::Refused("a token id beyond the vocabulary".into()));
    for _ in 0..50 {
        assert_eq!(kit.post(COMPLETIONS, ask()).await.status, 400);
        assert_eq!(kit.post(COMPLETIONS, with("n", json!(0))).await.status, 400);
    }
    *blamed.fault.lock().unwrap() = Fault::None;
    for _ in 0..5 {
        assert_eq!(kit.post(COMPLETIONS, ask()).await.status, 200);
    }
    assert_eq!((blamed.calls.lock().unwrap().len(), other.calls.lock().unwrap().len()), (55, 0));
    assert_eq!((counted(&kit, "evenkeel_reroutes_total").await, kit.leased()), (0, (0, 0)));
    let decisions = kit.rows.decisions.lock().unwrap();
    assert!(decisions.iter().filter(|row| row.outcome == "admit").all(|row| row.instance == Some(0)));
    assert!(kit.rows.faults.lock().unwrap().is_empty(), "no fault of Evenkeel");
}

/// Scenario: every instance says that it is full, whatever is tried.
/// Guarantees: the refusal that comes after the moves is counted as one, with its reason.
#[tokio::test]
async fn busy_everywhere_is_counted() {
    let busy = || {
        let speaker = Speaker::new("hi");
        *speaker.fault.lock().unwrap() = Fault::AtStart(InstanceError::Busy("its queue is full".into()));
        Arc::new(speaker)
    };
    let kit = Kit::new(defaults(), vec![busy(), busy()]);
    assert_eq!(kit.post(COMPLETIONS, ask()).await.json()["error"]["code"], "queue_full");
    assert_eq!(counted(&kit, r#"evenkeel_rejections_total{reason="queue_full"}"#).await, 1);
}
