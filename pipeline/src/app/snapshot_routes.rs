//! `POST /snapshots`: all tables at one moment, as Arrow and Parquet files (SPEC E3). `GET /snapshots` lists those that are there,
//! `GET /snapshots/{name}/{file}` fetches one file.
//!
//! What a request may choose is [`Wish`]. A file is sent as a stream, so its size costs no memory.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path as UrlPath, Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use queries::snapshot::{Manifest, SnapshotError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    cli::explain_causes,
    snapshots::{Cause, SnapshotFault, Snapshots, Wish},
    sql_routes::refusal,
};
use crate::gateway::auth::Keys;

/// What the routes need.
pub struct SnapshotDoor {
    pub snapshots: Arc<Snapshots>,
    pub keys: Keys,
}

pub fn routes(door: Arc<SnapshotDoor>) -> Router {
    Router::new()
        .route("/snapshots", post(create).get(list))
        .route("/snapshots/{name}/{file}", get(fetch))
        .with_state(door)
}

async fn create(State(door): State<Arc<SnapshotDoor>>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(error) = door.keys.tenant(&headers) {
        return error.into_response();
    }
    let wish: Wish = match body.is_empty() {
        true => Wish::default(),
        false => match serde_json::from_slice(&body) {
            Ok(wish) => wish,
            Err(error) => {
                let message = format!("The body is not an object with target, formats, tables or incremental: {error}");
                return refusal(StatusCode::BAD_REQUEST, ("invalid_request_error", "invalid_json"), &message);
            }
        },
    };
    match door.snapshots.write(wish, Cause::Asked).await {
        Ok(written) => {
            let (rows, files, bytes) = written.manifest.written();
            let location = written.place.inside(&written.manifest.name);
            Json(json!({
                "name": written.manifest.name,
                "location": location.shown(),
                "written": {"rows": rows, "files": files, "bytes": bytes, "took_us": written.took_us},
                "manifest": written.manifest,
            }))
            .into_response()
        }
        Err(fault) => refused(&fault),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    target: Option<String>,
}

async fn list(State(door): State<Arc<SnapshotDoor>>, Query(asked): Query<Asked>, headers: HeaderMap) -> Response {
    if let Err(error) = door.keys.tenant(&headers) {
        return error.into_response();
    }
    let place = match door.snapshots.place(asked.target.as_deref()) {
        Ok(place) => place,
        Err(fault) => return refused(&fault),
    };
    match place.snapshots().await {
        Ok(found) => {
            let snapshots: Vec<Value> = found.iter().rev().map(summary).collect();
            Json(json!({"target": place.shown(), "snapshots": snapshots})).into_response()
        }
        Err(error) => refused(&error.into()),
    }
}

/// One snapshot in a list.
pub(super) fn summary(manifest: &Manifest) -> Value {
    let (own_rows, own_files, own_bytes) = manifest.written();
    json!({
        "name": manifest.name,
        "as_of": manifest.as_of,
        "base": manifest.base,
        "chain": manifest.chain,
        "formats": manifest.formats,
        "tables": manifest.tables.len(),
        "rows": manifest.rows(),
        "written": {"rows": own_rows, "files": own_files, "bytes": own_bytes},
    })
}

fn refused(fault: &SnapshotFault) -> Response {
    let (status, names) = match fault {
        SnapshotFault::Refused { .. } => (StatusCode::BAD_REQUEST, ("invalid_request_error", "refused")),
        SnapshotFault::Bus => (StatusCode::SERVICE_UNAVAILABLE, ("server_error", "bus")),
        SnapshotFault::Failed(SnapshotError::Occupied { .. }) => (StatusCode::CONFLICT, ("server_error", "occupied")),
        SnapshotFault::Failed(_) => (StatusCode::INSUFFICIENT_STORAGE, ("server_error", "snapshot")),
        SnapshotFault::Ended(_) => (StatusCode::INTERNAL_SERVER_ERROR, ("server_error", "snapshot")),
    };
    refusal(status, names, &explain_causes(fault))
}

async fn fetch(
    State(door): State<Arc<SnapshotDoor>>,
    UrlPath((name, file)): UrlPath<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if let Err(error) = door.keys.tenant(&headers) {
        return error.into_response();
    }
    let none = |message: &str| refusal(StatusCode::NOT_FOUND, ("invalid_request_error", "not_found"), message);
    let is_plain = file.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
    let is_moment = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    if !is_moment || !is_plain || file.starts_with('.') {
        return none("No such snapshot file.");
    }
    let place = match door.snapshots.place(None) {
        Ok(place) => place.inside(&name),
        Err(fault) => return refused(&fault),
    };
    match place.read(&file).await {
        Ok((size, bytes)) => {
            let kind = [(header::CONTENT_TYPE, "application/octet-stream".to_string())];
            let length = [(header::CONTENT_LENGTH, size.to_string())];
            (kind, length, Body::from_stream(bytes)).into_response()
        }
        Err(SnapshotError::Store { error, .. }) if is_missing(&error) => {
            none(&format!("No file {file} in snapshot {name}."))
        }
        Err(error) => refused(&error.into()),
    }
}

fn is_missing(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotFound { .. })
}
