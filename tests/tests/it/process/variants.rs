//! Two precisions of one model under one name, in processes of their own (SPEC D1).

use std::process::Command;

use serde_json::{Value, json};
use tests::server::{Server, client};

use super::completion;

const SETTINGS: &str = r#"
[[model.variants]]
name = "exact"
arithmetic = "f32"
[[model.variants]]
name = "q4"
weights = "q4_0"
[workers]
restart_backoff = "60s"
restart_backoff_max = "60s"
[policy.tiers]
high_tokens_max = 60
low_tokens_min = 61
[policy.variants.by_tier]
high = ["exact", "q4"]
low = ["q4", "exact"]
"#;

/// The text and the variant that served it.
async fn served(server: &Server, body: &Value) -> (String, String) {
    let response = client().post(format!("{}/v1/completions", server.url)).json(body).send().await.unwrap();
    assert_eq!(response.status(), 200, "{}", server.log());
    let variant = response.headers()["x-evenkeel-variant"].to_str().unwrap().to_string();
    let answer: Value = response.json().await.unwrap();
    (answer["choices"][0]["text"].as_str().unwrap().to_string(), variant)
}

/// Scenario: a High and a Low request to one model name; the process of the High one's variant is killed; the High request
/// comes again.
/// Guarantees: each is served by its tier's variant, in its own arithmetic; then by the fallback, whose text is that of the
/// variant and not of the lost one; instances, requests and decisions say all that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiers_are_served_by_their_variants_and_by_the_fallback() {
    let Some(server) = Server::start(SETTINGS).await else { return };
    let ready = "select instance, variant, pid from instances where state = 'ready' order by instance";
    let rows = server.until(ready, |rows| rows.len() == 2).await;
    assert_eq!([&rows[0]["variant"], &rows[1]["variant"]], ["exact", "q4"]);
    let high = completion("a short prompt", 40);
    let low = completion(&"a longer prompt ".repeat(8), 40);
    let (exact, variant) = served(&server, &high).await;
    assert_eq!(variant, "exact");
    assert_eq!(served(&server, &low).await.1, "q4");

    let pid = rows[0]["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());
    server.until("select 1 as one from instances where state = 'dead'", |rows| !rows.is_empty()).await;
    let (rough, variant) = served(&server, &high).await;
    assert_eq!(variant, "q4");
    assert_ne!(rough, exact, "four bits are not the exact model");

    let finished = "select tier, variant from requests where event = 'finished' order by at";
    let rows = server.until(finished, |rows| rows.len() == 3).await;
    let seen: Vec<Value> = rows.iter().map(|row| json!([row["tier"], row["variant"]])).collect();
    assert_eq!(seen, [json!(["High", "exact"]), json!(["Low", "q4"]), json!(["High", "q4"])]);
    let fallback = "select reason from decisions where variant = 'q4' and tier = 'High'";
    let rows = server.until(fallback, |rows| !rows.is_empty()).await;
    let reason = rows[0]["reason"].as_str().unwrap();
    assert!(reason.contains("variant q4, since exact has no ready instance"), "{reason}");
    server.stop();
}
