//! Explanations over a real bus, its tables and the SQL engine.

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use http_body_util::BodyExt;
use queries::{LiveTables, SqlLimits};
use tower::ServiceExt;

use super::*;
use crate::{
    bus::{
        BusGuard,
        tests::rows::{candidate, decision, shadow},
    },
    config::{self, Key, Overrides},
    policy::Tier,
    rows::{DecisionRow, PolicyInputRow, RequestRow},
};

struct Fixture {
    bus: Bus,
    router: Router,
    _guard: BusGuard,
}

impl Fixture {
    fn new() -> Self {
        let config = config::load(None, Overrides::default()).unwrap();
        let tables = Arc::new(LiveTables::new(1000));
        let (bus, guard) = Bus::start(&config.bus, None, tables.clone(), Arc::new(|| 0)).unwrap();
        let limits = SqlLimits {
            timeout: Duration::from_secs(20),
            memory_bytes: 64 << 20,
            rows_max: 1000,
            statement_bytes_max: 1 << 14,
            concurrent_max: 2,
        };
        let key = |key: &str, tenant: &str| Key::new(key, tenant, Tier::High);
        let door = ExplainDoor {
            engine: Arc::new(SqlEngine::new(limits, tables, tokio::runtime::Handle::current())),
            bus: bus.clone(),
            keys: Keys::new(&[key("k1", "acme"), key("k2", "o'hara")]),
            life_max: Duration::from_secs(600),
        };
        Self { bus, router: routes(Arc::new(door)), _guard: guard }
    }

    async fn ask(&self, id: &str, key: &str) -> (StatusCode, Value) {
        let request = Request::get(format!("/v1/requests/{id}/explain"))
            .header("authorization", format!("Bearer {key}"))
            .body(Body::empty())
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, body) = (response.status(), response.into_body().collect().await.unwrap().to_bytes());
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// A request that waited, was routed, moved and finished.
    async fn publish(&self, id: &str, tenant: &str) {
        let at = arrival_of(id).unwrap();
        let event = |seq: u32, event: &str| RequestRow {
            at: at + i64::from(seq) * 1000,
            request_id: id.into(),
            seq,
            event: event.into(),
            tenant: tenant.into(),
            output_tokens: seq,
            gap_us: (event == "grew").then_some(i64::from(seq)),
            finish_reason: (event == "finished").then(|| "stop".into()),
            ..RequestRow::default()
        };
        for (seq, name) in (1..).zip(["arrived", "queued", "dispatched", "first_token", "grew", "grew", "finished"]) {
            self.bus.publish(event(seq, name)).await.unwrap();
        }
        let decided = |number: i64, outcome: &str, reason: &str, instance| DecisionRow {
            at: at + number * 1500,
            decision_id: format!("dec-{id}-{number}").into(),
            request_id: id.into(),
            tenant: tenant.into(),
            outcome: outcome.into(),
            reason: reason.into(),
            instance,
            ..decision(vec![candidate(1)])
        };
        let waited = "waited 2 ms; least_seconds: w1 in 0.5 s";
        for row in [
            decided(1, "queue", "no lease free: 1 requests with 9 tokens wait", None),
            decided(2, "admit", waited, Some(1)),
            decided(3, "admit", "moved, since it was lost; least_seconds: w0 in 0.7 s", Some(0)),
        ] {
            let input = PolicyInputRow {
                at: row.at,
                reading: "placement".into(),
                decision_id: row.decision_id.clone(),
                request_id: id.into(),
                view_mode: "exact".into(),
                excluded: vec![7],
                slo_whole_us: Some(9),
                block_hashes: vec![vec![1]],
                ..PolicyInputRow::default()
            };
            let other = crate::rows::ShadowDecisionRow {
                at: row.at,
                request_id: id.into(),
                shadow: "even".into(),
                ..shadow(&row.decision_id)
            };
            self.bus.publish(input).await.unwrap();
            self.bus.publish(row).await.unwrap();
            self.bus.publish(other).await.unwrap();
        }
    }
}

fn new_id() -> String {
    crate::gateway::decision::new_id("req").into()
}

/// Scenario: two tenants' requests that waited, were routed and moved; each asks for its own, for the other's, for one that never was,
/// and for texts that are no ids; someone without a key asks.
/// Guarantees: the answer tells events, sums of tokens, every decision with its candidates, inputs and shadows, and the course in
/// words; of what is not the caller's there is a typed 404, the same as of what does not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_step_is_told_to_its_owner_alone() {
    let fixture = Fixture::new();
    let (mine, theirs) = (new_id(), new_id());
    fixture.publish(&mine, "acme").await;
    fixture.publish(&theirs, "o'hara").await;
    let (status, told) = fixture.ask(&mine, "k1").await;
    assert_eq!(status, StatusCode::OK, "{told}");
    assert_eq!((told["request_id"].as_str(), told["state"].as_str()), (Some(mine.as_str()), Some("finished")));
    let events: Vec<_> = told["events"].as_array().unwrap().iter().map(|row| row["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["arrived", "queued", "dispatched", "first_token", "finished"]);
    assert_eq!((told["tokens"]["steps"].as_u64(), told["tokens"]["longest_gap_us"].as_i64()), (Some(2), Some(6)));
    let decisions = told["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 3);
    for decision in decisions {
        assert_eq!(decision["candidates"][0]["compared_seconds"], serde_json::json!(1.25), "{decision}");
        let input = &decision["inputs"][0];
        assert_eq!((&input["excluded"], &input["slo_whole_us"]), (&json!([7]), &json!(9)), "{decision}");
        assert!(input.get("block_hashes").is_none(), "{decision}");
        assert_eq!(decision["shadow"][0]["shadow"], "even", "{decision}");
    }
    let lines: Vec<&str> = told["summary"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    let words: Vec<&str> = lines.iter().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(
        words,
        [
            "classed High: short",
            "queued: no lease free: 1 requests with 9 tokens wait",
            "routed to w1: waited 2 ms; least_seconds: w1 in 0.5 s",
            "first_token",
            "moved to w0: moved, since it was lost; least_seconds: w0 in 0.7 s",
            "finished: stop",
        ]
    );
    assert_eq!(fixture.ask(&theirs, "k2").await.0, StatusCode::OK);
    let missing = new_id();
    for (id, key) in
        [(&theirs, "k1"), (&mine, "k2"), (&missing, "k1"), (&mine.to_uppercase(), "k1"), (&"req-1".into(), "k1")]
    {
        let (status, body) = fixture.ask(id, key).await;
        assert_eq!(
            (status, body["error"]["code"].as_str()),
            (StatusCode::NOT_FOUND, Some("request_not_found")),
            "{body}"
        );
    }
    assert_eq!(fixture.ask(&mine, "wrong").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(fixture.ask("req-'%20or%201=1--", "k1").await.0, StatusCode::NOT_FOUND);
}

/// Scenario: a request of some time ago, by its id.
/// Guarantees: the id says when it came, to the millisecond.
#[test]
fn ids_say_when() {
    let at = arrival_of("req-019b8d2f6c007000800000000000000a").unwrap();
    assert_eq!(at, 0x019b_8d2f_6c00 * 1000);
    assert_eq!(arrival_of("req-019b8d2f-6c00-7000-8000-00000000000a"), None);
    assert_eq!(arrival_of("dec-019b8d2f6c007000800000000000000a"), None);
}
