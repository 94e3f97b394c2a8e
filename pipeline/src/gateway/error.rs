//! Every way a request can end badly, and the one place that maps them to status, OpenAI type and code.
//!
//! Inner layers return [`ApiError`] without knowing HTTP; [`ApiError::parts`] is the only `match` on it (STYLE "Shapes").

use std::time::Duration;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::deps::TextFault;
use crate::policy::{Outlook, RejectReason};

/// A refusal or failure, in words for the client.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    #[error("{0}")]
    Malformed(String),
    #[error("{message}")]
    Parameter { param: String, message: String, code: &'static str },
    #[error("The model `{asked}` does not exist or you do not have access to it. Served here: `{served}`.")]
    UnknownModel { asked: String, served: String },
    #[error(
        "This model's maximum context length is {context} tokens. However, you requested {} tokens ({prompt} in the prompt, {completion} in the completion). Please reduce the length of the prompt or completion.",
        prompt + completion
    )]
    ContextExceeded { context: usize, prompt: usize, completion: usize, param: &'static str },
    #[error("{0}")]
    Text(#[from] TextFault),
    #[error("You didn't provide an API key. Send it in an Authorization header: `Authorization: Bearer YOUR_KEY`.")]
    KeyMissing,
    #[error("Incorrect API key provided.")]
    KeyWrong,
    #[error("The request body is larger than the limit of {limit} bytes.")]
    TooLarge { limit: u64 },
    #[error("Content-Type is {got}; expected application/json.")]
    ContentType { got: String },
    #[error("Not allowed to {method} on {path}.")]
    Method { method: String, path: String },
    #[error("Unknown request URL: {method} {path}. Please check the URL for typos.")]
    UnknownUrl { method: String, path: String },
    #[error("There is no request `{0}`, or none of yours.")]
    UnknownRequest(String),
    #[error("{message}")]
    Overloaded { reason: RejectReason, retry_after: Duration, message: String, outlook: Option<Box<Outlook>> },
    #[error("The budget of the request passed before its answer was whole.")]
    DeadlinePassed,
    #[error("The engine refused the request: {0}")]
    EngineRefused(String),
    #[error("The instance that served this request was lost, and the request could not go on elsewhere: {0}")]
    InstanceLost(String),
    #[error("The engine failed on this request: {0}")]
    EngineFailed(String),
    #[error("The request did not end within the limit of {} s.", limit.as_secs())]
    TimedOut { limit: Duration },
    #[error("The server failed on this request: {0}")]
    Internal(String),
}

struct Parts<'a> {
    status: StatusCode,
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}

impl ApiError {
    /// A known parameter with a value that will not do.
    pub fn parameter(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError::Parameter { param: param.into(), message: message.into(), code: "invalid_value" }
    }

    /// A known parameter that this server does not support.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError::Parameter { param: param.into(), message: message.into(), code: "unsupported_parameter" }
    }

    fn parts(&self) -> Parts<'_> {
        const INVALID: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        let (status, kind, param, code) = match self {
            ApiError::Malformed(_) => (StatusCode::BAD_REQUEST, INVALID, None, "invalid_json"),
            ApiError::Parameter { param, code, .. } => (StatusCode::BAD_REQUEST, INVALID, Some(param.as_str()), *code),
            ApiError::UnknownModel { .. } => (StatusCode::NOT_FOUND, INVALID, None, "model_not_found"),
            ApiError::ContextExceeded { param, .. } => {
                (StatusCode::BAD_REQUEST, INVALID, Some(*param), "context_length_exceeded")
            }
            ApiError::Text(_) => (StatusCode::BAD_REQUEST, INVALID, None, "invalid_prompt"),
            ApiError::KeyMissing | ApiError::KeyWrong => (StatusCode::UNAUTHORIZED, INVALID, None, "invalid_api_key"),
            ApiError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, INVALID, None, "request_too_large"),
            ApiError::ContentType { .. } => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, None, "unsupported_media_type")
            }
            ApiError::Method { .. } => (StatusCode::METHOD_NOT_ALLOWED, INVALID, None, "method_not_allowed"),
            ApiError::UnknownUrl { .. } => (StatusCode::NOT_FOUND, INVALID, None, "unknown_url"),
            ApiError::UnknownRequest(_) => (StatusCode::NOT_FOUND, INVALID, None, "request_not_found"),
            ApiError::Overloaded { reason, .. } => match reason {
                RejectReason::Throttled | RejectReason::QueueFull => {
                    (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", None, reason.name())
                }
                RejectReason::NoInstance | RejectReason::WaitedTooLong | RejectReason::PredictedMiss => {
                    (StatusCode::SERVICE_UNAVAILABLE, "overloaded", None, reason.name())
                }
            },
            ApiError::DeadlinePassed => (StatusCode::GATEWAY_TIMEOUT, SERVER, None, "deadline_passed"),
            ApiError::EngineRefused(_) => (StatusCode::BAD_REQUEST, INVALID, None, "engine_refused"),
            ApiError::InstanceLost(_) => (StatusCode::BAD_GATEWAY, SERVER, None, "instance_lost"),
            ApiError::EngineFailed(_) => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, None, "engine_failed"),
            ApiError::TimedOut { .. } => (StatusCode::GATEWAY_TIMEOUT, SERVER, None, "request_timeout"),
            ApiError::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, None, "internal_error"),
        };
        Parts { status, kind, param, code }
    }

    pub fn status(&self) -> StatusCode {
        self.parts().status
    }

    /// Machine-readable name: body, row and metric show the same one.
    pub fn code(&self) -> &'static str {
        self.parts().code
    }

    /// `{"error": {message, type, param, code}}`, as a body or as a chunk of a stream; with `slo`, what was predicted, if that is
    /// why.
    pub fn body(&self) -> Value {
        let parts = self.parts();
        let mut body = json!({"error": {
            "message": self.to_string(), "type": parts.kind, "param": parts.param, "code": parts.code,
        }});
        if let ApiError::Overloaded { outlook: Some(outlook), retry_after, .. } = self {
            body["error"]["slo"] = json!({
                "meet_probability": outlook.meet,
                "first_token_budget_seconds": outlook.first_token_due_seconds,
                "whole_budget_seconds": outlook.whole_due_seconds,
                "predicted_first_token_seconds": outlook.first_token_seconds,
                "predicted_whole_seconds": outlook.whole_seconds,
                "predicted_wait_seconds": outlook.wait_seconds,
                "retry_after_seconds": retry_after.as_secs_f64(),
            });
        }
        body
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let ApiError::Overloaded { retry_after, .. } = &self {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after.as_secs_f64().ceil().max(1.0) as u64));
        }
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
