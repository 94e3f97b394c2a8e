//! Snapshots of a running server: when due and when asked, listed, fetched, and asked without a server (SPEC E3).

use std::{path::Path, process::Command};

use serde_json::{Value, json};
use tests::server::{Server, binary};

use super::completion;

/// Runs `evenkeel` with no server to fall back on, and returns what it printed.
fn evenkeel(arguments: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(binary().expect("the binary that serves"));
    let output = command.args(arguments).env("EVENKEEL_URL", "http://127.0.0.1:1").output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// The one number of an offline query.
fn offline(place: &str, query: &str) -> u64 {
    let (is_ok, out, err) = evenkeel(&["sql", "--snapshot", place, "--format", "json", query]);
    assert!(is_ok, "{query}: {err}");
    assert!(err.starts_with("snapshot ") && err.contains(", as of 20"), "{err}");
    let rows: Vec<Value> = serde_json::from_str(&out).expect("rows");
    rows[0].as_object().expect("a row").values().next().and_then(Value::as_u64).expect("a number")
}

/// Scenario: snapshots every second, each on from the one before, three of a chain, four kept; a completion before and one
/// after the server has written some; then the server ends.
/// Guarantees: chains of at most three; whole ones between them; what a kept one needs is there; the rows of attempts and the
/// metrics say so; without the server the newest one and an older one answer what they hold, tables of both completions
/// among them, and saved queries run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn due_snapshots_form_chains_and_go() {
    let settings = "[snapshots]\ninterval = \"1s\"\nincremental = \"on\"\nchain_max = 3\nretain_count = 4\nformats = [\"parquet\"]\n";
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start_in(folder.path(), settings).await else { return };
    assert_eq!(server.post("/v1/completions", &completion("before", 8)).await.status(), 200);
    server
        .until("select name from snapshots where outcome = 'written' and base is not null", |rows| rows.len() >= 2)
        .await;
    assert_eq!(server.post("/v1/completions", &completion("after", 8)).await.status(), 200);
    server.until("select event from requests where event = 'finished'", |rows| rows.len() == 2).await;
    let names = "select name, base, rows from snapshots where outcome = 'written' order by at";
    let written = server.until(names, |rows| rows.len() >= 8).await;
    let whole = written.iter().filter(|row| row["base"].is_null()).count();
    assert!(whole >= 2 && whole <= written.len() / 2, "{written:?}");
    let listed: Value = server.get("/snapshots").await.unwrap().json().await.unwrap();
    let listed = listed["snapshots"].as_array().unwrap().clone();
    assert!((4..=6).contains(&listed.len()), "{listed:?}");
    assert!(listed.iter().all(|one| one["chain"].as_u64().unwrap() <= 3), "{listed:?}");
    let metrics = server.get("/metrics").await.unwrap().text().await.unwrap();
    assert!(
        metrics.contains("evenkeel_snapshots_written_total") && metrics.contains("evenkeel_snapshots_failed_total 0")
    );

    server.stop();
    let place = folder.path().join("data/snapshots").display().to_string();
    assert_eq!(offline(&place, "select count(*) as n from requests where event = 'finished'"), 2);
    let recent = "select count(*) as n from requests where at > now() - interval '10 minutes'";
    assert_eq!(offline(&place, recent), offline(&place, "select count(*) as n from requests"));
    let (is_ok, out, err) = evenkeel(&["snapshot", "list", "--in", &place]);
    assert!(is_ok && out.lines().count() >= 5, "{out}{err}");
    for name in out.lines().skip(1).filter_map(|line| line.split_whitespace().next()) {
        let one = Path::new(&place).join(name).display().to_string();
        assert!(offline(&one, "select count(*) as n from requests") > 0, "{name}: {out}");
    }
    let (is_ok, out, err) =
        evenkeel(&["sql", "--snapshot", &place, "--saved", "traffic/arrivals", "--param", "minutes=30"]);
    assert!(is_ok && out.contains("arrived"), "{out}{err}");
}

/// Scenario: a request with every option, wrong ones of every kind, and a target that is a file.
/// Guarantees: the options hold; wrong ones are 400 with the field and what would be right, and nothing is written; a failed
/// write is 507, a row of `snapshots`, a row of `faults` and a number, and leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_chooses_within_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("file");
    std::fs::write(&blocked, "not a folder").unwrap();
    let (other, blocked) = (folder.path().join("other"), blocked.join("below"));
    let settings = format!("[snapshots]\nallow_targets = [{other:?}, {blocked:?}]\n");
    let Some(server) = Server::start_in(folder.path(), &settings).await else { return };
    let wish = json!({"target": other, "formats": ["parquet"], "tables": ["requests", "faults"], "incremental": true});
    let made: Value = server.post("/snapshots", &wish).await.json().await.unwrap();
    let manifest = &made["manifest"];
    assert_eq!((manifest["tables"].as_array().unwrap().len(), &manifest["base"]), (2, &Value::Null), "{made}");
    assert_eq!((&made["written"]["files"], manifest["tables"][0]["name"].as_str()), (&json!(2), Some("requests")));
    let again: Value = server.post("/snapshots", &wish).await.json().await.unwrap();
    assert_eq!(again["manifest"]["base"], made["name"]);
    for (wish, says) in [
        (json!({"target": "/etc"}), "target: \"/etc\" is neither snapshots.target nor one of snapshots.allow_targets"),
        (json!({"formats": []}), "formats: expected"),
        (json!({"formats": ["parquet", "parquet"]}), "formats: expected"),
        (json!({"formats": ["csv"]}), "unknown variant `csv`"),
        (json!({"tables": ["request"]}), "there is no table \"request\"; did you mean `requests`?"),
        (json!({"tables": ["faults", "faults"]}), "\"faults\" is named twice"),
        (json!({"tables": []}), "at least one table"),
        (json!({"compress": true}), "unknown field `compress`"),
    ] {
        let answer = server.post("/snapshots", &wish).await;
        assert_eq!(answer.status(), 400, "{wish}");
        let body: Value = answer.json().await.unwrap();
        assert!(body["error"]["message"].as_str().unwrap().contains(says), "{wish}: {body}");
    }
    let answer = server.post("/snapshots", &json!({"target": blocked})).await;
    assert_eq!(answer.status(), 507);
    let failed = server.until("select * from snapshots where outcome = 'failed'", |rows| rows.len() == 1).await;
    assert!(failed[0]["detail"].as_str().unwrap().contains("file/below"), "{failed:?}");
    let faults = server.until("select * from faults where component = 'snapshots'", |rows| rows.len() == 1).await;
    assert_eq!(faults[0]["kind"], "write_failed");
    let metrics = server.get("/metrics").await.unwrap().text().await.unwrap();
    assert!(
        metrics.contains("evenkeel_snapshots_failed_total 1") && metrics.contains("evenkeel_snapshots_written_total 2")
    );
}

/// Scenario: saved queries over HTTP: the list, one with parameters, wrong ones. `evenkeel snapshot --out`, twice into one folder.
/// Guarantees: the list has questions, parameters and statements; a saved query answers as its statement does; wrong names and values
/// are 400 in words; the files fetched are a snapshot that SQL reads; a second fetch into the folder is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saved_queries_and_fetched_files() {
    let Some(server) = Server::start("").await else { return };
    assert_eq!(server.post("/v1/completions", &completion("saved", 8)).await.status(), 200);
    server.until("select event from requests where event = 'finished'", |rows| rows.len() == 1).await;
    let list: Vec<Value> = server.get("/sql/saved").await.unwrap().json().await.unwrap();
    let ttft = list.iter().find(|one| one["name"] == "latency/ttft_by_tier").unwrap();
    assert_eq!(ttft["parameters"][0]["default"], "15");
    let answer = server.post("/sql", &json!({"saved": "latency/ttft_by_tier", "parameters": {"minutes": 60}})).await;
    let rows: Vec<Value> = answer.json().await.unwrap();
    assert_eq!(rows[0]["requests"], 1, "{rows:?}");
    assert_eq!(rows, server.sql(&ttft["statement"].as_str().unwrap().replace("'15 minutes'", "'60 minutes'")).await);
    for (body, says) in [
        (json!({"saved": "ttft_by_tier"}), "did you mean \"latency/ttft_by_tier\"?"),
        (json!({"saved": "latency/ttft_by_tier", "parameters": {"minutes": "soon"}}), "expected a whole number"),
        (json!({"saved": "latency/ttft_by_tier", "query": "select 1"}), "give \"query\", or \"saved\""),
        (json!({}), "give \"query\", or \"saved\""),
    ] {
        let answer = server.post("/sql", &body).await;
        assert_eq!(answer.status(), 400, "{body}");
        let error: Value = answer.json().await.unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(says), "{body}: {error}");
    }
    let out = server.folder.join("fetched").display().to_string();
    let (is_ok, text, err) = evenkeel(&["snapshot", "--out", &out, "--url", &server.url]);
    assert!(is_ok && text.contains(" files, "), "{text}{err}");
    assert_eq!(offline(&out, "select count(*) as n from requests where event = 'finished'"), 1);
    let (is_ok, _, err) = evenkeel(&["snapshot", "--out", &out, "--url", &server.url]);
    assert!(!is_ok && err.contains("expected a folder that does not exist or is empty"), "{err}");
    let (is_ok, text, err) = evenkeel(&["snapshot", "--remote", "--incremental", "--url", &server.url]);
    assert!(is_ok && text.contains("data/snapshots/"), "{text}{err}");
}
