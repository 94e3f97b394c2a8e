//! `GET /v1/requests/{id}/explain`: why a request was classed, queued, routed, moved or refused (SPEC X3), from the rows of the bus: its
//! events, every decision with every candidate and term, what the policies read, and what shadow policies would have decided.
//!
//! Nothing is kept for it: the tables are asked, live rows and log alike, under the limits of `[sql]`. An id says when its request came, so
//! only rows of that time are read. Invariants: a tenant sees its own requests alone, and whether another's exists it is not told; the
//! answer holds what was published before it was asked for. Cost: five queries. Bounds: those of the SQL engine, and [`EVENTS_MAX`] events
//! (a token's events are summed up, not listed).

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::HeaderMap,
    response::{IntoResponse, Response},
    routing::get,
};
use queries::{SqlEngine, SqlError, Topic, encode};
use serde_json::{Value, json};

use super::sql_routes::sql_error;
use crate::{
    bus::Bus,
    gateway::{auth::Keys, error::ApiError},
    ids::{Micros, micros},
};

/// Events listed.
const EVENTS_MAX: usize = 1000;
/// Rows of a request come this much before the time of its id, at most: two clocks were read.
const BEFORE: Duration = Duration::from_secs(2);

/// What the route needs.
pub struct ExplainDoor {
    pub engine: Arc<SqlEngine>,
    pub bus: Bus,
    pub keys: Keys,
    /// A request is over by then.
    pub life_max: Duration,
}

pub fn routes(door: Arc<ExplainDoor>) -> Router {
    Router::new().route("/v1/requests/{id}/explain", get(explain)).with_state(door)
}

async fn explain(State(door): State<Arc<ExplainDoor>>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    let tenant = match door.keys.tenant(&headers) {
        Ok(tenant) => tenant,
        Err(error) => return error.into_response(),
    };
    let unknown = || ApiError::UnknownRequest(crate::gateway::json_body::shorten(&id)).into_response();
    let Some(at) = arrival_of(&id) else { return unknown() };
    // Rows on their way belong to the answer; a bus that has stopped has none.
    let _ = door.bus.flush().await;
    match door.tell(&id, (&tenant.name, at)).await {
        Ok(Some(told)) => Json(told).into_response(),
        Ok(None) => unknown(),
        Err(error) => sql_error(&error),
    }
}

/// When the request of an id came, if it is an id of ours.
fn arrival_of(id: &str) -> Option<Micros> {
    let uuid = uuid::Uuid::parse_str(id.strip_prefix("req-")?).ok()?;
    // Only the form we write: any other spelling would not be found.
    let is_ours = uuid.get_version_num() == 7 && id == format!("req-{}", uuid.simple());
    let (seconds, nanos) = uuid.get_timestamp().filter(|_| is_ours)?.to_unix();
    Some(i64::try_from(seconds).ok()?.checked_mul(1_000_000)? + i64::from(nanos / 1000))
}

impl ExplainDoor {
    async fn tell(&self, id: &str, (tenant, at): (&str, Micros)) -> Result<Option<Value>, SqlError> {
        let to = at.saturating_add(micros(self.life_max));
        let span = |time: &str| {
            let from = at - micros(BEFORE);
            // The id has passed `arrival_of`, so it holds no quote.
            format!("request_id = '{id}' and {time} between to_timestamp_micros({from}) and to_timestamp_micros({to})")
        };
        let owner = tenant.replace('\'', "''");
        let decisions = self
            .rows(&format!("select * from decisions where {} and tenant = '{owner}' order by at", span("at")))
            .await?;
        let events = format!(
            "select at, seq, event, model, tier, instance, variant, prompt_tokens, output_tokens, cached_tokens, gap_us, total_us, \
             finish_reason, error from requests where {} and tenant = '{owner}' and event <> 'grew' order by seq limit {EVENTS_MAX}",
            span("at")
        );
        let events = self.rows(&events).await?;
        if decisions.is_empty() && events.is_empty() {
            return Ok(None);
        }
        let grown = format!(
            "select count(*) as steps, max(output_tokens) as output_tokens, max(gap_us) as longest_gap_us, max(at) as last_at \
             from requests where {} and tenant = '{owner}' and event = 'grew'",
            span("at")
        );
        let inputs = format!("select {} from policy_inputs where {} order by at", inputs_told(), span("at"));
        let shadow = format!("select * from shadow_decisions where {} order by at, shadow", span("at"));
        let grown = self.rows(&grown).await?.into_iter().next();
        Ok(Some(answer(
            id,
            Rows { events, grown, decisions, inputs: self.rows(&inputs).await?, shadow: self.rows(&shadow).await? },
        )))
    }

    async fn rows(&self, query: &str) -> Result<Vec<Value>, SqlError> {
        let answer = self.engine.query(query).await?;
        let wrong = |error: String| SqlError::Execution(format!("the answer cannot be read: {error}"));
        let text = encode::json(&answer.schema, &answer.batches).map_err(|error| wrong(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))
    }
}

/// What policies read, but for the hashes of the prompt's blocks, which tell nobody anything.
fn inputs_told() -> String {
    let schema = Topic::PolicyInputs.schema();
    let names = schema.fields().iter().map(|field| field.name().as_str());
    names.filter(|name| *name != "block_hashes").collect::<Vec<_>>().join(", ")
}

/// All that the tables know of a request.
struct Rows {
    events: Vec<Value>,
    grown: Option<Value>,
    decisions: Vec<Value>,
    inputs: Vec<Value>,
    shadow: Vec<Value>,
}

fn answer(id: &str, rows: Rows) -> Value {
    let Rows { events, grown, mut decisions, mut inputs, mut shadow } = rows;
    for decision in &mut decisions {
        let of = |row: &Value| row["decision_id"] == decision["decision_id"];
        let own: Vec<Value> = inputs.extract_if(.., |row| of(row)).collect();
        let others: Vec<Value> = shadow.extract_if(.., |row| of(row)).collect();
        decision["inputs"] = own.into();
        decision["shadow"] = others.into();
    }
    let known = decisions.first().or(events.first()).cloned().unwrap_or_default();
    let state = events.last().map(|row| row["event"].clone());
    json!({
        "object": "request.explanation",
        "request_id": id,
        "model": known["model"],
        "tier": known["tier"],
        "state": state,
        "summary": summary(&events, &decisions),
        "events": events,
        "tokens": grown.filter(|grown| grown["steps"] != json!(0)),
        "decisions": decisions,
    })
}

/// What happened and why, a line a step, in the order of time.
fn summary(events: &[Value], decisions: &[Value]) -> Vec<String> {
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_string();
    let mut lines: Vec<(String, String)> = Vec::new();
    if let Some(first) = decisions.iter().find(|row| row["tier"] != "none") {
        lines.push((text(first, "at"), format!("classed {}: {}", text(first, "tier"), text(first, "tier_reason"))));
    }
    for row in decisions {
        let what = match (row["outcome"].as_str().unwrap_or_default(), text(row, "reason").starts_with("moved")) {
            ("admit", true) => format!("moved to w{}", row["instance"]),
            ("admit", false) => format!("routed to w{}", row["instance"]),
            ("queue", _) => "queued".to_string(),
            (outcome, _) => format!("{outcome}ed"),
        };
        lines.push((text(row, "at"), format!("{what}: {}", text(row, "reason"))));
    }
    for row in events {
        let event = text(row, "event");
        let detail = match (&row["error"], &row["finish_reason"]) {
            (Value::String(error), _) => format!(": {error}"),
            (_, Value::String(reason)) => format!(": {reason}"),
            _ => String::new(),
        };
        let is_told = matches!(event.as_str(), "first_token" | "finished" | "cancelled" | "failed");
        if is_told {
            lines.push((text(row, "at"), format!("{event}{detail}")));
        }
    }
    // The times are RFC 3339 of one length, so texts sort as times do; the order of equal ones stays.
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    lines.into_iter().map(|(at, line)| format!("{at} {line}")).collect()
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
