//! A gateway over scripted instances, driven with `oneshot`: no socket, no process, no wall clock.
//!
//! Real parts: the router, parsing, policies, queue, leases, recorder. Scripted: the instances, since a test says when they
//! speak, fail or fall silent. Memory: all rows, so for tests only.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicI64, Ordering},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode},
};
use http_body_util::BodyExt;
use pipeline::{
    config::{self, Config},
    dataflow::{ForecastRequest, Predicted},
    gateway::{
        Gateway,
        deps::{Clock, Deps, EventSink, Sent, TextModel, ViewSource},
        instances::{InstanceClient, InstanceDirectory, InstanceEntry, InstanceState},
        leases::Leases,
        metrics::Metrics,
        registry::Registry,
        routes, with_fallbacks,
    },
    ids::{InstanceId, Micros, ProcessEpoch},
    policy::{ClusterView, DEFAULT_VARIANT, EngineView, FetchTimes, PrefixHits, PrefixReading, ViewMode},
    rows::{DecisionRow, FaultRow, PolicyInputRow, RequestRow, SettingsRow, SloReliabilityRow, SloRow},
};
use serde_json::Value;
use tokio::runtime::Handle;
use tower::ServiceExt;

pub use crate::speaker::{ByteText, CONTEXT, END_TOKEN, Fault, Speaker};

/// Name of the model where no others are declared.
pub const MODEL: &str = "tiny";

/// Every row written.
#[derive(Default)]
pub struct Rows {
    pub requests: Mutex<Vec<RequestRow>>,
    pub decisions: Mutex<Vec<DecisionRow>>,
    pub inputs: Mutex<Vec<PolicyInputRow>>,
    pub faults: Mutex<Vec<FaultRow>>,
    pub settings: Mutex<Vec<SettingsRow>>,
    pub slo: Mutex<Vec<SloRow>>,
    pub reliability: Mutex<Vec<SloReliabilityRow>>,
}

impl EventSink for Rows {
    fn request(&self, row: RequestRow) -> Sent<'_> {
        self.requests.lock().unwrap().push(row);
        Sent::Taken
    }
    fn decision(&self, row: DecisionRow) -> Sent<'_> {
        self.decisions.lock().unwrap().push(row);
        Sent::Taken
    }
    fn policy_input(&self, row: Box<PolicyInputRow>) -> Sent<'_> {
        self.inputs.lock().unwrap().push(*row);
        Sent::Taken
    }
    fn fault(&self, row: FaultRow) -> Sent<'_> {
        self.faults.lock().unwrap().push(row);
        Sent::Taken
    }
    fn settings(&self, row: SettingsRow) -> Sent<'_> {
        self.settings.lock().unwrap().push(row);
        Sent::Taken
    }
    fn slo(&self, row: SloRow) -> Sent<'_> {
        self.slo.lock().unwrap().push(row);
        Sent::Taken
    }
    fn slo_reliability(&self, row: SloReliabilityRow) -> Sent<'_> {
        self.reliability.lock().unwrap().push(row);
        Sent::Taken
    }
}

impl Rows {
    /// Events of all requests in order, as `name` or `name:error code`.
    pub fn events(&self) -> Vec<String> {
        let rows = self.requests.lock().unwrap();
        rows.iter().map(|row| row.event.to_string()).collect()
    }
}

/// A clock that moves 1 ms at each look, and by hand.
pub struct StepClock(AtomicI64);

impl StepClock {
    pub fn advance(&self, us: Micros) {
        self.0.fetch_add(us, Ordering::SeqCst);
    }
}

impl Clock for StepClock {
    fn now(&self) -> Micros {
        self.0.fetch_add(1000, Ordering::SeqCst)
    }
}

/// Views made of the directory, and of what a test puts in.
pub struct TestViews {
    directory: Arc<InstanceDirectory>,
    pub mode: Mutex<ViewMode>,
    pub hits: Mutex<PrefixHits>,
    pub engine: Mutex<Option<EngineView>>,
    pub predicted: Mutex<Predicted>,
}

impl ViewSource for TestViews {
    fn cluster(&self, now: Micros) -> ClusterView {
        let engine = *self.engine.lock().unwrap();
        let instances = self.directory.load().iter().map(|entry| entry.view(engine, None)).collect();
        let least_loaded = self.directory.least_loaded();
        ClusterView { mode: *self.mode.lock().unwrap(), as_of: Some(now), instances, least_loaded }
    }

    fn prefix_hits(&self, prompts: &[Vec<u64>], _block_size: usize) -> PrefixReading {
        let hits = self.hits.lock().unwrap().clone();
        PrefixReading { hits, as_of: None, blocks: vec![0; prompts.len()] }
    }

    fn forecast(&self, _request: &ForecastRequest<'_>) -> (Predicted, Option<Micros>) {
        (self.predicted.lock().unwrap().clone(), None)
    }
}

/// A gateway and all that it touches.
pub struct Kit {
    pub gateway: Arc<Gateway>,
    pub router: Router,
    pub directory: Arc<InstanceDirectory>,
    pub rows: Arc<Rows>,
    pub views: Arc<TestViews>,
    pub clock: Arc<StepClock>,
    pub leases: Vec<Arc<Leases>>,
}

/// The default configuration.
pub fn defaults() -> Config {
    config::load(None, config::Overrides::default()).expect("the defaults are valid")
}

impl Kit {
    /// A gateway over these instances of [`MODEL`], all ready; the models are `[[models]]`, or [`MODEL`] alone. Must be called on
    /// a tokio runtime.
    pub fn new(config: Config, speakers: Vec<Arc<Speaker>>) -> Self {
        let directory = Arc::new(InstanceDirectory::default());
        let leases: Vec<Arc<Leases>> = speakers.iter().map(|_| Arc::default()).collect();
        let views = Arc::new(TestViews {
            directory: directory.clone(),
            mode: Mutex::new(ViewMode::Exact),
            hits: Mutex::default(),
            engine: Mutex::new(None),
            predicted: Mutex::default(),
        });
        let (rows, clock) = (Arc::<Rows>::default(), Arc::new(StepClock(AtomicI64::new(1_700_000_000_000_000))));
        let text = |name: &str| Arc::new(ByteText(name.into())) as Arc<dyn TextModel>;
        let texts = match config.models.as_slice() {
            [] => vec![text(MODEL)],
            groups => groups.iter().map(|group| text(&group.name)).collect(),
        };
        let deps = Deps {
            traces: None,
            models: Arc::new(Registry::new(&config, texts)),
            config: Arc::new(config),
            directory: directory.clone(),
            views: views.clone(),
            events: rows.clone(),
            clock: clock.clone(),
            metrics: Arc::new(Metrics::default()),
            text_runtime: Handle::current(),
        };
        let gateway = Gateway::new(deps);
        let router = with_fallbacks(routes(gateway.clone()));
        let kit = Self { gateway, router, directory, rows, views, clock, leases };
        for (id, speaker) in speakers.into_iter().enumerate() {
            kit.put(id as u32, 1, Some(speaker));
        }
        kit
    }

    /// Puts an incarnation into the directory: ready with a client, dead without.
    pub fn put(&self, id: u32, epoch: u64, speaker: Option<Arc<Speaker>>) {
        self.put_variant((id, DEFAULT_VARIANT), epoch, speaker);
    }

    /// The same for an instance of a variant of the model.
    pub fn put_variant(&self, (id, variant): (u32, &str), epoch: u64, speaker: Option<Arc<Speaker>>) {
        self.put_model((id, MODEL, variant), epoch, speaker);
    }

    /// The same for an instance of another model.
    pub fn put_model(&self, (id, model, variant): (u32, &str, &str), epoch: u64, speaker: Option<Arc<Speaker>>) {
        let state = if speaker.is_some() { InstanceState::Ready } else { InstanceState::Dead };
        self.directory.put(InstanceEntry {
            id: InstanceId(id),
            name: format!("w{id}"),
            epoch: ProcessEpoch(epoch),
            model: model.into(),
            variant: variant.into(),
            state,
            client: speaker.map(|speaker| speaker as Arc<dyn InstanceClient>),
            leases: self.leases.get(id as usize).cloned().unwrap_or_default(),
            fetch: FetchTimes::default(),
        });
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.expect("the router does not fail");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("bodies do not fail").to_bytes();
        Answer { status: parts.status, headers: parts.headers, text: String::from_utf8_lossy(&bytes).into_owned() }
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(post(path, &body.to_string())).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).expect("a valid request")).await
    }

    /// Waits until `done` holds; gives up after many looks.
    pub async fn until(&self, what: &str, done: impl Fn() -> bool) {
        for _ in 0..20_000 {
            if done() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        panic!("never happened: {what}");
    }

    pub fn leased(&self) -> (u64, u32) {
        self.leases.iter().fold((0, 0), |(tokens, requests), l| (tokens + l.tokens(), requests + l.requests()))
    }
}

/// A JSON request.
pub fn post(path: &str, body: &str) -> Request<Body> {
    Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .expect("a valid request")
}

/// A response, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }

    /// Data of the server-sent events, in order.
    pub fn events(&self) -> Vec<&str> {
        self.text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }

    /// The events as JSON, without the closing `[DONE]`, which must be there.
    pub fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop(), Some("[DONE]"), "{}", self.text);
        events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
    }

    /// Text of one choice of a streamed answer.
    pub fn streamed_text(&self, choice: u64) -> String {
        self.chunks()
            .iter()
            .flat_map(|chunk| chunk["choices"].as_array().cloned().unwrap_or_default())
            .filter(|part| part["index"] == choice)
            .filter_map(|part| part["delta"]["content"].as_str().or(part["text"].as_str()).map(str::to_string))
            .collect()
    }
}
