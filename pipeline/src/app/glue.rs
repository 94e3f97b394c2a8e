//! The bus, the views and the clock behind the small traits that gateway and workers ask for.
//!
//! Invariant: a row that the bus refuses because it has stopped is dropped with a log line; nothing else is dropped here.
//! State: none but the handles.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use operators::InstanceState as EngineState;

use crate::{
    bus::{Bus, Origin},
    dataflow::FlowViews,
    gateway::{
        deps::{Clock, EventSink, ViewSource},
        instances::{InstanceDirectory, InstanceEntry, InstanceState},
    },
    ids::{InstanceId, Micros},
    policy::{ClusterView, EngineView, InstanceView, PrefixHits, ViewMode},
    rows::{DecisionRow, FaultRow, InstanceRow, RequestRow, Row},
    worker::{
        flight_server::{RemoteBatch, RemoteRefused, RemoteSink},
        supervisor::InstanceSink,
    },
};

/// The wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Micros {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as Micros)
    }
}

/// Rows of gateway, supervisor and workers, on their way into the bus.
#[derive(Clone)]
pub struct BusSink(pub Bus);

impl BusSink {
    async fn put<R: Row>(&self, row: R) {
        if let Err(error) = self.0.publish(row).await {
            tracing::warn!(topic = R::TOPIC.name(), %error, "row not published");
        }
    }
}

#[async_trait]
impl EventSink for BusSink {
    async fn request(&self, row: RequestRow) {
        self.put(row).await;
    }
    async fn decision(&self, row: DecisionRow) {
        self.put(row).await;
    }
    async fn fault(&self, row: FaultRow) {
        self.put(row).await;
    }
}

#[async_trait]
impl InstanceSink for BusSink {
    async fn instance(&self, row: InstanceRow) {
        self.put(row).await;
    }
}

#[async_trait]
impl RemoteSink for BusSink {
    async fn publish(&self, remote: RemoteBatch) -> Result<(), RemoteRefused> {
        let number = remote.producer.strip_prefix('w').and_then(|number| number.parse().ok());
        let producer = number.map(InstanceId).ok_or_else(|| {
            RemoteRefused(format!("producer = {:?}; expected an instance's name such as \"w0\"", remote.producer))
        })?;
        let origin = Origin { producer, epoch: remote.epoch, seq: remote.seq };
        let published = self.0.publish_remote(remote.topic, origin, remote.batch).await;
        published.map_err(|error| RemoteRefused(error.to_string()))
    }
}

/// What policies see: instances and leases from the directory, figures from the dataflow (if there is one).
pub struct Views {
    pub directory: Arc<InstanceDirectory>,
    pub flow: Option<Arc<FlowViews>>,
    /// Older views are not read (`dataflow.stale_after`).
    pub stale_after_us: i64,
}

impl ViewSource for Views {
    fn cluster(&self, now: Micros) -> ClusterView {
        let entries = self.directory.load();
        let state = self.flow.as_ref().map(|flow| flow.load());
        let mode = match &state {
            None => ViewMode::Off,
            Some(state) => match state.as_of {
                None => ViewMode::Stale,
                Some(as_of) if now - as_of > self.stale_after_us => ViewMode::Stale,
                Some(_) if state.is_degraded() => ViewMode::Degraded,
                Some(_) => ViewMode::Exact,
            },
        };
        let figures =
            |entry: &InstanceEntry| state.as_ref().and_then(|state| state.instances.get(&entry.id.0).copied());
        let instances = entries.iter().map(|entry| instance_view(entry, figures(entry))).collect();
        ClusterView { mode, as_of: state.and_then(|state| state.as_of), instances }
    }

    fn prefix_hits(&self, hashes: &[u64], block_size: usize) -> PrefixHits {
        let Some(flow) = &self.flow else { return PrefixHits::default() };
        let found = flow.prefixes().longest_prefix(hashes);
        PrefixHits(
            found
                .into_iter()
                .map(|(instance, blocks)| (InstanceId(instance), blocks.saturating_mul(block_size as u32)))
                .collect(),
        )
    }
}

fn instance_view(entry: &InstanceEntry, figures: Option<EngineState>) -> InstanceView {
    InstanceView {
        instance: entry.id,
        epoch: entry.epoch,
        model: entry.model.clone(),
        variant: entry.variant.clone(),
        is_ready: entry.state == InstanceState::Ready,
        leased_tokens: entry.leases.tokens(),
        leased_requests: entry.leases.requests(),
        // Figures of an earlier incarnation say nothing of this one.
        engine: figures.filter(|state| state.step.epoch == entry.epoch.0).map(engine_view),
    }
}

fn engine_view(state: EngineState) -> EngineView {
    let step = state.step;
    EngineView {
        reported_at: step.at_us,
        running: step.running,
        waiting: step.waiting,
        queued_prefill_tokens: step.queued_prefill_tokens,
        context_tokens: step.context_tokens,
        blocks_used: step.blocks_used,
        blocks_total: step.blocks_total,
        prefill_tokens_per_second: state.prefill_tokens_per_s.map(|rate| rate as f64),
        decode_step_seconds: state.fit.map(|fit| fit.predict_ns(step.running.max(1).into(), 0) as f64 / 1e9),
    }
}
