//! `/metrics` of a running server: every metric has its line in the documentation, and Prometheus's own tool is content.

use std::collections::BTreeSet;

use serde_json::json;
use tests::{promtool, repository::root, server::Server};

use super::completion;

/// There only while something is so: a fault, shadow policies, traces, an audit that found something.
const NOT_ALWAYS: [&str; 7] = [
    "evenkeel_faults_total",
    "evenkeel_shadow_decisions_total",
    "evenkeel_shadow_decisions_dropped_total",
    "evenkeel_traces_sent_total",
    "evenkeel_traces_dropped_total",
    "evenkeel_cache_view_drift_ratio",
    "evenkeel_mode_degraded",
];

const PROMPT_LAYER: &str = "evenkeel_funnel_tokens_total{model=\"tiny\",layer=\"prompt\"}";

/// All series whose line begins so, added up.
fn sum(text: &str, name: &str) -> f64 {
    let series = text.lines().filter(|line| line.starts_with(name));
    series.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// Scenario: a server that has served a few requests, whose windows and periods are short.
/// Guarantees: `/metrics` has exactly the metrics that docs/monitoring.md lists, each with help; `promtool check metrics` finds nothing to
/// say; both text forms are there for who asks; the engines' figures add up to the gateway's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_as_documented() {
    let settings = "[dataflow]\nfunnel_window = \"200ms\"\ntrend_period = \"1s\"\naudit_interval = \"500ms\"\n";
    let Some(server) = Server::start(settings).await else { return };
    for _ in 0..3 {
        let answer = server.post("/v1/completions", &completion("what is measured here", 8)).await;
        assert_eq!(answer.status(), 200);
    }
    let documented = crate::monitoring::documented();
    let mut text = String::new();
    for _ in 0..200 {
        text = server.get("/metrics").await.unwrap().text().await.unwrap();
        let settled = sum(&text, PROMPT_LAYER) == sum(&text, "evenkeel_prompt_tokens_total")
            && sum(&text, "evenkeel_engine_decode_tokens_total{") + 3.0
                == sum(&text, "evenkeel_generation_tokens_total")
            && sum(&text, "evenkeel_deadlines_total{") == 3.0;
        if settled && text.contains("evenkeel_arrivals_per_second{") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let names = |kind: &str| -> BTreeSet<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(kind)?.split(' ').next());
        lines.map(String::from).collect()
    };
    let (helped, typed) = (names("# HELP "), names("# TYPE "));
    assert_eq!(helped, typed);
    let undocumented: Vec<&String> = helped.iter().filter(|name| !documented.contains(name.as_str())).collect();
    assert!(undocumented.is_empty(), "docs/monitoring.md lacks {undocumented:?}");
    let invented: Vec<&String> =
        documented.iter().filter(|name| !helped.contains(*name) && !NOT_ALWAYS.contains(&name.as_str())).collect();
    assert!(invented.is_empty(), "docs/monitoring.md has {invented:?}, which the server has not:\n{text}");
    if let Some(Err(said)) = promtool::run(&root(), &["check", "metrics"], &text) {
        panic!("promtool check metrics: {said}");
    }
    let sum = |name: &str| sum(&text, name);
    // The first token of each comes with its prefill.
    assert_eq!(sum("evenkeel_engine_decode_tokens_total{") + 3.0, sum("evenkeel_generation_tokens_total"), "{text}");
    assert_eq!((sum("evenkeel_engine_up{"), sum("evenkeel_deadlines_total{")), (2.0, 3.0), "{text}");
    assert_eq!(sum(PROMPT_LAYER), sum("evenkeel_prompt_tokens_total"), "{text}");

    let request = tests::server::client().get(format!("{}/metrics", server.url));
    let open = request.header("accept", "application/openmetrics-text; version=1.0.0").send().await.unwrap();
    assert!(open.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    assert!(open.text().await.unwrap().ends_with("# EOF\n"));
}

/// Scenario: a server starts, and serves. Guarantees: that its views had to begin is no fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_leaves_no_fault_of_the_views() {
    let Some(server) = Server::start("").await else { return };
    assert_eq!(server.post("/v1/completions", &completion("hello", 4)).await.status(), 200);
    server.until("select as_of from instance_load", |rows| !rows.is_empty()).await;
    assert_eq!(
        server.sql("select kind, detail from faults where kind = 'view_mode'").await,
        Vec::<serde_json::Value>::new()
    );
    let page = server.get("/").await.unwrap();
    assert_eq!(page.headers()["content-security-policy"], "frame-ancestors 'none'");
    assert_eq!(json!(page.headers()["x-frame-options"].to_str().unwrap()), "DENY");
}
