//! `POST /v1/chat/completions` and `POST /v1/completions`: from the HTTP request to the answer.
//!
//! Every response carries `x-evenkeel-request-id` and `x-evenkeel-decision`, errors too; what was refused before its sender
//! was known has the decision `none`, since nothing is written for strangers. Once an instance was found the response also
//! says which variant of the model it serves, in `x-evenkeel-variant`, and once policies were asked, in which mode the views were
//! that they read, in `x-evenkeel-views` (SPEC X5).

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderName, HeaderValue, Request},
    response::{IntoResponse, Response},
};

use super::{
    Gateway, answer,
    auth::Tenant,
    best_of::Sampling,
    decision,
    error::ApiError,
    foreign::Taken,
    json_body,
    parse::{self, Face, ParsedRequest},
    prepare::Prepared,
    recorder::{Recorder, UNCLASSED},
    running::Running,
    serve::{self, Case},
    shape::Envelope,
    slo_headers,
};
use crate::{ids::Name, policy::ViewMode};

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-evenkeel-request-id");
pub const DECISION: HeaderName = HeaderName::from_static("x-evenkeel-decision");

pub const VARIANT: HeaderName = HeaderName::from_static("x-evenkeel-variant");
pub const VIEWS: HeaderName = HeaderName::from_static("x-evenkeel-views");

pub async fn chat(State(gateway): State<Arc<Gateway>>, request: Request<Body>) -> Response {
    respond(gateway, Face::Chat, request).await
}

pub async fn completions(State(gateway): State<Arc<Gateway>>, request: Request<Body>) -> Response {
    respond(gateway, Face::Completion, request).await
}

async fn respond(gateway: Arc<Gateway>, face: Face, request: Request<Body>) -> Response {
    let request_id = decision::new_id("req");
    let answered = match gateway.keys.tenant(request.headers()) {
        Err(error) => {
            gateway.deps.metrics.ended(face.route(), error.code(), 0.0);
            let decision_id = Name::new_static(UNCLASSED);
            Answered { response: error.into_response(), decision_id, variant: None, views: None }
        }
        Ok(tenant) => match gateway.foreign.take(&gateway, request).await {
            Taken::Own(request) => known_sender(&gateway, face, (&request_id, tenant), request).await,
            Taken::Foreign(call) => call.answer(face, (&request_id, tenant)).await,
            Taken::Refused(error) => refused(&gateway, face, (&request_id, tenant), error).await,
        },
    };
    let Answered { mut response, decision_id, variant, views } = answered;
    let views = views.map(|mode| Name::new_static(mode.name()));
    let told = [(REQUEST_ID, Some(request_id)), (DECISION, Some(decision_id)), (VARIANT, variant), (VIEWS, views)];
    for (name, value) in told {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// A response and what its headers tell.
pub(super) struct Answered {
    pub(super) response: Response,
    pub(super) decision_id: Name,
    pub(super) variant: Option<Name>,
    pub(super) views: Option<ViewMode>,
}

impl Answered {
    pub(super) fn refusal(error: &ApiError, case: &Case) -> Self {
        let variant = case.recorder.variant().cloned();
        let (decision_id, views) = (case.decision_id.clone(), case.view_mode());
        Self { response: error.clone().into_response(), decision_id, variant, views }
    }
}

/// Refused before it was known whose request it is to serve.
async fn refused(gateway: &Gateway, face: Face, (request_id, tenant): (&Name, Tenant), error: ApiError) -> Answered {
    let recorder = Recorder::new(&gateway.deps, face, request_id, &tenant);
    let mut case = Case::new(tenant, recorder);
    case.refused(gateway, &error).await;
    Answered::refusal(&error, &case)
}

async fn known_sender(
    gateway: &Arc<Gateway>,
    face: Face,
    (request_id, tenant): (&Name, Tenant),
    request: Request<Body>,
) -> Answered {
    let mut recorder = Recorder::new(&gateway.deps, face, request_id, &tenant);
    recorder.traced(request.headers());
    let mut case = Case::new(tenant, recorder);
    let asked = slo_headers::read(request.headers(), &case.tenant, &gateway.deps.config.policy.deadline);
    let understood = match asked {
        Ok(asked) => {
            case.asked = asked;
            understand(gateway, (face, request), &mut case).await
        }
        Err(error) => Err(error),
    };
    let (parsed, prepared) = match understood {
        Ok(understood) => understood,
        Err(error) => {
            case.refused(gateway, &error).await;
            return Answered::refusal(&error, &case);
        }
    };
    let sampling = Sampling {
        prompts: parsed.inputs.len(),
        samples: parsed.common.samples as usize,
        returned: parsed.common.choices as usize,
    };
    let sequences = match serve::serve(gateway, &mut case, &parsed, &prepared).await {
        Ok(sequences) => sequences,
        Err(error) => return Answered::refusal(&error, &case),
    };
    let text = prepared.model.text.clone();
    let envelope = envelope(&case, &parsed, prepared);
    let views = case.view_mode();
    let mut running = Running::new(gateway.clone(), case, sequences, (sampling, envelope.tools.as_ref()));
    let began = running.begin().await;
    let (decision_id, variant) = (running.decision_id().clone(), running.variant().cloned());
    let response = match began {
        Err(error) => error.into_response(),
        Ok(()) if parsed.common.streams => answer::stream(running, envelope, text, sampling.sequences()),
        Ok(()) => match answer::whole(running, &envelope, text.as_ref(), sampling).await {
            Ok(response) => response,
            Err(error) => error.into_response(),
        },
    };
    Answered { response, decision_id, variant, views }
}

/// Reads, parses and tokenises within `server.request_timeout`.
async fn understand(
    gateway: &Gateway,
    (face, request): (Face, Request<Body>),
    case: &mut Case,
) -> Result<(Arc<ParsedRequest>, Prepared), ApiError> {
    let server = &gateway.deps.config.server;
    let work = async {
        json_body::check_content_type(request.headers())?;
        let bytes = json_body::read(request.into_body(), server.body_max.as_u64()).await?;
        let mut model = None;
        let parsed = parse::parse(face, &bytes, |name| {
            let named = model.insert(gateway.deps.models.resolve(name)?);
            case.recorder.is_for(named.name());
            Ok(named.text.vocab())
        })?;
        let (parsed, model) = (Arc::new(parsed), model.expect("invariant: a request that is parsed names its model"));
        let prepared = gateway.text_jobs.prepare(&gateway.deps, model, parsed.clone()).await?;
        Ok((parsed, prepared))
    };
    let limit = server.request_timeout;
    tokio::time::timeout(limit, work).await.unwrap_or(Err(ApiError::TimedOut { limit }))
}

fn envelope(case: &Case, parsed: &ParsedRequest, prepared: Prepared) -> Envelope {
    let prefix = match parsed.face {
        Face::Chat => "chatcmpl",
        Face::Completion => "cmpl",
    };
    Envelope {
        face: parsed.face,
        id: format!("{prefix}-{}", case.recorder.request_id().trim_start_matches("req-")),
        created: case.recorder.arrived_at() / 1_000_000,
        model: prepared.model.name().into(),
        fingerprint: prepared.model.fingerprint.clone(),
        wants_logprobs: parsed.common.shows_logprobs,
        includes_usage: parsed.common.includes_usage,
        tools: prepared.tools,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: the future of a request, which is copied into a box of its own for each. Guarantees: it is no larger than 8 KiB.
    #[test]
    fn a_request_is_small() {
        fn size<F>(_: fn(State<Arc<Gateway>>, Request<Body>) -> F) -> usize {
            size_of::<F>()
        }
        assert!(size(chat) <= 8192 && size(completions) <= 8192, "{} and {} bytes", size(chat), size(completions));
    }
}
