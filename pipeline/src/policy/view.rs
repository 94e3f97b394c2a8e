//! What policies may look at: a consistent picture of the fleet, with its age and its quality.
//!
//! Unknown is `None`, never zero (DESIGN §7 rule 3). Tokens, not requests (rule 1).

use crate::{
    ids::{InstanceId, Micros, Name, ProcessEpoch},
    policy::{BucketSeat, KV_LEVELS, PrefixHits},
};

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
    pub model: Name,
    /// Precision of the model it serves; its KV is of no use to another (SPEC D1).
    pub variant: Name,
    /// Takes new requests.
    pub is_ready: bool,
    /// Reserved at dispatch and not finished; the gateway's own truth, exact in every mode.
    pub leased_tokens: u64,
    pub leased_requests: u32,
    /// What bringing KV back costs here, as its worker measured.
    pub fetch: FetchTimes,
    /// Its place in the bucket plan of its model; `None`: there is no plan, or it is not in it yet.
    pub bucket: Option<BucketSeat>,
    /// Prompts sent there that have not drawn a token, of requests with deadlines that count; the gateway's own truth. Empty for an
    /// engine that does not compute those due first first.
    pub prompts: Vec<PromptDue>,
    /// Blocks believed to be cached there, of all prompts and at any level; `None`: not known.
    pub cached_blocks: Option<u64>,
    /// From the engine's last step; `None` until it reported one.
    pub engine: Option<EngineView>,
}

/// A prompt to be computed, and by when its request must be whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptDue {
    pub due: Micros,
    /// Without those that were cached.
    pub tokens: u32,
}

/// Seconds to bring the KV of one token into L1, by the level that holds it (see [`KV_LEVELS`]; L1's own place is not read).
/// `None`: nobody has measured it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FetchTimes(pub [Option<f64>; KV_LEVELS]);

/// Figures of an instance's engine, from the dataflow.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
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
    /// How far predictions of the two are off lately, as a share: one standard deviation. `None` until there is evidence.
    pub prefill_error: Option<f64>,
    pub decode_error: Option<f64>,
}

/// The fleet at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterView {
    pub mode: ViewMode,
    /// State of the dataflow's views; `None` if there never was one.
    pub as_of: Option<Micros>,
    /// In the order of their ids.
    pub instances: Vec<InstanceView>,
    /// Of a fleet larger than [`LEAST_LOADED`]: of each model and variant, that many ready instances with the fewest leased
    /// tokens, least first. Empty for a smaller fleet.
    pub least_loaded: Vec<InstanceId>,
}

/// Instances of a model and variant that a view names as least loaded.
pub const LEAST_LOADED: usize = 64;

impl ClusterView {
    /// The instance of an id.
    pub fn instance(&self, id: InstanceId) -> Option<&InstanceView> {
        self.instances.binary_search_by_key(&id, |view| view.instance).ok().map(|place| &self.instances[place])
    }

    /// What of it serves the model: all that policies see when they decide for one, so that no neighbour's load counts (SPEC D3).
    pub fn of_model(mut self, model: &str) -> ClusterView {
        self.instances.retain(|instance| instance.model == model);
        let named = std::mem::take(&mut self.least_loaded);
        self.least_loaded = named.into_iter().filter(|id| self.instance(*id).is_some()).collect();
        self
    }

    /// For ids that come in rising order: each look starts where the last one ended.
    pub fn seek(&self) -> Seek<'_> {
        Seek { rest: &self.instances }
    }
}

/// See [`ClusterView::seek`]. A look costs O(log n) of the instances passed over.
#[derive(Debug, Clone)]
pub struct Seek<'a> {
    rest: &'a [InstanceView],
}

impl<'a> Seek<'a> {
    /// The instance of an id, which is not below the last one.
    pub fn find(&mut self, id: InstanceId) -> Option<&'a InstanceView> {
        let mut bound = 1;
        while bound < self.rest.len() && self.rest[bound - 1].instance < id {
            bound *= 2;
        }
        let near = &self.rest[..bound.min(self.rest.len())];
        self.rest = &self.rest[near.partition_point(|view| view.instance < id)..];
        self.rest.first().filter(|view| view.instance == id)
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
