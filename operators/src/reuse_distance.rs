//! Hit rate as a function of cache capacity, from the reuse distances of prompt blocks (C5 layers 1 and 2, X4).
//!
//! One LRU cache over all that arrives is asked how it would do at every capacity at once, and without a bound; each
//! group's curve is what that group's requests would reuse of the shared cache. Blocks the engine generates are not entered.
//!
//! Invariant: up to `exact_blocks` a curve equals the simulation of an LRU cache of each capacity, exactly; above, see
//! `reuse_stack` for the sample and `miss_ratio` for the error. Requests count in the order of `(at_us, request)` within an
//! epoch. A curve covers the current window so far and those before it that count, or everything if nothing is forgotten;
//! the order of use is never forgotten, but for the bounds of `reuse_stack`.
//! Cost: O(log n) a block; O(capacities · windows) per changed group each `emit_epochs`. All rows go to one worker: one
//! order of uses is one thing, and cutting it by hash would only give a sample.
//! State: see `reuse_stack`; per group and window 16 bytes a capacity (161 of them up to 100 M blocks); at most
//! `max_groups` groups beside the whole: at the bound a new group counts only in the whole, and is reported. A group without
//! rows in all windows that count emits an empty curve and is forgotten.
use std::collections::{BTreeMap, VecDeque};

use timely::dataflow::StreamVec;

use crate::{
    epochs::{Closed, EpochFold, fold_epochs},
    miss_ratio::{Tally, capacities, curve},
    miss_ratio_rows::{CurveGroup, CurveRow},
    refused::{Input, Refusal, Refused},
    reuse_stack::{ReuseStack, StackBounds},
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

/// Bounds of [`ReuseDistance`].
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
    /// Groups beside the whole. At the bound: a new one counts only in the whole.
    pub max_groups: usize,
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
            seed: 0,
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
        let (curves, refused) = fold_epochs(self, ReuseDistances::new(config));
        ReuseCurves { curves, refused }
    }
}

struct Group {
    first_epoch: u64,
    current: Tally,
    /// Windows before the current one that still count and had rows, oldest first, by index.
    ended: VecDeque<(u64, Tally)>,
    has_changed: bool,
}

/// The operator without its dataflow, for programs that have a whole stream at hand.
pub struct ReuseDistances {
    config: ReuseDistanceConfig,
    capacities: Vec<u64>,
    stack: ReuseStack,
    groups: BTreeMap<CurveGroup, Group>,
    /// Index of the current window.
    window: u64,
    /// The last epoch folded.
    epoch: u64,
    block_tokens: u32,
    /// One request's.
    scratch: Tally,
}

impl ReuseDistances {
    pub fn new(config: ReuseDistanceConfig) -> Self {
        let capacities = capacities(config.capacity_max.max(1));
        let exact = capacities.partition_point(|capacity| *capacity <= config.exact_blocks.max(1));
        let threshold = |rate: f64| ((rate * (1_u64 << 32) as f64) as u64).clamp(1, 1 << 32);
        let bounds = StackBounds {
            exact_blocks: usize::try_from(capacities[exact - 1]).unwrap_or(usize::MAX),
            sample_max: config.sample_max.max(1),
            threshold_most: threshold(config.rate_most),
            threshold_least: threshold(config.rate_least),
            seed: config.seed,
        };
        let forgetting = match config.forgetting {
            Forgetting::Never => Forgetting::Never,
            Forgetting::Windows { epochs, count } => Forgetting::Windows { epochs: epochs.max(1), count: count.max(1) },
        };
        let emit_epochs = config.emit_epochs.max(1);
        Self {
            config: ReuseDistanceConfig { forgetting, emit_epochs, ..config },
            scratch: Tally::new(capacities.len()),
            capacities,
            stack: ReuseStack::new(bounds),
            groups: BTreeMap::new(),
            window: 0,
            epoch: 0,
            block_tokens: 0,
        }
    }

    /// Adds a request outside of any epoch; its row is sound (see [`PromptRow::check`]).
    pub fn take(&mut self, row: &PromptRow) -> Result<(), Refusal> {
        row.check()?;
        self.fold(row, |_| ());
        Ok(())
    }

    /// A group's curve as it stands.
    pub fn curve(&self, group: CurveGroup) -> Option<CurveRow> {
        let found = self.groups.get(&group)?;
        let mut whole = found.current.clone();
        found.ended.iter().for_each(|(_, tally)| whole.merge(tally));
        let reach = self.stack.reach();
        let (points, infinite) = curve(&whole, &self.capacities, &reach);
        let from = match self.config.forgetting {
            Forgetting::Never => 0,
            Forgetting::Windows { epochs, count } => (self.window + 1).saturating_sub(count).saturating_mul(epochs),
        };
        Some(CurveRow {
            epoch: self.epoch,
            group,
            from_epoch: from.max(found.first_epoch).min(self.epoch),
            requests: whole.requests,
            prompt_tokens: whole.tokens,
            block_tokens: self.block_tokens,
            exact_blocks: reach.exact_blocks,
            sampling_ppm: (reach.rate * 1e6).round() as u32,
            blocks: reach.blocks,
            points,
            infinite,
        })
    }

    /// Counts the row in the whole and in the groups there is room for; names the others.
    fn fold(&mut self, row: &PromptRow, mut no_room: impl FnMut(CurveGroup)) {
        self.block_tokens = row.block_tokens;
        self.scratch.clear();
        self.stack.take(row, &self.capacities, &mut self.scratch);
        for key in CurveGroup::of(row) {
            let others = self.groups.len() - usize::from(self.groups.contains_key(&CurveGroup::All));
            let is_known = key == CurveGroup::All || self.groups.contains_key(&key);
            if !is_known && others >= self.config.max_groups {
                no_room(key);
                continue;
            }
            let group = self.groups.entry(key).or_insert_with(|| Group {
                first_epoch: self.epoch,
                current: Tally::new(self.capacities.len()),
                ended: VecDeque::new(),
                has_changed: false,
            });
            group.current.merge(&self.scratch);
            group.has_changed = true;
        }
    }

    /// The current window's last epoch; `None` if nothing is forgotten.
    fn window_end(&self) -> Option<u64> {
        match self.config.forgetting {
            Forgetting::Never => None,
            Forgetting::Windows { epochs, .. } => Some(self.window.saturating_mul(epochs).saturating_add(epochs - 1)),
        }
    }

    /// Emits every group's curve, forgets the empty ones, and opens the next window.
    fn end_window(&mut self, out: &mut Vec<CurveRow>) {
        let Forgetting::Windows { count, .. } = self.config.forgetting else { return };
        self.emit(|_| true, out);
        let oldest = (self.window + 2).saturating_sub(count);
        let (window, capacities) = (self.window, self.capacities.len());
        self.groups.retain(|_, group| group.current.requests > 0 || !group.ended.is_empty());
        for group in self.groups.values_mut() {
            let ended = std::mem::replace(&mut group.current, Tally::new(capacities));
            if ended.requests > 0 {
                group.ended.push_back((window, ended));
            }
            while group.ended.front().is_some_and(|(index, _)| *index < oldest) {
                group.ended.pop_front();
            }
        }
        self.stack.end_window();
        self.window += 1;
    }

    fn emit(&mut self, wanted: impl Fn(&Group) -> bool, out: &mut Vec<CurveRow>) {
        let keys: Vec<_> = self.groups.iter().filter(|(_, group)| wanted(group)).map(|(key, _)| *key).collect();
        out.extend(keys.into_iter().filter_map(|key| self.curve(key)));
        self.groups.values_mut().for_each(|group| group.has_changed = false);
    }
}

impl EpochFold for ReuseDistances {
    type Row = PromptRow;
    type Out = CurveRow;
    const NAME: &'static str = "ReuseDistance";

    /// One order of uses, one worker.
    fn route(_: &PromptRow) -> u64 {
        0
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<PromptRow>, closed: &mut Closed<CurveRow>) {
        self.epoch = epoch;
        if let (true, Forgetting::Windows { epochs, .. }) = (self.groups.is_empty(), self.config.forgetting) {
            self.window = epoch / epochs;
        }
        let report =
            |subject, rows, reason| Refused { epoch, input: Input::Prompts, instance: None, subject, rows, reason };
        rows.sort_unstable();
        let mut no_room = BTreeMap::<CurveGroup, u64>::new();
        for row in rows.iter() {
            match row.check() {
                Ok(()) => self.fold(row, |group| *no_room.entry(group).or_default() += 1),
                Err(reason) => closed.refused.push(report(row.request, 1, reason)),
            }
        }
        let full = Refusal::GroupsFull { max_groups: self.config.max_groups as u64 };
        closed.refused.extend(no_room.into_iter().map(|(group, rows)| report(group.subject(), rows, full)));
        if self.window_end() == Some(epoch) {
            self.end_window(&mut closed.out);
        } else if (epoch + 1).is_multiple_of(self.config.emit_epochs) {
            self.emit(|group| group.has_changed, &mut closed.out);
        }
    }

    fn wake_at(&self) -> Option<u64> {
        let emission =
            (self.epoch + 1) / self.config.emit_epochs * self.config.emit_epochs + self.config.emit_epochs - 1;
        let emission = self.groups.values().any(|group| group.has_changed).then_some(emission);
        let window = self.window_end().filter(|_| !self.groups.is_empty());
        [emission, window].into_iter().flatten().min()
    }
}
