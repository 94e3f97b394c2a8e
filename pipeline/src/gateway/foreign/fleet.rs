//! The foreign workers of one model, as policies see them (DESIGN §7 rule 10: approximate, and says so).
//!
//! Nothing here comes from an engine's own reports: load is what we sent and have not got back, rates are learnt from what
//! streams showed (together over the workers of the model, so that chance makes none of them look faster), and cached
//! prefixes are believed of what was sent ([`PrefixRecord`]). So the view is never stale, does not need the dataflow, and is
//! `approximate` always; it is as of no state of the dataflow.
//! Invariant: every lease counts until its guard drops; a lost answer never adds room. Cost: O(workers) a look.
//! State: a few words a worker and the record.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use engine::grammar::GrammarSource;

use super::{record::PrefixRecord, upstream::Upstream};
use crate::{
    dataflow::{ForecastRequest, Predicted},
    gateway::{
        deps::ViewSource,
        instances::{ChunkStream, GenerateCall, InstanceClient, InstanceDirectory, InstanceEntry, InstanceError},
    },
    ids::Micros,
    policy::{ClusterView, EngineView, InstanceView, PrefixReading, ViewMode},
};

/// What is learnt from one stream counts this much less with each later one.
const MEMORY: f64 = 0.98;
/// Tokens of a step that count as known before any was seen.
const LEARNT_MIN: f64 = 64.0;

/// A foreign worker that can be reached, for as long as it serves without a break.
pub struct ForeignInstance {
    pub upstream: Arc<Upstream>,
    /// Uncached prompt tokens sent whose first token has not come.
    prefilling: Arc<AtomicU64>,
    /// Rung when a request found it gone.
    lost: tokio::sync::Notify,
}

impl ForeignInstance {
    pub fn new(upstream: Arc<Upstream>) -> Self {
        Self { upstream, prefilling: Arc::default(), lost: tokio::sync::Notify::new() }
    }

    /// Counts a prompt as not computed until the guard drops.
    pub fn prefill(&self, tokens: u32) -> Prefilling {
        self.prefilling.fetch_add(tokens.into(), Ordering::Relaxed);
        Prefilling { count: self.prefilling.clone(), tokens }
    }

    /// Has its keeper look at once.
    pub fn report_lost(&self) {
        self.lost.notify_one();
    }

    /// Waits for [`report_lost`](Self::report_lost).
    pub async fn lost(&self) {
        self.lost.notified().await;
    }
}

/// Prompt tokens on their way through an engine.
pub struct Prefilling {
    count: Arc<AtomicU64>,
    tokens: u32,
}

impl Drop for Prefilling {
    fn drop(&mut self) {
        self.count.fetch_sub(self.tokens.into(), Ordering::Relaxed);
    }
}

#[async_trait]
impl InstanceClient for ForeignInstance {
    async fn generate_within(
        &self,
        _call: GenerateCall,
        _grammar: Option<GrammarSource>,
    ) -> Result<ChunkStream, InstanceError> {
        Err(InstanceError::Refused("a foreign worker takes HTTP requests, and no sequences".into()))
    }

    fn foreign(self: Arc<Self>) -> Option<Arc<ForeignInstance>> {
        Some(self)
    }
}

/// Amounts over the seconds they took, older ones counting less.
#[derive(Default)]
struct Rate(Mutex<(f64, f64)>);

impl Rate {
    fn learn(&self, amount: f64, seconds: f64) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *sums = (sums.0 * MEMORY + amount, sums.1 * MEMORY + seconds);
    }

    /// Per second, once there is evidence.
    fn get(&self) -> Option<f64> {
        let (amount, seconds) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (amount >= LEARNT_MIN && seconds > 0.0).then(|| amount / seconds)
    }
}

/// The workers of one model.
pub struct Fleet {
    pub directory: Arc<InstanceDirectory>,
    pub record: PrefixRecord,
    prefill: Rate,
    decode: Rate,
    default_prefill: f64,
    step_tokens: u64,
}

impl Fleet {
    pub fn new(config: &crate::config::Foreign) -> Self {
        Self {
            directory: Arc::default(),
            record: PrefixRecord::new(config.prefix_blocks_max),
            prefill: Rate::default(),
            decode: Rate::default(),
            step_tokens: config.step_tokens,
            default_prefill: config.default_prefill_tokens_per_second,
        }
    }

    /// A stream showed its first token this long after it was sent.
    pub fn saw_prefill(&self, uncached_tokens: u32, seconds: f64) {
        self.prefill.learn(f64::from(uncached_tokens), seconds);
    }

    /// A stream showed this many tokens after its first one.
    pub fn saw_decode(&self, tokens: u32, seconds: f64) {
        self.decode.learn(f64::from(tokens), seconds);
    }

    fn instance_view(&self, now: Micros, (entry, cached_blocks): (&InstanceEntry, u64)) -> InstanceView {
        let worker = entry.client.clone().and_then(InstanceClient::foreign);
        let engine = worker.map(|worker| {
            // What an engine computes in one step waits for nobody.
            let queued = worker.prefilling.load(Ordering::Relaxed).saturating_sub(self.step_tokens);
            EngineView {
                reported_at: now,
                running: entry.leases.requests(),
                waiting: 0,
                queued_prefill_tokens: queued,
                // The two together are what is leased: this is no report that could take room beyond it.
                context_tokens: entry.leases.tokens().saturating_sub(queued),
                // What its pool has is not known, and no part of the saturation.
                blocks_used: 0,
                blocks_total: 0,
                prefill_tokens_per_second: Some(self.prefill.get().unwrap_or(self.default_prefill)),
                decode_step_seconds: self.decode.get().map(|rate| 1.0 / rate),
                ..EngineView::default()
            }
        });
        // They compute prompts in an order of their own.
        InstanceView { prompts: Vec::new(), cached_blocks: Some(cached_blocks), ..entry.view(engine, None) }
    }
}

impl ViewSource for Fleet {
    fn cluster(&self, now: Micros) -> ClusterView {
        let entries = self.directory.load();
        let blocks = self.record.blocks(entries.iter().map(|entry| entry.id));
        let both = entries.iter().map(Arc::as_ref).zip(blocks);
        let instances = both.map(|both| self.instance_view(now, both)).collect();
        let least_loaded = self.directory.least_loaded();
        ClusterView { mode: ViewMode::Approximate, as_of: None, instances, least_loaded }
    }

    fn prefix_hits(&self, prompts: &[Vec<u64>], block_size: usize) -> PrefixReading {
        self.record.read(prompts, block_size)
    }

    /// Engines of others tell no steps, so nothing is predicted of them, and nobody is refused for a prediction.
    fn forecast(&self, _request: &ForecastRequest<'_>) -> (Predicted, Option<Micros>) {
        (Predicted::default(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{ForeignWorker, Overrides, load},
        gateway::{instances::InstanceState, leases::Leases},
        ids::{InstanceId, ProcessEpoch},
        policy::{DEFAULT_VARIANT, FetchTimes},
    };

    /// Scenario: a worker with prompts on its way, more than it computes in a step, and streams that showed their speed.
    /// Guarantees: the view is approximate and as of nothing; leases count as running; only what exceeds a step is a queue,
    /// and it is gone with its guard; rates are the defaults until there is evidence.
    #[tokio::test]
    async fn views_show_what_was_sent() {
        let config = load(None, Overrides::default()).unwrap().foreign;
        let fleet = Fleet::new(&config);
        let upstream = Upstream::new(&ForeignWorker::at("http://127.0.0.1:1".into()), config.connect_timeout).unwrap();
        let worker = Arc::new(ForeignInstance::new(Arc::new(upstream)));
        let leases: Arc<Leases> = Arc::default();
        fleet.directory.put(InstanceEntry {
            id: InstanceId(3),
            name: "w3".into(),
            epoch: ProcessEpoch(1),
            model: "theirs".into(),
            variant: DEFAULT_VARIANT.into(),
            state: InstanceState::Ready,
            client: Some(worker.clone()),
            leases: leases.clone(),
            fetch: FetchTimes::default(),
        });
        let engine = |fleet: &Fleet| fleet.cluster(7).instances[0].engine.unwrap();
        assert_eq!((fleet.cluster(7).mode, fleet.cluster(7).as_of), (ViewMode::Approximate, None));
        assert_eq!(engine(&fleet).prefill_tokens_per_second, Some(config.default_prefill_tokens_per_second));
        assert_eq!(engine(&fleet).decode_step_seconds, None);
        assert_eq!(fleet.cluster(7).instances[0].cached_blocks, Some(0));
        fleet.record.sent(InstanceId(3), &[1, 2]);
        assert_eq!(fleet.cluster(7).instances[0].cached_blocks, Some(2));
        let lease = leases.reserve(10_000, 20_000).unwrap();
        let sent = [worker.prefill(8000), worker.prefill(1000)];
        assert_eq!((engine(&fleet).running, engine(&fleet).queued_prefill_tokens), (1, 9000 - config.step_tokens));
        let reported = engine(&fleet).queued_prefill_tokens + engine(&fleet).context_tokens;
        assert_eq!(reported, leases.tokens(), "or reports would take room beyond the leases");
        drop((sent, lease));
        assert_eq!((engine(&fleet).running, engine(&fleet).queued_prefill_tokens), (0, 0));
        fleet.saw_prefill(1000, 0.5);
        fleet.saw_decode(100, 2.0);
        assert_eq!(engine(&fleet).prefill_tokens_per_second, Some(2000.0));
        assert_eq!(engine(&fleet).decode_step_seconds, Some(1.0 / 50.0));
    }
}
