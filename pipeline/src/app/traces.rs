//! Stories of requests become spans and go to an OTLP collector over gRPC, in batches.
//!
//! One task does it, on the runtime of event ingestion. A collector that is slow or dead costs nothing but spans: the
//! queue before this task is bounded and never waits, each sending has `tracing.export_timeout`, and what is lost is counted
//! (`evenkeel_traces_dropped_total`). Names of attributes are those of OpenTelemetry's conventions for generative AI where they
//! exist, else they begin with `evenkeel.`. State: a batch of [`BATCH_STORIES`].

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use opentelemetry::{
    Array, InstrumentationScope, KeyValue, StringValue, Value,
    trace::{Event, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter, SpanLinks},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::counter::ConstCounter,
};
use tokio::sync::mpsc;

use crate::{
    config::Tracing,
    gateway::{
        metrics::Metrics,
        trace::{Step, Story, Tracer},
    },
    ids::Micros,
    rows::{DecisionRow, RequestRow},
};

/// Stories sent at once.
const BATCH_STORIES: usize = 64;
/// How long a story waits for others.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// A collector that is away is named at most this often.
const COMPLAIN: Duration = Duration::from_secs(60);

/// Requests whose spans were sent, and those whose were not.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    sent: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
}

impl Collector for Counts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, count) in [
            ("traces_sent", "Requests whose spans the collector took", &self.sent),
            ("traces_dropped", "Requests whose spans were lost: no room, or no collector", &self.dropped),
        ] {
            let counter = ConstCounter::new(count.load(Ordering::Relaxed));
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}

/// What the gateway is given, and the task that sends what comes of it. `None`: traces are off.
pub fn tracer(config: &Tracing, metrics: &Metrics) -> Option<(Arc<Tracer>, Sender)> {
    if config.otlp_endpoint.is_empty() {
        return None;
    }
    let counts = Counts::default();
    metrics.register(|registry| registry.register_collector(Box::new(counts.clone())));
    let (tracer, stories) = Tracer::new(config.sample_ratio, config.queue_max, counts.dropped.clone());
    Some((Arc::new(tracer), Sender { config: config.clone(), counts, stories }))
}

/// See the module.
pub struct Sender {
    config: Tracing,
    counts: Counts,
    stories: mpsc::Receiver<Story>,
}

impl Sender {
    /// Sends until nobody can tell a story any more, or `stop`; then what is there. Must run on tokio.
    pub async fn run(mut self, stop: tokio_util::sync::CancellationToken) {
        let exporter = match self.exporter() {
            Ok(exporter) => exporter,
            Err(error) => {
                tracing::error!(%error, endpoint = self.config.otlp_endpoint, "tracing.otlp_endpoint cannot be used");
                return;
            }
        };
        let (mut batch, mut complained) = (Vec::with_capacity(BATCH_STORIES), None);
        loop {
            let ended = tokio::select! {
                biased;
                count = self.stories.recv_many(&mut batch, BATCH_STORIES) => count == 0,
                () = stop.cancelled() => true,
            };
            if !ended && batch.len() < BATCH_STORIES {
                tokio::select! { () = tokio::time::sleep(BATCH_WAIT) => {}, () = stop.cancelled() => {} }
                while let (true, Ok(story)) = (batch.len() < BATCH_STORIES, self.stories.try_recv()) {
                    batch.push(story);
                }
            }
            self.send(&exporter, &mut batch, &mut complained).await;
            if ended {
                return;
            }
        }
    }

    fn exporter(&self) -> Result<OtlpExporter, opentelemetry_otlp::ExporterBuildError> {
        let mut exporter = OtlpExporter::builder()
            .with_tonic()
            .with_endpoint(&self.config.otlp_endpoint)
            .with_timeout(self.config.export_timeout)
            .build()?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let name = self.config.service_name.clone();
        exporter.set_resource(&Resource::builder_empty().with_service_name(name).with_attribute(version).build());
        Ok(exporter)
    }

    async fn send(&self, exporter: &OtlpExporter, batch: &mut Vec<Story>, complained: &mut Option<std::time::Instant>) {
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        let spans: Vec<SpanData> = batch.drain(..).flat_map(|story| spans(&story)).collect();
        // The exporter has the same limit, for each of its attempts.
        let sent = tokio::time::timeout(self.config.export_timeout * 2, exporter.export(spans)).await;
        let error = match sent {
            Ok(Ok(())) => {
                self.counts.sent.fetch_add(count, Ordering::Relaxed);
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer in {:?}", self.config.export_timeout * 2),
        };
        self.counts.dropped.fetch_add(count, Ordering::Relaxed);
        if complained.is_none_or(|last| last.elapsed() > COMPLAIN) {
            *complained = Some(std::time::Instant::now());
            tracing::warn!(endpoint = self.config.otlp_endpoint, error, "the collector of traces takes no spans");
        }
    }
}

fn moment(us: Micros) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(us.max(0) as u64)
}

/// A span of the story, without attributes.
fn span(story: &Story, (id, parent): (u64, Option<u64>), name: String, (from, to): (Micros, Micros)) -> SpanData {
    let context = SpanContext::new(
        TraceId::from(story.context.trace_id),
        SpanId::from(id),
        TraceFlags::SAMPLED,
        false,
        TraceState::NONE,
    );
    SpanData {
        span_context: context,
        parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: moment(from),
        end_time: moment(to.max(from)),
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: Default::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("evenkeel")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

/// The request's span and one for each of its steps that it came to. Empty without an end.
pub fn spans(story: &Story) -> Vec<SpanData> {
    let Some(last) = story.rows.last() else { return Vec::new() };
    let root = (story.context.span_id, story.parent);
    let mut whole = span(story, root, format!("{} {}", operation(story.route), last.model), (story.arrived, last.at));
    whole.parent_span_is_remote = story.parent.is_some();
    whole.span_kind = SpanKind::Server;
    whole.attributes = request_attributes(story, last);
    whole.events.events = events(story);
    if let Some(error) = &last.error {
        whole.attributes.push(KeyValue::new("error.type", error.split(':').next().unwrap_or(error).to_string()));
        whole.status = Status::error(error.clone());
    }
    let mut all = vec![whole];
    all.extend(steps(story, last).into_iter().map(|(step, times, attributes)| {
        let ids = (story.span_id(step), Some(story.context.span_id));
        SpanData { attributes, ..span(story, ids, step.name().into(), times) }
    }));
    all
}

fn operation(route: &str) -> &'static str {
    if route.contains("chat") { "chat" } else { "text_completion" }
}

type StepSpan = (Step, (Micros, Micros), Vec<KeyValue>);

/// The steps, one after the other; a request that ended on the way ends the step it was in.
fn steps(story: &Story, last: &RequestRow) -> Vec<StepSpan> {
    let at = |event: &str| story.rows.iter().find(|row| row.event == event).map(|row| row.at);
    let decided = story.decisions.first();
    let placed = story.decisions.iter().find(|row| row.outcome == "admit");
    let mut steps: Vec<StepSpan> = Vec::new();
    let parsed = story.parsed.unwrap_or(last.at);
    steps.push((Step::Parse, (story.arrived, parsed), Vec::new()));
    let Some(decided) = decided.filter(|_| story.parsed.is_some()) else { return steps };
    steps.push((Step::Admit, (parsed, decided.at), decision_attributes(decided)));
    let (queued, dispatched) = (at("queued"), at("dispatched"));
    if let Some(queued) = queued {
        let until = placed.map_or(last.at, |placed| placed.at);
        steps.push((Step::Queue, (queued, until), Vec::new()));
    }
    let (Some(placed), Some(dispatched)) = (placed, dispatched) else { return steps };
    steps.push((Step::Route, (placed.at, dispatched), route_attributes(placed)));
    let first_token = at("first_token");
    // A foreign engine does not say when it took the request: all until the first token is its prefill.
    let started = story.started.unwrap_or(if first_token.is_some() { dispatched } else { last.at });
    let engine = last.instance.map(|instance| KeyValue::new("evenkeel.instance", i64::from(instance)));
    steps.push((Step::Dispatch, (dispatched, started), engine.into_iter().collect()));
    if story.started.is_none() && first_token.is_none() {
        return steps;
    }
    let cached =
        last.cached_tokens.map(|tokens| KeyValue::new("gen_ai.usage.cache_read.input_tokens", i64::from(tokens)));
    steps.push((Step::Prefill, (started, first_token.unwrap_or(last.at)), cached.into_iter().collect()));
    if let Some(first_token) = first_token {
        let tokens = KeyValue::new("gen_ai.usage.output_tokens", i64::from(last.output_tokens));
        steps.push((Step::Decode, (first_token, last.at), vec![tokens]));
    }
    steps
}

fn request_attributes(story: &Story, last: &RequestRow) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("gen_ai.operation.name", operation(story.route)),
        KeyValue::new("gen_ai.provider.name", "evenkeel"),
        KeyValue::new("gen_ai.request.model", last.model.to_string()),
        KeyValue::new("gen_ai.usage.input_tokens", i64::from(last.prompt_tokens)),
        KeyValue::new("gen_ai.usage.output_tokens", i64::from(last.output_tokens)),
        KeyValue::new("http.request.method", "POST"),
        KeyValue::new("http.route", story.route),
        KeyValue::new("evenkeel.request_id", last.request_id.to_string()),
        KeyValue::new("evenkeel.tier", last.tier.to_string()),
        KeyValue::new("evenkeel.tenant", last.tenant.to_string()),
    ];
    if let Some(tokens) = last.cached_tokens {
        attributes.push(KeyValue::new("gen_ai.usage.cache_read.input_tokens", i64::from(tokens)));
    }
    if let Some(reason) = &last.finish_reason {
        let reasons = Value::Array(Array::String(vec![StringValue::from(reason.to_string())]));
        attributes.push(KeyValue::new("gen_ai.response.finish_reasons", reasons));
    }
    if let Some(gap) = story.rows.iter().find(|row| row.event == "first_token").and_then(|row| row.gap_us) {
        attributes.push(KeyValue::new("evenkeel.time_to_first_token_seconds", gap as f64 / 1e6));
    }
    if let Some(max) = story.decisions.first().map(|decision| decision.max_tokens) {
        attributes.push(KeyValue::new("gen_ai.request.max_tokens", i64::from(max)));
    }
    attributes
}

/// Why it was let in, made to wait or refused.
fn decision_attributes(row: &DecisionRow) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("evenkeel.decision_id", row.decision_id.to_string()),
        KeyValue::new("evenkeel.tier", row.tier.to_string()),
        KeyValue::new("evenkeel.tier_reason", row.tier_reason.clone()),
        KeyValue::new("evenkeel.outcome", row.outcome.to_string()),
        KeyValue::new("evenkeel.reason", row.reason.clone()),
        KeyValue::new("evenkeel.throttle_step", row.throttle_step.to_string()),
        KeyValue::new("evenkeel.view_mode", row.view_mode.to_string()),
    ];
    if let Some(saturation) = row.saturation {
        attributes.push(KeyValue::new("evenkeel.saturation", saturation));
    }
    if let Some(chance) = row.meet_probability {
        attributes.push(KeyValue::new("evenkeel.meet_probability", chance));
    }
    attributes
}

/// Where it went and why there.
fn route_attributes(row: &DecisionRow) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("evenkeel.decision_id", row.decision_id.to_string()),
        KeyValue::new("evenkeel.route_policy", row.route_policy.to_string()),
        KeyValue::new("evenkeel.reason", row.reason.clone()),
        KeyValue::new("evenkeel.predicted_hit_tokens", i64::from(row.predicted_hit_tokens)),
    ];
    if let Some(instance) = row.instance {
        attributes.push(KeyValue::new("evenkeel.instance", i64::from(instance)));
    }
    if let Some(seconds) = row.predicted_seconds {
        attributes.push(KeyValue::new("evenkeel.predicted_seconds", seconds));
    }
    attributes
}

/// Refusals and moves, which are no steps of their own.
fn events(story: &Story) -> Vec<Event> {
    let mut events = Vec::new();
    for (place, row) in story.decisions.iter().enumerate() {
        let is_move = row.outcome == "admit" && story.decisions[..place].iter().any(|before| before.outcome == "admit");
        let name = match row.outcome.as_str() {
            "reject" => "refused",
            _ if is_move => "moved",
            _ => continue,
        };
        events.push(Event::new(name, moment(row.at), decision_attributes(row), 0));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bus::tests::rows::decision, gateway::trace::TraceContext};

    fn row(event: &str, at: Micros) -> RequestRow {
        RequestRow { event: event.into(), at, model: "m".into(), request_id: "req-1".into(), ..RequestRow::default() }
    }

    fn decided(outcome: &str, at: Micros) -> DecisionRow {
        DecisionRow { at, outcome: outcome.into(), reason: format!("{outcome} because"), ..decision(Vec::new()) }
    }

    fn story(rows: Vec<RequestRow>, decisions: Vec<DecisionRow>) -> Story {
        let context = TraceContext { trace_id: 7, span_id: u64::MAX - 2, is_sampled: true };
        let (parsed, started) = (Some(110), Some(160));
        Story {
            context,
            parent: Some(5),
            route: "/v1/chat/completions",
            arrived: 100,
            parsed,
            started,
            rows,
            decisions,
        }
    }

    fn shown(spans: &[SpanData]) -> Vec<(String, u128, u128)> {
        let us = |time: SystemTime| time.duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
        spans.iter().map(|span| (span.name.to_string(), us(span.start_time), us(span.end_time))).collect()
    }

    /// Scenario: a request that waits, runs and finishes. Guarantees: its steps follow each other without gaps below its own
    /// span, which is below the sender's; no two have one id, though the ids run over.
    #[test]
    fn steps_follow_each_other() {
        let last = RequestRow { output_tokens: 3, finish_reason: Some("stop".into()), ..row("finished", 300) };
        let first = RequestRow { gap_us: Some(100), ..row("first_token", 200) };
        let rows = vec![row("arrived", 100), row("queued", 121), row("dispatched", 150), first, last];
        let spans = spans(&story(rows, vec![decided("queue", 120), decided("admit", 140)]));
        let expected = [
            ("chat m", 100, 300),
            ("parse", 100, 110),
            ("admit", 110, 120),
            ("queue", 121, 140),
            ("route", 140, 150),
            ("dispatch", 150, 160),
            ("prefill", 160, 200),
            ("decode", 200, 300),
        ];
        assert_eq!(shown(&spans), expected.map(|(name, from, to)| (name.to_string(), from, to)));
        assert_eq!(spans[0].parent_span_id, SpanId::from(5));
        assert!(spans[1..].iter().all(|span| span.parent_span_id == spans[0].span_context.span_id()));
        let mut ids: Vec<_> = spans.iter().map(|span| span.span_context.span_id().to_string()).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), spans.len());
        assert!(spans.iter().all(|span| span.span_context.is_valid()));
    }

    /// Scenario: requests that end early: refused at once, after the queue, before they were understood, without an end.
    /// Guarantees: the steps they came to and no others; the refusal is an event with its reason, and the status says it.
    #[test]
    fn an_early_end_ends_the_step_it_was_in() {
        let rejected = || RequestRow { error: Some("throttled: too much".into()), ..row("rejected", 130) };
        let spans_of = |rows, decisions| spans(&story(rows, decisions));
        let refused = spans_of(vec![row("arrived", 100), rejected()], vec![decided("reject", 120)]);
        assert_eq!(
            shown(&refused).iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(),
            ["chat m", "parse", "admit"]
        );
        assert_eq!(refused[0].status, Status::error("throttled: too much"));
        assert_eq!(refused[0].events[0].name, "refused");
        assert!(refused[0].attributes.contains(&KeyValue::new("error.type", "throttled")));
        let waited = spans_of(
            vec![row("arrived", 100), row("queued", 121), rejected()],
            vec![decided("queue", 120), decided("reject", 129)],
        );
        assert_eq!(shown(&waited).last(), Some(&("queue".to_string(), 121, 130)));
        let malformed = Story { parsed: None, ..story(vec![rejected()], vec![decided("reject", 120)]) };
        assert_eq!(shown(&spans(&malformed)).len(), 2);
        assert!(spans_of(vec![], vec![]).is_empty());
    }

    /// Scenario: an instance is lost and the request goes on elsewhere. Guarantees: the move is an event with its reason.
    #[test]
    fn a_move_is_an_event() {
        let rows = vec![
            row("arrived", 100),
            row("dispatched", 150),
            row("first_token", 200),
            row("dispatched", 220),
            row("finished", 300),
        ];
        let spans = spans(&story(rows, vec![decided("admit", 140), decided("admit", 219)]));
        let events: Vec<_> = spans[0].events.iter().map(|event| event.name.as_ref()).collect();
        assert_eq!(events, ["moved"]);
    }
}
