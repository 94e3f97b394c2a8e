//! Where the hit rate is lost, and why the slowest requests are slow, over a real server (SPEC C5, D4).

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tests::server::Server;

use super::completion;

/// Tokens of one request's funnel rows, by layer and reason (empty for what reached the layer).
async fn funnel_of(server: &Server, request: &str) -> BTreeMap<(String, String), i64> {
    let query = format!(
        "select layer, coalesce(reason, '') as reason, sum(tokens) as tokens from funnel \
         where request_id = '{request}' group by layer, reason"
    );
    let rows = server.until(&query, |rows| !rows.is_empty()).await;
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_string();
    rows.iter().map(|row| ((text(row, "layer"), text(row, "reason")), row["tokens"].as_i64().unwrap())).collect()
}

fn at(funnel: &BTreeMap<(String, String), i64>, layer: &str, reason: &str) -> i64 {
    funnel.get(&(layer.to_string(), reason.to_string())).copied().unwrap_or(0)
}

/// Every layer is the next one plus what was lost on the way to it.
fn reconcile(funnel: &BTreeMap<(String, String), i64>) {
    const LAYERS: [&str; 7] = ["prompt", "potential", "present", "visible", "eligible", "selected", "delivered"];
    for pair in LAYERS.windows(2) {
        let lost: i64 =
            funnel.iter().filter(|((layer, reason), _)| layer == pair[1] && !reason.is_empty()).map(|(_, n)| n).sum();
        assert_eq!(at(funnel, pair[0], ""), at(funnel, pair[1], "") + lost, "{} in {funnel:?}", pair[1]);
    }
}

/// Sends a completion and gives the request's id.
async fn send(server: &Server, prompt: &str) -> String {
    let answer = server.post("/v1/completions", &completion(prompt, 2)).await;
    assert_eq!(answer.status(), 200);
    answer.headers()["x-evenkeel-request-id"].to_str().unwrap().to_string()
}

fn prompt(number: usize) -> String {
    format!("{number:04} ").repeat(60)
}

/// Scenario: one worker with room for a few prompts; a prompt, then many others (a storm), then the first again.
/// Guarantees: the second time its tokens were seen before but are gone: the funnel says so, evicted between potential and
/// present; the sums reconcile for each request and over the window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_storm_is_named() {
    let settings = "[workers]\ncount = 1\nkv_bytes_max = \"256KiB\"\n[dataflow]\nfunnel_window = \"1s\"\n";
    let Some(server) = Server::start(settings).await else { return };
    let first = send(&server, &prompt(0)).await;
    for number in 1..30 {
        send(&server, &prompt(number)).await;
    }
    server.until("select 1 as one from kv_events where event = 'removed'", |rows| rows.len() > 20).await;
    // What was told of before the decision is known to the funnel: the view has closed an epoch after it.
    let seen = "select count(distinct request_id) as n from funnel";
    server.until(seen, |rows| rows[0]["n"].as_i64() >= Some(20)).await;
    let again = send(&server, &prompt(0)).await;
    let funnel = funnel_of(&server, &first).await;
    reconcile(&funnel);
    assert_eq!((at(&funnel, "prompt", ""), at(&funnel, "potential", "")), (300, 0), "{funnel:?}");
    assert_eq!(at(&funnel, "potential", "never_seen"), 300);
    let funnel = funnel_of(&server, &again).await;
    reconcile(&funnel);
    assert!(at(&funnel, "potential", "") >= 288, "{funnel:?}");
    assert!(at(&funnel, "present", "evicted") >= 256, "{funnel:?}");
    let window = "select sum(case when reason is null then tokens else 0 end) as prompt, \
                  (select sum(tokens) from funnel_window where span = 'tumbling' and \
                   (reason is not null or layer = 'delivered')) as rest \
                  from funnel_window where span = 'tumbling' and layer = 'prompt'";
    server.until(window, |rows| rows[0]["prompt"] == json!(31 * 300) && rows[0]["prompt"] == rows[0]["rest"]).await;
    let why = "select layer, reason, sum(tokens) as tokens, sum(predicted_seconds) as seconds from funnel_window \
               where span = 'tumbling' and reason is not null group by layer, reason order by tokens desc";
    let rows = server.until(why, |rows| rows.iter().any(|row| row["reason"] == "evicted")).await;
    let evicted = rows.iter().find(|row| row["reason"] == "evicted").unwrap();
    assert!(evicted["seconds"].as_f64().unwrap() > 0.0, "{evicted}");
}

/// Scenario: views that close only every three seconds; the same prompt twice in quick succession.
/// Guarantees: the engine holds the prompt and reuses it, and the view did not know: that is a stale view and an unseen
/// hit, and the sums reconcile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_lags_is_named_stale() {
    let settings = "[workers]\ncount = 1\n[dataflow]\nepoch = \"3s\"\nstale_after = \"9s\"\nfunnel_window = \"3s\"\n";
    let Some(server) = Server::start(settings).await else { return };
    let mut funnels = Vec::new();
    // Two pairs, since an epoch may end between the two of one.
    for number in [1, 2] {
        send(&server, &prompt(number)).await;
        funnels.push(send(&server, &prompt(number)).await);
    }
    let mut named = 0;
    for request in funnels {
        let funnel = funnel_of(&server, &request).await;
        reconcile(&funnel);
        let (stale, unseen) = (at(&funnel, "visible", "stale_view"), at(&funnel, "delivered", "unseen_hit"));
        named += usize::from(stale >= 256 && unseen <= -256);
    }
    assert!(named >= 1, "no pair within one epoch");
}

/// Scenario: finished requests on real workers.
/// Guarantees: each window with activity has one row of diagnosis with a verdict and its evidence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_are_diagnosed() {
    let Some(server) = Server::start("[dataflow]\nfunnel_window = \"1s\"\n").await else { return };
    let request = send(&server, &prompt(5)).await;
    let rows = server.until("select * from diagnosis where requests > 0", |rows| !rows.is_empty()).await;
    let row = &rows[0];
    assert_eq!(
        (&row["model"], &row["requests"], &row["slow_requests"]),
        (&json!("tiny"), &json!(1), &json!(1)),
        "{row}"
    );
    assert_eq!(row["worst_requests"], json!([request]), "{row}");
    assert!(row["slow_seconds"].as_f64() > Some(0.0) && row["queue_share"].is_number(), "{row}");
    // The first window has no fit to judge steps by; what is left to find is a queue.
    let waited = row["queue_share"].as_f64() > row["queue_share_most"].as_f64();
    assert_eq!(row["verdict"], if waited { "scheduling" } else { "too_little" }, "{row}");
}
