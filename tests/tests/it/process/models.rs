//! Several models behind one entry, in processes of their own (SPEC D3).

use std::fs;

use engine::model::tiny::tiny_llama_gguf;
use pipeline::{
    bus::Archive,
    replay::{Level, replay},
};
use serde_json::{Value, json};
use tests::server::{Server, client};

use super::completion;

/// The text, and how many prompt tokens were cached.
async fn served(server: &Server, model: &str, prompt: &str) -> (String, u64) {
    let mut body = completion(prompt, 12);
    body["model"] = json!(model);
    let response = client().post(format!("{}/v1/completions", server.url)).json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200, "{}", server.log());
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["model"], model);
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    (answer["choices"][0]["text"].as_str().unwrap().to_string(), cached)
}

/// Scenario: one file under two names and another file under a third, the first with two workers; each is asked with one prompt,
/// twice; then the log is replayed.
/// Guarantees: workers are numbered through and serve their model alone; the two names of one file give one text, the other
/// file another; what is cached under one name is a hit for that name alone, though the tokens are the same, in the
/// prediction, in the engine and in the funnel; every decision and view comes out of the log again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_have_their_own_workers_and_their_own_cache() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.gguf");
    fs::write(&other, tiny_llama_gguf(8)).unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let models = [
        format!("chat=file:{},workers:2", file("tiny.gguf")),
        format!("code=file:{},workers:1", file("tiny.gguf")),
        format!("{}", other.display()),
    ];
    let settings = "[workers]\ncount = 1\n[dataflow]\nepoch = \"50ms\"\nfunnel_window = \"500ms\"\n";
    let Some(server) = Server::start_models(folder.path(), settings, &models).await else { return };
    let ready = "select instance, model from instances where state = 'ready' order by instance";
    let rows = server.until(ready, |rows| rows.len() == 4).await;
    let of: Vec<&str> = rows.iter().map(|row| row["model"].as_str().unwrap()).collect();
    assert_eq!(of, ["chat", "chat", "code", "other"]);

    let prompt = "a prompt that is long enough to fill some blocks ".repeat(4);
    let (chat, cached) = served(&server, "chat", &prompt).await;
    assert_eq!(cached, 0);
    let indexed = "select 1 as one from kv_events where event = 'stored'";
    server.until(indexed, |rows| !rows.is_empty()).await;
    let (code, cached) = served(&server, "code", &prompt).await;
    assert_eq!((&code, cached), (&chat, 0), "the same file, but a cache of its own");
    assert_ne!(served(&server, "other", &prompt).await.0, chat);
    let hit =
        "select model, cast(max(predicted_hit_tokens) as int) as hit from decisions group by model order by model";
    for attempt in 0.. {
        assert!(served(&server, "chat", &prompt).await.1 > 0);
        let rows = server.sql(hit).await;
        if rows[0]["hit"].as_i64() > Some(0) {
            assert_eq!((&rows[1]["hit"], &rows[2]["hit"]), (&json!(0), &json!(0)), "{rows:?}");
            break;
        }
        assert!(attempt < 400, "{rows:?}");
    }
    let instances = "select distinct model, instance from decisions where outcome = 'admit' order by model, instance";
    for row in server.sql(instances).await {
        let instance = row["instance"].as_u64().unwrap() as usize;
        assert_eq!(row["model"], of[instance]);
    }
    let seen = "select model, cast(coalesce(sum(tokens) filter (where layer = 'potential' and reason is null), 0) as int) as seen \
                from funnel where model in ('code', 'other') group by model";
    let rows = server.until(seen, |rows| rows.len() == 2).await;
    assert!(rows.iter().all(|row| row["seen"] == 0), "a neighbour's prompt is none that was seen: {rows:?}");
    server.stop();

    let report = replay(&Archive::open(&folder.path().join("data")).unwrap(), Level::All);
    assert!(report.is_clean() && report.replayed == report.decisions && report.decisions >= 4, "{report}");
}
