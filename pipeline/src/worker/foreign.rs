//! Keeps the foreign workers: asks each for its health and its models, and registers it under every model it serves
//! (SPEC X5).
//!
//! Invariants: one task writes a worker's entries; a worker takes requests only while it answers; one whose connection is
//! refused is dead at once, one that is silent or unwell is dead after `foreign.health_timeout`; one that comes back has a
//! larger epoch and nothing cached. All entries of one worker share its leases: its models share its machine. A change of
//! state is a row of `instances`. A model that our own workers serve is not taken from a foreign one, which is a row of
//! `faults`. Cost: one task a worker, two small requests an interval.
//! State: one entry a worker and model, at most [`MODELS_PER_WORKER`].

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use axum::body::Bytes;
use serde::Deserialize;
use tokio::{sync::watch, task::JoinSet, time::timeout};

use super::{
    supervisor::{InstanceSink, next_epoch, tell},
    wall_micros,
};
use crate::{
    config,
    gateway::{
        deps::EventSink,
        foreign::{Ask, ForeignInstance, ForeignModels, Upstream, UpstreamError},
        instances::{InstanceClient, InstanceDirectory, InstanceEntry, InstanceState},
        leases::Leases,
    },
    ids::{InstanceId, ProcessEpoch, micros},
    policy::{DEFAULT_VARIANT, FetchTimes},
    rows::{FaultRow, InstanceRow},
};

/// Models of one worker that are served; it lists its base model first.
pub const MODELS_PER_WORKER: usize = 16;
/// Most bytes of a list of models.
const LIST_MAX: usize = 1 << 20;

/// What keepers need of the process.
#[derive(Clone)]
pub struct ForeignPlant {
    pub models: Arc<ForeignModels>,
    /// The whole fleet's, for people; requests look at their model's own.
    pub directory: Arc<InstanceDirectory>,
    pub instances: Arc<dyn InstanceSink>,
    pub events: Arc<dyn EventSink>,
    /// Names of the models of our own workers.
    pub own_models: Vec<String>,
}

/// The tasks that keep the foreign workers. Dropping it ends them.
pub struct ForeignKeepers {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl ForeignKeepers {
    /// Starts on the current runtime; the first foreign worker gets the number `first`.
    pub fn start(config: &config::Foreign, first: u32, plant: &ForeignPlant) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for (number, worker) in (first..).zip(&config.workers) {
            let Some(upstream) = Upstream::new(worker, config.connect_timeout) else { continue };
            let keeper = Keeper {
                id: InstanceId(number),
                upstream: Arc::new(upstream),
                config: config.clone(),
                plant: plant.clone(),
                stopped: stopped.clone(),
                epoch: ProcessEpoch(0),
                leases: Arc::default(),
                state: InstanceState::Starting,
                models: BTreeSet::new(),
                refused: BTreeSet::new(),
                entered: Instant::now(),
            };
            tasks.spawn(keeper.run());
        }
        Self { tasks, stop }
    }

    /// Takes the workers out of the fleet; they themselves run on.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// What a worker was found to be.
enum Found {
    Well(Vec<String>),
    /// It answers, or may yet: the time it has for that runs.
    Unwell(String),
    Gone(String),
}

struct Keeper {
    id: InstanceId,
    upstream: Arc<Upstream>,
    config: config::Foreign,
    plant: ForeignPlant,
    stopped: watch::Receiver<bool>,
    epoch: ProcessEpoch,
    leases: Arc<Leases>,
    state: InstanceState,
    models: BTreeSet<String>,
    /// Models of its that are our own, told once each.
    refused: BTreeSet<String>,
    entered: Instant,
}

impl Keeper {
    async fn run(mut self) {
        let mut client = Arc::new(ForeignInstance::new(self.upstream.clone()));
        let mut well_at = Instant::now();
        self.put(None, Some(format!("{} was not asked yet", self.upstream.url()))).await;
        loop {
            match self.look().await {
                Found::Well(models) => {
                    well_at = Instant::now();
                    if self.state != InstanceState::Ready {
                        client = Arc::new(ForeignInstance::new(self.upstream.clone()));
                    }
                    self.serve(&client, models).await;
                }
                Found::Unwell(detail) if well_at.elapsed() >= self.config.health_timeout => self.lose(detail).await,
                Found::Unwell(_) => {}
                Found::Gone(detail) => self.lose(detail).await,
            }
            tokio::select! {
                () = tokio::time::sleep(self.config.health_interval) => {}
                () = client.lost() => {}
                _ = self.stopped.wait_for(|stop| *stop) => break,
            }
        }
        self.state = InstanceState::Stopped;
        self.put(None, None).await;
    }

    async fn look(&self) -> Found {
        let patience = self.config.health_timeout;
        let health = match timeout(patience, self.fetch("/health")).await {
            Ok(Ok((status, _))) => status,
            Ok(Err(error)) => return Found::of(error),
            Err(_) => return Found::Unwell(format!("{} did not answer in {patience:?}", self.upstream.url())),
        };
        // An engine without such a route is asked for its models alone.
        if !(200..300).contains(&health) && health != 404 && health != 405 {
            return Found::Unwell(format!("{}/health answered {health}", self.upstream.url()));
        }
        match timeout(patience, self.fetch("/v1/models")).await {
            Ok(Ok((200, body))) => match models_of(&body) {
                models if models.is_empty() => Found::Unwell(format!("{} lists no models", self.upstream.url())),
                models => Found::Well(models),
            },
            Ok(Ok((status, _))) => Found::Unwell(format!("{}/v1/models answered {status}", self.upstream.url())),
            Ok(Err(error)) => Found::of(error),
            Err(_) => Found::Unwell(format!("{} did not answer in {patience:?}", self.upstream.url())),
        }
    }

    async fn fetch(&self, path: &'static str) -> Result<(u16, Bytes), UpstreamError> {
        let mut reply = self.upstream.call(&Ask::get(path)).await?;
        let body = reply.whole(LIST_MAX).await?;
        Ok((reply.status().as_u16(), body))
    }

    async fn serve(&mut self, client: &Arc<ForeignInstance>, listed: Vec<String>) {
        let (own, served): (Vec<String>, Vec<String>) =
            listed.into_iter().partition(|model| self.plant.own_models.contains(model));
        for model in own {
            if self.refused.insert(model.clone()) {
                let detail = format!("{} serves {model}, too: our own workers do", self.upstream.url());
                tracing::warn!(%detail, "foreign model left out");
                let (component, kind) = ("foreign".into(), "model_left_out".into());
                let row = FaultRow { at: wall_micros(), component, kind, detail, count: 1 };
                self.plant.events.fault(row).await;
            }
        }
        let served: BTreeSet<String> = served.into_iter().take(MODELS_PER_WORKER).collect();
        if self.state == InstanceState::Ready && served == self.models {
            return;
        }
        if self.state != InstanceState::Ready {
            self.epoch = next_epoch(self.epoch, wall_micros());
            self.leases = Arc::default();
            self.state = InstanceState::Ready;
        }
        for model in self.models.difference(&served).cloned().collect::<Vec<_>>() {
            self.enter_pool(&model, InstanceState::Stopped, None).await;
        }
        self.models = served;
        let names = self.models.iter().cloned().collect::<Vec<_>>().join(", ");
        self.put(Some(client.clone()), Some(format!("{} serves {names}", self.upstream.url()))).await;
    }

    async fn lose(&mut self, detail: String) {
        if self.state == InstanceState::Dead {
            return;
        }
        tracing::warn!(instance = %self.id, detail, "foreign worker lost");
        self.state = InstanceState::Dead;
        self.put(None, Some(detail)).await;
    }

    /// Makes the state visible: in its models' directories, in the fleet's, then as a row.
    async fn put(&mut self, client: Option<Arc<ForeignInstance>>, detail: Option<String>) {
        for model in self.models.clone() {
            self.enter_pool(&model, self.state, client.clone()).await;
        }
        let model = self.models.first().cloned().unwrap_or_default();
        // Without a client: whoever asks our own workers something finds nobody here.
        self.plant.directory.put(self.entry(model.clone(), self.state, None));
        let spent = self.entered.elapsed();
        self.entered = Instant::now();
        let row = InstanceRow {
            at: wall_micros(),
            instance: self.id.0,
            name: self.id.to_string(),
            epoch: self.epoch.0,
            state: self.state.name().into(),
            model,
            address: Some(self.upstream.url().into()),
            pid: None,
            detail,
            phase_us: Some(micros(spent)),
            variant: Some(DEFAULT_VARIANT.into()),
        };
        tell(self.plant.instances.as_ref(), row).await;
    }

    async fn enter_pool(&self, model: &str, state: InstanceState, client: Option<Arc<ForeignInstance>>) {
        let Some(pool) = self.plant.models.open(model).await else {
            tracing::warn!(instance = %self.id, model, "too many models; this one is not served");
            return;
        };
        let before = pool.fleet.directory.get(self.id).map(|entry| entry.epoch);
        if before.is_some_and(|epoch| epoch != self.epoch) {
            pool.fleet.record.forget(self.id);
        }
        let client = client.map(|client| client as Arc<dyn InstanceClient>);
        pool.fleet.directory.put(self.entry(model.into(), state, client));
    }

    fn entry(&self, model: String, state: InstanceState, client: Option<Arc<dyn InstanceClient>>) -> InstanceEntry {
        InstanceEntry {
            id: self.id,
            name: self.id.to_string(),
            epoch: self.epoch,
            model: model.into(),
            variant: DEFAULT_VARIANT.into(),
            state,
            client,
            leases: self.leases.clone(),
            fetch: FetchTimes::default(),
        }
    }
}

impl Found {
    fn of(error: UpstreamError) -> Self {
        match error {
            UpstreamError::Connect { .. } => Found::Gone(error.to_string()),
            UpstreamError::Lost { .. } => Found::Unwell(error.to_string()),
        }
    }
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ListedModel>,
}

#[derive(Deserialize)]
struct ListedModel {
    id: String,
}

fn models_of(body: &[u8]) -> Vec<String> {
    let list: Option<ModelList> = serde_json::from_slice(body).ok();
    let models = list.map_or_else(Vec::new, |list| list.data);
    models.into_iter().map(|model| model.id).filter(|id| !id.is_empty()).take(MODELS_PER_WORKER).collect()
}
