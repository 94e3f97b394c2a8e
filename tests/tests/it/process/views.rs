//! The dataflow decides, and serving goes on without it.

use std::time::Duration;

use pipeline::{
    ids::{InstanceId, ProcessEpoch},
    rows::KvEventRow,
    worker::{
        step_rows::RowOutlet,
        telemetry::{Telemetry, TelemetryConfig},
    },
};
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

/// Scenario: a long prompt, then another one, then the first again with another ending.
/// Guarantees: the table `mrc` answers over HTTP with the curve of what came: the first prompt's blocks are reused where
/// both prompts fit and not where the newer one fills the cache; the curve of the tenant and of the model is that of all,
/// as there is one of each; the query in the documentation of what twice the capacity would buy has an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacity_is_a_question_of_sql() {
    let Some(server) = Server::start("[dataflow]\nmrc_interval = \"200ms\"\n").await else { return };
    let (one, other) = ("one two three four five six ".repeat(8), "seven eight nine ten eleven ".repeat(8));
    for prompt in [&one, &other, &format!("{one}and more")] {
        assert_eq!(server.post("/v1/completions", &completion(prompt, 4)).await.status(), 200);
    }
    let curve = |scope: &str| {
        format!(
            "select capacity_blocks, capacity_tokens, hit_tokens, hit_rate, hit_rate_error, sampling_rate, prompt_tokens, \
             blocks_seen from mrc where scope = '{scope}' and prompts = 3 and as_of = (select max(as_of) from mrc \
             where scope = '{scope}') order by capacity_blocks nulls last"
        )
    };
    let all = server.until(&curve("all"), |rows| !rows.is_empty()).await;
    let blocks =
        server.until("select block_tokens, prompt_blocks from requests where event = 'arrived'", |r| r.len() == 3);
    let blocks = blocks.await;
    let block_tokens = blocks[0]["block_tokens"].as_u64().unwrap();
    let full: Vec<u64> = blocks.iter().map(|row| row["prompt_blocks"][0].as_array().unwrap().len() as u64).collect();
    let unbounded = all.last().unwrap();
    assert!(unbounded["capacity_blocks"].is_null() && full[0] > 4 && full[1] > 4, "{unbounded} {full:?}");
    assert_eq!(unbounded["hit_tokens"].as_u64(), Some(full[0] * block_tokens), "{unbounded}");
    let hits = |capacity: u64| {
        let row = all.iter().rfind(|row| row["capacity_blocks"].as_u64().is_some_and(|blocks| blocks <= capacity));
        row.unwrap()["hit_tokens"].as_u64().unwrap()
    };
    assert_eq!((hits(full[1]), hits(2 * (full[0] + full[1]))), (0, full[0] * block_tokens));
    assert!(all.iter().all(|row| row["hit_rate_error"] == 0.0 && row["sampling_rate"] == 1.0), "{all:?}");
    assert_eq!(all[0]["capacity_tokens"].as_u64(), Some(block_tokens));
    for scope in ["model", "tenant"] {
        assert_eq!(server.until(&curve(scope), |rows| !rows.is_empty()).await, all, "{scope}");
    }
    let documents = std::fs::read_to_string(tests::repository::root().join("docs/sql.md")).unwrap();
    let (_, section) = documents.split_once("How much would twice the capacity buy?").unwrap();
    let query = section.split("```sql").nth(1).unwrap().split("```").next().unwrap();
    let answer = server.until(query, |rows| !rows.is_empty()).await;
    assert_eq!(answer[0]["hit_rate_at_twice"], unbounded["hit_rate"], "{answer:?}");
}

/// Scenario: a server with `dataflow.mode = "off"`.
/// Guarantees: it serves by the stated safe policy, and the decision says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_dataflow_the_safe_policy_serves() {
    let Some(server) = Server::start("[dataflow]\nmode = \"off\"\n").await else { return };
    // It is ready with the first.
    server.until("select distinct instance from instances where state = 'ready'", |rows| rows.len() == 2).await;
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

/// Scenario: chats of two conversations, one of them with a second turn, and completions until the predictors have seen
/// enough; a window and a period of a second.
/// Guarantees: every view of load, sessions and predictions has rows that fit what was sent; the predictors' own errors
/// are told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predictors_learn_from_real_requests() {
    let config = "[dataflow]\nwindow = \"6s\"\ntrend_period = \"1s\"\ntrend_season = \"10s\"\ntrend_horizon = \"2s\"\n";
    let Some(server) = Server::start(config).await else { return };
    let mut messages = vec![json!({"role": "user", "content": "hello"})];
    for turn in 1..=2 {
        let chat = json!({"model": "tiny", "messages": messages, "max_tokens": 4});
        assert_eq!(server.post("/v1/chat/completions", &chat).await.status(), 200);
        let said = [("assistant", "hi"), ("user", "and now?")];
        messages.extend(said.map(|(role, content)| json!({"role": role, "content": format!("{content} {turn}")})));
    }
    let other = json!({"model": "tiny", "messages": [{"role": "user", "content": "good day"}], "max_tokens": 4});
    assert_eq!(server.post("/v1/chat/completions", &other).await.status(), 200);
    let sessions = "select requests, turns_p50, turns_p95 from session_activity where sessions = 2";
    let told = server.until(sessions, |rows| !rows.is_empty()).await;
    assert_eq!((told[0]["requests"].as_u64(), told[0]["turns_p50"].as_f64()), (Some(3), Some(1.0)), "{told:?}");

    for number in 0..40u32 {
        let prompt = format!("{number} ").repeat(8 + number as usize % 5 * 20);
        assert_eq!(server.post("/v1/completions", &completion(&prompt, 6 + number % 7)).await.status(), 200);
    }
    // Requests that are live whenever the views are published.
    let busy = async {
        loop {
            let four = [0, 1, 2, 3].map(|number| completion(&format!("a long story {number}"), 400));
            futures::future::join_all(four.iter().map(|body| server.post("/v1/completions", body))).await;
        }
    };
    let totals = "select distinct grouped_by from load_totals where tokens > 0";
    tokio::select! {
        () = busy => {}
        rows = server.until(totals, |rows| rows.len() == 4) => assert_eq!(rows.len(), 4),
    }
    let known = "select shape, prefill_steps, decode_steps, decode_100_seconds_p50, prefill_1000_seconds_p95 from service_time \
                 order by as_of desc limit 1";
    let is_known = |row: &serde_json::Value| {
        let is_there = |name: &str| row[name].as_f64() > Some(0.0);
        let is_of_model = row["shape"].as_str().is_some_and(|shape| shape.starts_with("tiny"));
        is_of_model && is_there("decode_100_seconds_p50") && is_there("prefill_1000_seconds_p95")
    };
    server.until(known, |rows| rows.iter().any(is_known)).await;
    let lengths = "select answers, output_p05, tier from output_length where tier is null and answers >= 43";
    let told = server.until(lengths, |rows| !rows.is_empty()).await;
    // Every answer was cut off, so all that is known of lengths is that they are not below the longest.
    assert!(told[0]["output_p05"].as_f64() >= Some(12.0), "{told:?}");
    server.until("select 1 as one from arrival_trend where periods > 3", |rows| !rows.is_empty()).await;
    let errors =
        "select predictor, sum(predictions) as n from prediction_error group by predictor having sum(predictions) > 0";
    server.until(errors, |rows| rows.len() == 5).await;
    let live =
        "select 1 as one from request_distribution where arrivals_per_second > 0 and concurrent_tokens is not null";
    server.until(live, |rows| !rows.is_empty()).await;
}

/// Scenario: the events of a worker are disturbed: somebody else tells of a block under the number of its next event, so
/// that the index has a block that is not there and takes the worker's own event for a duplicate.
/// Guarantees: the worker's account of its blocks shows the drift; the index asks for the blocks, has them exactly again,
/// and says each of this in `cache_view` and in the metrics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drift_is_found_and_repaired() {
    let settings = "[workers]\ncount = 1\n[dataflow]\naudit_interval = \"200ms\"\n";
    let Some(server) = Server::start(settings).await else { return };
    let prompt = "one two three four five six seven eight nine ten eleven twelve".repeat(3);
    assert_eq!(server.post("/v1/completions", &completion(&prompt, 4)).await.status(), 200);
    let sound = "select held_blocks, drift_ratio from cache_view where event = 'audit' and held_blocks > 5";
    let rows = server.until(sound, |rows| !rows.is_empty()).await;
    assert!(rows.iter().all(|row| row["drift_ratio"] == 0.0), "{rows:?}");

    // Nothing happens between two requests, so the last row is the end of an account.
    let last = "select instance, epoch, seq, event, bucket from kv_events order by seq desc limit 1";
    let last = server.until(last, |rows| rows[0]["event"] == "sum" && rows[0]["bucket"] == 15).await.remove(0);
    let number = |name: &str| last[name].as_u64().or_else(|| last[name].as_str()?.parse().ok()).unwrap();
    let log = server.log();
    let flight = log.split("grpc://").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let config = TelemetryConfig {
        flight,
        instance: InstanceId(9),
        epoch: ProcessEpoch(1),
        flush_rows: 1,
        flush_interval: Duration::from_millis(1),
        queue_rows: 8,
    };
    let (telemetry, outlet) = Telemetry::start(config);
    outlet.kv_events(vec![KvEventRow {
        at: 1,
        instance: number("instance") as u32,
        epoch: number("epoch"),
        seq: number("seq") + 1,
        event: "stored".into(),
        block_hash: Some(77),
        level: Some("L1".into()),
        tokens: Some(16),
        ..KvEventRow::default()
    }]);
    server.until("select 1 as one from kv_events where block_hash = 77", |rows| !rows.is_empty()).await;
    assert_eq!(server.post("/v1/completions", &completion(&format!("other {prompt}"), 4)).await.status(), 200);

    let found = "select differing_blocks from cache_view where event = 'listing' and differing_blocks > 0";
    server.until(found, |rows| !rows.is_empty()).await;
    let modes = "select mode, cause from cache_view where event = 'mode' order by at";
    let modes = server.until(modes, |rows| rows.len() >= 3).await;
    assert!(modes.contains(&json!({"mode": "degraded", "cause": "drift"})), "{modes:?}");
    assert_eq!(modes.last(), Some(&json!({"mode": "exact", "cause": "sound"})));
    let late = server.until("select reason, field from refused_rows", |rows| !rows.is_empty()).await;
    assert_eq!(late[0], json!({"reason": "late", "field": "at"}), "the forged row is of long ago");
    let metrics = server.get("/metrics").await.unwrap().text().await.unwrap();
    assert!(metrics.contains("evenkeel_cache_view_exact_instances 1"), "{metrics}");
    telemetry.finish(Duration::from_secs(1)).await;
}
