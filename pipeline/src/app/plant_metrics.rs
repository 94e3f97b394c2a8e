//! Metrics of the bus, the log and the dataflow, read when `/metrics` is.
//!
//! Cost: one pass over counters per scrape. Cardinality: topics are names in the source.

use std::sync::{Arc, atomic::Ordering};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

use operators::{CacheAudit, CacheTrust};

use super::{
    glue::{Views, WallClock},
    modes::Modes,
    shadow::ShadowCounters,
};
use crate::{
    bus::{Bus, LogState},
    gateway::{deps::Clock, metrics::Metrics},
};

struct Plant {
    bus: Bus,
    modes: Modes,
    views: Arc<Views>,
}

impl std::fmt::Debug for Plant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plant").finish_non_exhaustive()
    }
}

/// Adds the collector.
pub fn register(metrics: &Metrics, (bus, modes): (Bus, Modes), views: Arc<Views>) {
    metrics.register(|registry| registry.register_collector(Box::new(Plant { bus, modes, views })));
}

impl Plant {
    /// 1 for each part that is in a lesser mode, by its mode.
    fn encode_modes(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let one = ConstGauge::new(1i64);
        let help = "1 while a part of Evenkeel is not in its normal mode; see the table modes";
        let mut metric = encoder.encode_descriptor("mode_degraded", help, None, one.metric_type())?;
        for (part, mode) in self.modes.load().iter().filter(|(_, mode)| mode.is_degraded) {
            let labels = [("component", part.component), ("subject", part.subject.as_str()), ("mode", mode.name)];
            one.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct ShadowPlant(Arc<ShadowCounters>);

/// Adds the counters of shadow policies.
pub fn register_shadow(metrics: &Metrics, counters: Arc<ShadowCounters>) {
    metrics.register(|registry| registry.register_collector(Box::new(ShadowPlant(counters))));
}

impl Collector for ShadowPlant {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, count) in [
            ("shadow_decisions", "Decisions shown to shadow policies", &self.0.shown),
            (
                "shadow_decisions_dropped",
                "Decisions not shown to shadow policies, or without room for the answer",
                &self.0.dropped,
            ),
        ] {
            let counter = ConstCounter::new(count.load(Ordering::Relaxed));
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}

impl Collector for Plant {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bus = self.bus.counters();
        let counters = [
            ("bus_duplicate_batches", "Remote batches dropped because they were there already", bus.duplicates),
            ("bus_gap_batches", "Remote batches that never came", bus.gap_batches),
            ("bus_rows_invalid", "Rows that did not fit their topic", bus.rows_invalid),
            ("bus_watcher_lag_batches", "Batches that lossy watchers skipped", bus.watcher_lag),
            (
                "refused_rows",
                "Rows that the dataflow did not take as they stand",
                self.views.flow.as_ref().map_or(0, |flow| flow.refused().total()),
            ),
            ("log_faults", "Failed attempts to write the log", bus.log_faults),
            ("log_rows_lost", "Rows that are not in the log because it could not be written", bus.log_rows_lost),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let gauges = [
            ("bus_queue_rows", "Rows on their way into the bus", bus.queue_depth as i64),
            (
                "log_healthy",
                "1 while the log is written, 0 while it is not",
                i64::from(bus.log_state != LogState::Faulted),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let mut rows = encoder.encode_descriptor("bus_rows", "Rows published on the bus", None, MetricType::Counter)?;
        for (topic, count) in bus.rows {
            ConstCounter::new(count).encode(rows.encode_family(&[("topic", topic.name())])?)?;
        }
        let bytes = ConstGauge::new(bus.log_bytes as i64);
        bytes.encode(encoder.encode_descriptor(
            "log_size",
            "Size of the log",
            Some(&Unit::Bytes),
            bytes.metric_type(),
        )?)?;
        self.encode_modes(&mut encoder)?;
        let Some(flow) = self.views.flow.as_ref() else { return Ok(()) };
        let state = flow.load();
        for (name, help, trust) in [
            ("cache_view_exact_instances", "Instances whose part of the cache index is exact", CacheTrust::Exact),
            (
                "cache_view_approximate_instances",
                "Instances of whose blocks some are not indexed, for want of room",
                CacheTrust::Approximate,
            ),
            (
                "cache_view_degraded_instances",
                "Instances of whose blocks some may be missing or stale",
                CacheTrust::Degraded,
            ),
        ] {
            let gauge = ConstGauge::new(state.trust.values().filter(|(known, _)| *known == trust).count() as i64);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        if let Some(drift) = state.audits.values().map(CacheAudit::drift_ratio).max_by(f64::total_cmp) {
            let gauge = ConstGauge::new(drift);
            let help = "Largest share of differing blocks that the last audit of an instance found";
            gauge.encode(encoder.encode_descriptor("cache_view_drift_ratio", help, None, gauge.metric_type())?)?;
        }
        if let Some(as_of) = state.as_of {
            let age = ConstGauge::new((WallClock.now() - as_of) as f64 / 1e6);
            let help = "Age of the views policies read";
            age.encode(encoder.encode_descriptor("view_age", help, Some(&Unit::Seconds), age.metric_type())?)?;
        }
        Ok(())
    }
}
