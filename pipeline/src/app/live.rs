//! `GET /v1/live`: the fleet once a second, as server-sent events (SPEC E4).
//!
//! A task watches the bus (lossy: at the bound it skips and the page shows what it got) and keeps one minute of figures. All
//! pages share one event a second through a `watch`; a slow page only misses events. Cost: O(rows watched), and one sort
//! of at most [`SAMPLES_MAX`] gaps a second. State: bounded by [`SAMPLES_MAX`], [`DECISIONS`] and one minute of seconds.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use arrow::{
    array::{Array, AsArray, RecordBatch},
    datatypes::{Int64Type, TimestampMicrosecondType},
};
use axum::{
    Router,
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::get,
};
use futures::StreamExt;
use queries::Topic;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

use super::glue::Views;
use crate::{
    bus::{Bus, Published, rows_of},
    gateway::{auth::Keys, deps::ViewSource, recorder::UNCLASSED},
    ids::Micros,
    policy::ClusterView,
    rows::{DecisionRow, EngineStepRow, FaultRow},
};

const SECOND: Micros = 1_000_000;
/// Figures are over this span.
const MINUTE: Micros = 60 * SECOND;
/// Latency samples kept; the oldest go first.
const SAMPLES_MAX: usize = 20_000;
/// Decisions shown.
const DECISIONS: usize = 20;

/// What the stream needs.
pub struct LiveDoor {
    pub keys: Keys,
    pub events: watch::Receiver<Arc<str>>,
}

pub fn routes(door: Arc<LiveDoor>) -> Router {
    Router::new().route("/v1/live", get(live)).with_state(door)
}

async fn live(State(door): State<Arc<LiveDoor>>, headers: HeaderMap) -> Response {
    if let Err(error) = door.keys.tenant(&headers) {
        return error.into_response();
    }
    let events = WatchStream::new(door.events.clone())
        .map(|data| Ok::<_, Infallible>(Event::default().event("fleet").data(data.as_ref())));
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(10))).into_response()
}

/// Keeps the figures and sends an event a second until the bus stops or nobody holds the receiver.
pub async fn run(bus: Bus, views: Arc<Views>, clock: impl Fn() -> Micros + Send, events: watch::Sender<Arc<str>>) {
    let mut watcher = bus.watch();
    let mut figures = Figures::default();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            published = watcher.recv() => match published {
                Some(published) => figures.take(clock(), &published),
                None => return,
            },
            _ = tick.tick() => {
                let now = clock();
                let view = views.cluster(now);
                if events.send(figures.event(now, &view, &views).to_string().into()).is_err() {
                    return;
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Second {
    at: Micros,
    decode_tokens: u64,
    prefill_tokens: u64,
    cached_tokens: u64,
    prompt_tokens: u64,
    arrived: u64,
}

#[derive(Default)]
struct Figures {
    seconds: VecDeque<Second>,
    ttft: VecDeque<(Micros, i64)>,
    itl: VecDeque<(Micros, i64)>,
    decisions: VecDeque<Value>,
    step: String,
    faults: u64,
}

impl Figures {
    /// Rows that do not decode were refused and reported by the bus already. Those of a clock that is ahead count as of now.
    fn take(&mut self, now: Micros, published: &Published) {
        match published.topic {
            Topic::EngineSteps => {
                for row in rows_of::<EngineStepRow>(&published.batch).unwrap_or_default() {
                    let Some(second) = self.second(now, row.at) else { continue };
                    second.decode_tokens += u64::from(row.decode_tokens) + u64::from(row.accepted_tokens);
                    second.prefill_tokens += u64::from(row.prefill_tokens);
                    second.cached_tokens += u64::from(row.cached_tokens);
                    second.prompt_tokens += u64::from(row.scheduled_prompt_tokens);
                }
            }
            Topic::Requests => self.requests(now, &published.batch),
            Topic::Decisions => {
                // Of a batch only the last ones are shown.
                let skipped = published.batch.num_rows().saturating_sub(DECISIONS);
                let shown = published.batch.slice(skipped, published.batch.num_rows() - skipped);
                for row in rows_of::<DecisionRow>(&shown).unwrap_or_default() {
                    // A request that was refused before the throttle was asked says nothing about it.
                    if row.throttle_step != UNCLASSED {
                        self.step = row.throttle_step.to_string();
                    }
                    self.decisions.push_front(decision(&row));
                    self.decisions.truncate(DECISIONS);
                }
            }
            Topic::Faults => {
                let rows = rows_of::<FaultRow>(&published.batch).unwrap_or_default();
                self.faults += rows.iter().map(|row| row.count).sum::<u64>();
            }
            _ => {}
        }
    }

    /// Read in place: there may be very many.
    fn requests(&mut self, now: Micros, batch: &RecordBatch) {
        let column = |name| batch.column_by_name(name);
        let (Some(at), Some(event), Some(gap_us)) = (
            column("at").and_then(|column| column.as_primitive_opt::<TimestampMicrosecondType>()),
            column("event").and_then(|column| column.as_string_opt::<i32>()),
            column("gap_us").and_then(|column| column.as_primitive_opt::<Int64Type>()),
        ) else {
            return;
        };
        for row in 0..batch.num_rows() {
            let (at, gap_us) = (at.value(row).min(now), gap_us.is_valid(row).then(|| gap_us.value(row)));
            match (event.value(row), gap_us) {
                ("arrived", _) => {
                    if let Some(second) = self.second(now, at) {
                        second.arrived += 1;
                    }
                }
                ("first_token", Some(gap)) => self.ttft.push_back((at, gap)),
                ("grew", Some(gap)) => self.itl.push_back((at, gap)),
                _ => {}
            }
        }
        for samples in [&mut self.ttft, &mut self.itl] {
            while samples.len() > SAMPLES_MAX {
                samples.pop_front();
            }
        }
    }

    /// The bucket of that moment, if it is shown.
    fn second(&mut self, now: Micros, at: Micros) -> Option<&mut Second> {
        let at = at.min(now) / SECOND * SECOND;
        if now.saturating_sub(at) > MINUTE + SECOND {
            return None;
        }
        let place = self.seconds.partition_point(|second| second.at < at);
        if self.seconds.get(place).is_none_or(|second| second.at != at) {
            self.seconds.insert(place, Second { at, ..Second::default() });
        }
        self.seconds.get_mut(place)
    }

    fn forget(&mut self, now: Micros) {
        while self.seconds.front().is_some_and(|second| now.saturating_sub(second.at) > MINUTE + SECOND) {
            self.seconds.pop_front();
        }
        for samples in [&mut self.ttft, &mut self.itl] {
            while samples.front().is_some_and(|(at, _)| now.saturating_sub(*at) > MINUTE) {
                samples.pop_front();
            }
        }
    }

    /// `sum(pick)` over the last full `span`, per second.
    fn rate(&self, now: Micros, span: Micros, pick: fn(&Second) -> u64) -> f64 {
        let end = now / SECOND * SECOND;
        let within = self.seconds.iter().filter(|second| second.at < end && second.at >= end - span);
        within.map(pick).sum::<u64>() as f64 * SECOND as f64 / span as f64
    }

    fn event(&mut self, now: Micros, view: &ClusterView, views: &Views) -> Value {
        self.forget(now);
        let span = 3 * SECOND;
        let (cached, prompt) = self.seconds.iter().fold((0, 0), |(c, p), s| (c + s.cached_tokens, p + s.prompt_tokens));
        let engines = || view.instances.iter().filter_map(|instance| instance.engine);
        json!({
            "as_of": time(view.as_of.unwrap_or(now)),
            "view_mode": view.mode.name(),
            "throttle_step": if self.step.is_empty() { "open" } else { &self.step },
            "tokens_per_second": self.rate(now, span, |s| s.decode_tokens),
            "prompt_tokens_per_second": self.rate(now, span, |s| s.prefill_tokens),
            "requests_per_second": self.rate(now, span, |s| s.arrived),
            "ttft_ms": quantiles(&self.ttft),
            "itl_ms": quantiles(&self.itl),
            "hit_rate": (prompt > 0).then(|| cached as f64 / prompt as f64),
            "running": engines().map(|engine| u64::from(engine.running)).sum::<u64>(),
            "waiting": engines().map(|engine| u64::from(engine.waiting)).sum::<u64>(),
            "instances": instances(now, view, views),
            "atoms": atoms(views),
            "decisions": self.decisions,
            "faults": self.faults,
        })
    }
}

fn instances(now: Micros, view: &ClusterView, views: &Views) -> Vec<Value> {
    let flow = views.flow.as_ref().map(|flow| flow.load());
    let total: u64 = view.instances.iter().filter_map(|i| i.engine).map(|engine| engine.context_tokens).sum();
    let entries = views.directory.load();
    entries
        .iter()
        // One that came since the look is shown with the next.
        .filter_map(|entry| Some((entry, view.instance(entry.id)?)))
        .map(|(entry, seen)| {
            let engine = seen.engine;
            let state = flow.as_ref().and_then(|flow| flow.instances.get(&entry.id.0));
            let rate = state.map(|s| if now - s.step.at_us > 2 * SECOND { 0 } else { s.tokens_per_s });
            let seconds = engine.and_then(|engine| {
                let drain = engine.queued_prefill_tokens as f64 / engine.prefill_tokens_per_second?;
                Some(drain)
            });
            json!({
                "instance": entry.id.0, "name": entry.name, "model": entry.model, "state": entry.state.name(),
                "running": engine.map(|e| e.running), "waiting": engine.map(|e| e.waiting),
                "context_tokens": engine.map(|e| e.context_tokens),
                "blocks_used": engine.map(|e| e.blocks_used),
                "blocks_cached": state.map(|s| s.step.blocks_cached),
                "blocks_total": engine.map(|e| e.blocks_total),
                "tokens_per_second": rate,
                "share": engine.filter(|_| total > 0).map(|e| e.context_tokens as f64 / total as f64),
                "load_seconds": seconds,
            })
        })
        .collect()
}

fn atoms(views: &Views) -> Vec<Value> {
    let Some(flow) = &views.flow else { return Vec::new() };
    let mut totals = std::collections::BTreeMap::<u32, (i64, i64)>::new();
    for ((_, atom), load) in flow.load().atoms.iter() {
        let total = totals.entry(*atom).or_default();
        *total = (total.0 + load.tokens, total.1 + load.requests);
    }
    let width = operators::ATOM_TOKENS;
    totals
        .into_iter()
        .map(|(atom, (tokens, requests))| {
            json!({"atom": atom, "from_tokens": atom * width, "to_tokens": (atom + 1) * width, "tokens": tokens, "requests": requests})
        })
        .collect()
}

fn decision(row: &DecisionRow) -> Value {
    json!({
        "at": time(row.at), "request": row.request_id, "tier": row.tier, "outcome": row.outcome,
        "instance": row.instance, "reason": row.reason, "predicted_hit_tokens": row.predicted_hit_tokens,
        "predicted_seconds": row.predicted_seconds,
    })
}

/// p50, p95 and p99 in milliseconds; null when nothing is known.
fn quantiles(samples: &VecDeque<(Micros, i64)>) -> Value {
    if samples.is_empty() {
        return Value::Null;
    }
    let mut sorted: Vec<i64> = samples.iter().map(|(_, us)| *us).collect();
    sorted.sort_unstable();
    let at = |q: f64| sorted[((sorted.len() - 1) as f64 * q).round() as usize] as f64 / 1e3;
    json!({"p50": at(0.5), "p95": at(0.95), "p99": at(0.99)})
}

/// RFC 3339 in UTC, with microseconds.
fn time(us: Micros) -> String {
    let moment = std::time::UNIX_EPOCH + Duration::from_micros(us.max(0) as u64);
    humantime::format_rfc3339_micros(moment).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bus::tests::rows::decision, worker::telemetry::batch_of};

    /// Scenario: a decision in a step of throttling, then a request that was refused before the throttle was asked.
    /// Guarantees: the step shown is that of the decision.
    #[test]
    fn a_refusal_before_the_throttle_leaves_the_step_shown() {
        let mut figures = Figures::default();
        for step in ["throttle_low", UNCLASSED] {
            let row = DecisionRow { throttle_step: step.into(), ..decision(Vec::new()) };
            let batch = batch_of(&[row]).expect("a batch");
            figures.take(0, &Published { topic: Topic::Decisions, first_row: 0, batch });
        }
        assert_eq!(figures.step, "throttle_low");
    }

    /// Scenario: a thousand steps, each of another second: a clock is ahead; then of one that is behind; then one of now.
    /// Guarantees: no more than a minute is kept; what is ahead counts as of now, what is older than a minute not at all.
    #[test]
    fn wrong_clocks_do_not_grow_the_minute() {
        let (mut figures, now) = (Figures::default(), 10_000 * SECOND);
        let take = |figures: &mut Figures, at: Micros| {
            let row = EngineStepRow { at, decode_tokens: 1, ..EngineStepRow::default() };
            let batch = batch_of(&[row]).expect("a batch");
            figures.take(now, &Published { topic: Topic::EngineSteps, first_row: 0, batch });
        };
        (0..1000).for_each(|ahead| take(&mut figures, now + ahead * SECOND));
        assert_eq!((figures.seconds.len(), figures.seconds[0].at, figures.seconds[0].decode_tokens), (1, now, 1000));
        (0..1000).for_each(|behind| take(&mut figures, now - behind * SECOND));
        assert_eq!((figures.seconds.len(), figures.seconds[61].decode_tokens), (62, 1001));
        take(&mut figures, now);
        assert_eq!(figures.seconds[61].decode_tokens, 1002);
    }
}
