//! The bus, the views and the clock behind the small traits that gateway and workers ask for.
//!
//! Invariant: a row that the bus refuses because it has stopped is dropped with a log line; nothing else is dropped here.
//! State: none but the handles.

use std::sync::Arc;

use async_trait::async_trait;

use super::plan_book::PlanBook;
use crate::{
    bus::{Bus, Origin, PublishError},
    dataflow::{
        FlowViews, ForecastRequest, Predicted, cached_blocks, current_view, read_forecast, read_prefixes, view_mode,
    },
    gateway::{
        deps::{Clock, EventSink, Sent, ViewSource},
        instances::{InstanceDirectory, InstanceEntry},
    },
    ids::{InstanceId, Micros},
    policy::{ClusterView, InstanceView, PrefixReading},
    rows::{
        DecisionRow, FaultRow, InstanceRow, PolicyInputRow, RequestRow, Row, SettingsRow, SloReliabilityRow, SloRow,
    },
    worker::{
        flight_server::{RemoteBatch, RemoteRefused, RemoteSink},
        supervisor::InstanceSink,
        wall_micros,
    },
};

/// The wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Micros {
        wall_micros()
    }
}

/// Rows of gateway, supervisor and workers, on their way into the bus.
#[derive(Clone)]
pub struct BusSink(pub Bus);

impl BusSink {
    fn put<R: Row + Sync>(&self, row: R) -> Sent<'_> {
        match self.0.offer(row) {
            Ok(()) => Sent::Taken,
            Err(row) => Sent::Waits(Box::pin(async move { told::<R>(self.0.publish(row).await) })),
        }
    }
}

fn told<R: Row>(published: Result<(), PublishError>) {
    if let Err(error) = published {
        tracing::warn!(topic = R::TOPIC.name(), %error, "row not published");
    }
}

impl EventSink for BusSink {
    fn request(&self, row: RequestRow) -> Sent<'_> {
        self.put(row)
    }
    fn decision(&self, row: DecisionRow) -> Sent<'_> {
        self.put(row)
    }
    fn policy_input(&self, row: Box<PolicyInputRow>) -> Sent<'_> {
        self.put(*row)
    }
    fn fault(&self, row: FaultRow) -> Sent<'_> {
        self.put(row)
    }
    fn slo(&self, row: SloRow) -> Sent<'_> {
        self.put(row)
    }
    fn slo_reliability(&self, row: SloReliabilityRow) -> Sent<'_> {
        self.put(row)
    }
    fn settings(&self, row: SettingsRow) -> Sent<'_> {
        self.put(row)
    }
}

#[async_trait]
impl InstanceSink for BusSink {
    async fn instance(&self, row: InstanceRow) {
        told::<InstanceRow>(self.0.publish(row).await);
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
    /// Bucket plans in force.
    pub plans: Arc<PlanBook>,
    /// Older views are not read (`dataflow.stale_after`).
    pub stale_after_us: i64,
    /// Older figures of an engine do not count (`dataflow.silent_after`).
    pub silent_after_us: i64,
}

impl ViewSource for Views {
    fn cluster(&self, now: Micros) -> ClusterView {
        let entries = self.directory.load();
        let state = self.flow.as_ref().map(|flow| flow.load());
        let mode = view_mode(state.as_deref(), now, self.stale_after_us);
        // Figures of an earlier incarnation say nothing of this one.
        let seen = |entry: &InstanceEntry| {
            let state = state.as_ref()?;
            let found = state.instances.get(&entry.id.0).filter(|found| found.step.epoch == entry.epoch.0)?;
            Some((current_view(state, *found, (now, self.silent_after_us)), cached_blocks(state, entry.id)))
        };
        let seat = |entry: &InstanceEntry| self.plans.seat(entry.id, entry.leases.borrowed());
        let view = |entry: &Arc<InstanceEntry>| {
            let (engine, cached_blocks) = seen(entry).unzip();
            InstanceView { cached_blocks, ..entry.view(engine, seat(entry)) }
        };
        let instances = entries.iter().map(view).collect();
        let least_loaded = self.directory.least_loaded();
        ClusterView { mode, as_of: state.and_then(|state| state.as_of), instances, least_loaded }
    }

    fn prefix_hits(&self, prompts: &[Vec<u64>], block_size: usize) -> PrefixReading {
        match &self.flow {
            Some(flow) => read_prefixes(flow, prompts, block_size),
            None => PrefixReading::default(),
        }
    }

    fn forecast(&self, request: &ForecastRequest<'_>) -> (Predicted, Option<Micros>) {
        let Some(flow) = &self.flow else { return (Predicted::default(), None) };
        let state = flow.load();
        (read_forecast(&state, flow.names(), request), state.as_of)
    }
}
