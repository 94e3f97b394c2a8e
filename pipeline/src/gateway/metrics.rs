//! The process's Prometheus metrics: those of the gateway, and the registry that other parts add theirs to.
//!
//! Label cardinality is bounded: routes, outcomes and reasons are names in the source; of models [`MODELS_SHOWN`] and of engines
//! [`ENGINES_SHOWN`] have series of their own, all further ones share the label `other` (sums of amounts, the largest of
//! levels). An instance is labelled `engine`, since Prometheus itself gives every series the label `instance`.
//! Counters and histograms are written by [`Recorder`](super::recorder::Recorder) and the dispatcher; gauges of state are
//! set when the metrics are read. Reasons are shown from the start with 0, so that a first refusal is an increase.

use std::sync::{Mutex, PoisonError, atomic::AtomicU64};

use prometheus_client::{
    encoding::{prometheus_text, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use crate::{ids::InstanceId, policy::RejectReason};

/// Models with series of their own.
pub const MODELS_SHOWN: usize = 64;
/// Instances with series of their own.
pub const ENGINES_SHOWN: usize = 256;
/// What label values beyond their bound are counted as.
pub const OTHER: &str = "other";

/// A text form of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    OpenMetrics,
    /// Version 0.0.4, which everything reads.
    Prometheus,
}

impl TextForm {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

type Labels = Vec<(&'static str, String)>;
/// Labels whose values are names in the source.
type Words<const N: usize> = [(&'static str, &'static str); N];
type Ratio = Gauge<f64, AtomicU64>;

pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<Words<2>, Counter>,
    request_duration: Family<Words<1>, Histogram>,
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
    models: Mutex<Models>,
}

/// Gauges of models: how many have series, and those that have none.
#[derive(Default)]
struct Models {
    shown: usize,
    others: Vec<GroupGauges>,
}

/// Gauges of the requests of one model.
#[derive(Clone, Default)]
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
            models: Mutex::default(),
        };
        for reason in RejectReason::ALL {
            drop(metrics.rejections.get_or_create(&vec![("reason", reason.name().into())]));
        }
        metrics.register(|registry| metrics.describe(registry));
        metrics
    }
}

impl Metrics {
    /// Lets another part of the process add its metrics; names get the prefix `evenkeel_`.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All metrics as text.
    pub fn render(&self, form: TextForm) -> String {
        self.show_others();
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        match form {
            TextForm::OpenMetrics => text::encode(&mut text, &registry),
            TextForm::Prometheus => prometheus_text::encode(&mut text, &registry),
        }
        .expect("invariant: writing to a String does not fail");
        text
    }

    /// Takes the leases of all instances into the gauges.
    pub fn set_leased(&self, instances: impl Iterator<Item = (InstanceId, u64)>) {
        let (mut others, mut has_others) = (0u64, false);
        for (place, (instance, tokens)) in instances.enumerate() {
            if place < ENGINES_SHOWN {
                self.leased_of(instance.to_string()).set(amount(tokens));
            } else {
                (others, has_others) = (others.saturating_add(tokens), true);
            }
        }
        if has_others {
            self.leased_of(OTHER.into()).set(amount(others));
        }
    }

    fn leased_of(&self, engine: String) -> Gauge {
        self.leased_tokens.get_or_create(&vec![("engine", engine)]).clone()
    }

    /// Handles to one model's gauges, so that they are found once. Asked for once a model.
    pub(super) fn of_group(&self, model: &str) -> GroupGauges {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if models.shown == MODELS_SHOWN {
            let unshown = GroupGauges::default();
            models.others.push(unshown.clone());
            return unshown;
        }
        models.shown += 1;
        self.shown_group(model)
    }

    fn shown_group(&self, model: &str) -> GroupGauges {
        let labels = vec![("model", model.to_string())];
        GroupGauges {
            queue_requests: self.queue_requests.get_or_create(&labels).clone(),
            queue_tokens: self.queue_tokens.get_or_create(&labels).clone(),
            throttle_step: self.throttle_step.get_or_create(&labels).clone(),
            saturation: self.saturation.get_or_create(&labels).clone(),
        }
    }

    /// Models beyond the bound, together.
    fn show_others(&self) {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if models.others.is_empty() {
            return;
        }
        let (all, shown) = (&models.others, self.shown_group(OTHER));
        shown.queue_requests.set(all.iter().map(|one| one.queue_requests.get()).sum());
        shown.queue_tokens.set(all.iter().map(|one| one.queue_tokens.get()).sum());
        shown.throttle_step.set(all.iter().map(|one| one.throttle_step.get()).max().unwrap_or(0));
        shown.saturation.set(all.iter().map(|one| one.saturation.get()).fold(f64::NAN, f64::max));
    }

    pub fn set_ready_instances(&self, count: usize) {
        self.ready_instances.set(count as i64);
    }

    pub(super) fn ended(&self, route: &'static str, outcome: &'static str, seconds: f64) {
        let route = ("route", route);
        self.request_duration.get_or_create(&[route]).observe(seconds);
        self.requests.get_or_create(&[route, ("outcome", outcome)]).inc();
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

fn amount(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: more models and instances than have series of their own.
    /// Guarantees: the bound holds, the others are counted together (amounts added, levels by the largest), and reasons are
    /// there before the first refusal.
    #[test]
    fn labels_beyond_their_bound_are_counted_together() {
        let metrics = Metrics::default();
        for model in 0..MODELS_SHOWN + 2 {
            let gauges = metrics.of_group(&format!("m{model}"));
            gauges.queue_requests.set(3);
            gauges.throttle_step.set(model as i64);
            gauges.saturation.set(model as f64);
        }
        metrics.set_leased((0..ENGINES_SHOWN as u32 + 3).map(|instance| (InstanceId(instance), 5)));
        let text = metrics.render(TextForm::Prometheus);
        let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(count("evenkeel_queue_requests{"), MODELS_SHOWN + 1);
        assert_eq!(count("evenkeel_leased_tokens{"), ENGINES_SHOWN + 1);
        for line in [
            r#"evenkeel_queue_requests{model="other"} 6"#.to_string(),
            format!(r#"evenkeel_throttle_step{{model="other"}} {}"#, MODELS_SHOWN + 1),
            r#"evenkeel_leased_tokens{engine="other"} 15"#.into(),
            r#"evenkeel_rejections_total{reason="predicted_miss"} 0"#.into(),
        ] {
            assert!(text.lines().any(|known| known == line), "no `{line}` in\n{text}");
        }
    }

    /// Scenario: both text forms. Guarantees: one names a counter by its family, the other by its series, with the same values.
    #[test]
    fn both_text_forms_name_counters_as_they_should() {
        let metrics = Metrics::default();
        let (open, plain) = (metrics.render(TextForm::OpenMetrics), metrics.render(TextForm::Prometheus));
        assert!(open.contains("# TYPE evenkeel_reroutes counter") && open.ends_with("# EOF\n"), "{open}");
        assert!(plain.contains("# TYPE evenkeel_reroutes_total counter") && !plain.contains("# EOF"), "{plain}");
        let values = |text: &str| {
            let lines: std::collections::BTreeSet<String> =
                text.lines().filter(|line| !line.starts_with('#')).map(String::from).collect();
            lines
        };
        assert_eq!(values(&open), values(&plain));
    }
}
