//! Gauges of each engine, and of the machine below them, read when `/metrics` is: what runs and waits, KV blocks, whether it
//! serves; room on the disk.
//!
//! An engine that has never reported has no figures, and none are shown for it: unknown is not zero. Labels: of engines
//! [`ENGINES_SHOWN`] have series of their own, further ones are added up as `other`. Cost: one pass over the instances a scrape.
//! No state.

use std::{path::PathBuf, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::ConstGauge,
    registry::Unit,
};

use super::glue::{Views, WallClock};
use crate::{
    gateway::{
        deps::{Clock, ViewSource},
        metrics::{ENGINES_SHOWN, Metrics, OTHER},
    },
    policy::{EngineView, InstanceView},
};

struct Engines {
    views: Arc<Views>,
    /// Folder of log and snapshots.
    data_dir: PathBuf,
}

impl std::fmt::Debug for Engines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engines").finish_non_exhaustive()
    }
}

/// Adds the collector.
pub fn register(metrics: &Metrics, views: Arc<Views>, data_dir: PathBuf) {
    metrics.register(|registry| registry.register_collector(Box::new(Engines { views, data_dir })));
}

/// A figure of an engine.
struct Figure {
    name: &'static str,
    help: &'static str,
    of: fn(&EngineView) -> u64,
}

const FIGURES: [Figure; 6] = [
    Figure { name: "engine_requests_running", help: "Sequences an engine runs", of: |e| e.running.into() },
    Figure { name: "engine_requests_waiting", help: "Sequences that wait in an engine", of: |e| e.waiting.into() },
    Figure { name: "engine_context_tokens", help: "Tokens of running sequences", of: |e| e.context_tokens },
    Figure {
        name: "engine_queued_prefill_tokens",
        help: "Prompt tokens that an engine has yet to compute",
        of: |e| e.queued_prefill_tokens,
    },
    Figure { name: "engine_kv_blocks_used", help: "KV blocks held by sequences", of: |e| e.blocks_used.into() },
    Figure { name: "engine_kv_blocks", help: "KV blocks of an engine's pool", of: |e| e.blocks_total.into() },
];

/// The figure of each engine that told it; those beyond the bound added up.
fn figures(instances: &[InstanceView], of: fn(&EngineView) -> u64) -> Vec<(String, u64)> {
    let told = |view: &InstanceView| Some((view.instance.to_string(), of(view.engine.as_ref()?)));
    let mut shown: Vec<_> = instances.iter().take(ENGINES_SHOWN).filter_map(told).collect();
    let others: Vec<u64> = instances.iter().skip(ENGINES_SHOWN).filter_map(told).map(|(_, figure)| figure).collect();
    if !others.is_empty() {
        shown.push((OTHER.into(), others.iter().sum()));
    }
    shown
}

impl Collector for Engines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let view = self.views.cluster(WallClock.now());
        let zero = ConstGauge::new(0u64);
        for figure in FIGURES {
            let mut metric = encoder.encode_descriptor(figure.name, figure.help, None, zero.metric_type())?;
            for (engine, value) in figures(&view.instances, figure.of) {
                ConstGauge::new(value).encode(metric.encode_family(&[("engine", engine.as_str())])?)?;
            }
        }
        let help = "1 while an engine takes requests, by model and variant";
        let mut metric = encoder.encode_descriptor("engine_up", help, None, zero.metric_type())?;
        for one in view.instances.iter().take(ENGINES_SHOWN) {
            let engine = one.instance.to_string();
            let labels = [("engine", engine.as_str()), ("model", &one.model), ("variant", &one.variant)];
            ConstGauge::new(u64::from(one.is_ready)).encode(metric.encode_family(&labels)?)?;
        }
        let help = "Version of the program";
        let mut metric = encoder.encode_descriptor("build_info", help, None, zero.metric_type())?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        ConstGauge::new(1u64).encode(metric.encode_family(&labels)?)?;
        let Ok(disk) = rustix::fs::statvfs(&self.data_dir) else { return Ok(()) };
        for (name, help, blocks) in [
            ("disk_free", "Room left for log and snapshots", disk.f_bavail),
            ("disk_size", "Size of the disk that holds log and snapshots", disk.f_blocks),
        ] {
            let bytes = ConstGauge::new(blocks.saturating_mul(disk.f_frsize));
            bytes.encode(encoder.encode_descriptor(name, help, Some(&Unit::Bytes), bytes.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{InstanceId, ProcessEpoch},
        policy::FetchTimes,
    };

    /// Scenario: more engines than have series, of which one has not reported.
    /// Guarantees: those beyond the bound are added up, and the silent one shows no zero.
    #[test]
    fn unknown_is_not_zero_and_the_rest_is_added_up() {
        let view = |instance: u32| InstanceView {
            instance: InstanceId(instance),
            epoch: ProcessEpoch(1),
            model: "m".into(),
            variant: "v".into(),
            is_ready: true,
            leased_tokens: 0,
            leased_requests: 0,
            fetch: FetchTimes::default(),
            bucket: None,
            prompts: Vec::new(),
            cached_blocks: None,
            engine: (instance != 1).then(|| EngineView { running: 2, ..EngineView::default() }),
        };
        let views: Vec<_> = (0..ENGINES_SHOWN as u32 + 3).map(view).collect();
        let shown = figures(&views, |engine| engine.running.into());
        assert_eq!(shown.len(), ENGINES_SHOWN);
        assert!(!shown.iter().any(|(engine, _)| engine == "w1"));
        assert_eq!(shown.last(), Some(&(OTHER.to_string(), 6)));
    }
}
