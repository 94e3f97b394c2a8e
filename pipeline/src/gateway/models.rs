//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::HeaderMap,
};
use serde_json::{Value, json};

use super::{Gateway, error::ApiError, json_body};

fn describe(gateway: &Gateway) -> Value {
    json!({
        "id": gateway.deps.text.name(), "object": "model", "created": gateway.started / 1_000_000, "owned_by": "evenkeel",
    })
}

pub async fn list(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    gateway.keys.tenant(&headers)?;
    Ok(Json(json!({"object": "list", "data": [describe(&gateway)]})))
}

pub async fn get(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    gateway.keys.tenant(&headers)?;
    match id == gateway.deps.text.name() {
        true => Ok(Json(describe(&gateway))),
        false => Err(ApiError::UnknownModel(json_body::shorten(&id))),
    }
}
