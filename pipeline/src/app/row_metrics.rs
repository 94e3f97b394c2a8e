//! Metrics that are sums of rows: engine steps, the funnel, deadlines, arrivals, faults, lost workers.
//!
//! A task watches the bus, lossy at its bound as all watchers are: what it skipped is missing in the counts and counted in
//! `evenkeel_bus_watcher_lag_batches_total`; the tables have every row. Labels: of engines [`ENGINES_SHOWN`], of models
//! [`MODELS_SHOWN`] and of kinds of fault [`FAULTS_SHOWN`] have series of their own, further ones are `other`; all else are names
//! in the source. Cost: O(rows) of the topics read; that of a request's tokens is not among them. State: the series.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{AsArray, RecordBatch};
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Unit,
};
use queries::Topic;

use crate::{
    bus::{Bus, Published, rows_of},
    gateway::metrics::{ENGINES_SHOWN, MODELS_SHOWN, Metrics, OTHER},
    ids::InstanceId,
    rows::{ArrivalTrendRow, EngineStepRow, FaultRow, FunnelWindowRow, InstanceRow},
};

/// Components with kinds of fault that have series of their own.
pub const FAULTS_SHOWN: usize = 64;

type Labels = Vec<(&'static str, String)>;
type Counters = Family<Labels, Counter>;
type Level = Gauge<f64, std::sync::atomic::AtomicU64>;

/// Values of a label, of which the first ones keep their name.
#[derive(Debug)]
struct Bounded {
    known: BTreeSet<String>,
    most: usize,
}

impl Bounded {
    fn of(most: usize) -> Self {
        Self { known: BTreeSet::new(), most }
    }

    fn name(&mut self, value: &str) -> String {
        if !self.known.contains(value) {
            if self.known.len() == self.most {
                return OTHER.into();
            }
            self.known.insert(value.into());
        }
        value.into()
    }
}

/// See the module.
pub struct RowMetrics {
    models: Bounded,
    engines: Bounded,
    fault_kinds: Bounded,
    steps: Counters,
    step_seconds: Family<Labels, Histogram>,
    prefill_tokens: Counters,
    decode_tokens: Counters,
    prompt_tokens: Counters,
    cached_tokens: Counters,
    preemptions: Counters,
    swapped_blocks: Counters,
    drafted_tokens: Counters,
    accepted_tokens: Counters,
    funnel_tokens: Counters,
    funnel_lost_tokens: Counters,
    deadlines: Counters,
    arrivals: Family<Labels, Level>,
    forecast: Family<Labels, Level>,
    forecast_high: Family<Labels, Level>,
    faults: Counters,
    deaths: Counter,
}

impl RowMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        // A step takes between a tenth of a millisecond and some seconds.
        let durations = || Histogram::new(exponential_buckets(0.0005, 2.0, 15));
        let made = Self {
            models: Bounded::of(MODELS_SHOWN),
            engines: Bounded::of(ENGINES_SHOWN),
            fault_kinds: Bounded::of(FAULTS_SHOWN),
            steps: Family::default(),
            step_seconds: Family::new_with_constructor(durations),
            prefill_tokens: Family::default(),
            decode_tokens: Family::default(),
            prompt_tokens: Family::default(),
            cached_tokens: Family::default(),
            preemptions: Family::default(),
            swapped_blocks: Family::default(),
            drafted_tokens: Family::default(),
            accepted_tokens: Family::default(),
            funnel_tokens: Family::default(),
            funnel_lost_tokens: Family::default(),
            deadlines: Family::default(),
            arrivals: Family::default(),
            forecast: Family::default(),
            forecast_high: Family::default(),
            faults: Family::default(),
            deaths: Counter::default(),
        };
        metrics.register(|registry| made.describe(registry));
        made
    }

    fn describe(&self, r: &mut prometheus_client::registry::Registry) {
        let counters = [
            ("engine_steps", "Steps of an engine", &self.steps),
            ("engine_prefill_tokens", "Prompt tokens that an engine computed", &self.prefill_tokens),
            (
                "engine_decode_tokens",
                "Tokens of sequences that went on; the first of each comes with its prefill",
                &self.decode_tokens,
            ),
            ("engine_prompt_tokens", "Prompt tokens of sequences that an engine began", &self.prompt_tokens),
            ("engine_cached_prompt_tokens", "Of these, tokens whose KV the engine reused", &self.cached_tokens),
            ("engine_preemptions", "Sequences that an engine interrupted for others", &self.preemptions),
            ("engine_swapped_blocks", "KV blocks copied between L1 and L2, by direction", &self.swapped_blocks),
            ("engine_draft_tokens", "Tokens guessed ahead and verified", &self.drafted_tokens),
            ("engine_accepted_draft_tokens", "Of these, tokens that were right", &self.accepted_tokens),
            (
                "funnel_tokens",
                "Prompt tokens that reached a layer of the hit-rate funnel; layer `potential` is the theoretical hit",
                &self.funnel_tokens,
            ),
            (
                "funnel_lost_tokens",
                "Prompt tokens that did not reach a layer, by the reason; gains are not counted",
                &self.funnel_lost_tokens,
            ),
            ("deadlines", "Requests by how their deadline fared: met, missed or refused", &self.deadlines),
            ("faults", "What Evenkeel noticed about itself; the table faults has the words", &self.faults),
        ];
        for (name, help, counter) in counters {
            r.register(name, help, counter.clone());
        }
        r.register("worker_deaths", "Workers that died or were lost", self.deaths.clone());
        let help = "Length of engine steps, by whether they computed prompt tokens";
        r.register_with_unit("engine_step_duration", help, Unit::Seconds, self.step_seconds.clone());
        let gauges = [
            ("arrivals_per_second", "Level of arrivals as the trend has it", &self.arrivals),
            ("arrivals_forecast_per_second", "Arrivals forecast one horizon ahead", &self.forecast),
            ("arrivals_forecast_high_per_second", "Upper end of the forecast's 90 % interval", &self.forecast_high),
        ];
        for (name, help, gauge) in gauges {
            r.register(name, help, gauge.clone());
        }
    }

    /// Counts until the bus has ended.
    pub async fn run(mut self, bus: Bus) {
        let mut watcher = bus.watch();
        while let Some(published) = watcher.recv().await {
            self.take(&published);
        }
    }

    /// Rows that do not decode were refused and reported by the bus already.
    fn take(&mut self, Published { topic, batch, .. }: &Published) {
        match topic {
            Topic::EngineSteps => rows_of(batch).unwrap_or_default().iter().for_each(|row| self.step(row)),
            Topic::FunnelWindow => rows_of(batch).unwrap_or_default().iter().for_each(|row| self.funnel(row)),
            Topic::Slo => self.deadlines(batch),
            Topic::ArrivalTrend => rows_of(batch).unwrap_or_default().iter().for_each(|row| self.trend(row)),
            Topic::Faults => rows_of(batch).unwrap_or_default().iter().for_each(|row| self.fault(row)),
            Topic::Instances => {
                let rows = rows_of::<InstanceRow>(batch).unwrap_or_default();
                self.deaths.inc_by(rows.iter().filter(|row| row.state == "dead").count() as u64);
            }
            _ => {}
        }
    }

    fn step(&mut self, row: &EngineStepRow) {
        let engine = vec![("engine", self.engines.name(&InstanceId(row.instance).to_string()))];
        let directed = |direction: &str| [engine.clone(), vec![("direction", direction.to_string())]].concat();
        let counts = [
            (&self.steps, engine.clone(), 1),
            (&self.prefill_tokens, engine.clone(), u64::from(row.prefill_tokens)),
            (&self.decode_tokens, engine.clone(), u64::from(row.decode_tokens) + u64::from(row.accepted_tokens)),
            (&self.prompt_tokens, engine.clone(), u64::from(row.scheduled_prompt_tokens)),
            (&self.cached_tokens, engine.clone(), u64::from(row.cached_tokens)),
            (&self.preemptions, engine.clone(), u64::from(row.preempted)),
            (&self.drafted_tokens, engine.clone(), u64::from(row.proposed_tokens)),
            (&self.accepted_tokens, engine.clone(), u64::from(row.accepted_tokens)),
            (&self.swapped_blocks, directed("out"), u64::from(row.swapped_out_blocks)),
            (&self.swapped_blocks, directed("in"), u64::from(row.swapped_in_blocks)),
        ];
        for (counter, labels, by) in counts {
            counter.get_or_create(&labels).inc_by(by);
        }
        let kind = if row.prefill_tokens > 0 { "prefill" } else { "decode" };
        self.step_seconds.get_or_create(&vec![("kind", kind.into())]).observe(row.step_us as f64 / 1e6);
    }

    /// Windows do not overlap, so they add up.
    fn funnel(&mut self, row: &FunnelWindowRow) {
        if row.span != "tumbling" {
            return;
        }
        let Ok(tokens) = u64::try_from(row.tokens) else { return };
        let labels = vec![("model", self.models.name(&row.model)), ("layer", row.layer.to_string())];
        match &row.reason {
            None => drop(self.funnel_tokens.get_or_create(&labels).inc_by(tokens)),
            Some(reason) => {
                let labels = [labels, vec![("reason", reason.to_string())]].concat();
                self.funnel_lost_tokens.get_or_create(&labels).inc_by(tokens);
            }
        }
    }

    /// A row a request: read in place, and added up first.
    fn deadlines(&mut self, batch: &RecordBatch) {
        let text = |name| batch.column_by_name(name).and_then(|column| column.as_string_opt::<i32>());
        let is_met = batch.column_by_name("is_met").and_then(|column| column.as_boolean_opt());
        let (Some(model), Some(tier), Some(is_met)) = (text("model"), text("tier"), is_met) else { return };
        let mut sums = BTreeMap::<(&str, &str), [u64; 3]>::new();
        for ((model, tier), is_met) in model.iter().zip(tier).zip(is_met) {
            let [met, missed, refused] = sums.entry((model.unwrap_or(OTHER), tier.unwrap_or(OTHER))).or_default();
            *match is_met {
                Some(true) => met,
                Some(false) => missed,
                None => refused,
            } += 1;
        }
        for ((model, tier), counts) in sums {
            let model = self.models.name(model);
            // All three from the first on, so that a first miss is an increase.
            for (outcome, count) in ["met", "missed", "refused"].into_iter().zip(counts) {
                let labels = vec![("model", model.clone()), ("tier", tier.to_string()), ("outcome", outcome.into())];
                self.deadlines.get_or_create(&labels).inc_by(count);
            }
        }
    }

    fn trend(&mut self, row: &ArrivalTrendRow) {
        if row.period_seconds <= 0.0 {
            return;
        }
        let labels = vec![("model", self.models.name(&row.model))];
        let levels =
            [(&self.arrivals, row.level), (&self.forecast, row.forecast), (&self.forecast_high, row.forecast_high)];
        for (gauge, arrivals) in levels {
            // A trend that falls may have its level below nothing for a while.
            gauge.get_or_create(&labels).set(arrivals.max(0.0) / row.period_seconds);
        }
    }

    fn fault(&mut self, row: &FaultRow) {
        let pair = format!("{}/{}", row.component, row.kind);
        let (component, kind) = match self.fault_kinds.name(&pair) {
            known if known == pair => (row.component.clone(), row.kind.clone()),
            other => (other.clone(), other),
        };
        self.faults.get_or_create(&vec![("component", component), ("kind", kind)]).inc_by(row.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gateway::metrics::TextForm,
        rows::{Row, SloRow},
        worker::telemetry::batch_of,
    };

    fn take<R: Row + Clone>(metrics: &mut RowMetrics, rows: &[R]) {
        metrics.take(&Published { topic: R::TOPIC, first_row: 0, batch: batch_of(rows).expect("a batch") });
    }

    fn shown(metrics: &Metrics, line: &str) {
        let text = metrics.render(TextForm::Prometheus);
        assert!(text.lines().any(|known| known == line), "no `{line}` in\n{text}");
    }

    /// Scenario: steps of two engines, windows of a funnel with a loss and a gain, deadlines, a trend, a fault, a death.
    /// Guarantees: they add up under the names that dashboards and alerts use; running windows and gains are left out.
    #[test]
    fn rows_add_up() {
        let metrics = Metrics::default();
        let mut rows = RowMetrics::new(&metrics);
        let step = |instance, prefill_tokens| EngineStepRow {
            instance,
            prefill_tokens,
            decode_tokens: 3,
            accepted_tokens: 2,
            scheduled_prompt_tokens: 100,
            cached_tokens: 64,
            swapped_out_blocks: 4,
            step_us: 2_000,
            ..EngineStepRow::default()
        };
        take(&mut rows, &[step(0, 36), step(1, 0), step(1, 0)]);
        let window = |span: &str, layer: &str, reason: Option<&str>, tokens| FunnelWindowRow {
            span: span.into(),
            model: "m".into(),
            layer: layer.into(),
            reason: reason.map(Into::into),
            tokens,
            ..FunnelWindowRow::default()
        };
        take(
            &mut rows,
            &[
                window("tumbling", "potential", None, 80),
                window("tumbling", "potential", None, 20),
                window("running", "potential", None, 1000),
                window("tumbling", "present", Some("evicted"), 30),
                window("tumbling", "delivered", Some("unseen_hit"), -5),
            ],
        );
        let slo = |is_met| SloRow { model: "m".into(), tier: "High".into(), is_met, ..SloRow::default() };
        take(&mut rows, &[slo(Some(true)), slo(Some(true)), slo(None)]);
        let trend = ArrivalTrendRow {
            model: "m".into(),
            period_seconds: 5.0,
            level: 10.0,
            forecast: 20.0,
            ..Default::default()
        };
        take(&mut rows, &[trend]);
        let (component, kind, detail) = ("log".into(), "torn_tail".into(), String::new());
        take(&mut rows, &[FaultRow { at: 1, component, kind, detail, count: 2 }]);
        for line in [
            r#"evenkeel_engine_steps_total{engine="w1"} 2"#,
            r#"evenkeel_engine_decode_tokens_total{engine="w1"} 10"#,
            r#"evenkeel_engine_cached_prompt_tokens_total{engine="w0"} 64"#,
            r#"evenkeel_engine_swapped_blocks_total{engine="w0",direction="out"} 4"#,
            r#"evenkeel_engine_step_duration_seconds_count{kind="decode"} 2"#,
            r#"evenkeel_funnel_tokens_total{model="m",layer="potential"} 100"#,
            r#"evenkeel_funnel_lost_tokens_total{model="m",layer="present",reason="evicted"} 30"#,
            r#"evenkeel_deadlines_total{model="m",tier="High",outcome="met"} 2"#,
            r#"evenkeel_deadlines_total{model="m",tier="High",outcome="missed"} 0"#,
            r#"evenkeel_deadlines_total{model="m",tier="High",outcome="refused"} 1"#,
            r#"evenkeel_arrivals_per_second{model="m"} 2.0"#,
            r#"evenkeel_arrivals_forecast_per_second{model="m"} 4.0"#,
            r#"evenkeel_faults_total{component="log",kind="torn_tail"} 2"#,
            "evenkeel_worker_deaths_total 0",
        ] {
            shown(&metrics, line);
        }
        assert!(!metrics.render(TextForm::Prometheus).contains("unseen_hit"));
    }

    /// Scenario: more models than have series. Guarantees: the rest is counted as `other`, whatever their names.
    #[test]
    fn models_beyond_the_bound_are_one_series() {
        let metrics = Metrics::default();
        let mut rows = RowMetrics::new(&metrics);
        for model in 0..MODELS_SHOWN + 5 {
            let row = SloRow {
                model: format!("m{model}").into(),
                tier: "Low".into(),
                is_met: Some(false),
                ..SloRow::default()
            };
            take(&mut rows, &[row]);
        }
        shown(&metrics, r#"evenkeel_deadlines_total{model="other",tier="Low",outcome="missed"} 5"#);
    }
}
