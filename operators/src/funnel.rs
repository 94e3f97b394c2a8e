//! The hit-rate funnel: per request, how many prompt tokens each layer between "ever seen" and "reused" still had, and why
//! the others were lost (C5).
//!
//! Layers ([`Layer`]): prompt → potential → present → visible → eligible → selected → delivered. Reasons ([`Loss`]) belong
//! to the layer not reached.
//!
//! Invariant: for each request, and so for every sum of requests, exactly and in integers:
//! `layer k = layer k + 1 + sum of the losses of layer k + 1`; so prompt = delivered + all losses.
//! A later layer can exceed the one before: the view claims blocks that are gone (*phantom*, at `visible`), the engine
//! reuses what the view did not know, or a part of a block (*unseen hit*, at `delivered`), or rows contradict each other
//! (*contradiction*, at `eligible` and `selected`). That is a gain: a loss of negative tokens under that one reason, and
//! the layer has no other loss then. `potential` never exceeds `prompt`, nor `present` `potential`, by construction.
//! All claims are cut to the prompt, and all but `delivered` to the prompt less its last token, which is always computed.
//! With several prompts in a request, tokens are added up over them, and what was lost at the chosen instance is ordered
//! as if they were one.
//!
//! Why not a differential join: a request looks its blocks up once, as of its decision, and never again; a join would keep
//! both sides arranged and retract every match an epoch later. Three folds that share the cache index's changes cost one
//! map access per block instead: `gather` (by request) asks, `lookup` (by block) answers, `assemble` (by request) sums up.
//! No state is in one place: blocks and requests are spread by their hashes over all workers.
//!
//! Which blocks are held is kept once: the funnel reads it from the readers' index, corrected by what changed lately
//! ([`BlocksHeld`], `holders`).
//!
//! Cost: per request one row exchanged per block there and back, O(blocks × holders). State: see the three parts; bounds
//! are in [`FunnelConfig`], per worker. Late and missing parts: an end without a report, or that does not come for
//! `close_after_epochs`, is *unreported*; a request refused or never placed is *not served*; one whose prompt never came
//! is refused, since nothing can be told of it.
mod assemble;
mod gather;
mod holders;
mod layers;
mod lookup;
mod rows;
mod seen;

use std::sync::Arc;

use differential_dataflow::VecCollection;
use serde::{Deserialize, Serialize};
use timely::dataflow::{
    StreamVec,
    operators::{Concat, core::OkErr, vec::Map},
};

pub use layers::{LAYERS, LOSSES, Layer, Loss};
pub use lookup::ANY_MODEL;
pub use rows::{
    AskedRow, BlockChange, BlockRow, DecidedRow, EndedRow, FunnelPart, FunnelRow, MAX_NS_PER_TOKEN, ServesRow,
};

use crate::{cache_index::CacheKey, epochs::fold_epochs, prefix_index::PrefixIndex, refused::Refused, rows::LEVELS};
use assemble::{AssembleFold, AssembleRow};
use gather::{GatherFold, Gathered};
use lookup::{LookupFold, LookupRow};

/// Bounds of [`Funnel`], per worker.
#[derive(Clone, Copy, Debug)]
pub struct FunnelConfig {
    /// Requests held; at least 1. At the bound: the one open for longest is closed as if its end never came.
    pub max_open: usize,
    /// Closed requests remembered. At the bound: the oldest is forgotten.
    pub max_closed: usize,
    /// Blocks remembered as seen. At the bound: those not asked for longest are forgotten (potential understated).
    pub max_hashes: usize,
    /// (block, instance, level) in an index of its own ([`BlocksHeld::Own`]). At the bound: new ones are left out (present
    /// understated).
    pub max_holders: usize,
    /// How long a request's end may take, epochs; at least 1.
    pub close_after_epochs: u64,
    /// How long after a request was decided what happened before may still come in, epochs.
    pub settle_epochs: u64,
}

impl Default for FunnelConfig {
    fn default() -> Self {
        Self {
            max_open: 1 << 17,
            max_closed: 1 << 17,
            max_hashes: 1 << 20,
            max_holders: 1 << 22,
            close_after_epochs: 9000,
            settle_epochs: 5,
        }
    }
}

/// Where the funnel reads which blocks are held.
#[derive(Clone, Default)]
pub enum BlocksHeld {
    /// In an index of its own, made from the changes: where the readers' index is in another process.
    #[default]
    Own,
    /// In the readers' index, to which somebody applies the changes of each epoch that all workers have closed, sooner or
    /// later, and says so ([`PrefixIndex::complete`]). Saves the memory of the first.
    Shared(Arc<PrefixIndex>),
}

/// One request's funnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunnelCase {
    /// The epoch in which it was made.
    pub epoch: u64,
    pub request: u128,
    /// When it was decided; if it never was, when it came.
    pub at_us: i64,
    pub model: u32,
    pub region: u32,
    pub tier: u8,
    pub tenant: u32,
    /// The instance chosen.
    pub instance: Option<u32>,
    /// Whether the engine said how much it reused.
    pub is_reported: bool,
    /// Predicted time to compute a token that was lost, nanoseconds; 0 if it is not known.
    pub ns_per_token: u64,
    /// Tokens by [`Layer`].
    pub layers: [u64; LAYERS],
    /// `present` by KV level.
    pub present_by_level: [u64; LEVELS as usize],
    /// Tokens by [`Loss`]; gains are negative.
    pub losses: [i64; LOSSES],
}

/// What [`Funnel::funnel`] gives.
pub struct Funnels<'scope> {
    /// One per closed request.
    pub cases: StreamVec<'scope, u64, FunnelCase>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Keeps the funnel.
///
/// ```
/// use differential_dataflow::AsCollection;
/// use operators::{
///     AskedRow, BlocksHeld, DecidedRow, EndedRow, Funnel, FunnelConfig, FunnelPart, FunnelRow, Layer, Loss,
/// };
/// use timely::dataflow::operators::{Capture, ToStream, capture::Extract};
///
/// let asked = |request, at_us| {
///     let (prompt_tokens, block_tokens, prompts) = (40, 16, vec![vec![7, 8]]);
///     AskedRow { at_us, request, model: 0, region: 0, tier: 1, tenant: 0, prompt_tokens, block_tokens, prompts }
/// };
/// let decided = |request, at_us, hit| {
///     DecidedRow { at_us, request, placed: Some(3), visible: hit, eligible: hit, selected: hit, ns_per_token: 1000 }
/// };
/// let ended = |request, delivered| EndedRow { at_us: 90, request, delivered: Some(delivered) };
/// // The same prompt twice. Instance 3 holds its first block when the second is decided, and its engine reuses that.
/// let parts = vec![
///     FunnelPart::Asked(asked(1, 10)), FunnelPart::Decided(decided(1, 11, 0)), FunnelPart::Ended(ended(1, 0)),
///     FunnelPart::Asked(asked(2, 50)), FunnelPart::Decided(decided(2, 51, 16)), FunnelPart::Ended(ended(2, 16)),
/// ];
/// let cases = timely::example(|scope| {
///     let rows = parts.into_iter().map(FunnelRow::Request).to_stream(scope).container::<Vec<_>>();
///     let blocks = vec![((7u64, 3u32, 0u8), 0u64, 1isize)].to_stream(scope).container::<Vec<_>>().as_collection();
///     let config = FunnelConfig { settle_epochs: 0, ..FunnelConfig::default() };
///     rows.funnel(blocks, BlocksHeld::Own, config).cases.capture()
/// });
/// let cases: Vec<_> = cases.extract().into_iter().flat_map(|(_, cases)| cases).collect();
/// let second = cases.iter().find(|case| case.request == 2).unwrap();
/// assert_eq!(second.layers, [40, 32, 16, 16, 16, 16, 16]);
/// assert_eq!(second.losses[Loss::NeverSeen as usize], 8);
/// assert_eq!(second.losses[Loss::NotStored as usize], 16);
/// ```
pub trait Funnel<'scope> {
    /// Folds the parts of requests and the dates of blocks, with the set of blocks held, into one case per request.
    fn funnel(
        self,
        blocks: VecCollection<'scope, u64, CacheKey, isize>,
        held: BlocksHeld,
        config: FunnelConfig,
    ) -> Funnels<'scope>;
}

impl<'scope> Funnel<'scope> for StreamVec<'scope, u64, FunnelRow> {
    fn funnel(
        self,
        blocks: VecCollection<'scope, u64, CacheKey, isize>,
        held: BlocksHeld,
        config: FunnelConfig,
    ) -> Funnels<'scope> {
        let config = FunnelConfig { close_after_epochs: config.close_after_epochs.max(1), ..config };
        let workers = self.scope().peers() as u64;
        let (parts, others) = self.ok_err::<Vec<_>, _, Vec<_>, _, _>(|row| match row {
            FunnelRow::Request(part) => Ok(part),
            FunnelRow::Block(row) => Err(LookupRow::Dated(row)),
            FunnelRow::Serves(row) => Err(LookupRow::Serves { worker: 0, row }),
        });
        let others = others.flat_map(move |row| {
            let copies = if matches!(row, LookupRow::Serves { .. }) { workers } else { 1 };
            (0..copies).map(move |copy| match row {
                LookupRow::Serves { row, .. } => LookupRow::Serves { worker: copy, row },
                row => row,
            })
        });
        let (gathered, parts_refused) = fold_epochs(parts, GatherFold::new(config));
        let (cases, asks) = gathered.ok_err::<Vec<_>, _, Vec<_>, _, _>(|row| match row {
            Gathered::Case(case) => Ok(AssembleRow::Case(case)),
            Gathered::Ask(ask) => Err(LookupRow::Ask(ask)),
        });
        let changes = blocks.inner.map(|(key, _, diff)| LookupRow::Changed { key, diff: diff as i64 });
        let lookups = asks.concat(changes).concat(others);
        let (found, lookups_refused) = fold_epochs(lookups, LookupFold::new(config, held));
        let (cases, _) = fold_epochs(cases.concat(found.map(AssembleRow::Found)), AssembleFold::default());
        Funnels { cases, refused: parts_refused.concat(lookups_refused) }
    }
}
