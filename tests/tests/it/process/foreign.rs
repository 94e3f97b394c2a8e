//! Engines of others behind a real server: answers relayed byte for byte, failures of every kind, hang-ups, workers that die
//! and come back (SPEC E1, X2, X5).

use std::{path::Path, process::Command};

use serde_json::{Value, json};
use tests::{
    foreign_worker::{ForeignWorker, Manner, REFUSAL, WHOLE, event, stream},
    server::{PATIENCE, Server, binary, client},
};

const SETTINGS: &str = "[workers]\ncount = 0\n[model]\nname = \"\"\n[foreign]\nhealth_interval = \"50ms\"\n";

/// A server in front of these workers, without a model of its own.
async fn serve(folder: &Path, workers: &[&ForeignWorker]) -> Option<Server> {
    let arguments: Vec<String> = workers.iter().map(|worker| format!("--worker-url={}", worker.url)).collect();
    let server = Server::start_with(folder, SETTINGS, &arguments).await?;
    all_ready(&server, workers.len()).await;
    Some(server)
}

async fn all_ready(server: &Server, count: usize) {
    server.until("select distinct instance from instances where state = 'ready'", |rows| rows.len() == count).await;
}

fn body(streams: bool) -> String {
    // Spaces and an unknown field show whether the body was written anew.
    format!(
        "{{ \"model\":\"theirs\", \"prompt\":\"once upon\",  \"max_tokens\": 4, \"stream\": {streams}, \"odd\": [1, {{}}] }}"
    )
}

async fn post(server: &Server, body: &str) -> (u16, String, reqwest::header::HeaderMap) {
    let request = client().post(format!("{}/v1/completions", server.url)).header("content-type", "application/json");
    let answer = request.bearer_auth("client").header("x-mine", "1").body(body.to_string()).send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    (status, answer.text().await.unwrap(), headers)
}

/// Scenario: a whole answer and a stream of one foreign worker; its models; a model nobody serves; a body that is no JSON.
/// Then the log is replayed.
/// Guarantees: bodies go to the worker, and answers to the client, byte for byte, on one connection kept; the client's key
/// stays here; the rows say who served, how many tokens, and that the view was approximate; every decision comes out again
/// from its recorded inputs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_relayed() {
    let worker = ForeignWorker::start("theirs").await;
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = serve(folder.path(), &[&worker]).await else { return };
    let before = worker.connections();
    for _ in 0..3 {
        assert_eq!(post(&server, &body(false)).await.1, WHOLE);
        let (status, text, headers) = post(&server, &body(true)).await;
        assert_eq!((status, text), (200, stream()));
        assert_eq!(headers["content-type"], "text/event-stream");
        assert_eq!(headers["x-engine"], "e");
        assert!(headers.contains_key("x-evenkeel-decision") && headers.contains_key("x-evenkeel-request-id"));
    }
    assert!(worker.connections() <= before + 1, "connections are kept");
    for (place, seen) in worker.seen().iter().enumerate() {
        assert_eq!(seen.body, body(place % 2 == 1));
        assert!(seen.head.contains("x-mine: 1") && !seen.head.contains("authorization"), "{}", seen.head);
        assert!(seen.head.contains(&format!("host: {}", worker.url.trim_start_matches("http://"))), "{}", seen.head);
    }
    let models: Value = server.get("/v1/models").await.unwrap().json().await.unwrap();
    assert_eq!((models["data"][0]["id"].as_str(), models["data"].as_array().unwrap().len()), (Some("theirs"), 1));
    let (status, text, _) = post(&server, "{\"model\":\"nobody's\",\"prompt\":\"x\"}").await;
    assert_eq!((status, text.contains("model_not_found")), (404, true), "{text}");
    assert_eq!(post(&server, "{\"model\":").await.0, 400);

    let ended = "select instance, model, prompt_tokens, output_tokens, cached_tokens, finish_reason from requests \
                 where event = 'finished' order by at";
    let ended = server.until(ended, |rows| rows.len() == 6).await;
    let row = |cached: Option<u32>, output: u32, reason: &str| {
        json!({"instance": 0, "model": "theirs", "prompt_tokens": 11, "output_tokens": output,
               "cached_tokens": cached, "finish_reason": reason})
    };
    let plain = |row: &Value| {
        let mut row = row.clone();
        row["cached_tokens"] = row.get("cached_tokens").cloned().unwrap_or(Value::Null);
        row
    };
    assert_eq!(plain(&ended[0]), row(Some(4), 2, "length"));
    assert_eq!(plain(&ended[1]), row(None, 4, "stop"));
    let events = "select count(*) as n from requests where event in ('arrived', 'dispatched', 'first_token')";
    assert_eq!(server.sql(events).await[0]["n"], 6 + 6 + 3);
    let decided = "select distinct view_mode, outcome, model, route_policy from decisions where outcome = 'admit'";
    let expected =
        json!({"view_mode": "approximate", "outcome": "admit", "model": "theirs", "route_policy": "least_seconds"});
    assert_eq!(server.sql(decided).await, [expected]);
    server.stop();
    let run =
        Command::new(binary().unwrap()).args(["replay", "--log"]).arg(folder.path().join("data")).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && text.contains("differences: 0"), "{text}{}", String::from_utf8_lossy(&run.stderr));
}

/// Scenario: of two workers one closes before it answers, breaks off a whole answer, is busy, is broken or talks nonsense;
/// then both do. It refuses a request.
/// Guarantees: while the other one can, the client gets a whole answer and sees nothing; else a typed error; a refusal goes
/// on as it is and moves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_before_an_answer_are_not_seen() {
    let (bad, good) = (ForeignWorker::start("theirs").await, ForeignWorker::start("theirs").await);
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = serve(folder.path(), &[&bad, &good]).await else { return };
    use Manner::{Breaks, Closes, IsBroken, IsBusy, TalksNonsense};
    for manner in [Closes, Breaks(0), IsBusy, IsBroken, TalksNonsense] {
        bad.set(manner);
        // Several, since the first choice takes turns.
        for turn in 0..4 {
            let (status, text, _) = post(&server, &body(false)).await;
            assert_eq!((status, text.as_str()), (200, WHOLE), "{manner:?} {turn} {}", server.log());
        }
        let (status, text, _) = post(&server, &body(true)).await;
        if manner != Breaks(0) {
            assert_eq!((status, text), (200, stream()), "{manner:?}");
        }
    }
    let moved = server.sql("select count(*) as n from decisions where reason like 'moved, since http://%'").await;
    assert!(moved[0]["n"].as_u64() >= Some(5), "{moved:?}");
    good.set(IsBusy);
    bad.set(IsBusy);
    let (status, text, headers) = post(&server, &body(false)).await;
    assert_eq!((status, text.contains("queue_full"), headers.contains_key("retry-after")), (429, true, true), "{text}");
    good.set(TalksNonsense);
    bad.set(IsBroken);
    let (status, text, _) = post(&server, &body(false)).await;
    assert_eq!((status, text.contains("instance_lost")), (502, true), "{text}");
    good.set(Manner::Refuses);
    bad.set(Manner::Refuses);
    let before = good.seen().len() + bad.seen().len();
    let (status, text, _) = post(&server, &body(true)).await;
    assert_eq!((status, text.as_str()), (400, REFUSAL));
    assert_eq!(good.seen().len() + bad.seen().len(), before + 1);
    let failed = "select error from requests where event = 'failed' and error like 'engine_refused%'";
    server.until(failed, |rows| rows.len() == 1).await;
    let settled = "select slo.outcome from slo join requests on slo.request_id = requests.request_id \
                   where event = 'failed' and error like 'engine_refused%'";
    let settled = server.until(settled, |rows| rows.len() == 1).await;
    assert_eq!(settled[0]["outcome"], "failed", "as it is of a refusal by an engine of our own");
}

/// Scenario: a worker breaks off in the middle of a stream, inside of an event.
/// Guarantees: the client has everything that came, then a typed error and the end; the request is a failed one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_ends_with_an_error() {
    let worker = ForeignWorker::start("theirs").await;
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = serve(folder.path(), &[&worker]).await else { return };
    worker.set(Manner::Breaks(2));
    let (status, text, _) = post(&server, &body(true)).await;
    let half = &event(2)[..event(2).len() / 2];
    let shown = format!("{}{}{half}\n\ndata: ", event(0), event(1));
    let rest = text.strip_prefix(&shown).unwrap_or_else(|| panic!("{text}"));
    let error: Value = serde_json::from_str(rest.strip_suffix("\n\ndata: [DONE]\n\n").expect("the end")).unwrap();
    assert_eq!((status, error["error"]["code"].as_str()), (200, Some("instance_lost")));
    let ended = server.until("select error from requests where event = 'failed'", |rows| rows.len() == 1).await;
    assert!(ended[0]["error"].as_str().unwrap().contains("closed the connection"), "{ended:?}");
}

/// Scenario: a client reads the first piece of a stream that stalls, and leaves; another waits past the longest time.
/// Guarantees: the first piece is there at once; the worker's connection is closed and the request is `cancelled`, its
/// lease back; the other one ends with a typed error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_up_reaches_the_worker() {
    let worker = ForeignWorker::start("theirs").await;
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = serve(folder.path(), &[&worker]).await else { return };
    worker.set(Manner::Stalls);
    let request = client().post(format!("{}/v1/completions", server.url)).header("content-type", "application/json");
    let mut answer = request.body(body(true)).send().await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), event(0));
    drop(answer);
    let began = std::time::Instant::now();
    while worker.hang_ups() == 0 {
        assert!(began.elapsed() < PATIENCE, "the worker never saw the client leave");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    server.until("select 1 as one from requests where event = 'cancelled'", |rows| rows.len() == 1).await;
    let metrics = server.get("/metrics").await.unwrap().text().await.unwrap();
    assert!(metrics.contains("evenkeel_leased_tokens{engine=\"w0\"} 0"), "{metrics}");
}

/// Scenario: a long prompt over and over, then another, before two workers; then a worker goes away and comes back.
/// Guarantees: the same front goes to the same worker and the decision says how much is believed cached, another one to the
/// other worker; one that is gone takes nothing; one that is back is believed to hold nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fronts_are_remembered_until_a_worker_goes() {
    let (first, second) = (ForeignWorker::start("theirs").await, ForeignWorker::start("theirs").await);
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = serve(folder.path(), &[&first, &second]).await else { return };
    let ask = |front: &str, end: usize| {
        json!({"model": "theirs", "prompt": format!("{}{end}", front.repeat(2000)), "max_tokens": 4}).to_string()
    };
    for end in 0..4 {
        assert_eq!(post(&server, &ask("once ", end)).await.0, 200);
    }
    let (a, b) = (first.seen().len(), second.seen().len());
    assert!((a, b) == (4, 0) || (a, b) == (0, 4), "{a} {b}");
    let hits = server
        .until("select predicted_hit_tokens as hit from decisions where outcome = 'admit' order by at", |rows| {
            rows.len() == 4
        })
        .await;
    assert_eq!((hits[0]["hit"].as_u64(), hits[3]["hit"].as_u64()), (Some(0), Some(256 * 9)), "{hits:?}");
    let (kept, gone) = if a == 4 { (second, first) } else { (first, second) };
    let port = gone.port();
    drop(gone);
    server.until("select 1 as one from instances where state = 'dead'", |rows| rows.len() == 1).await;
    assert_eq!(post(&server, &ask("once ", 9)).await.0, 200);
    assert!(kept.seen().len() == 1, "the one that is left serves");
    let _back = ForeignWorker::start_at("theirs", port).await;
    server.until("select distinct instance, epoch from instances where state = 'ready'", |rows| rows.len() == 3).await;
    let hits = "select hit.tokens as tokens from (select unnest(hits) as hit, at from policy_inputs where reading = 'placement' order by at desc limit 1)";
    assert_eq!(post(&server, &ask("once ", 10)).await.0, 200);
    assert_eq!(kept.seen().len(), 2, "{:?}", server.sql(hits).await);
}

/// Scenario: a model file without workers of our own counts the tokens; then the same model is served by one of our own beside
/// a foreign worker of another.
/// Guarantees: counts and blocks are the file's; each model is served by whose it is, and both are listed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_file_counts_or_serves_beside() {
    let worker = ForeignWorker::start("theirs").await;
    let folder = tempfile::tempdir().unwrap();
    let settings = "[foreign]\nhealth_interval = \"50ms\"\n[workers]\ncount = ";
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, engine::model::tiny::tiny_llama_gguf(7)).unwrap();
    let arguments = [format!("--model={}", model.display()), format!("--worker-url={}", worker.url)];
    let Some(server) = Server::start_with(folder.path(), &format!("{settings}0\n"), &arguments).await else { return };
    all_ready(&server, 1).await;
    assert_eq!(post(&server, &body(false)).await.1, WHOLE);
    let arrived = "select prompt_tokens, block_tokens from requests where event = 'arrived'";
    let arrived = server.until(arrived, |rows| rows.len() == 1).await;
    let by_bytes = 3;
    assert_eq!(arrived[0]["block_tokens"], 16, "{arrived:?}");
    assert_ne!(arrived[0]["prompt_tokens"], by_bytes, "{arrived:?}");
    server.stop();

    let second = tempfile::tempdir().unwrap();
    let Some(server) = Server::start_with(second.path(), &format!("{settings}1\n"), &arguments).await else { return };
    let ready = "select distinct model from instances where state = 'ready'";
    server.until(ready, |rows| rows.len() == 2).await;
    let own = body(false).replace("theirs", "tiny");
    server
        .until("select 1 as one from instances where state = 'ready' and model = 'tiny'", |rows| !rows.is_empty())
        .await;
    assert_eq!((post(&server, &own).await.0, post(&server, &body(false)).await.1.as_str()), (200, WHOLE));
    let models: Value = server.get("/v1/models").await.unwrap().json().await.unwrap();
    let owners: Vec<_> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str(), model["owned_by"].as_str()))
        .collect();
    assert_eq!(owners, [(Some("tiny"), Some("evenkeel")), (Some("theirs"), Some("foreign"))]);
    let decided = "select distinct model, view_mode = 'approximate' as approximate from decisions where outcome = 'admit' \
                   and model = 'tiny'";
    assert_eq!(server.sql(decided).await, [json!({"model": "tiny", "approximate": false})]);
}
