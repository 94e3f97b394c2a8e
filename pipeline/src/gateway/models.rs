//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::HeaderMap,
};
use serde_json::{Value, json};

use super::{Gateway, error::ApiError};

fn describe(gateway: &Gateway, name: &str, owner: &str) -> Value {
    json!({"id": name, "object": "model", "created": gateway.started / 1_000_000, "owned_by": owner})
}

/// Our own models, and those of foreign workers.
fn all(gateway: &Gateway) -> Vec<Value> {
    let foreign = gateway.foreign.names();
    let foreign = foreign.iter().map(|name| describe(gateway, name, "foreign"));
    gateway.deps.models.iter().map(|model| describe(gateway, model.name(), "evenkeel")).chain(foreign).collect()
}

pub async fn list(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    gateway.keys.tenant(&headers)?;
    Ok(Json(json!({"object": "list", "data": all(&gateway)})))
}

pub async fn get(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    gateway.keys.tenant(&headers)?;
    match all(&gateway).into_iter().find(|model| model["id"] == id) {
        Some(model) => Ok(Json(model)),
        None => Err(gateway.foreign.unknown(&gateway, &id)),
    }
}
