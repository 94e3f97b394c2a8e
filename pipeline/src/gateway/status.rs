//! `GET /health` (the process answers), `GET /ready` (an instance serves) and `GET /metrics`, in OpenMetrics to those who ask
//! for it (Prometheus does) and in Prometheus's older text format to everybody else.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{Gateway, instances::InstanceState, metrics::TextForm};

pub async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// 200 once an instance takes requests, 503 before; the body lists every instance with its state.
pub async fn ready(State(gateway): State<Arc<Gateway>>) -> Response {
    let instances = gateway.deps.directory.load();
    let serving = instances.iter().filter(|entry| entry.state == InstanceState::Ready).count();
    let listed: Vec<Value> = instances
        .iter()
        .map(|entry| json!({"instance": entry.id.0, "name": entry.name, "state": entry.state.name(), "epoch": entry.epoch.0}))
        .collect();
    let (status, word) = match serving {
        0 => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        _ => (StatusCode::OK, "ready"),
    };
    let views = gateway.deps.views.cluster(gateway.deps.clock.now()).mode.name();
    (status, Json(json!({"status": word, "serving": serving, "views": views, "instances": listed}))).into_response()
}

pub async fn metrics(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Response {
    let instances = gateway.deps.directory.load();
    let metrics = &gateway.deps.metrics;
    metrics.set_ready_instances(instances.iter().filter(|entry| entry.state == InstanceState::Ready).count());
    metrics.set_leased(instances.iter().map(|entry| (entry.id, entry.leases.tokens())));
    let asked = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let form = match asked.into_iter().any(|value| value.contains("application/openmetrics-text")) {
        true => TextForm::OpenMetrics,
        false => TextForm::Prometheus,
    };
    ([(header::CONTENT_TYPE, form.content_type())], metrics.render(form)).into_response()
}
