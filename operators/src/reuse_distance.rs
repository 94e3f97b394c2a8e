//! Hit rate as a function of cache capacity, from the reuse distances of prompt blocks (C5 layers 1 and 2, X4).
//!
//! Each model's blocks are its own, and so is its cache: one LRU cache over all prompts of a model is asked how it would do
//! at every capacity at once, and without a bound. A tier's or a tenant's curve is what its requests would reuse of the
//! shared caches of their models; over several models, and over all, curves add up: a point says what would be reused if
//! the cache of each model had that capacity. Blocks the engine generates are not entered.
//!
//! Invariant: up to `exact_blocks` a curve equals the simulation of an LRU cache of each capacity, exactly; above, see
//! `reuse_stack` for the sample and `miss_ratio` for the error. Requests count in the order of `(at_us, request)` within an
//! epoch. A curve covers the current window so far and those before it that count, or everything if nothing is forgotten;
//! the order of use is never forgotten, but for the bounds of `reuse_stack`. In a sum over models one without new prompts
//! counts as of the end of the last window; `from_epoch` is the earliest of all.
//! Cost: O(log n) a block; O(capacities · windows) per changed group each `emit_epochs`, and one exchange of its curve.
//! What lies where: rows are exchanged by model (`reuse_cell`), and the curves of a model then by group, to be added up
//! (`reuse_sum`): models are spread over the workers, and so are the sums. What stays in one place is one model's order of
//! uses: a distance counts all blocks of the model used since, so a part of them, cut by hash, would only be a sample.
//! State: a cell per model (see `reuse_stack`; per group and window 16 bytes a capacity, 161 of them up to 100 M blocks); at
//! most `max_models` cells a worker: at the bound prompts of further models are refused. At most `max_groups` tiers and
//! tenants a model: at the bound a new one counts only in the model, and is reported. A group without rows in all windows
//! that count emits an empty curve and is forgotten. The latest curve of each model and group is held to add it up.
use std::collections::BTreeMap;

use differential_dataflow::Hashable;
use timely::dataflow::{
    StreamVec,
    operators::{Concat, vec::Map},
};

use crate::{
    epochs::{Closed, EpochFold, fold_epochs},
    miss_ratio_rows::{CurveGroup, CurveRow},
    refused::{Input, Refusal, Refused},
    reuse_cell::ReuseCell,
    reuse_sum::{CurvePart, ReuseSum, sum},
    rows::PromptRow,
};

/// What a curve covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgetting {
    /// Everything since the start.
    Never,
    /// The last `count` windows of `epochs` epochs, the current one included; both at least 1.
    Windows { epochs: u64, count: u64 },
}

/// Bounds of [`ReuseDistance`]; those of blocks and groups are per model.
#[derive(Clone, Copy, Debug)]
pub struct ReuseDistanceConfig {
    /// Newest blocks that are followed one by one; rounded down to one of the curve's capacities, at least 1.
    pub exact_blocks: u64,
    /// Older blocks that are followed by a sample; at least 1. At the bound the rate is halved, down to `rate_least`; then
    /// the block unused for longest is dropped.
    pub sample_max: usize,
    /// Share of the blocks that the sample begins with; over 0, at most 1.
    pub rate_most: f64,
    pub rate_least: f64,
    /// The curve's last capacity, in blocks.
    pub capacity_max: u64,
    pub forgetting: Forgetting,
    /// Epochs between the rows of a group that changes; at least 1.
    pub emit_epochs: u64,
    /// Tiers and tenants of a model. At the bound: a new one counts only in the model.
    pub max_groups: usize,
    /// Models per worker. At the bound: prompts of further models are refused.
    pub max_models: usize,
    /// Chooses the sample.
    pub seed: u64,
}

impl Default for ReuseDistanceConfig {
    fn default() -> Self {
        Self {
            exact_blocks: 250_000,
            sample_max: 1 << 15,
            rate_most: 1.0,
            rate_least: 1.0 / 1024.0,
            capacity_max: 100_000_000,
            forgetting: Forgetting::Windows { epochs: 1000, count: 6 },
            emit_epochs: 10,
            max_groups: 64,
            max_models: 32,
            seed: 0,
        }
    }
}

impl ReuseDistanceConfig {
    /// The same with every number at least what it must be.
    fn within_bounds(self) -> Self {
        let forgetting = match self.forgetting {
            Forgetting::Never => Forgetting::Never,
            Forgetting::Windows { epochs, count } => Forgetting::Windows { epochs: epochs.max(1), count: count.max(1) },
        };
        Self {
            exact_blocks: self.exact_blocks.max(1),
            sample_max: self.sample_max.max(1),
            capacity_max: self.capacity_max.max(1),
            forgetting,
            emit_epochs: self.emit_epochs.max(1),
            max_models: self.max_models.max(1),
            ..self
        }
    }
}

/// What [`ReuseDistance::reuse_distance`] gives.
pub struct ReuseCurves<'scope> {
    pub curves: StreamVec<'scope, u64, CurveRow>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Keeps miss-ratio curves.
///
/// ```
/// use operators::{CurveGroup, PromptRow, ReuseDistance, ReuseDistanceConfig};
/// use timely::dataflow::operators::{Capture, ToStream, capture::Extract};
///
/// // Two conversations in turns, 16 tokens a block, sharing the first block; then the first one goes on.
/// let prompt = |at_us, hashes: &[u64]| PromptRow {
///     at_us, request: at_us as u64, model: 0, tier: 1, tenant: 0,
///     prompt_tokens: 16 * hashes.len() as u32, block_tokens: 16, hashes: hashes.to_vec(),
/// };
/// let rows = vec![prompt(1, &[1, 2, 3]), prompt(2, &[1, 4, 5]), prompt(3, &[1, 2, 3, 6])];
/// let rows = timely::example(|scope| {
///     let rows = rows.to_stream(scope).container::<Vec<_>>();
///     let config = ReuseDistanceConfig { emit_epochs: 1, ..ReuseDistanceConfig::default() };
///     rows.reuse_distance(config).curves.capture()
/// });
/// let curve = &rows.extract()[0].1[0];
/// assert_eq!((curve.group, curve.prompt_tokens), (CurveGroup::All, 160));
/// // Without a bound the shared block is reused twice, and blocks 2 and 3 once.
/// assert_eq!(curve.infinite.hit_tokens, 64);
/// // Blocks 4 and 5 were used after 2 and 3, so these are reused only where five blocks fit.
/// let hits: Vec<_> = curve.points.iter().take(5).map(|point| point.hit_tokens).collect();
/// assert_eq!(hits, [32, 32, 32, 48, 64]);
/// ```
pub trait ReuseDistance<'scope> {
    /// Folds prompts into the curves of the whole and of each tier, model and tenant.
    fn reuse_distance(self, config: ReuseDistanceConfig) -> ReuseCurves<'scope>;
}

impl<'scope> ReuseDistance<'scope> for StreamVec<'scope, u64, PromptRow> {
    fn reuse_distance(self, config: ReuseDistanceConfig) -> ReuseCurves<'scope> {
        let (parts, refused) = fold_epochs(self, ReuseDistances::new(config));
        let parts = parts.flat_map(|part| part.in_model_and_in_all());
        let (curves, none_refused) = fold_epochs(parts, ReuseSum::default());
        ReuseCurves { curves, refused: refused.concat(none_refused) }
    }
}

/// The operator without its dataflow, for programs that have a whole stream at hand.
pub struct ReuseDistances {
    config: ReuseDistanceConfig,
    cells: BTreeMap<u32, ReuseCell>,
    epoch: u64,
}

impl ReuseDistances {
    pub fn new(config: ReuseDistanceConfig) -> Self {
        Self { config: config.within_bounds(), cells: BTreeMap::new(), epoch: 0 }
    }

    /// Adds a request outside of any epoch; its row is sound (see [`PromptRow::check`]).
    pub fn take(&mut self, row: &PromptRow) -> Result<(), Refusal> {
        row.check()?;
        self.cell(row.model)?.fold(row, |_| ());
        Ok(())
    }

    /// A group's curve as it stands.
    pub fn curve(&self, group: CurveGroup) -> Option<CurveRow> {
        let part = |(model, cell): (&u32, &ReuseCell)| match group {
            CurveGroup::All => cell.curve(CurveGroup::Model(*model)),
            group => cell.curve(group),
        };
        let parts: Vec<CurveRow> = self.cells.iter().filter_map(part).collect();
        (!parts.is_empty()).then(|| sum((self.epoch, group), parts.iter()))
    }

    /// The model's cell, if there is room.
    fn cell(&mut self, model: u32) -> Result<&mut ReuseCell, Refusal> {
        let max_models = self.config.max_models;
        if self.cells.len() >= max_models && !self.cells.contains_key(&model) {
            return Err(Refusal::KeysFull { max_keys: max_models as u64 });
        }
        let (config, epoch) = (self.config, self.epoch);
        Ok(self.cells.entry(model).or_insert_with(|| {
            let mut cell = ReuseCell::new(config);
            cell.open(epoch);
            cell
        }))
    }
}

impl EpochFold for ReuseDistances {
    type Row = PromptRow;
    type Out = CurvePart;
    const NAME: &'static str = "ReuseDistance";

    fn route(row: &PromptRow) -> u64 {
        row.model.hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<PromptRow>, closed: &mut Closed<CurvePart>) {
        self.epoch = epoch;
        self.cells.values_mut().for_each(|cell| cell.open(epoch));
        let report =
            |subject, rows, reason| Refused { epoch, input: Input::Prompts, instance: None, subject, rows, reason };
        let full = Refusal::GroupsFull { max_groups: self.config.max_groups as u64 };
        rows.sort_unstable();
        let mut no_room = BTreeMap::<CurveGroup, (u64, Refusal)>::new();
        for row in rows.iter() {
            let mut count = |group, reason| no_room.entry(group).or_insert((0, reason)).0 += 1;
            match row.check().map(|()| self.cell(row.model)) {
                Ok(Ok(cell)) => cell.fold(row, |group| count(group, full)),
                Ok(Err(reason)) => count(CurveGroup::Model(row.model), reason),
                Err(reason) => closed.refused.push(report(row.request, 1, reason)),
            }
        }
        closed.refused.extend(no_room.into_iter().map(|(group, (rows, reason))| report(group.subject(), rows, reason)));
        let mut curves = Vec::new();
        for (model, cell) in &mut self.cells {
            cell.close(&mut curves);
            closed.out.extend(curves.drain(..).map(|curve| CurvePart { model: *model, curve }));
        }
    }

    fn wake_at(&self) -> Option<u64> {
        self.cells.values().filter_map(ReuseCell::wake_at).min()
    }
}
