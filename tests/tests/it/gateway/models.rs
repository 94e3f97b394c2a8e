//! Several models behind one entry (SPEC D3): who is asked for, what each serves, and that no neighbour's burst is felt.

use std::sync::{Arc, atomic::Ordering};

use axum::http::StatusCode;
use pipeline::{
    config::{Config, ModelGroup, Variant},
    policy::DEFAULT_VARIANT,
};
use serde_json::{Value, json};
use tests::gateway_kit::{Kit, Speaker, defaults};
use tokio::sync::Semaphore;

/// Models `chat` and `code`.
fn two() -> Config {
    let mut config = defaults();
    config.models = vec![ModelGroup::named("chat"), ModelGroup::named("code")];
    config
}

/// Instance 0 serves `chat`, instance 1 `code`, each with its own words.
fn kit(config: Config) -> Kit {
    let kit = Kit::new(config, vec![]);
    kit.put_model((0, "chat", DEFAULT_VARIANT), 1, Some(Arc::new(Speaker::new("hello"))));
    kit.put_model((1, "code", DEFAULT_VARIANT), 1, Some(Arc::new(Speaker::new("fn main"))));
    kit
}

fn ask(model: &str) -> Value {
    json!({"model": model, "prompt": "x".repeat(40), "max_tokens": 20})
}

/// Scenario: both models are listed, asked and asked for by id; then a name that nobody has.
/// Guarantees: each request is served by its model's instance, and answer, decision and rows name it; the unknown name is
/// OpenAI's 404 that lists what there is, and its rows blame no model.
#[tokio::test]
async fn each_name_has_its_instances() {
    let kit = kit(two());
    let listed = kit.get("/v1/models").await.json();
    let ids: Vec<&str> = listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["chat", "code"]);
    assert_eq!(kit.get("/v1/models/code").await.json()["id"], "code");
    let mut fingerprints = Vec::new();
    for (model, words, instance) in [("chat", "hello", 0), ("code", "fn main", 1)] {
        let answer = kit.post("/v1/completions", ask(model)).await;
        let body = answer.json();
        assert_eq!((&body["model"], &body["choices"][0]["text"]), (&json!(model), &json!(words)));
        fingerprints.push(body["system_fingerprint"].to_string());
        let decision = kit.rows.decisions.lock().unwrap().last().unwrap().clone();
        assert_eq!((decision.model.as_str(), decision.instance), (model, Some(instance)));
        assert_eq!(decision.candidates.len(), 1, "a neighbour's instance is no candidate");
    }
    assert_ne!(fingerprints[0], fingerprints[1]);
    for answer in [kit.post("/v1/completions", ask("chatt")).await, kit.get("/v1/models/chatt").await] {
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with("The model `chatt` does not exist") && message.contains("`chat`, `code`"),
            "{message}"
        );
    }
    let requests = kit.rows.requests.lock().unwrap();
    let models: Vec<&str> = requests.iter().filter(|row| row.event != "grew").map(|row| row.model.as_str()).collect();
    let of = |model| [model; 4];
    assert_eq!(models, [of("chat").as_slice(), of("code").as_slice(), &["none"]].concat());
}

/// Scenario: one prompt for both models, whose tokens are the same.
/// Guarantees: no block hash of one is one of the other; the first model's are those without a salt, and each engine is told
/// the salt that the gateway counted with.
#[tokio::test]
async fn blocks_of_two_models_never_mix() {
    let kit = Kit::new(two(), vec![]);
    let speakers = ["chat", "code"].map(|_| Arc::new(Speaker::new("a")));
    for (id, model) in [(0, "chat"), (1, "code")] {
        kit.put_model((id, model, DEFAULT_VARIANT), 1, Some(speakers[id as usize].clone()));
        kit.post("/v1/completions", ask(model)).await;
    }
    let alone = Kit::new(defaults(), vec![Arc::new(Speaker::new("a"))]);
    alone.post("/v1/completions", ask("tiny")).await;
    let blocks = |kit: &Kit| -> Vec<Vec<u64>> {
        let rows = kit.rows.requests.lock().unwrap();
        rows.iter().filter_map(|row| row.prompt_blocks.clone()).map(|prompts| prompts.concat()).collect()
    };
    let (seen, unsalted) = (blocks(&kit), blocks(&alone));
    assert_eq!((seen.len(), seen[0].len(), seen[1].len()), (2, 2, 2));
    assert!(seen[0].iter().all(|hash| !seen[1].contains(hash)), "{seen:?}");
    assert_eq!(seen[0], unsalted[0]);
    let salts = speakers.map(|speaker| speaker.calls.lock().unwrap()[0].cache_salt);
    assert!(salts[0] == 0 && salts[1] != 0, "{salts:?}");
}

/// Scenario: `chat` has room for one request and gets a burst that fills its queue, while its throttle goes through the steps
/// until it refuses; meanwhile requests for `code` come one after the other.
/// Guarantees (no noisy neighbour): every request for `code` is admitted at once, under an open throttle and an empty queue of its own,
/// and is answered before any of those that wait for `chat`; those are refused or wait as their own model's state says, and
/// end once there is room.
#[tokio::test]
async fn a_burst_on_one_model_is_not_felt_by_another() {
    let mut config = two();
    config.policy.route.lease_tokens_max = 1;
    let kit = Arc::new(kit(config));
    let pace = Arc::new(Semaphore::new(0));
    let busy = Arc::new(Speaker { pace: Some(pace.clone()), ..Speaker::new("hello") });
    kit.put_model((0, "chat", DEFAULT_VARIANT), 2, Some(busy.clone()));
    let send = |model: &'static str| {
        let kit = kit.clone();
        tokio::spawn(async move { kit.post("/v1/completions", ask(model)).await })
    };
    let mut burst = vec![send("chat")];
    kit.until("chat is full", || busy.live.load(Ordering::SeqCst) == 1).await;
    burst.extend((0..5).map(|_| send("chat")));
    let waiting = || kit.gateway.dispatcher.queue_load().requests;
    kit.until("the burst waits", || waiting() == 5).await;
    // The throttle takes a step each dwell time.
    for _ in 0..6 {
        kit.clock.advance(3_000_000);
        kit.gateway.tick().await;
        let answer = kit.post("/v1/completions", ask("code")).await;
        assert_eq!((answer.status, waiting()), (StatusCode::OK, 5), "{}", answer.text);
    }
    let refused = kit.post("/v1/completions", ask("chat")).await;
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].clone()),
        (StatusCode::TOO_MANY_REQUESTS, json!("throttled"))
    );

    let metrics = kit.get("/metrics").await.text;
    for line in [
        r#"evenkeel_throttle_step{model="chat"} 5"#,
        r#"evenkeel_throttle_step{model="code"} 0"#,
        r#"evenkeel_queue_requests{model="chat"} 5"#,
        r#"evenkeel_queue_requests{model="code"} 0"#,
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    pace.add_permits(1000);
    for request in burst {
        assert_eq!(request.await.unwrap().status, StatusCode::OK);
    }
    let decisions = kit.rows.decisions.lock().unwrap();
    let of_code: Vec<(&str, &str)> = decisions
        .iter()
        .filter(|row| row.model == "code")
        .map(|row| (row.outcome.as_str(), row.throttle_step.as_str()))
        .collect();
    assert_eq!(of_code, [("admit", "open"); 6]);
    let requests = kit.rows.requests.lock().unwrap();
    let ends: Vec<&str> = requests.iter().filter(|row| row.event == "finished").map(|row| row.model.as_str()).collect();
    assert_eq!(ends, [["code"; 6], ["chat"; 6]].concat());
    let steps = kit.rows.faults.lock().unwrap();
    assert!(steps.len() >= 5 && steps.iter().all(|row| row.detail.ends_with("model chat")), "{steps:?}");
}

/// Scenario: `chat` comes in two variants, `code` as it is; a tenant's order names a variant of `chat` alone; then `chat` has
/// no instance of it.
/// Guarantees: orders hold for the models that have those variants; a model without them serves all the same; a model that
/// has no instance says so and its neighbour goes on.
#[tokio::test]
async fn orders_of_variants_are_each_models_own() {
    let mut config = two();
    config.models[0].variants = vec![Variant::named("exact"), Variant::named("small")];
    config.policy.variants.by_tenant.insert("local".into(), vec!["small".into()]);
    let kit = Kit::new(config, vec![]);
    for (id, model, variant) in [(0, "chat", "exact"), (1, "chat", "small"), (2, "code", DEFAULT_VARIANT)] {
        kit.put_model((id, model, variant), 1, Some(Arc::new(Speaker::new(variant))));
    }
    let ask = async |model| kit.post("/v1/completions", ask(model)).await;
    assert_eq!(ask("chat").await.header("x-evenkeel-variant"), "small");
    assert_eq!(ask("code").await.header("x-evenkeel-variant"), DEFAULT_VARIANT);
    kit.put_model((1, "chat", "small"), 2, None);
    let refused = ask("chat").await;
    assert_eq!(refused.json()["error"]["code"], "no_instance");
    assert!(refused.text.contains("No instance serves `chat` now"), "{}", refused.text);
    assert_eq!(ask("code").await.status, StatusCode::OK);
}
