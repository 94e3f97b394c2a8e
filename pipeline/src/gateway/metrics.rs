//! The process's Prometheus metrics: those of the gateway, and the registry that other parts add theirs to.
//!
//! Label cardinality is bounded: routes and outcomes are names in the source, instances and models are those configured.
//! Counters and histograms are written by [`Recorder`](super::recorder::Recorder) and the dispatcher; gauges of state are
//! set when the metrics are read.

use std::sync::{Mutex, PoisonError, atomic::AtomicU64};

use prometheus_client::{
    encoding::text::encode,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

type Labels = Vec<(&'static str, String)>;
type Ratio = Gauge<f64, AtomicU64>;

pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<Labels, Counter>,
    request_duration: Family<Labels, Histogram>,
    rejections: Family<Labels, Counter>,
    leased_tokens: Family<Labels, Gauge>,
    ready_instances: Gauge,
    pub(super) requests_running: Gauge,
    pub(super) time_to_first_token: Histogram,
    pub(super) inter_token_latency: Histogram,
    pub(super) queue_wait: Histogram,
    pub(super) prompt_tokens: Counter,
    pub(super) generation_tokens: Counter,
    pub(super) cached_tokens: Counter,
    pub(super) reroutes: Counter,
    queue_requests: Family<Labels, Gauge>,
    queue_tokens: Family<Labels, Gauge>,
    throttle_step: Family<Labels, Gauge>,
    saturation: Family<Labels, Ratio>,
}

/// Gauges of the requests of one model.
pub struct GroupGauges {
    pub queue_requests: Gauge,
    pub queue_tokens: Gauge,
    pub throttle_step: Gauge,
    pub saturation: Ratio,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("evenkeel")),
            requests: Family::default(),
            request_duration: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.005, 2.0, 17))),
            rejections: Family::default(),
            leased_tokens: Family::default(),
            ready_instances: Gauge::default(),
            requests_running: Gauge::default(),
            time_to_first_token: Histogram::new(exponential_buckets(0.001, 2.0, 18)),
            inter_token_latency: Histogram::new(exponential_buckets(0.0005, 2.0, 15)),
            queue_wait: Histogram::new(exponential_buckets(0.001, 2.0, 18)),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            reroutes: Counter::default(),
            queue_requests: Family::default(),
            queue_tokens: Family::default(),
            throttle_step: Family::default(),
            saturation: Family::default(),
        };
        metrics.register(|registry| metrics.describe(registry));
        metrics
    }
}

impl Metrics {
    /// Lets another part of the process add its metrics; names get the prefix `evenkeel_`.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All metrics in the OpenMetrics text format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        encode(&mut text, &registry).expect("invariant: writing to a String does not fail");
        text
    }

    /// Takes the state of an instance into the gauges.
    pub fn set_leased(&self, instance: impl ToString, tokens: u64) {
        let labels = vec![("instance", instance.to_string())];
        self.leased_tokens.get_or_create(&labels).set(i64::try_from(tokens).unwrap_or(i64::MAX));
    }

    /// Handles to one model's gauges, so that they are found once.
    pub(super) fn of_group(&self, model: &str) -> GroupGauges {
        let labels = vec![("model", model.to_string())];
        GroupGauges {
            queue_requests: self.queue_requests.get_or_create(&labels).clone(),
            queue_tokens: self.queue_tokens.get_or_create(&labels).clone(),
            throttle_step: self.throttle_step.get_or_create(&labels).clone(),
            saturation: self.saturation.get_or_create(&labels).clone(),
        }
    }

    pub fn set_ready_instances(&self, count: usize) {
        self.ready_instances.set(count as i64);
    }

    pub(super) fn ended(&self, route: &str, outcome: &str, seconds: f64) {
        let route = ("route", route.to_string());
        self.request_duration.get_or_create(&vec![route.clone()]).observe(seconds);
        self.requests.get_or_create(&vec![route, ("outcome", outcome.to_string())]).inc();
    }

    pub(super) fn rejected(&self, reason: &str) {
        self.rejections.get_or_create(&vec![("reason", reason.to_string())]).inc();
    }

    fn describe(&self, r: &mut Registry) {
        let second = || Unit::Seconds;
        let tokens = || Unit::Other("tokens".into());
        r.register("requests", "Inference requests that ended, by route and outcome", self.requests.clone());
        r.register("rejections", "Requests refused by policy, by reason", self.rejections.clone());
        r.register("reroutes", "Sequences sent to another instance after one was lost or busy", self.reroutes.clone());
        r.register("requests_running", "Inference requests between arrival and end", self.requests_running.clone());
        r.register("ready_instances", "Instances that take requests", self.ready_instances.clone());
        r.register_with_unit(
            "request_duration",
            "Time from arrival to the end of a request",
            second(),
            self.request_duration.clone(),
        );
        let ttft = self.time_to_first_token.clone();
        r.register_with_unit("time_to_first_token", "Time from arrival to the first token", second(), ttft);
        let itl = self.inter_token_latency.clone();
        r.register_with_unit("inter_token_latency", "Time between two tokens of a sequence", second(), itl);
        r.register_with_unit("queue_wait", "Time requests waited for a lease", second(), self.queue_wait.clone());
        r.register("prompt_tokens", "Prompt tokens of classed requests", self.prompt_tokens.clone());
        r.register("generation_tokens", "Tokens generated", self.generation_tokens.clone());
        r.register("cached_prompt_tokens", "Prompt tokens whose KV was reused", self.cached_tokens.clone());
        r.register("queue_requests", "Requests that wait for a lease, by model", self.queue_requests.clone());
        r.register_with_unit(
            "queue",
            "Tokens of the requests that wait for a lease, by model",
            tokens(),
            self.queue_tokens.clone(),
        );
        r.register_with_unit("leased", "Tokens in flight on an instance", tokens(), self.leased_tokens.clone());
        r.register(
            "throttle_step",
            "Step of throttling in force for a model, 0 (open) to 5",
            self.throttle_step.clone(),
        );
        r.register(
            "saturation_ratio",
            "Used capacity of a model's instances as throttling sees it, 1 is full",
            self.saturation.clone(),
        );
    }
}
