//! The dataflow decides, and serving goes on without it.

use serde_json::json;
use tests::server::Server;

use super::completion;

/// Scenario: the same long prompt twice, then once more with another ending.
/// Guarantees: the view learns who holds the prefix from the engine's events; the later requests go there, and the decision
/// row shows the hit; the load view counts the live request; the distribution counts the finished ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_steer_requests_to_the_cached_prefix() {
    let Some(server) = Server::start("").await else { return };
    let prompt = "one two three four five six seven eight nine ten eleven twelve".repeat(3);
    assert_eq!(server.post("/v1/completions", &completion(&prompt, 4)).await.status(), 200);
    let first = server.until("select instance from kv_events where event = 'stored'", |rows| rows.len() > 5).await;
    server.until("select 1 as one from instance_load where cached_blocks > 5", |rows| !rows.is_empty()).await;
    for ending in ["", " and more"] {
        let body = completion(&format!("{prompt}{ending}"), 4);
        let answer: serde_json::Value = server.post("/v1/completions", &body).await.json().await.unwrap();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert!(cached > Some(100), "{answer}");
    }
    server.until("select 1 as one from decisions", |rows| rows.len() == 3).await;
    let decided =
        "select instance, predicted_hit_tokens, view_mode, candidates from decisions order by at desc limit 2";
    for row in server.until(decided, |rows| rows.len() == 2).await {
        assert_eq!(row["instance"], first[0]["instance"], "{row}");
        assert!(row["predicted_hit_tokens"].as_u64() > Some(100), "{row}");
        assert_eq!((&row["view_mode"], row["candidates"].as_array().unwrap().len()), (&json!("exact"), 2));
    }
    server.until("select finished from request_distribution where finished = 3", |rows| !rows.is_empty()).await;
}

/// Scenario: a server with `dataflow.mode = "off"`.
/// Guarantees: it serves by the stated safe policy, and the decision says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_dataflow_the_safe_policy_serves() {
    let Some(server) = Server::start("[dataflow]\nmode = \"off\"\n").await else { return };
    for _ in 0..4 {
        assert_eq!(server.post("/v1/completions", &completion("hello", 4)).await.status(), 200);
    }
    let decided = "select instance, route_policy, view_mode from decisions";
    let rows = server.until(decided, |rows| rows.len() == 4).await;
    assert!(rows.iter().all(|row| row["view_mode"] == "off"), "{rows:?}");
    assert!(rows.iter().all(|row| row["route_policy"] == "least_outstanding_tokens"), "{rows:?}");
    let used: std::collections::BTreeSet<_> = rows.iter().map(|row| row["instance"].to_string()).collect();
    assert_eq!(used.len(), 2, "both instances take their turn: {rows:?}");
}
