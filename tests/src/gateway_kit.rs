//! A gateway over scripted instances, driven with `oneshot`: no socket, no process, no wall clock.
//!
//! Real parts: the router, parsing, policies, queue, leases, recorder. Scripted: the instances, since a test says when they
//! speak, fail or fall silent. A [`Speaker`] behaves as an engine does: one byte a token, text only at whole characters, a
//! stop token at the end, the same reply from any offset. Memory: all rows, so for tests only.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicI64, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode},
};
use engine::{request::FinishReason, step::TokenLogprob};
use futures::{StreamExt, stream::unfold};
use http_body_util::BodyExt;
use pipeline::{
    config::{self, Config},
    gateway::{
        Gateway,
        deps::{ChatMessage, Clock, Deps, EventSink, TextFault, TextModel, ViewSource},
        instances::{
            Chunk, ChunkFinish, ChunkStream, GenerateCall, InstanceClient, InstanceDirectory, InstanceEntry,
            InstanceError, InstanceState, Leases,
        },
        metrics::Metrics,
        routes, with_fallbacks,
    },
    ids::{InstanceId, Micros, ProcessEpoch},
    policy::{ClusterView, EngineView, InstanceView, PrefixHits, ViewMode},
    rows::{DecisionRow, FaultRow, RequestRow},
};
use serde_json::Value;
use tokio::{runtime::Handle, sync::Semaphore};
use tower::ServiceExt;

/// The token that ends a reply; below it, token = byte.
pub const END_TOKEN: u32 = 256;
/// Longest sequence of the model.
pub const CONTEXT: usize = 512;

/// Bytes as tokens.
pub struct ByteText;

impl TextModel for ByteText {
    fn name(&self) -> &str {
        "tiny"
    }
    fn context(&self) -> usize {
        CONTEXT
    }
    fn vocab(&self) -> usize {
        257
    }
    fn block_size(&self) -> usize {
        16
    }
    fn stop_tokens(&self) -> &[u32] {
        &[END_TOKEN]
    }
    fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextFault> {
        Ok(text.bytes().map(u32::from).collect())
    }
    fn render_chat(&self, messages: &[ChatMessage]) -> Result<String, TextFault> {
        let lines = messages.iter().map(|message| format!("{}: {}\n", message.role.name(), message.content));
        Ok(lines.chain(["assistant: ".to_string()]).collect())
    }
    fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, TextFault> {
        self.encode_prompt(rendered)
    }
    fn token_bytes(&self, token: u32) -> Vec<u8> {
        u8::try_from(token).map(|byte| vec![byte]).unwrap_or_default()
    }
    fn block_hashes(&self, prompt: &[u32], cache_salt: u64) -> Vec<u64> {
        let mut hash = cache_salt;
        let mut chain = |block: &[u32]| {
            hash = block.iter().fold(hash, |h, token| h.wrapping_mul(1_000_003).wrapping_add(u64::from(*token)));
            hash
        };
        prompt.chunks_exact(16).map(&mut chain).collect()
    }
}

/// How an instance misbehaves.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    None,
    /// `generate` answers this.
    AtStart(InstanceError),
    /// After this many tokens of one sequence, once.
    After(usize, InstanceError),
    /// The stream ends after this many tokens without a finish, once.
    Silence(usize),
    /// The runner fails after this many tokens.
    Runner(usize),
}

/// A scripted instance.
pub struct Speaker {
    pub reply: String,
    pub fault: Mutex<Fault>,
    pub calls: Mutex<Vec<GenerateCall>>,
    /// Streams that exist.
    pub live: Arc<AtomicUsize>,
    /// A token costs a permit, if set.
    pub pace: Option<Arc<Semaphore>>,
    pub cached_tokens: u32,
}

impl Speaker {
    pub fn new(reply: &str) -> Self {
        Self {
            reply: reply.into(),
            fault: Mutex::new(Fault::None),
            calls: Mutex::default(),
            live: Arc::default(),
            pace: None,
            cached_tokens: 0,
        }
    }
}

/// Counts a stream for as long as it exists.
struct Live(Arc<AtomicUsize>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Speech {
    _live: Live,
    call: GenerateCall,
    tokens: Vec<u32>,
    at: usize,
    pending: Vec<u8>,
    fault: Fault,
    pace: Option<Arc<Semaphore>>,
    cached_tokens: u32,
    is_over: bool,
}

impl Speech {
    async fn next(&mut self) -> Option<Result<Chunk, InstanceError>> {
        if self.is_over {
            return None;
        }
        if let Some(pace) = &self.pace {
            pace.acquire().await.expect("the test keeps the semaphore").forget();
        }
        match std::mem::replace(&mut self.fault, Fault::None) {
            Fault::After(count, error) if count == self.at => {
                self.is_over = true;
                return Some(Err(error));
            }
            Fault::Silence(count) if count == self.at => return None,
            Fault::Runner(count) if count == self.at => {
                return Some(Ok(self.end(FinishReason::Failed, Chunk::default())));
            }
            other => self.fault = other,
        }
        let token = self.tokens[self.call.sampling_offset as usize + self.at];
        self.at += 1;
        let mut chunk = Chunk { tokens: vec![token], ..Chunk::default() };
        if let Some(count) = self.call.sampling.logprobs {
            let top = (0..u32::from(count)).map(|rank| (token.saturating_sub(rank), -0.5 - rank as f32)).collect();
            chunk.logprobs = vec![TokenLogprob { token, logprob: -0.5, top }];
        }
        self.pending.extend(ByteText.token_bytes(token));
        if let Ok(text) = String::from_utf8(self.pending.clone()) {
            chunk.text = text;
            self.pending.clear();
        }
        if token == END_TOKEN {
            return Some(Ok(self.end(FinishReason::Stop, chunk)));
        }
        let is_lost_here = matches!(&self.fault, Fault::After(count, _) if *count == self.at);
        if self.at == self.call.stop.max_tokens as usize && !is_lost_here {
            return Some(Ok(self.end(FinishReason::Length, chunk)));
        }
        Some(Ok(chunk))
    }

    fn end(&mut self, reason: FinishReason, mut chunk: Chunk) -> Chunk {
        self.is_over = true;
        chunk.finish = Some(ChunkFinish {
            reason,
            prompt_tokens: self.call.prompt.len() as u32,
            completion_tokens: self.at as u32,
            cached_tokens: self.cached_tokens,
            error: (reason == FinishReason::Failed).then(|| "out of memory".into()),
        });
        chunk
    }
}

#[async_trait]
impl InstanceClient for Speaker {
    async fn generate(&self, call: GenerateCall) -> Result<ChunkStream, InstanceError> {
        self.calls.lock().unwrap().push(call.clone());
        let fault = {
            let mut fault = self.fault.lock().unwrap();
            match &*fault {
                Fault::AtStart(error) => return Err(error.clone()),
                _ => std::mem::replace(&mut *fault, Fault::None),
            }
        };
        self.live.fetch_add(1, Ordering::SeqCst);
        let tokens = self.reply.bytes().map(u32::from).chain([END_TOKEN]).collect();
        let speech = Speech {
            _live: Live(self.live.clone()),
            call,
            tokens,
            at: 0,
            pending: Vec::new(),
            fault,
            pace: self.pace.clone(),
            cached_tokens: self.cached_tokens,
            is_over: false,
        };
        let stream = unfold(speech, |mut speech| async move { speech.next().await.map(|item| (item, speech)) });
        Ok(stream.boxed())
    }
}

/// Every row written.
#[derive(Default)]
pub struct Rows {
    pub requests: Mutex<Vec<RequestRow>>,
    pub decisions: Mutex<Vec<DecisionRow>>,
    pub faults: Mutex<Vec<FaultRow>>,
}

#[async_trait]
impl EventSink for Rows {
    async fn request(&self, row: RequestRow) {
        self.requests.lock().unwrap().push(row);
    }
    async fn decision(&self, row: DecisionRow) {
        self.decisions.lock().unwrap().push(row);
    }
    async fn fault(&self, row: FaultRow) {
        self.faults.lock().unwrap().push(row);
    }
}

impl Rows {
    /// Events of all requests in order, as `name` or `name:error code`.
    pub fn events(&self) -> Vec<String> {
        let rows = self.requests.lock().unwrap();
        rows.iter().map(|row| row.event.clone()).collect()
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
}

impl ViewSource for TestViews {
    fn cluster(&self, now: Micros) -> ClusterView {
        let view = |entry: &Arc<InstanceEntry>| InstanceView {
            instance: entry.id,
            epoch: entry.epoch,
            model: entry.model.clone(),
            is_ready: entry.state == InstanceState::Ready,
            leased_tokens: entry.leases.tokens(),
            leased_requests: entry.leases.requests(),
            engine: *self.engine.lock().unwrap(),
        };
        let instances = self.directory.load().iter().map(view).collect();
        ClusterView { mode: *self.mode.lock().unwrap(), as_of: Some(now), instances }
    }

    fn prefix_hits(&self, _hashes: &[u64], _block_size: usize) -> PrefixHits {
        self.hits.lock().unwrap().clone()
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
    /// A gateway over these instances, all ready. Must be called on a tokio runtime.
    pub fn new(config: Config, speakers: Vec<Arc<Speaker>>) -> Self {
        let directory = Arc::new(InstanceDirectory::default());
        let leases: Vec<Arc<Leases>> = speakers.iter().map(|_| Arc::default()).collect();
        let views = Arc::new(TestViews {
            directory: directory.clone(),
            mode: Mutex::new(ViewMode::Exact),
            hits: Mutex::default(),
            engine: Mutex::new(None),
        });
        let (rows, clock) = (Arc::<Rows>::default(), Arc::new(StepClock(AtomicI64::new(1_700_000_000_000_000))));
        let deps = Deps {
            config: Arc::new(config),
            directory: directory.clone(),
            views: views.clone(),
            events: rows.clone(),
            text: Arc::new(ByteText),
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
        let state = if speaker.is_some() { InstanceState::Ready } else { InstanceState::Dead };
        self.directory.put(InstanceEntry {
            id: InstanceId(id),
            name: format!("w{id}"),
            epoch: ProcessEpoch(epoch),
            model: "tiny".into(),
            state,
            client: speaker.map(|speaker| speaker as Arc<dyn InstanceClient>),
            leases: self.leases.get(id as usize).cloned().unwrap_or_default(),
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
