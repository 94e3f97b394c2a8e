//! `POST /sql`: one read-only query over the live tables, written out or saved (SPEC E2). The answer's form follows `Accept`:
//! JSON (the default), CSV or an Arrow stream. `GET /sql/saved` lists the saved ones.
//!
//! Errors have OpenAI's shape, so that one client handling serves both doors. Limits: `[sql]` of the configuration, and the key's own.
//! A large answer is written on a thread of its own, so that it holds up no other request.

use std::{collections::BTreeMap, sync::Arc};

use arrow::datatypes::{DataType, TimeUnit};
use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use queries::{
    Caller, QueryResult, Question, ScalarValue, SqlAnswers, SqlError,
    encode::{self, EncodeError},
    saved,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::auth::{Keys, Tenant};

/// Answers with more rows are written apart.
const ROWS_AT_ONCE: usize = 256;

/// What the route needs.
pub struct SqlDoor {
    pub answers: Arc<dyn SqlAnswers>,
    pub keys: Keys,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SqlRequest {
    query: Option<String>,
    /// Name of a saved query instead.
    saved: Option<String>,
    /// Its parameters: texts or numbers.
    #[serde(default)]
    parameters: BTreeMap<String, Value>,
    /// The moment as which the tables are seen, as in `2026-01-31T12:00:00Z`.
    as_of: Option<String>,
}

impl SqlRequest {
    /// The statement to run.
    fn statement(self) -> Result<String, SqlError> {
        match (self.query, self.saved) {
            (Some(query), None) if self.parameters.is_empty() => Ok(query),
            (None, Some(name)) => {
                let text = |value: Value| match value {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                let given = self.parameters.into_iter().filter(|(_, value)| !value.is_null());
                saved::find(&name)?.render(&given.map(|(name, value)| (name, text(value))).collect())
            }
            _ => Err(SqlError::Refused(
                "give \"query\", or \"saved\" with its \"parameters\"; GET /sql/saved lists what is saved".to_string(),
            )),
        }
    }
}

pub fn routes(door: Arc<SqlDoor>) -> Router {
    Router::new().route("/sql", post(sql)).route("/sql/saved", get(list_saved)).with_state(door)
}

/// The saved queries: what each answers, its parameters, and its statement with the defaults in it.
async fn list_saved(State(door): State<Arc<SqlDoor>>, headers: HeaderMap) -> Response {
    if let Err(error) = door.keys.tenant(&headers) {
        return error.into_response();
    }
    let queries = saved::all().iter().map(|query| {
        let mut told = json!(query);
        told["statement"] = query.text().into();
        told
    });
    Json(queries.collect::<Vec<_>>()).into_response()
}

/// Who asks, for SQL: a tenant with its limits.
pub(super) fn caller(tenant: &Tenant) -> Caller {
    let sql = &tenant.sql;
    Caller {
        name: tenant.name.to_string(),
        timeout: sql.timeout,
        memory_bytes: sql.memory_max.map(|bytes| bytes.as_u64() as usize),
        rows_max: sql.rows_max,
        concurrent_max: sql.concurrent_max,
    }
}

/// A time in microseconds since the epoch, in UTC where it names no zone.
pub(super) fn moment(text: &str) -> Option<i64> {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    match ScalarValue::Utf8(Some(text.trim().to_string())).cast_to(&utc) {
        Ok(ScalarValue::TimestampMicrosecond(at, _)) => at,
        _ => None,
    }
}

async fn sql(State(door): State<Arc<SqlDoor>>, headers: HeaderMap, body: Bytes) -> Response {
    let tenant = match door.keys.tenant(&headers) {
        Ok(tenant) => tenant,
        Err(error) => return error.into_response(),
    };
    let request: SqlRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("The body is not {{\"query\": \"…\"}} or {{\"saved\": \"…\"}}: {error}");
            return refusal(StatusCode::BAD_REQUEST, ("invalid_request_error", "invalid_json"), &message);
        }
    };
    let started = std::time::Instant::now();
    let as_of = match request.as_of.as_deref().map(|text| moment(text).ok_or(text)).transpose() {
        Ok(as_of) => as_of,
        Err(text) => {
            let message = format!("as_of = {text:?}: expected a time such as \"2026-01-31T12:00:00Z\"");
            return refusal(StatusCode::BAD_REQUEST, ("invalid_request_error", "invalid_value"), &message);
        }
    };
    let statement = match request.statement() {
        Ok(statement) => statement,
        Err(error) => return sql_error(&error),
    };
    let question = Question { as_of, ..Question::new(statement, caller(&tenant)) };
    let answer = match door.answers.answer(question).await {
        Ok(answer) => answer,
        Err(error) => return sql_error(&error),
    };
    let form = Form::of(headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default());
    let rows = answer.rows();
    let encoded = match rows > ROWS_AT_ONCE {
        true => tokio::task::spawn_blocking(move || form.encode(&answer)).await,
        false => Ok(form.encode(&answer)),
    };
    let encoded = encoded.map_err(|error| error.to_string()).and_then(|bytes| bytes.map_err(|error| error.to_string()));
    match encoded {
        Ok(bytes) => {
            let micros = HeaderValue::from(started.elapsed().as_micros().min(u128::from(u64::MAX)) as u64);
            let rows = HeaderValue::from(rows);
            let kind = HeaderValue::from_static(form.name());
            let headers = [(header::CONTENT_TYPE, kind)];
            let extra = [("x-evenkeel-query-us", micros), ("x-evenkeel-rows", rows)];
            (headers, extra, bytes).into_response()
        }
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, ("server_error", "encode"), &error),
    }
}

/// How an answer is written.
#[derive(Debug, Clone, Copy)]
enum Form {
    Json,
    Csv,
    Arrow,
}

impl Form {
    fn of(accept: &str) -> Form {
        if accept.contains("text/csv") {
            Form::Csv
        } else if accept.contains("application/vnd.apache.arrow.stream") {
            Form::Arrow
        } else {
            Form::Json
        }
    }

    fn name(self) -> &'static str {
        match self {
            Form::Json => "application/json",
            Form::Csv => "text/csv; charset=utf-8",
            Form::Arrow => "application/vnd.apache.arrow.stream",
        }
    }

    fn encode(self, answer: &QueryResult) -> Result<Vec<u8>, EncodeError> {
        match self {
            Form::Json => encode::json(&answer.schema, &answer.batches),
            Form::Csv => encode::csv(&answer.schema, &answer.batches),
            Form::Arrow => encode::arrow_stream(&answer.schema, &answer.batches),
        }
    }
}

pub(super) fn sql_error(error: &SqlError) -> Response {
    let status = match error {
        SqlError::Busy { .. } | SqlError::CallerBusy { .. } => StatusCode::TOO_MANY_REQUESTS,
        SqlError::EngineRestarted(_) => StatusCode::SERVICE_UNAVAILABLE,
        SqlError::TimedOut { .. } => StatusCode::REQUEST_TIMEOUT,
        SqlError::TooManyRows { .. } | SqlError::OutOfMemory { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        SqlError::Execution { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        SqlError::ReadOnly
        | SqlError::Refused { .. }
        | SqlError::Parse { .. }
        | SqlError::Plan { .. }
        | SqlError::UnknownTable { .. }
        | SqlError::UnknownColumn { .. } => StatusCode::BAD_REQUEST,
    };
    let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
    let mut response = refusal(status, (kind, error.code()), &error.to_string());
    if error.is_transient() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(1u64));
    }
    response
}

/// An error in OpenAI's shape. `names`: its type and code.
pub(super) fn refusal(status: StatusCode, (kind, code): (&str, &str), message: &str) -> Response {
    (status, Json(json!({"error": {"message": message, "type": kind, "param": null, "code": code}}))).into_response()
}
