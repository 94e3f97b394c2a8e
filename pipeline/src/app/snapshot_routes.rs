//! `POST /snapshots`: all tables at one moment, as Arrow and Parquet files (SPEC E3). `GET /snapshots/{name}/{file}` fetches
//! one of them.
//!
//! Snapshots lie in `<data_dir>/snapshots/<time>`; the newest [`KEPT`] are kept. One is written at a time; a second request
//! waits.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Json, Router,
    extract::{Path as UrlPath, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use queries::{LiveTables, snapshot::write_snapshot};
use serde_json::json;
use tokio::sync::Mutex;

use super::sql_routes::refusal;
use crate::{
    bus::Bus,
    gateway::{auth::Keys, deps::Clock},
};

/// Snapshots kept; older ones are deleted.
pub const KEPT: usize = 8;

/// What the routes need.
pub struct SnapshotDoor {
    pub tables: Arc<LiveTables>,
    pub bus: Bus,
    pub clock: Arc<dyn Clock>,
    pub folder: PathBuf,
    pub keys: Keys,
    pub writing: Mutex<()>,
}

pub fn routes(door: Arc<SnapshotDoor>) -> Router {
    Router::new().route("/snapshots", post(create)).route("/snapshots/{name}/{file}", get(fetch)).with_state(door)
}

async fn create(State(door): State<Arc<SnapshotDoor>>, headers: HeaderMap) -> Response {
    if let Err(error) = door.keys.tenant(&headers) {
        return error.into_response();
    }
    let _writing = door.writing.lock().await;
    // Everything published before the request is in the tables.
    if let Err(error) = door.bus.flush().await {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, ("server_error", "bus"), &error.to_string());
    }
    let as_of = door.clock.now();
    let name = as_of.to_string();
    let (tables, target, folder) = (door.tables.snapshot(), door.folder.join(&name), door.folder.clone());
    let written = tokio::task::spawn_blocking(move || {
        std::fs::create_dir_all(&folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
        let manifest = write_snapshot(&target, &tables, as_of).map_err(|error| error.to_string())?;
        prune(&folder);
        Ok::<_, String>((manifest, target))
    })
    .await;
    match written {
        Ok(Ok((manifest, path))) => Json(json!({"name": name, "path": path, "manifest": manifest})).into_response(),
        Ok(Err(message)) => refusal(StatusCode::INSUFFICIENT_STORAGE, ("server_error", "snapshot"), &message),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, ("server_error", "snapshot"), &error.to_string()),
    }
}

/// Deletes all but the newest [`KEPT`]; names are times, so their order is by age.
fn prune(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut names: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_snapshot(path)).collect();
    names.sort();
    let surplus = names.len().saturating_sub(KEPT);
    for old in &names[..surplus] {
        if let Err(error) = std::fs::remove_dir_all(old) {
            tracing::warn!(path = %old.display(), %error, "old snapshot not deleted");
        }
    }
}

fn is_snapshot(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

async fn fetch(
    State(door): State<Arc<SnapshotDoor>>,
    UrlPath((name, file)): UrlPath<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if let Err(error) = door.keys.tenant(&headers) {
        return error.into_response();
    }
    let plain =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
    if !is_snapshot(Path::new(&name)) || !plain(&file) || file.starts_with('.') {
        return refusal(StatusCode::NOT_FOUND, ("invalid_request_error", "not_found"), "No such snapshot file.");
    }
    match tokio::fs::read(door.folder.join(&name).join(&file)).await {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response(),
        Err(_) => refusal(
            StatusCode::NOT_FOUND,
            ("invalid_request_error", "not_found"),
            &format!("No file {file} in snapshot {name}."),
        ),
    }
}
