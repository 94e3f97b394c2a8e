//! Metrics of the bus, the log and the dataflow, read when `/metrics` is.
//!
//! Cost: one pass over counters per scrape. Cardinality: topics are names in the source.

use std::sync::Arc;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

use super::glue::{Views, WallClock};
use crate::{
    bus::{Bus, LogState},
    gateway::{deps::Clock, metrics::Metrics},
};

struct Plant {
    bus: Bus,
    views: Arc<Views>,
}

impl std::fmt::Debug for Plant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plant").finish_non_exhaustive()
    }
}

/// Adds the collector.
pub fn register(metrics: &Metrics, bus: Bus, views: Arc<Views>) {
    metrics.register(|registry| registry.register_collector(Box::new(Plant { bus, views })));
}

impl Collector for Plant {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bus = self.bus.counters();
        let counters = [
            ("bus_rows", "Rows published on the bus", bus.rows.iter().map(|(_, rows)| *rows).sum::<u64>()),
            ("bus_duplicate_batches", "Remote batches dropped because they were there already", bus.duplicates),
            ("bus_gap_batches", "Remote batches that never came", bus.gap_batches),
            ("bus_rows_invalid", "Rows that did not fit their topic", bus.rows_invalid),
            ("bus_watcher_lag_batches", "Batches that lossy watchers skipped", bus.watcher_lag),
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
        let bytes = ConstGauge::new(bus.log_bytes as i64);
        bytes.encode(encoder.encode_descriptor(
            "log_size",
            "Size of the log",
            Some(&Unit::Bytes),
            bytes.metric_type(),
        )?)?;
        let as_of = self.views.flow.as_ref().and_then(|flow| flow.load().as_of);
        if let Some(as_of) = as_of {
            let age = ConstGauge::new((WallClock.now() - as_of) as f64 / 1e6);
            let help = "Age of the views policies read";
            age.encode(encoder.encode_descriptor("view_age", help, Some(&Unit::Seconds), age.metric_type())?)?;
        }
        Ok(())
    }
}
