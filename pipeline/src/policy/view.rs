//! What policies may look at: a consistent picture of the fleet, with its age and its quality.
//!
//! Unknown is `None`, never zero (DESIGN §7 rule 3). Tokens, not requests (rule 1).

use crate::ids::{InstanceId, Micros, ProcessEpoch};

/// How far the views can be trusted; a visible state (DESIGN §7 rule 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ViewMode {
    /// Complete to within one epoch.
    Exact,
    /// Complete but for blocks that the cache index has no room for: hits are understated.
    Approximate,
    /// Complete but for known gaps (a lost KV event, a dropped request).
    Degraded,
    /// Older than `dataflow.stale_after`, or the dataflow is dead.
    Stale,
    /// Turned off in the configuration.
    Off,
}

impl ViewMode {
    pub fn name(self) -> &'static str {
        match self {
            ViewMode::Exact => "exact",
            ViewMode::Approximate => "approximate",
            ViewMode::Degraded => "degraded",
            ViewMode::Stale => "stale",
            ViewMode::Off => "off",
        }
    }

    /// The mode of a name that [`name`](Self::name) gave.
    pub fn from_name(name: &str) -> Option<ViewMode> {
        [ViewMode::Exact, ViewMode::Approximate, ViewMode::Degraded, ViewMode::Stale, ViewMode::Off]
            .into_iter()
            .find(|m| m.name() == name)
    }

    /// Views may be read; otherwise policies take their safe branch.
    pub fn is_usable(self) -> bool {
        matches!(self, ViewMode::Exact | ViewMode::Approximate | ViewMode::Degraded)
    }
}

/// One instance as the views show it.
#[derive(Debug, Clone, PartialEq)]
pub struct InstanceView {
    pub instance: InstanceId,
    pub epoch: ProcessEpoch,
    /// Name of the model it serves.
    pub model: String,
    /// Precision of the model it serves; its KV is of no use to another (SPEC D1).
    pub variant: String,
    /// Takes new requests.
    pub is_ready: bool,
    /// Reserved at dispatch and not finished; the gateway's own truth, exact in every mode.
    pub leased_tokens: u64,
    pub leased_requests: u32,
    /// From the engine's last step; `None` until it reported one.
    pub engine: Option<EngineView>,
}

/// Figures of an instance's engine, from the dataflow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineView {
    pub reported_at: Micros,
    pub running: u32,
    pub waiting: u32,
    pub queued_prefill_tokens: u64,
    pub context_tokens: u64,
    pub blocks_used: u32,
    pub blocks_total: u32,
    /// Learnt online; `None` until there is evidence.
    pub prefill_tokens_per_second: Option<f64>,
    pub decode_step_seconds: Option<f64>,
}

/// The fleet at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterView {
    pub mode: ViewMode,
    /// State of the dataflow's views; `None` if there never was one.
    pub as_of: Option<Micros>,
    pub instances: Vec<InstanceView>,
}

impl ClusterView {
    /// What of it serves the model: all that policies see when they decide for one, so that no neighbour's load counts (SPEC D3).
    pub fn of_model(mut self, model: &str) -> ClusterView {
        self.instances.retain(|instance| instance.model == model);
        self
    }
}

/// Cached prefix of one prompt per instance, from the cache index, in tokens. Instances not listed hold nothing known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrefixHits(pub Vec<(InstanceId, u32)>);

impl PrefixHits {
    /// Adds what another prompt of the same request hits.
    pub fn add(&mut self, instance: InstanceId, tokens: u32) {
        match self.0.iter_mut().find(|(id, _)| *id == instance) {
            Some((_, held)) => *held = held.saturating_add(tokens),
            None => self.0.push((instance, tokens)),
        }
    }

    pub fn tokens_on(&self, instance: InstanceId) -> u32 {
        self.0.iter().find(|(id, _)| *id == instance).map_or(0, |(_, tokens)| *tokens)
    }

    /// Longest prefix any instance holds.
    pub fn longest(&self) -> u32 {
        self.0.iter().map(|(_, tokens)| *tokens).max().unwrap_or(0)
    }
}

/// One look at the cache index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrefixReading {
    /// Tokens per instance, added up over the prompts.
    pub hits: PrefixHits,
    /// State of the index; `None` if it was not looked at, or changed during the look.
    pub as_of: Option<Micros>,
    /// Longest match of each prompt on any instance, in blocks.
    pub blocks: Vec<usize>,
}

impl PrefixReading {
    /// The hashes of each prompt that the hits depend on: up to the first that nobody holds.
    pub fn block_hashes<'a>(&'a self, prompts: &'a [Vec<u64>]) -> impl Iterator<Item = &'a [u64]> {
        prompts.iter().zip(&self.blocks).map(|(hashes, blocks)| &hashes[..hashes.len().min(blocks + 1)])
    }
}
