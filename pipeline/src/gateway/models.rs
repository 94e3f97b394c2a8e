//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::HeaderMap,
};
use serde_json::{Value, json};

use super::{Gateway, error::ApiError, registry::Model};

fn describe(gateway: &Gateway, model: &Model) -> Value {
    json!({
        "id": model.name(), "object": "model", "created": gateway.started / 1_000_000, "owned_by": "evenkeel",
    })
}

pub async fn list(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    gateway.keys.tenant(&headers)?;
    let data: Vec<Value> = gateway.deps.models.iter().map(|model| describe(&gateway, model)).collect();
    Ok(Json(json!({"object": "list", "data": data})))
}

pub async fn get(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    gateway.keys.tenant(&headers)?;
    let model = gateway.deps.models.resolve(&id)?;
    Ok(Json(describe(&gateway, &model)))
}
