//! The curves of one model: its cache's order of uses, and what its tiers and tenants would reuse of it (C5, X4).
//!
//! Invariant: a curve covers the current window so far and those before it that count. Cost, state and bounds: see
//! `reuse_distance`.
use std::collections::{BTreeMap, VecDeque};

use crate::{
    miss_ratio::{Tally, capacities, curve},
    miss_ratio_rows::{CurveGroup, CurveRow},
    reuse_distance::{Forgetting, ReuseDistanceConfig},
    reuse_stack::{ReuseStack, StackBounds},
    rows::PromptRow,
};

struct Group {
    first_epoch: u64,
    current: Tally,
    /// Windows before the current one that still count and had rows, oldest first, by index.
    ended: VecDeque<(u64, Tally)>,
    has_changed: bool,
}

/// See the module.
pub(crate) struct ReuseCell {
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

impl ReuseCell {
    /// The configuration must be [`within_bounds`](ReuseDistanceConfig::within_bounds).
    pub fn new(config: ReuseDistanceConfig) -> Self {
        let capacities = capacities(config.capacity_max);
        let threshold = |rate: f64| ((rate * (1_u64 << 32) as f64) as u64).clamp(1, 1 << 32);
        let exact = capacities.partition_point(|capacity| *capacity <= config.exact_blocks);
        let bounds = StackBounds {
            exact_blocks: usize::try_from(capacities[exact - 1]).unwrap_or(usize::MAX),
            sample_max: config.sample_max,
            threshold_most: threshold(config.rate_most),
            threshold_least: threshold(config.rate_least),
            seed: config.seed,
        };
        Self {
            config,
            scratch: Tally::new(capacities.len()),
            capacities,
            stack: ReuseStack::new(bounds),
            groups: BTreeMap::new(),
            window: 0,
            epoch: 0,
            block_tokens: 0,
        }
    }

    /// The curve of one of the model's groups as it stands.
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

    /// Begins an epoch.
    pub fn open(&mut self, epoch: u64) {
        self.epoch = epoch;
        if let (true, Forgetting::Windows { epochs, .. }) = (self.groups.is_empty(), self.config.forgetting) {
            self.window = epoch / epochs;
        }
    }

    /// Counts a sound row in the model and in the groups there is room for; names the others.
    pub fn fold(&mut self, row: &PromptRow, mut no_room: impl FnMut(CurveGroup)) {
        self.block_tokens = row.block_tokens;
        self.scratch.clear();
        self.stack.take(row, &self.capacities, &mut self.scratch);
        for key in CurveGroup::within_model(row) {
            let whole = CurveGroup::Model(row.model);
            let others = self.groups.len() - usize::from(self.groups.contains_key(&whole));
            let is_known = key == whole || self.groups.contains_key(&key);
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

    /// Ends the epoch that was begun: emits what is due.
    pub fn close(&mut self, out: &mut Vec<CurveRow>) {
        if self.window_end() == Some(self.epoch) {
            self.end_window(out);
        } else if (self.epoch + 1).is_multiple_of(self.config.emit_epochs) {
            self.emit(|group| group.has_changed, out);
        }
    }

    /// The next epoch in which something is due.
    pub fn wake_at(&self) -> Option<u64> {
        let every = self.config.emit_epochs;
        let emission = (self.epoch + 1) / every * every + every - 1;
        let emission = self.groups.values().any(|group| group.has_changed).then_some(emission);
        let window = self.window_end().filter(|_| !self.groups.is_empty());
        [emission, window].into_iter().flatten().min()
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
