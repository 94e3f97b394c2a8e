//! `replay-load`: traces are read right, and what it reports is what an endpoint did (SPEC D4).

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use pipeline::load::{
    LoadError, LoadOptions, replay,
    trace::{TraceError, parse, read},
};
use serde_json::{Value, json};

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 14]}
{"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [0, 14]}

{"timestamp": 3000, "input_length": 10, "output_length": 2, "hash_ids": [77]}
"#;

const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:17:03.9799600,4808,10\r
2023-11-16 18:17:04.0319600,3180,8\r
";

/// Scenario: the head of a Mooncake trace. Guarantees: rows of one tick are spread over it, lengths and blocks are kept.
#[test]
fn mooncake_rows() {
    let rows = parse(MOONCAKE.as_bytes(), Path::new("t"), 100).unwrap();
    assert_eq!(rows.iter().map(|row| row.at_us).collect::<Vec<_>>(), [0, 1_000_000, 2_000_000, 3_000_000]);
    assert_eq!((rows[0].input, rows[0].output, &rows[0].blocks), (1100, 5, &vec![0, 1, 2]));
    assert_eq!(parse(MOONCAKE.as_bytes(), Path::new("t"), 2).unwrap().len(), 2);
}

/// Scenario: the head of an Azure trace. Guarantees: exact times from 0; rows share no block.
#[test]
fn azure_rows() {
    let rows = parse(AZURE.as_bytes(), Path::new("t"), 100).unwrap();
    assert_eq!(rows.iter().map(|row| row.at_us).collect::<Vec<_>>(), [0, 52_000]);
    assert_eq!((rows[0].input, rows[1].output, rows[0].blocks.len()), (4808, 8, 10));
    assert!(rows[0].blocks.iter().all(|block| !rows[1].blocks.contains(block)));
}

/// Scenario: broken traces. Guarantees: the error has the line and says what would be right.
#[test]
fn broken_traces_are_explained() {
    let head = MOONCAKE.lines().next().unwrap();
    for (text, word) in [
        ("hello\n".to_string(), "unknown format"),
        (String::new(), "no rows"),
        (format!("{head}\n{{\"timestamp\": 1}}\n"), "line 2"),
        (head.replace("[0, 1, 2]", "[0]"), "expected 3"),
        (AZURE.replace("4808", "-1"), "ContextTokens = -1"),
        (AZURE.replace("2023-11-16 18:17:04.0319600", "noon"), "line 3: TIMESTAMP = noon"),
    ] {
        let error: TraceError = parse(text.as_bytes(), Path::new("t"), 100).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// Scenario: the recorded traces, compressed. Guarantees: all rows parse; counts are those of their description.
#[test]
fn recorded_traces_parse() {
    let Some(root) = tests::shared_data::find("data") else { return };
    for (file, count) in [
        ("mooncake/conversation_trace.jsonl.zst", 12_031),
        ("mooncake/synthetic_trace.jsonl.zst", 3_993),
        ("azure/AzureLLMInferenceTrace_code.csv.zst", 8_819),
        ("azure/AzureLLMInferenceTrace_conv.csv.zst", 19_366),
    ] {
        let rows = read(&root.join(file), None).unwrap();
        assert_eq!(rows.len(), count, "{file}");
        assert!(rows.windows(2).all(|pair| pair[0].at_us <= pair[1].at_us), "{file}");
    }
}

#[derive(Clone, Default)]
struct Mock {
    prompts: Arc<Mutex<Vec<(String, u64)>>>,
    /// Answers by order of arrival; the last one stays.
    script: Arc<Mutex<Vec<Answer>>>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Answer {
    #[default]
    Stream,
    Busy,
    Cut,
    ErrorInStream,
}

async fn completions(State(mock): State<Mock>, Json(body): Json<Value>) -> Response {
    assert_eq!((body["model"].as_str(), body["stream"].as_bool()), (Some("toy"), Some(true)));
    let (prompt, most) = (body["prompt"].as_str().unwrap().to_string(), body["max_tokens"].as_u64().unwrap());
    let words = prompt.split(' ').count();
    mock.prompts.lock().unwrap().push((prompt, most));
    let answer = {
        let mut script = mock.script.lock().unwrap();
        if script.len() > 1 { script.remove(0) } else { script.first().copied().unwrap_or_default() }
    };
    let data = |value: Value| format!("data: {value}\n\n");
    let chunk = || data(json!({"choices": [{"text": " t", "index": 0}]}));
    let text = match answer {
        Answer::Busy => {
            let error = json!({"error": {"message": "full", "type": "overloaded", "code": "queue_full"}});
            return (StatusCode::TOO_MANY_REQUESTS, Json(error)).into_response();
        }
        Answer::Cut => chunk(),
        Answer::ErrorInStream => data(json!({"error": {"type": "server_error", "code": "instance_lost"}})),
        Answer::Stream => {
            let details = json!({"cached_tokens": words / 2});
            let usage = json!({"prompt_tokens": words, "completion_tokens": most, "prompt_tokens_details": details});
            let tail = data(json!({"choices": [], "usage": usage})) + "data: [DONE]\n\n";
            (0..most).map(|_| chunk()).collect::<String>() + &tail
        }
    };
    Body::from(text).into_response()
}

async fn mock(script: Vec<Answer>) -> (Mock, String) {
    let mock = Mock { script: Arc::new(Mutex::new(script)), ..Mock::default() };
    let app = Router::new()
        .route("/v1/models", get(|| async { Json(json!({"data": [{"id": "toy"}]})) }))
        .route("/v1/completions", post(completions))
        .with_state(mock.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (mock, url)
}

fn options(trace: &Path, url: &str) -> LoadOptions {
    LoadOptions {
        trace: trace.into(),
        url: url.into(),
        scale_lengths: 0.1,
        speed: 1000.0,
        limit: None,
        model: None,
        key: None,
        concurrency_max: 1,
        tokens_max: None,
        request_timeout: Duration::from_secs(20),
        json: false,
    }
}

fn trace_file(folder: &Path) -> PathBuf {
    let path = folder.join("t.jsonl.zst");
    std::fs::write(&path, zstd::encode_all(MOONCAKE.as_bytes(), 3).unwrap()).unwrap();
    path
}

/// Scenario: a packed trace of four rows against an endpoint that answers all. Guarantees: lengths are scaled, rows that share
/// blocks share exactly that text, and the report has the endpoint's own counts.
#[tokio::test]
async fn an_endpoint_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (mock, url) = mock(vec![Answer::Stream]).await;
    let report = replay(options(&trace_file(folder.path()), &url)).await.unwrap();
    assert_eq!((report.requests, report.succeeded, report.errors.len()), (4, 4, 0));
    let prompts = mock.prompts.lock().unwrap().clone();
    let words: Vec<usize> = prompts.iter().map(|(text, _)| text.split(' ').count()).collect();
    assert_eq!(words, [110, 60, 70, 1]);
    assert_eq!(prompts.iter().map(|(_, most)| *most).collect::<Vec<_>>(), [1, 1, 1, 1]);
    let shared = |a: usize, b: usize| {
        let pair = prompts[a].0.split(' ').zip(prompts[b].0.split(' '));
        pair.take_while(|(x, y)| x == y).count()
    };
    assert!((51..60).contains(&shared(0, 1)), "{}", shared(0, 1));
    assert_eq!(shared(1, 2), 60);
    assert_eq!((report.prompt_tokens, report.prompt_words, report.output_tokens), (241, 241, 4));
    assert_eq!(report.cached_tokens, 55 + 30 + 35);
    assert!(report.ttft_ms.p99.is_some() && report.itl_ms.p50.is_none());
}

/// Scenario: an endpoint that is busy, cuts a stream, fails in a stream, then answers. Guarantees: each is its own kind, the rest is
/// measured, nothing ends the replay.
#[tokio::test]
async fn errors_are_counted_by_kind() {
    let folder = tempfile::tempdir().unwrap();
    let (_mock, url) = mock(vec![Answer::Busy, Answer::Cut, Answer::ErrorInStream, Answer::Stream]).await;
    let report = replay(LoadOptions { scale_lengths: 1.0, ..options(&trace_file(folder.path()), &url) }).await.unwrap();
    let kinds: Vec<(&str, u64)> = report.errors.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    assert_eq!(kinds, [("http_429 queue_full", 1), ("stream_cut", 1), ("stream_error instance_lost", 1)]);
    assert_eq!((report.requests, report.succeeded, report.output_tokens), (4, 1, 2));
    let text = serde_json::to_string(&report).unwrap();
    assert!(!text.contains('\n') && text.contains("\"cached_share\":"));
}

/// Scenario: nobody listens; a wrong option. Guarantees: an error at once that says what to do.
#[tokio::test]
async fn nothing_to_measure_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace_file(folder.path());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = replay(options(&trace, &format!("http://{free}"))).await.unwrap_err();
    assert!(matches!(&error, LoadError::Endpoint { .. }), "{error}");
    let error = replay(LoadOptions { speed: 0.0, ..options(&trace, "http://x") }).await.unwrap_err();
    assert!(error.to_string().contains("--speed = 0"), "{error}");
    let report = replay(LoadOptions { model: Some("toy".into()), ..options(&trace, &format!("http://{free}")) }).await;
    assert_eq!(report.unwrap().errors["connect"], 4);
}
