//! Engines of others (vLLM, SGLang, anything that speaks OpenAI's HTTP) behind the same policies as our own workers
//! (DESIGN §6; SPEC E1).
//!
//! A request for a model that foreign workers serve is read once (`scan`), decided by the same policies over the view of
//! that model's workers (`fleet`, `record`), and sent on as it came (`call`, `upstream`); the answer's bytes go back as they
//! come (`relay`), and only its end is read (`told`). Every decision and every event of the request is a row, as ever.
//! Each model has a [`Gateway`] of its own, that is, its own queue, throttle and directory: a burst on one does not hold up
//! another.
//!
//! Invariant: a model is served by our own workers or by foreign ones, never by both; who keeps the foreign ones
//! (`worker::foreign`) sees to it. Cost: that of one policy decision, one scan and one copy of the prompt into the socket.
//! Bound: [`MODELS_MAX`] models, one body of at most `server.body_max` a request.

mod call;
mod fleet;
mod record;
mod relay;
mod scan;
mod text;
mod told;
mod upstream;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use axum::{body::Body, http::Request};

use self::{call::Call, scan::scan};
pub use self::{
    fleet::{Fleet, ForeignInstance},
    record::PrefixRecord,
    text::ForeignText,
    upstream::{Ask, Upstream, UpstreamError},
};
use super::{
    Gateway, decision,
    deps::{Deps, TextModel},
    error::ApiError,
    json_body, params,
    prepare::TextJobs,
    registry::{Model, Registry},
};
use crate::{
    config::{self, Config, Recorded},
    policy::RejectReason,
    rows::SettingsRow,
};

/// Models of foreign workers; further ones are not served.
pub const MODELS_MAX: usize = 256;

/// The foreign workers of one model, with all that decides about them.
pub struct Pool {
    pub gateway: Arc<Gateway>,
    pub fleet: Arc<Fleet>,
    model: Arc<Model>,
    /// Counts tokens, if a model file is there for it.
    counting: Option<Arc<Model>>,
    jobs: TextJobs,
}

/// All models of foreign workers. Empty without any.
#[derive(Default)]
pub struct ForeignModels {
    /// `None`: no foreign workers are configured.
    setup: Option<Setup>,
    pools: ArcSwap<BTreeMap<String, Arc<Pool>>>,
}

struct Setup {
    deps: Deps,
    counting: Option<Arc<dyn TextModel>>,
}

/// Whose request it is.
pub enum Taken {
    /// One of our own model, or for nobody.
    Own(Request<Body>),
    Foreign(Box<Call>),
    Refused(ApiError),
}

impl ForeignModels {
    /// `deps`: those of our own gateway; `counting`: what counts tokens, instead of an estimate.
    pub fn new(deps: Deps, counting: Option<Arc<dyn TextModel>>) -> Self {
        Self { setup: Some(Setup { deps, counting }), pools: ArcSwap::default() }
    }

    pub fn names(&self) -> Vec<String> {
        self.pools.load().keys().cloned().collect()
    }

    /// What to say of a model that nobody serves.
    pub fn unknown(&self, gateway: &Gateway, model: &str) -> ApiError {
        let own = gateway.deps.models.names().into_iter().map(String::from);
        let served: Vec<String> = own.chain(self.names()).collect();
        ApiError::UnknownModel { asked: json_body::shorten(model), served: served.join("`, `") }
    }

    pub fn get(&self, model: &str) -> Option<Arc<Pool>> {
        self.pools.load().get(model).cloned()
    }

    /// The model's pool, made if need be; `None` if there are too many, or none are configured.
    pub async fn open(&self, model: &str) -> Option<Arc<Pool>> {
        if let Some(pool) = self.get(model) {
            return Some(pool);
        }
        let setup = self.setup.as_ref().filter(|_| self.pools.load().len() < MODELS_MAX)?;
        let (pool, settings) = setup.pool(model);
        setup.deps.events.settings(settings).await;
        let mut kept = pool.clone();
        self.pools.rcu(|pools| {
            let mut next = BTreeMap::clone(pools);
            // Another keeper may have been faster.
            kept = next.entry(model.to_string()).or_insert_with(|| pool.clone()).clone();
            next
        });
        Some(kept)
    }

    /// Lets every model's throttle follow its signal.
    pub async fn tick(&self) {
        for pool in self.pools.load_full().values() {
            let dispatcher = &pool.gateway.dispatcher;
            dispatcher.tick(pool.gateway.deps.clock.now()).await;
            dispatcher.pump();
        }
    }

    /// Reads a request as far as needed to know whose it is.
    pub async fn take(&self, gateway: &Gateway, request: Request<Body>) -> Taken {
        if self.setup.is_none() {
            return Taken::Own(request);
        }
        let server = &gateway.deps.config.server;
        let (parts, body) = request.into_parts();
        let reading = async {
            json_body::check_content_type(&parts.headers)?;
            json_body::read(body, server.body_max.as_u64()).await
        };
        let limit = server.request_timeout;
        let read = tokio::time::timeout(limit, reading).await.unwrap_or(Err(ApiError::TimedOut { limit }));
        let body = match read {
            Ok(body) => body,
            Err(error) => return Taken::Refused(error),
        };
        let (pools, asked) = (self.pools.load(), scan(&body));
        let found = asked.as_ref().ok().and_then(|asked| pools.get(asked.model.as_deref()?));
        match (found, asked) {
            (Some(pool), Ok(asked)) => {
                Taken::Foreign(Box::new(Call { pool: pool.clone(), headers: parts.headers, body, asked }))
            }
            _ if !gateway.deps.models.is_empty() => Taken::Own(Request::from_parts(parts, Body::from(body))),
            (_, Err(error)) => Taken::Refused(ApiError::Malformed(error.to_string())),
            (_, Ok(asked)) => Taken::Refused(match asked.model {
                None => params::missing("model"),
                Some(model) if pools.is_empty() => {
                    decision::overloaded((RejectReason::NoInstance, Duration::from_secs(5)), (None, None), &model)
                }
                Some(model) => self.unknown(gateway, &model),
            }),
        }
    }
}

impl Setup {
    fn pool(&self, model: &str) -> (Arc<Pool>, SettingsRow) {
        // The same settings for a model of one plain variant.
        let base = &self.deps.config;
        let alone = config::Model { name: model.into(), variants: Vec::new(), ..base.model.clone() };
        let config = Arc::new(Config { models: Vec::new(), model: alone, ..Config::clone(base) });
        let fleet = Arc::new(Fleet::new(&config.foreign));
        let block_tokens = match &self.counting {
            Some(text) => text.block_size(),
            None => config.foreign.block_tokens(),
        };
        let settings = Recorded::of(&config, &[model], block_tokens).row(self.deps.clock.now());
        let registry = |text| Arc::new(Registry::new(&config, vec![text]));
        let only = |registry: &Registry| registry.only().cloned().expect("invariant: one text is one model");
        let models = registry(Arc::new(ForeignText { name: model.into(), block_tokens }) as Arc<dyn TextModel>);
        let (served, counting) = (only(&models), self.counting.clone().map(|text| only(&registry(text))));
        let deps = Deps {
            config: config.clone(),
            directory: fleet.directory.clone(),
            views: fleet.clone(),
            models,
            ..self.deps.clone()
        };
        let gateway = Gateway::new(deps);
        (Arc::new(Pool { gateway, fleet, model: served, counting, jobs: TextJobs::default() }), settings)
    }
}
