//! Metrics of the process for SQL, read when `/metrics` is. Cost: four counters a scrape. Cardinality: no labels.

use std::sync::Arc;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

use super::keeper::Counters;
use crate::gateway::metrics::Metrics;

#[derive(Debug)]
struct SqlPlant(Arc<Counters>);

/// Adds the collector.
pub fn register(metrics: &Metrics, counters: Arc<Counters>) {
    metrics.register(|registry| registry.register_collector(Box::new(SqlPlant(counters))));
}

impl Collector for SqlPlant {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, count) in [
            ("sql_engine_restarts", "Starts of the process for SQL after the first", &self.0.restarts),
            (
                "sql_engine_kills",
                "Processes for SQL that were ended because they did not stop or answer",
                &self.0.ended,
            ),
            (
                "sql_feed_catch_ups",
                "Times that the rows for SQL fell behind the bus and were taken from the tables",
                &self.0.catch_ups,
            ),
        ] {
            let counter = ConstCounter::new(count.get());
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        for (name, help, level) in [
            ("sql_engine_up", "1 while there is a process for SQL", &self.0.up),
            ("sql_engine_running", "Statements that hold a place in the process for SQL", &self.0.running),
        ] {
            let gauge = ConstGauge::new(i64::try_from(level.get()).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
