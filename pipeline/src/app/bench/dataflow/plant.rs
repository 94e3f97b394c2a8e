//! Bus, tables and dataflow as `serve` starts them, without the log, and the two measurements on them.
//!
//! Invariant: a run counts only when the views have come to the expected counts. Each run has a plant of its own.
//! Cost: a poll every [`POLL`] while waiting. State: the plant's.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use queries::{LiveTables, Topic};

use super::{
    plain::Counts,
    workload::{Chunk, stored},
};
use crate::{
    app::{bench::figures::millis, glue::WallClock},
    bus::{Bus, BusGuard, Clock, Origin},
    config::Config,
    dataflow::{Dataflow, FlowViews},
    gateway::deps::Clock as _,
    ids::{InstanceId, ProcessEpoch},
};

const POLL: Duration = Duration::from_micros(200);
const WAIT_MAX: Duration = Duration::from_secs(120);

/// See the file's header.
pub(super) struct Plant {
    bus: Bus,
    guard: BusGuard,
    flow: Dataflow,
    views: Arc<FlowViews>,
    epoch: Duration,
}

impl Plant {
    /// Returns once the views have closed an epoch.
    pub(super) fn start(config: &Config) -> anyhow::Result<Self> {
        let clock: Clock = Arc::new(|| WallClock.now());
        let tables = Arc::new(LiveTables::new(config.bus.live_rows));
        let (bus, guard) = Bus::start(&config.bus, None, tables, clock.clone())?;
        let flow = Dataflow::start(&config.dataflow, &bus, clock)?;
        let plant = Plant { views: flow.views(), bus, guard, flow, epoch: config.dataflow.epoch };
        plant.wait("the first epoch", || plant.views.load().as_of.is_some())?;
        Ok(plant)
    }

    /// Publishes all chunks as fast as they are taken; the time until the views hold them.
    pub(super) fn absorb(&self, chunks: &[Chunk], expected: &Counts) -> anyhow::Result<Duration> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let requests: Vec<_> = chunks.iter().map(|chunk| chunk.requests.clone()).collect();
        let started = Instant::now();
        runtime.block_on(async {
            for (chunk, requests) in chunks.iter().zip(requests) {
                let producer = InstanceId(chunk.instance);
                let origin = Origin { producer, epoch: ProcessEpoch(1), seq: chunk.batch_seq };
                self.bus.publish_remote(Topic::KvEvents, origin, chunk.kv.clone()).await?;
                self.bus.publish_remote(Topic::EngineSteps, origin, chunk.steps.clone()).await?;
                for row in requests {
                    self.bus.publish(row).await?;
                }
            }
            self.bus.flush().await
        })?;
        self.wait("the views to hold all events", || Counts::of_views(&self.views.load()) == *expected)
            .with_context(|| format!("views: {:?}; expected: {expected:?}", Counts::of_views(&self.views.load())))?;
        Ok(started.elapsed())
    }

    /// Milliseconds from publishing a `stored` event to finding its block in the prefix index, `events` times, each at
    /// another moment of an epoch. `below` gives a number below its argument.
    pub(super) fn event_to_view_ms(&self, events: u64, mut below: impl FnMut(u64) -> u64) -> anyhow::Result<Vec<f64>> {
        let mut samples = Vec::new();
        for seq in 1..=events {
            thread::sleep(Duration::from_micros(below(self.epoch.as_micros() as u64)));
            let hash = below(u64::MAX);
            let row = crate::rows::KvEventRow { block_hash: Some(hash), ..stored(0, seq, WallClock.now()) };
            let started = Instant::now();
            self.bus.blocking_publish(row)?;
            self.wait("a block to be found", || !self.views.prefixes().longest_prefix(&[hash]).is_empty())?;
            samples.push(millis(started.elapsed()));
        }
        Ok(samples)
    }

    /// Ends the bus, which ends the dataflow.
    pub(super) fn stop(self) {
        self.guard.stop();
        self.flow.join();
    }

    fn wait(&self, what: &str, is_so: impl Fn() -> bool) -> anyhow::Result<()> {
        let started = Instant::now();
        while !is_so() {
            if started.elapsed() > WAIT_MAX {
                bail!("waited {WAIT_MAX:?} for {what}");
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}
