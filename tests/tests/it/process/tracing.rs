//! Traces of requests: a collector in this process gets the spans of a real server.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::any_value,
    trace::v1::Span,
};
use serde_json::json;
use tests::{
    foreign_worker::ForeignWorker,
    server::{PATIENCE, Server, client},
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::completion;

/// Keeps what comes, with the name of the service.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(String, Span)>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut kept = self.0.lock().unwrap();
        for spans in request.into_inner().resource_spans {
            let attributes = spans.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = attributes.iter().find(|pair| pair.key == "service.name");
            let service = match service.and_then(|pair| pair.value.clone()?.value) {
                Some(any_value::Value::StringValue(name)) => name,
                _ => String::new(),
            };
            kept.extend(
                spans.scope_spans.into_iter().flat_map(|scope| scope.spans).map(|span| (service.clone(), span)),
            );
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = TraceServiceServer::new(self.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }

    /// The spans of this trace once its request's own span has come.
    async fn trace(&self, trace_id: &str) -> Vec<(String, Span)> {
        let started = Instant::now();
        loop {
            let spans: Vec<(String, Span)> =
                self.0.lock().unwrap().iter().filter(|(_, span)| hex(&span.trace_id) == trace_id).cloned().collect();
            if spans.iter().any(|(_, span)| span.kind == 2) {
                return spans;
            }
            assert!(started.elapsed() < PATIENCE, "no spans of {trace_id}; have {:?}", self.0.lock().unwrap().len());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let value = span.attributes.iter().find(|pair| pair.key == key)?.value.clone()?.value?;
    Some(match value {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Scenario: a request that brings a trace, one refused for its body that brings one, one that wants none; then what the tables say.
/// Guarantees: the spans are the steps of the request, below its own span, which is below the sender's; they follow one another
/// within it and are of the times and tokens that the tables have; a refusal says why; who wants no trace gets none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_a_trace() {
    let collector = Collector::default();
    let address = collector.start().await;
    let settings =
        format!("[tracing]\notlp_endpoint = \"http://{address}\"\nsample_ratio = 0.0\nservice_name = \"test\"\n");
    let Some(server) = Server::start(&settings).await else { return };
    let post = |trace: &str, flag: &str, body: serde_json::Value| {
        let request = client().post(format!("{}/v1/completions", server.url));
        request.header("traceparent", format!("00-{trace}-{PARENT}-{flag}")).json(&body).send()
    };
    let (unwanted, bad) = (TRACE.replace('4', "5"), TRACE.replace('4', "6"));
    assert_eq!(post(&unwanted, "00", completion("none", 2)).await.unwrap().status(), 200);
    assert_eq!(post(&bad, "01", json!({"model": "tiny"})).await.unwrap().status(), 400);
    let answer = post(TRACE, "01", completion("a traced request", 6)).await.unwrap();
    assert_eq!(answer.status(), 200);
    let id = answer.headers()["x-evenkeel-request-id"].to_str().unwrap().to_string();

    let spans = collector.trace(TRACE).await;
    assert!(spans.iter().all(|(service, _)| service == "test"));
    let spans: Vec<Span> = spans.into_iter().map(|(_, span)| span).collect();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["text_completion tiny", "parse", "admit", "route", "dispatch", "prefill", "decode"]);
    let (whole, steps) = (&spans[0], &spans[1..]);
    assert_eq!(hex(&whole.parent_span_id), PARENT);
    for (place, step) in steps.iter().enumerate() {
        assert_eq!(step.parent_span_id, whole.span_id, "{}", step.name);
        assert!(
            step.start_time_unix_nano >= whole.start_time_unix_nano
                && step.end_time_unix_nano <= whole.end_time_unix_nano
        );
        if place > 0 {
            assert!(step.start_time_unix_nano >= steps[place - 1].end_time_unix_nano, "{} overlaps", step.name);
        }
    }
    let rows = server
        .sql(&format!(
            "select cast(at as bigint) as at, event, output_tokens, prompt_tokens from requests where request_id = '{id}' order by seq"
        ))
        .await;
    let at = |event: &str| rows.iter().find(|row| row["event"] == event).unwrap()["at"].as_u64().unwrap() * 1000;
    assert_eq!((whole.start_time_unix_nano, whole.end_time_unix_nano), (at("arrived"), at("finished")));
    assert_eq!(steps.last().unwrap().start_time_unix_nano, at("first_token"));
    assert_eq!(attribute(whole, "evenkeel.request_id"), Some(id));
    assert_eq!(attribute(whole, "gen_ai.usage.output_tokens"), Some(rows.last().unwrap()["output_tokens"].to_string()));
    assert_eq!(attribute(whole, "gen_ai.usage.input_tokens"), Some(rows[0]["prompt_tokens"].to_string()));
    assert_eq!(attribute(whole, "gen_ai.operation.name").as_deref(), Some("text_completion"));
    assert_eq!(attribute(&steps[1], "evenkeel.outcome").as_deref(), Some("admit"));

    let refused = collector.trace(&bad).await;
    let (_, whole) = &refused[0];
    assert_eq!(attribute(whole, "error.type").as_deref(), Some("missing_required_parameter"));
    assert_eq!(whole.status.as_ref().unwrap().code, 2);
    assert!(collector.0.lock().unwrap().iter().all(|(_, span)| hex(&span.trace_id) != unwanted));
    server.stop();
}

/// Scenario: a traced request that a foreign worker answers.
/// Guarantees: the worker is told the same trace, at the place of the dispatch, instead of the sender's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_worker_goes_on_with_the_trace() {
    let (collector, worker) = (Collector::default(), ForeignWorker::start("theirs").await);
    let address = collector.start().await;
    let settings = format!(
        "[workers]\ncount = 0\n[model]\nname = \"\"\n[foreign]\nhealth_interval = \"50ms\"\n[tracing]\notlp_endpoint = \"http://{address}\"\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let arguments = [format!("--worker-url={}", worker.url)];
    let Some(server) = Server::start_with(folder.path(), &settings, &arguments).await else { return };
    let request = client().post(format!("{}/v1/completions", server.url));
    let body = json!({"model": "theirs", "prompt": "once upon", "max_tokens": 4});
    let answer = request.header("traceparent", format!("00-{TRACE}-{PARENT}-01")).json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let spans = collector.trace(TRACE).await;
    let (_, dispatch) = spans.iter().find(|(_, span)| span.name == "dispatch").unwrap();
    let told = format!("traceparent: 00-{TRACE}-{}-01", hex(&dispatch.span_id));
    let seen = worker.seen();
    assert!(seen[0].head.contains(&told), "no `{told}` in {}", seen[0].head);
}

/// Scenario: traces of all requests for a collector that is not there.
/// Guarantees: requests are served as ever; what is lost is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_collector_disturbs_nobody() {
    let nobody = tests::server::free_port();
    let settings = format!(
        "[tracing]\notlp_endpoint = \"http://127.0.0.1:{nobody}\"\nsample_ratio = 1.0\nqueue_max = 4\nexport_timeout = \"200ms\"\n"
    );
    let Some(server) = Server::start(&settings).await else { return };
    for _ in 0..12 {
        assert_eq!(server.post("/v1/completions", &completion("on", 2)).await.status(), 200);
    }
    let started = Instant::now();
    loop {
        let text = server.get("/metrics").await.unwrap().text().await.unwrap();
        let count = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        assert_eq!(count("evenkeel_traces_sent_total "), Some(0));
        if count("evenkeel_traces_dropped_total ") == Some(12) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.stop();
}
