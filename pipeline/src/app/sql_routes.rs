//! `POST /sql`: one read-only query over the live tables (SPEC E2). The answer's form follows `Accept`: JSON (the default),
//! CSV or an Arrow stream.
//!
//! Errors have OpenAI's shape, so that one client handling serves both doors. Limits: `[sql]` of the configuration.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use queries::{Caller, Question, SqlAnswers, SqlError, encode};
use serde::Deserialize;
use serde_json::json;

use crate::gateway::auth::{Keys, Tenant};

/// What the route needs.
pub struct SqlDoor {
    pub answers: Arc<dyn SqlAnswers>,
    pub keys: Keys,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SqlRequest {
    query: String,
}

pub fn routes(door: Arc<SqlDoor>) -> Router {
    Router::new().route("/sql", post(sql)).with_state(door)
}

/// Who asks, for SQL: a tenant with its limits.
pub(super) fn caller(tenant: &Tenant) -> Caller {
    Caller::new(tenant.name.clone())
}

async fn sql(State(door): State<Arc<SqlDoor>>, headers: HeaderMap, body: Bytes) -> Response {
    let tenant = match door.keys.tenant(&headers) {
        Ok(tenant) => tenant,
        Err(error) => return error.into_response(),
    };
    let request: SqlRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("The body is not {{\"query\": \"…\"}}: {error}");
            return refusal(StatusCode::BAD_REQUEST, ("invalid_request_error", "invalid_json"), &message);
        }
    };
    let started = std::time::Instant::now();
    let answer = match door.answers.answer(Question::new(request.query, caller(&tenant))).await {
        Ok(answer) => answer,
        Err(error) => return sql_error(&error),
    };
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (kind, encoded) = if accept.contains("text/csv") {
        ("text/csv; charset=utf-8", encode::csv(&answer.schema, &answer.batches))
    } else if accept.contains("application/vnd.apache.arrow.stream") {
        ("application/vnd.apache.arrow.stream", encode::arrow_stream(&answer.schema, &answer.batches))
    } else {
        ("application/json", encode::json(&answer.schema, &answer.batches))
    };
    match encoded {
        Ok(bytes) => {
            let micros = HeaderValue::from(started.elapsed().as_micros().min(u128::from(u64::MAX)) as u64);
            let rows = HeaderValue::from(answer.rows());
            let kind = HeaderValue::from_static(kind);
            let headers = [(header::CONTENT_TYPE, kind)];
            let extra = [("x-evenkeel-query-us", micros), ("x-evenkeel-rows", rows)];
            (headers, extra, bytes).into_response()
        }
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, ("server_error", "encode"), &error.to_string()),
    }
}

pub(super) fn sql_error(error: &SqlError) -> Response {
    let status = match error {
        SqlError::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
        SqlError::TimedOut { .. } => StatusCode::REQUEST_TIMEOUT,
        SqlError::TooManyRows { .. } | SqlError::OutOfMemory { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        SqlError::Execution { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        SqlError::Refused { .. } | SqlError::Parse { .. } | SqlError::Plan { .. } => StatusCode::BAD_REQUEST,
    };
    let mut response = refusal(status, ("invalid_request_error", error.code()), &error.to_string());
    if error.is_transient() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(1u64));
    }
    response
}

/// An error in OpenAI's shape. `names`: its type and code.
pub(super) fn refusal(status: StatusCode, (kind, code): (&str, &str), message: &str) -> Response {
    (status, Json(json!({"error": {"message": message, "type": kind, "param": null, "code": code}}))).into_response()
}
