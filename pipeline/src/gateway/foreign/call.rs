//! One request for a foreign worker: counted, decided, sent, and sent again elsewhere where that is still possible.
//!
//! A worker that fails before the first byte of its answer (for an answer that comes whole: before its last) is left out and
//! another one asked; the client sees nothing of it. Afterwards the client has seen part of an answer that no other engine
//! can go on with, so the stream ends with a typed error (`relay`). A refusal of the request itself (4xx) is handed on as it
//! is and is nobody's failure.
//!
//! Bounds: [`MOVES_MAX`] further workers, `policy.queue.wait_max` for room, `server.request_timeout` in all. A whole answer
//! of at most [`ANSWER_MAX`] bytes is held. The body is sent unchanged, but for `max_tokens` when the throttle caps it.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, Method, StatusCode, header, response::Parts},
    response::{IntoResponse, Response},
};
use futures::future::poll_fn;
use tokio::time::Instant;

use super::{
    Pool,
    fleet::ForeignInstance,
    relay::Relay,
    scan::{Asked, block_hashes},
    told,
    upstream::{Ask, Reply, UpstreamError},
};
use crate::{
    gateway::{
        auth::Tenant,
        dispatcher::{Demand, Failed, Grant, NoPlace},
        error::ApiError,
        inference::Answered,
        json_body::shorten,
        parse::{self, Face},
        recorder::{Recorder, RequestArrival},
        serve::{self, Case},
        slo::SloEnd,
        slo_headers,
        trace::TRACEPARENT,
    },
    ids::Name,
    policy::{RejectReason, RouteRejection},
};

/// Workers tried after the first.
pub const MOVES_MAX: u32 = 3;
/// Bytes of an answer that comes whole.
pub const ANSWER_MAX: usize = 64 << 20;

/// A request and where it belongs.
pub struct Call {
    pub(super) pool: Arc<Pool>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) asked: Asked,
}

/// Why a worker did not answer.
enum Fault {
    /// It has no room now.
    Busy(String),
    /// It is gone, or talks nonsense.
    Lost(String),
    Final(ApiError),
}

impl From<UpstreamError> for Fault {
    fn from(error: UpstreamError) -> Self {
        Fault::Lost(error.to_string())
    }
}

/// What a worker began to answer.
enum Answer {
    Stream { reply: Box<Reply>, first: Bytes },
    Whole { head: Parts, body: Bytes },
}

impl Call {
    pub(in crate::gateway) async fn answer(self, face: Face, (request_id, tenant): (&Name, Tenant)) -> Answered {
        let gateway = self.pool.gateway.clone();
        let deadline = Instant::now() + gateway.deps.config.server.request_timeout;
        let mut recorder = Recorder::new(&gateway.deps, face, request_id, &tenant);
        recorder.traced(&self.headers);
        let mut case = Case::new(tenant.clone(), recorder);
        match slo_headers::read(&self.headers, &tenant, &gateway.deps.config.policy.deadline) {
            Ok(asked) => case.asked = asked,
            Err(error) => {
                case.refused(&gateway, &error).await;
                return Answered::refusal(&error, &case);
            }
        }
        let ask = self.count(face).await;
        let asked_max = ask.max_tokens;
        let mut arrived = serve::decide_case(&gateway, &mut case, ask).await;
        let demand = &arrived.demand;
        case.recorder.hashed(demand.model.text.block_size(), &demand.hashes);
        let arrival = RequestArrival {
            tier: demand.tier.name(),
            prompt_tokens: demand.prompt_tokens,
            choices: 1,
            session: self.asked.session,
            turns: self.asked.turns,
        };
        case.recorder.arrived(arrival).await;
        let grant = match serve::seat(&gateway, &mut case, &mut arrived).await {
            Ok(grant) => grant,
            Err(error) => return Answered::refusal(&error, &case),
        };
        let demand = arrived.demand;
        case.recorder.dispatched(&grant.placement).await;
        case.started(&gateway, &grant);
        let is_capped = demand.max_tokens < asked_max;
        let ask = Ask {
            method: Method::POST,
            path: face.route(),
            body: if is_capped { self.capped(demand.max_tokens) } else { self.body },
            headers: forwarded(self.headers, case.recorder.traceparent()),
        };
        let (pool, streams) = (self.pool, self.asked.streams);
        Trip { pool, ask, streams, demand, case, grant, failed: Vec::new(), deadline }.run().await
    }

    /// Tokens and blocks: by the model file if there is one that understands the request, else from its bytes.
    async fn count(&self, face: Face) -> serve::Ask {
        let foreign = &self.pool.gateway.deps.config.foreign;
        let each = self.asked.max_tokens.unwrap_or(foreign.default_max_tokens);
        let asked = |prompt_tokens, hashes| serve::Ask {
            model: self.pool.model.clone(),
            prompt_tokens,
            max_tokens: each.saturating_mul(self.asked.sequences),
            hashes,
            turns: self.asked.turns,
            sequences: self.asked.sequences,
            bytes: self.body.len() as u64,
        };
        let prompt = &self.body[self.asked.prompt.clone()];
        let estimate = foreign.tokens_of(prompt.len());
        let Some(model) = &self.pool.counting else {
            return asked(estimate, vec![block_hashes(prompt, self.asked.salt, foreign.block_bytes)]);
        };
        let vocab = |_: &str| Ok(model.text.vocab());
        let prepared = match parse::parse(face, &self.body, vocab).ok().map(Arc::new) {
            Some(parsed) => self.pool.jobs.prepare(&self.pool.gateway.deps, model.clone(), parsed).await.ok(),
            None => None,
        };
        match prepared {
            Some(prepared) => {
                asked(prepared.prompt_tokens, prepared.prompts.into_iter().map(|prompt| prompt.hashes).collect())
            }
            // Pictures, say. Blocks of bytes are no blocks of tokens, so it has none.
            None => asked(estimate, Vec::new()),
        }
    }

    /// The body with at most so many tokens over all sequences.
    fn capped(&self, max_tokens: u32) -> Bytes {
        let each = (max_tokens / self.asked.sequences.max(1)).max(1);
        let cap = match &self.asked.max_tokens_at {
            Some(at) => [&self.body[..at.start], each.to_string().as_bytes(), &self.body[at.end..]].concat(),
            None => {
                let open = self.body.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1);
                [&self.body[..open], format!("\"max_tokens\":{each},").as_bytes(), &self.body[open..]].concat()
            }
        };
        cap.into()
    }
}

/// What the worker gets to see of a client's headers: all but those of this connection and the client's key, with our place in
/// the trace.
fn forwarded(mut headers: HeaderMap, traceparent: Option<String>) -> HeaderMap {
    const KEPT_BACK: [header::HeaderName; 13] = [
        header::AUTHORIZATION,
        header::COOKIE,
        header::HOST,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::TE,
        header::TRAILER,
        header::UPGRADE,
        header::EXPECT,
        header::PROXY_AUTHORIZATION,
        // Its end is read here, so it comes as it is.
        header::ACCEPT_ENCODING,
        header::HeaderName::from_static("keep-alive"),
    ];
    for name in KEPT_BACK {
        headers.remove(name);
    }
    // Its spans go below ours; without a trace of ours the client's own stays.
    if let Some(traceparent) = traceparent.and_then(|text| text.parse().ok()) {
        headers.insert(TRACEPARENT, traceparent);
    }
    headers
}

/// The headers of a worker's answer that go on to the client.
fn handed_on(head: Parts, body: Body) -> Response {
    let mut response = Response::from_parts(head, body);
    *response.version_mut() = axum::http::Version::HTTP_11;
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH, header::TRAILER] {
        response.headers_mut().remove(name);
    }
    response.headers_mut().remove("keep-alive");
    response
}

/// A request on its way over as many workers as it takes.
struct Trip {
    pool: Arc<Pool>,
    ask: Ask,
    streams: bool,
    demand: Demand,
    case: Box<Case>,
    grant: Grant,
    failed: Vec<Failed>,
    deadline: Instant,
}

impl Trip {
    async fn run(mut self) -> Answered {
        loop {
            let Some(worker) = self.grant.client.clone().foreign() else {
                return self.give_up(ApiError::Internal("the instance chosen is no foreign worker".into())).await;
            };
            let sent = Instant::now();
            let uncached = self.uncached_tokens();
            let prefilling = worker.prefill(uncached);
            for hashes in self.demand.hashes.iter() {
                self.pool.fleet.record.sent(self.grant.instance, hashes);
            }
            let limit = self.pool.gateway.deps.config.server.request_timeout;
            let asked = tokio::time::timeout_at(self.deadline, self.ask(&worker));
            let answer = asked.await.unwrap_or(Err(Fault::Final(ApiError::TimedOut { limit })));
            match answer {
                Ok(Answer::Whole { head, body }) => return self.whole(head, body).await,
                Ok(Answer::Stream { reply, first }) => {
                    self.pool.fleet.saw_prefill(uncached, sent.elapsed().as_secs_f64());
                    drop(prefilling);
                    return self.stream(*reply, first);
                }
                Err(fault) => {
                    drop(prefilling);
                    if let Err(error) = self.go_on_elsewhere(fault, &worker).await {
                        return self.give_up(error).await;
                    }
                }
            }
        }
    }

    fn uncached_tokens(&self) -> u32 {
        let chosen = self.grant.placement.candidates.iter().find(|cost| cost.instance == self.grant.instance);
        self.demand.prompt_tokens.saturating_sub(chosen.map_or(0, |cost| cost.hit_tokens))
    }

    /// Sends it and waits for as much of the answer as decides whether it is one.
    async fn ask(&self, worker: &ForeignInstance) -> Result<Answer, Fault> {
        let mut reply = worker.upstream.call(&self.ask).await?;
        let status = reply.status();
        let kind = reply.head.headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
        if status.is_success() && self.streams && kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
            return match poll_fn(|cx| reply.poll_piece(cx)).await {
                Some(first) => Ok(Answer::Stream { first: first?, reply: Box::new(reply) }),
                None => Err(Fault::Lost(format!("{} ended a stream before it began", worker.upstream.url()))),
            };
        }
        let body = reply.whole(ANSWER_MAX).await?;
        let said =
            || format!("{} answered {status}: {}", worker.upstream.url(), shorten(&String::from_utf8_lossy(&body)));
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Err(Fault::Busy(said())),
            _ if status.is_server_error() => Err(Fault::Lost(said())),
            _ if status.is_success() && !told::is_object(&body) => Err(Fault::Lost(format!("no JSON: {}", said()))),
            _ => Ok(Answer::Whole { head: reply.head.clone(), body }),
        }
    }

    /// Finds a worker that has not failed this request.
    async fn go_on_elsewhere(&mut self, fault: Fault, worker: &ForeignInstance) -> Result<(), ApiError> {
        let (because, error) = match fault {
            Fault::Final(error) => return Err(error),
            Fault::Busy(detail) => {
                let message = format!("Every worker is busy ({detail}). Please try again later.");
                let (reason, retry_after) = (RejectReason::QueueFull, Duration::from_secs(2));
                (detail, ApiError::Overloaded { reason, retry_after, message, outlook: None })
            }
            Fault::Lost(detail) => {
                worker.report_lost();
                (detail.clone(), ApiError::InstanceLost(detail))
            }
        };
        if self.failed.len() as u32 == MOVES_MAX {
            return Err(error);
        }
        self.failed.push(Failed { instance: self.grant.instance, epoch: self.grant.epoch });
        let gateway = &self.pool.gateway;
        gateway.deps.metrics.reroutes.inc();
        let until = Instant::now() + gateway.deps.config.policy.queue.wait_max;
        loop {
            match gateway.dispatcher.place(&self.demand, &self.failed) {
                Ok(grant) => {
                    self.grant = grant;
                    let moved = (&self.grant.placement, self.grant.reading.as_ref());
                    self.case.moved(gateway, moved, &because).await;
                    return Ok(());
                }
                Err(NoPlace { rejection: RouteRejection::NoInstance, .. }) => return Err(error),
                Err(_) if Instant::now() >= until.min(self.deadline) => return Err(error),
                // The wake may have been meant for the queue.
                Err(_) => gateway.dispatcher.pump(),
            }
            gateway.dispatcher.wait_for_change().await;
        }
    }

    async fn give_up(mut self, error: ApiError) -> Answered {
        self.case.recorder.failed(&error).await;
        self.case.settled(&self.pool.gateway, SloEnd::Failed).await;
        Answered::refusal(&error, &self.case)
    }

    async fn whole(mut self, head: Parts, body: Bytes) -> Answered {
        let recorder = &mut self.case.recorder;
        if head.status.is_success() {
            recorder.settle(told::sums(&body));
            drop(self.grant);
            recorder.finished(told::finish_reason(&body).unwrap_or("other")).await;
            self.case.settled(&self.pool.gateway, SloEnd::Finished).await;
        } else {
            let said = shorten(&String::from_utf8_lossy(&body));
            recorder.failed(&ApiError::EngineRefused(format!("{}: {said}", head.status))).await;
            self.case.settled(&self.pool.gateway, SloEnd::Failed).await;
        }
        answered(&self.case, handed_on(head, Body::from(body)))
    }

    fn stream(self, reply: Reply, first: Bytes) -> Answered {
        let head = reply.head.clone();
        let mut answered = answered(&self.case, StatusCode::OK.into_response());
        let relay = Relay::new((self.pool.clone(), self.case), reply, first, (self.grant.lease, self.deadline));
        answered.response = handed_on(head, relay.into_body());
        answered
    }
}

fn answered(case: &Case, response: Response) -> Answered {
    let variant = case.recorder.variant().cloned();
    Answered { response, decision_id: case.decision_id.clone(), variant, views: case.view_mode() }
}
