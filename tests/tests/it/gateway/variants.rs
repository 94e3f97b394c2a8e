//! Several precisions of one model: who is served by which, the fallback, and what the response and the rows say (SPEC D1).

use std::sync::Arc;

use axum::http::StatusCode;
use pipeline::{
    config::{Config, Variant},
    gateway::instances::InstanceError,
    ids::InstanceId,
    policy::{PrefixHits, TierOrders},
};
use serde_json::{Value, json};
use tests::gateway_kit::{Answer, Fault, Kit, Speaker, defaults};
use tokio::sync::Semaphore;

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

/// High is served by `exact`, then `small`; Low by `small`, then `exact`; up to 30 tokens are High, more are Low.
fn settings() -> Config {
    let mut config = defaults();
    config.model.variants = vec![Variant::named("exact"), Variant::named("small")];
    config.policy.variants.by_tier =
        TierOrders { high: names(&["exact", "small"]), medium: names(&["small"]), low: names(&["small", "exact"]) };
    (config.policy.tiers.high_tokens_max, config.policy.tiers.low_tokens_min) = (30, 31);
    config
}

/// Instance 0 serves `exact` and says so, instance 1 `small`.
fn kit(config: Config) -> Kit {
    let kit = Kit::new(config, vec![]);
    for (id, variant) in [(0, "exact"), (1, "small")] {
        kit.put_variant((id, variant), 1, Some(Arc::new(Speaker::new(variant))));
    }
    kit
}

fn ask(prompt_tokens: usize) -> Value {
    json!({"model": "tiny", "prompt": "x".repeat(prompt_tokens), "max_tokens": 20})
}

async fn served(kit: &Kit, prompt_tokens: usize) -> (String, String) {
    let answer: Answer = kit.post("/v1/completions", ask(prompt_tokens)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let text = answer.json()["choices"][0]["text"].as_str().unwrap().to_string();
    (text, answer.header("x-evenkeel-variant").to_string())
}

/// Scenario: a short and a long prompt; then the instance of `exact` dies.
/// Guarantees: the tier gives the variant; without its instance the next one serves, and the decision says so; header and
/// rows name the variant that served.
#[tokio::test]
async fn the_tier_gives_the_variant_and_the_fallback_serves() {
    let kit = kit(settings());
    assert_eq!(served(&kit, 10).await, ("exact".into(), "exact".into()));
    assert_eq!(served(&kit, 100).await, ("small".into(), "small".into()));
    kit.put_variant((0, "exact"), 2, None);
    assert_eq!(served(&kit, 10).await, ("small".into(), "small".into()));
    let decisions = kit.rows.decisions.lock().unwrap();
    let told: Vec<(&str, Option<&str>, bool)> = decisions
        .iter()
        .map(|row| {
            (row.tier.as_str(), row.variant.as_deref(), row.reason.contains("since exact has no ready instance"))
        })
        .collect();
    assert_eq!(told, [("High", Some("exact"), false), ("Low", Some("small"), false), ("High", Some("small"), true)]);
    let requests = kit.rows.requests.lock().unwrap();
    let seen = |event: &str| -> Vec<Option<&str>> {
        requests.iter().filter(|row| row.event == event).map(|row| row.variant.as_deref()).collect()
    };
    assert_eq!(seen("arrived"), [None; 3]);
    assert_eq!(seen("finished"), [Some("exact"), Some("small"), Some("small")]);
}

/// Scenario: a tenant that may have `exact` only, and its instance dies while `small` is idle.
/// Guarantees: 503 with the reason; a variant that is not in the order never serves.
#[tokio::test]
async fn what_is_not_in_the_order_never_serves() {
    let mut config = settings();
    config.policy.variants.by_tenant.insert("local".into(), names(&["exact"]));
    let kit = kit(config);
    assert_eq!(served(&kit, 100).await.1, "exact");
    kit.put_variant((0, "exact"), 2, None);
    let answer = kit.post("/v1/completions", ask(100)).await;
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].clone()),
        (StatusCode::SERVICE_UNAVAILABLE, json!("no_instance"))
    );
    assert_eq!(answer.header("x-evenkeel-variant"), "");
}

/// Scenario: the whole prompt cached by `small`, a short prompt that `exact` serves.
/// Guarantees: KV of another variant is no hit: neither predicted nor a reason to go there.
#[tokio::test]
async fn hits_of_another_variant_do_not_count() {
    let kit = kit(settings());
    *kit.views.hits.lock().unwrap() = PrefixHits::near([(InstanceId(1), 16)]);
    assert_eq!(served(&kit, 20).await.1, "exact");
    let decision = kit.rows.decisions.lock().unwrap()[0].clone();
    assert_eq!(
        (decision.predicted_hit_tokens, decision.candidates.len(), decision.candidates[0].hit_tokens),
        (0, 1, 0)
    );
}

/// Scenario: the only instance of `exact` is lost in the middle of a stream.
/// Guarantees: the stream goes on with the fallback and ends; the move is a decision that names the variant.
#[tokio::test]
async fn a_stream_goes_on_with_the_fallback() {
    let kit = kit(settings());
    let dying = Speaker::new("the same text");
    *dying.fault.lock().unwrap() = Fault::After(4, InstanceError::Lost("connection reset".into()));
    kit.put_variant((0, "exact"), 2, Some(Arc::new(dying)));
    kit.put_variant((1, "small"), 2, Some(Arc::new(Speaker::new("the same text"))));
    let mut body = ask(10);
    body["stream"] = json!(true);
    let answer = kit.post("/v1/completions", body).await;
    assert_eq!(answer.streamed_text(0), "the same text");
    let decisions = kit.rows.decisions.lock().unwrap();
    assert_eq!(decisions.iter().map(|row| row.variant.as_deref()).collect::<Vec<_>>(), [Some("exact"), Some("small")]);
    assert!(decisions[1].reason.starts_with("moved, since instance lost"), "{}", decisions[1].reason);
}

/// Scenario: one request at a time on each instance; `exact` is busy, another High request waits for it; then a Low one comes,
/// and a second Low one while the first still runs.
/// Guarantees: the Low request goes to the idle `small` at once, whoever waits for `exact`; the second waits like the High one;
/// all end once there is room.
#[tokio::test]
async fn who_waits_for_one_variant_holds_up_no_other() {
    let mut config = settings();
    config.policy.route.lease_tokens_max = 1;
    let calm = pipeline::policy::Threshold { enter: 1e9, exit: 1e8 };
    let throttle = &mut config.policy.throttle;
    (throttle.shape_batch, throttle.throttle_low, throttle.throttle_medium) = (calm, calm, calm);
    (throttle.shrink, throttle.throttle_high) = (calm, calm);
    let kit = Arc::new(Kit::new(config, vec![]));
    let paces = ["exact", "small"].map(|_| Arc::new(Semaphore::new(0)));
    for (id, variant) in [(0, "exact"), (1, "small")] {
        let pace = Some(paces[id as usize].clone());
        kit.put_variant((id, variant), 1, Some(Arc::new(Speaker { pace, ..Speaker::new(variant) })));
    }
    let send = |prompt_tokens: usize| {
        let kit = kit.clone();
        tokio::spawn(async move { served(&kit, prompt_tokens).await.1 })
    };
    let dispatched = || kit.rows.events().iter().filter(|event| *event == "dispatched").count();
    let queued = || kit.rows.events().iter().filter(|event| *event == "queued").count();
    let mut sent = vec![send(10)];
    kit.until("exact runs", || dispatched() == 1).await;
    sent.push(send(11));
    kit.until("the second High one waits", || queued() == 1).await;
    sent.push(send(100));
    kit.until("small runs", || dispatched() == 2).await;
    sent.push(send(101));
    kit.until("the second Low one waits", || queued() == 3).await;
    assert_eq!(dispatched(), 2);
    paces.iter().for_each(|pace| pace.add_permits(100));
    let mut variants = Vec::new();
    for request in sent {
        variants.push(request.await.unwrap());
    }
    assert_eq!(variants, ["exact", "exact", "small", "small"]);
}
