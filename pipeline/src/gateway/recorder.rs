//! The account of one request: every event becomes a bus row, a metric and a log line here and nowhere else.
//!
//! Invariants: `seq` counts 1, 2, 3 … without gaps; exactly one last event (finished, failed, rejected or cancelled) follows
//! an arrival, also when the client leaves: dropping the recorder before the end records `cancelled`. Memory: a few words a
//! choice.

use tokio::runtime::Handle;

use axum::http::HeaderMap;

use super::{auth::Tenant, deps::Deps, error::ApiError, parse::Face, session, trace::Story};
use crate::{
    ids::{InstanceId, Micros, Name},
    policy::Placement,
    rows::{DecisionRow, RequestRow},
};

/// Tier shown for a request that was refused before it could be classed.
pub const UNCLASSED: &str = "none";

/// What one step of one choice added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    pub choice: usize,
    pub tokens: u32,
}

/// What is known of a request when it is classed.
#[derive(Debug, Clone, Copy)]
pub struct RequestArrival {
    pub tier: &'static str,
    pub prompt_tokens: u32,
    /// Sequences it will run.
    pub choices: usize,
    /// The conversation within its tenant, if it is known.
    pub session: Option<u64>,
    pub turns: u32,
}

/// Sums that an answer of a foreign engine told; `None`: it did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    pub prompt_tokens: Option<u32>,
    pub output_tokens: Option<u32>,
    pub cached_tokens: Option<u32>,
}

pub struct Recorder {
    deps: Deps,
    face: Face,
    request_id: Name,
    tenant: Tenant,
    /// Name of the model asked for, once that is known.
    model: Name,
    tier: &'static str,
    instance: Option<InstanceId>,
    variant: Option<Name>,
    expected_hit_tokens: Option<u32>,
    arrived: Micros,
    seq: u32,
    prompt_tokens: u32,
    output_tokens: u32,
    first_token_at: Option<Micros>,
    cached_tokens: Option<u32>,
    /// Time of the last token of each choice.
    last_token: Vec<Option<Micros>>,
    /// Tokens of one block, and the hashes of each prompt's blocks; goes into the row of the arrival.
    blocks: Option<(u32, Vec<Vec<u64>>)>,
    has_ended: bool,
    /// Kept while the request is traced.
    story: Option<Box<Story>>,
    /// Where the `cancelled` event is sent from when the client leaves.
    runtime: Handle,
}

impl Recorder {
    /// Starts the account. Must be called on a tokio runtime.
    pub fn new(deps: &Deps, face: Face, request_id: &Name, tenant: &Tenant) -> Self {
        deps.metrics.requests_running.inc();
        Self {
            deps: deps.clone(),
            face,
            request_id: request_id.clone(),
            tenant: tenant.clone(),
            model: deps.models.only().map_or(Name::new_static(UNCLASSED), |model| model.name().into()),
            tier: UNCLASSED,
            instance: None,
            variant: None,
            expected_hit_tokens: None,
            arrived: deps.clock.now(),
            seq: 0,
            prompt_tokens: 0,
            output_tokens: 0,
            first_token_at: None,
            cached_tokens: None,
            last_token: Vec::new(),
            blocks: None,
            has_ended: false,
            story: None,
            runtime: Handle::current(),
        }
    }

    /// From here on the request is traced, if its sender or the sampling wants it.
    pub fn traced(&mut self, headers: &HeaderMap) {
        let begun = self.deps.traces.as_ref().map(|tracer| tracer.begin(headers, (self.face.route(), self.arrived)));
        self.story = begun.flatten();
    }

    /// What an instance is told of the trace.
    pub fn traceparent(&self) -> Option<String> {
        self.story.as_ref().map(|story| story.traceparent())
    }

    /// It is understood, and the policies are asked.
    pub fn parsed(&mut self, at: Micros) {
        if let Some(story) = &mut self.story {
            story.parsed = Some(at);
        }
    }

    /// An instance has taken all its sequences.
    pub fn started(&mut self) {
        if let Some(story) = &mut self.story {
            story.started = Some(self.deps.clock.now());
        }
    }

    /// A decision about it was written.
    pub fn decided(&mut self, row: &DecisionRow) {
        if let Some(story) = &mut self.story {
            story.keep_decision(row);
        }
    }

    async fn write(&mut self, row: RequestRow) {
        if let Some(story) = &mut self.story {
            story.keep(&row);
        }
        self.deps.events.request(row).await;
    }

    /// The end of a traced request, with its last row.
    fn tell(&mut self, last: &RequestRow) {
        if let (Some(mut story), Some(tracer)) = (self.story.take(), &self.deps.traces) {
            story.keep(last);
            tracer.tell(*story);
        }
    }

    /// The request is for this model.
    pub fn is_for(&mut self, model: &str) {
        self.model = model.into();
    }

    /// Name of the model asked for, or `none` while several could be meant.
    pub fn model(&self) -> &Name {
        &self.model
    }

    pub fn arrived_at(&self) -> Micros {
        self.arrived
    }

    pub fn request_id(&self) -> &Name {
        &self.request_id
    }

    /// Variant of the model that serves the request, once one does.
    pub fn variant(&self) -> Option<&Name> {
        self.variant.as_ref()
    }

    pub fn tenant(&self) -> &Name {
        &self.tenant.name
    }

    pub fn instance(&self) -> Option<InstanceId> {
        self.instance
    }

    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    pub fn first_token_at(&self) -> Option<Micros> {
        self.first_token_at
    }

    pub fn output_tokens(&self) -> u32 {
        self.output_tokens
    }

    pub fn cached_tokens(&self) -> Option<u32> {
        self.cached_tokens
    }

    /// The prompts are known, block by block.
    pub fn hashed(&mut self, block_tokens: usize, prompts: &[Vec<u64>]) {
        self.blocks = Some((u32::try_from(block_tokens).unwrap_or(u32::MAX), prompts.to_vec()));
    }

    /// The request is understood and classed.
    pub async fn arrived(&mut self, arrival: RequestArrival) {
        self.tier = arrival.tier;
        self.prompt_tokens = arrival.prompt_tokens;
        self.last_token = vec![None; arrival.choices];
        self.deps.metrics.prompt_tokens.inc_by(u64::from(arrival.prompt_tokens));
        let session_hash = arrival.session.map(|session| session::of_tenant(&self.tenant.name, session));
        let turns = Some(arrival.turns);
        let (block_tokens, prompt_blocks) = self.blocks.take().unzip();
        let known = RequestRow { session_hash, turns, block_tokens, prompt_blocks, ..self.row("arrived") };
        let row = RequestRow { at: self.arrived, ..known };
        self.write(row).await;
    }

    pub async fn queued(&mut self) {
        let row = self.row("queued");
        self.write(row).await;
    }

    /// Also for each later instance, when the first was lost.
    pub async fn dispatched(&mut self, placement: &Placement) {
        self.instance = Some(placement.instance);
        self.variant = Some(placement.variant.as_str().into());
        self.expected_hit_tokens = placement.hit_tokens();
        let row = self.row("dispatched");
        self.write(row).await;
    }

    /// New tokens of one choice.
    pub async fn grew(&mut self, growth: Growth) {
        let now = self.deps.clock.now();
        let is_first = self.output_tokens == 0;
        self.output_tokens += growth.tokens;
        self.deps.metrics.generation_tokens.inc_by(u64::from(growth.tokens));
        let previous = self.last_token.get_mut(growth.choice).and_then(|last| last.replace(now));
        let (event, gap_us) = if is_first {
            self.first_token_at = Some(now);
            self.deps.metrics.time_to_first_token.observe(seconds(now - self.arrived));
            ("first_token", Some(now - self.arrived))
        } else {
            let gap = previous.map(|at| (now - at) / i64::from(growth.tokens.max(1)));
            if let Some(gap) = gap {
                self.deps.metrics.inter_token_latency.observe(seconds(gap));
            }
            ("grew", gap)
        };
        let row = RequestRow { at: now, gap_us, ..self.row(event) };
        if is_first {
            self.write(row).await;
        } else {
            self.deps.events.request(row).await;
        }
    }

    /// A foreign engine told the sums at the end; they replace what was estimated or counted on the way.
    pub fn settle(&mut self, told: Told) {
        self.prompt_tokens = told.prompt_tokens.unwrap_or(self.prompt_tokens);
        if let Some(output_tokens) = told.output_tokens {
            let uncounted = output_tokens.saturating_sub(self.output_tokens);
            self.deps.metrics.generation_tokens.inc_by(u64::from(uncounted));
            self.output_tokens = output_tokens;
        }
        if let Some(cached_tokens) = told.cached_tokens {
            self.reused(cached_tokens);
        }
    }

    /// Prompt tokens whose KV was reused, added up over the prompts.
    pub fn reused(&mut self, cached_tokens: u32) {
        self.cached_tokens = Some(self.cached_tokens.unwrap_or(0).saturating_add(cached_tokens));
        self.deps.metrics.cached_tokens.inc_by(u64::from(cached_tokens));
    }

    pub async fn finished(&mut self, reason: &'static str) {
        self.end("finished", "ok", Some(reason), None).await;
    }

    /// Ended after it was dispatched.
    pub async fn failed(&mut self, error: &ApiError) {
        self.count_refusal(error);
        self.end("failed", error.code(), Some("failed"), Some(error)).await;
    }

    /// Refused before it was dispatched.
    pub async fn rejected(&mut self, error: &ApiError) {
        self.count_refusal(error);
        self.end("rejected", error.code(), None, Some(error)).await;
    }

    fn count_refusal(&self, error: &ApiError) {
        if let ApiError::Overloaded { reason, .. } = error {
            self.deps.metrics.rejected(reason.name());
        }
    }

    async fn end(
        &mut self,
        event: &'static str,
        outcome: &'static str,
        finish_reason: Option<&'static str>,
        error: Option<&ApiError>,
    ) {
        let row = self.last_row(event, finish_reason, error.map(|error| format!("{}: {error}", error.code())));
        self.deps.metrics.ended(self.face.route(), outcome, seconds(row.total_us.unwrap_or(0)));
        self.tell(&row);
        self.deps.events.request(row).await;
    }

    fn last_row(
        &mut self,
        event: &'static str,
        finish_reason: Option<&'static str>,
        error: Option<String>,
    ) -> RequestRow {
        assert!(!self.has_ended, "a request ends once");
        self.has_ended = true;
        self.deps.metrics.requests_running.dec();
        let mut row = self.row(event);
        row.total_us = Some(row.at - self.arrived);
        row.finish_reason = finish_reason.map(Name::new_static);
        row.error = error;
        log(&row);
        row
    }

    fn row(&mut self, event: &'static str) -> RequestRow {
        self.seq += 1;
        RequestRow {
            at: self.deps.clock.now(),
            request_id: self.request_id.clone(),
            seq: self.seq,
            event: Name::new_static(event),
            model: self.model.clone(),
            tier: Name::new_static(self.tier),
            tenant: self.tenant.name.clone(),
            instance: self.instance.map(|instance| instance.0),
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            cached_tokens: self.cached_tokens,
            variant: self.variant.clone(),
            expected_hit_tokens: self.expected_hit_tokens,
            tenant_class: Some(Name::new_static(self.tenant.class.name())),
            ..RequestRow::default()
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let is_known = self.seq > 0;
        let row = self.last_row("cancelled", Some("cancelled"), None);
        self.deps.metrics.ended(self.face.route(), "cancelled", seconds(row.total_us.unwrap_or(0)));
        self.tell(&row);
        // A client that left before its request was understood leaves no row, as there was no arrival.
        if is_known {
            let events = self.deps.events.clone();
            self.runtime.spawn(async move { events.request(row).await });
        }
    }
}

/// What went well is in the tables; the log is for what did not.
fn log(row: &RequestRow) {
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                request_id = %row.request_id, event = %row.event, tier = %row.tier, tenant = %row.tenant,
                instance = row.instance, prompt_tokens = row.prompt_tokens, output_tokens = row.output_tokens,
                total_us = row.total_us, error = row.error.as_deref(), "request ended"
            )
        };
    }
    match row.event.as_str() {
        "finished" => line!(debug),
        _ => line!(info),
    }
}

fn seconds(us: i64) -> f64 {
    us as f64 / 1e6
}
