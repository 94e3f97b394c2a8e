//! Bus, tables and dataflow as `serve` starts them, without the log, and the two measurements on them.
//!
//! Invariant: a run counts only when the views have come to the expected counts. Each run has a plant of its own.
//! Cost: a poll every [`POLL`] while waiting. State: the plant's, and the timed events that are under way.

use std::{
    collections::VecDeque,
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
    rows::{KvEventRow, RequestRow},
};

const POLL: Duration = Duration::from_micros(200);
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Instance of the events that are timed; no chunk has it.
const PROBE_INSTANCE: u32 = 1000;

/// See the file's header.
pub(super) struct Plant {
    bus: Bus,
    guard: BusGuard,
    flow: Dataflow,
    views: Arc<FlowViews>,
}

impl Plant {
    /// Returns once the views have closed an epoch.
    pub(super) fn start(config: &Config) -> anyhow::Result<Self> {
        let clock: Clock = Arc::new(|| WallClock.now());
        let tables = Arc::new(LiveTables::new(config.bus.live_rows));
        let (bus, guard) = Bus::start(&config.bus, None, tables, clock.clone())?;
        let flow = Dataflow::start(&config.dataflow, &bus, (None, clock))?;
        let plant = Plant { views: flow.views(), bus, guard, flow };
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
                self.publish(chunk, requests).await?;
            }
            anyhow::Ok(self.bus.flush().await?)
        })?;
        self.wait("the views to hold all events", || Counts::of_views(&self.views.load()) == *expected)
            .with_context(|| format!("views: {:?}; expected: {expected:?}", Counts::of_views(&self.views.load())))?;
        Ok(started.elapsed())
    }

    /// Publishes all chunks evenly over `lasting`, and meanwhile a `stored` event of its own about every 5 ms; the
    /// milliseconds from each of these to finding its block in the prefix index. `below` gives a number below its
    /// argument.
    pub(super) fn event_to_view_ms(
        &self,
        chunks: &[Chunk],
        lasting: Duration,
        mut below: impl FnMut(u64) -> u64,
    ) -> anyhow::Result<Vec<f64>> {
        let (mut samples, mut waiting) = (Vec::new(), VecDeque::<(u64, Instant)>::new());
        thread::scope(|scope| {
            let load = scope.spawn(|| self.pace(chunks, lasting));
            let (mut seq, mut due) = (0, Instant::now());
            while !load.is_finished() || !waiting.is_empty() {
                if !load.is_finished() && Instant::now() >= due {
                    due = Instant::now() + Duration::from_micros(below(10_000));
                    (seq, waiting) = self.probe(seq + 1, below(u64::MAX), waiting)?;
                }
                // Events of one producer are found in their order.
                let is_found = |hash: u64| !self.views.prefixes().longest_prefix(&[hash]).is_empty();
                while let Some((_, sent)) = waiting.pop_front_if(|(hash, _)| is_found(*hash)) {
                    samples.push(millis(sent.elapsed()));
                }
                if waiting.front().is_some_and(|(_, sent)| sent.elapsed() > WAIT_MAX) {
                    bail!("waited {WAIT_MAX:?} for a block to be found");
                }
                thread::sleep(POLL);
            }
            load.join().map_err(|_| anyhow::anyhow!("the publishing thread panicked"))?
        })?;
        Ok(samples)
    }

    fn probe(
        &self,
        seq: u64,
        hash: u64,
        mut waiting: VecDeque<(u64, Instant)>,
    ) -> anyhow::Result<(u64, VecDeque<(u64, Instant)>)> {
        let row = KvEventRow { block_hash: Some(hash), ..stored(PROBE_INSTANCE, seq, WallClock.now()) };
        waiting.push_back((hash, Instant::now()));
        self.bus.blocking_publish(row)?;
        Ok((seq, waiting))
    }

    fn pace(&self, chunks: &[Chunk], lasting: Duration) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let started = Instant::now();
        for (number, chunk) in chunks.iter().enumerate() {
            let due = started + lasting.mul_f64(number as f64 / chunks.len() as f64);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            runtime.block_on(self.publish(chunk, chunk.requests.clone()))?;
        }
        Ok(())
    }

    async fn publish(&self, chunk: &Chunk, requests: Vec<RequestRow>) -> anyhow::Result<()> {
        let origin = Origin { producer: InstanceId(chunk.instance), epoch: ProcessEpoch(1), seq: chunk.batch_seq };
        self.bus.publish_remote(Topic::KvEvents, origin, chunk.kv.clone()).await?;
        self.bus.publish_remote(Topic::EngineSteps, origin, chunk.steps.clone()).await?;
        for row in requests {
            self.bus.publish(row).await?;
        }
        Ok(())
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
