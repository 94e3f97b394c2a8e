//! The HTTP side: OpenAI-compatible endpoints (SPEC E1) over [`app`], tested with `oneshot`.
//!
//! One request's way through the files: `inference` (HTTP in) → `json_body`, `parse`, `params` (JSON to a checked request) →
//! `prepare` (text to tokens to block hashes) → `serve` (classify, throttle, admit) → `waiting`, `dispatcher` (queue, route, lease) →
//! `sequence`, `output` (one stream of tokens, over as many instances as it takes) → `running` (all of them, and the account) →
//! `answer`, `shape` (HTTP out).
//!
//! | file | idea |
//! |---|---|
//! | `conversation`, `tool_prompt` | messages, calls and tools as templates see them |
//! | `structure`, `reader` | what the answer must look like; text and tool calls in it |
//! | `best_of` | the likeliest of several samples |
//! | `deps` | what the gateway needs of the process, as small traits |
//! | `registry`, `group` | the models by name; what the requests of one share |
//! | `queue_place` | a place in a queue, held by who waits |
//! | `instances` | instances, their clients, and the directory of them |
//! | `leases`, `claims`, `load_order` | what is in flight on each; what its deadlines ask; who has the fewest |
//! | `newcomer` | what a request would do to others on the instance chosen |
//! | `recorder` | one account a request: rows, metrics and log lines |
//! | `trace` | the sender's trace, and the story of a request that becomes spans |
//! | `foreign` | engines of others behind the same policies, their answers relayed |
//! | `session` | which conversation a request belongs to |
//! | `decision`, `reading` | a decision as a row; what policies read for it as another |
//! | `slo_headers`, `slo` | budgets that headers state; one request's deadline and how it fared |
//! | `auth`, `error`, `metrics` | who asks; how it can end; Prometheus |
//! | `models`, `status` | the small routes |
//!
//! Invariants: inner files do not know HTTP; every refusal is an [`error::ApiError`]; leases and streams are guards, so a
//! client that leaves at any point leaves nothing behind. Bounds: `server.body_max`, the queue's, `lease_tokens_max` an
//! instance, `request_timeout` a request.

pub mod answer;
pub mod auth;
pub mod best_of;
pub mod claims;
pub mod conversation;
pub mod decision;
pub mod deps;
pub mod dispatcher;
pub mod error;
pub mod foreign;
pub mod group;
pub mod inference;
pub mod instances;
pub mod json_body;
pub mod leases;
pub mod load_order;
pub mod metrics;
mod models;
mod newcomer;
mod output;
pub mod params;
pub mod parse;
pub mod prepare;
pub mod queue_place;
pub mod reader;
pub mod reading;
pub mod recorder;
pub mod registry;
pub mod running;
pub mod sequence;
pub mod serve;
pub mod session;
pub mod shape;
pub mod slo;
pub mod slo_headers;
mod status;
pub mod structure;
pub mod tool_prompt;
pub mod trace;
pub mod waiting;

use std::sync::Arc;

use axum::{
    Router,
    http::{Method, Uri},
    routing::{get, post},
};

use crate::ids::Micros;

/// The gateway's state, shared by all requests.
pub struct Gateway {
    pub deps: deps::Deps,
    pub keys: auth::Keys,
    pub dispatcher: Arc<dispatcher::Dispatcher>,
    /// Models that engines of others serve.
    pub foreign: Arc<foreign::ForeignModels>,
    text_jobs: prepare::TextJobs,
    started: Micros,
}

impl Gateway {
    pub fn new(deps: deps::Deps) -> Arc<Self> {
        Self::with_foreign(deps, Arc::default())
    }

    /// A gateway that also sends to engines of others.
    pub fn with_foreign(deps: deps::Deps, foreign: Arc<foreign::ForeignModels>) -> Arc<Self> {
        Arc::new(Self {
            keys: auth::Keys::new(&deps.config.server.keys),
            dispatcher: Arc::new(dispatcher::Dispatcher::new(deps.clone())),
            foreign,
            text_jobs: prepare::TextJobs::default(),
            started: deps.clock.now(),
            deps,
        })
    }

    /// Lets the throttle follow the signal while no requests come. Its owner calls it about every second.
    pub async fn tick(&self) {
        let now = self.deps.clock.now();
        self.dispatcher.tick(now).await;
        self.dispatcher.pump();
        self.foreign.tick().await;
        for row in self.dispatcher.reliability(now) {
            self.deps.events.slo_reliability(row).await;
        }
    }
}

/// All routes without a fallback, to be merged with others.
pub fn routes(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(inference::chat))
        .route("/v1/completions", post(inference::completions))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::get))
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .route("/metrics", get(status::metrics))
        .with_state(gateway)
}

/// Answers for unknown URLs and wrong methods in OpenAI's error shape; laid over all routes at the end.
pub fn with_fallbacks(router: Router) -> Router {
    router
        .method_not_allowed_fallback(|method: Method, uri: Uri| async move {
            error::ApiError::Method { method: method.to_string(), path: json_body::shorten(uri.path()) }
        })
        .fallback(|method: Method, uri: Uri| async move {
            error::ApiError::UnknownUrl { method: method.to_string(), path: json_body::shorten(uri.path()) }
        })
}

/// The gateway alone, complete.
pub fn app(deps: deps::Deps) -> Router {
    with_fallbacks(routes(Gateway::new(deps)))
}
