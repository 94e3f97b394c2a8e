//! The twin of `reuse_distance`: one LRU cache simulated for each capacity of the curve, and one without a bound.
//!
//! Invariant: the same spans, groups and emissions as the operator, no sample and no bound on groups. Cost: O(1) a
//! block and capacity. State: all requests and all uses, unbounded.
use std::collections::{BTreeSet, VecDeque};

use crate::{
    CurveGroup, CurvePoint, CurveRow, Forgetting, IntMap, PromptRow, ReuseDistanceConfig, miss_ratio::capacities,
};

/// An LRU cache of blocks, of a capacity or without a bound: a hash map of last uses, and a queue of uses in which those
/// overtaken by a later one are skipped.
pub struct DirectLru {
    capacity: usize,
    last_use: IntMap<(u32, u64), u64>,
    uses: VecDeque<((u32, u64), u64)>,
    clock: u64,
}

impl DirectLru {
    /// `None`: without a bound.
    pub fn new(capacity: Option<usize>) -> Self {
        let capacity = capacity.unwrap_or(usize::MAX);
        Self { capacity, last_use: IntMap::default(), uses: VecDeque::new(), clock: 0 }
    }

    /// Blocks held.
    pub fn len(&self) -> usize {
        self.last_use.len()
    }

    pub fn is_empty(&self) -> bool {
        self.last_use.is_empty()
    }

    /// Tokens of the leading blocks that are held; then all the request's blocks are used, last to first.
    pub fn take(&mut self, row: &PromptRow) -> u64 {
        let block = |hash: &u64| (row.model, *hash);
        let leading = row.hashes.iter().take_while(|hash| self.last_use.contains_key(&block(hash))).count();
        for used in row.hashes.iter().rev().map(block) {
            self.clock += 1;
            self.last_use.insert(used, self.clock);
            self.uses.push_back((used, self.clock));
            while self.last_use.len() > self.capacity
                && let Some((oldest, at)) = self.uses.pop_front()
            {
                if self.last_use.get(&oldest) == Some(&at) {
                    self.last_use.remove(&oldest);
                }
            }
        }
        (leading as u64 * u64::from(row.block_tokens)).min(row.prompt_tokens.into())
    }
}

struct Taken {
    epoch: u64,
    groups: [CurveGroup; 4],
    prompt_tokens: u64,
    /// One a capacity; the last without a bound.
    hits: Vec<u64>,
}

/// See the module.
pub struct SlowReuseDistance {
    config: ReuseDistanceConfig,
    capacities: Vec<u64>,
    /// One a capacity; the last without a bound.
    caches: Vec<DirectLru>,
    taken: Vec<Taken>,
    block_tokens: u32,
    /// The first epoch after the last that emitted.
    silent_from: u64,
}

impl SlowReuseDistance {
    pub fn new(config: ReuseDistanceConfig) -> Self {
        let capacities = capacities(config.capacity_max);
        let bounded = capacities.iter().map(|capacity| DirectLru::new(Some(*capacity as usize)));
        let caches = bounded.chain([DirectLru::new(None)]).collect();
        Self { config, capacities, caches, taken: Vec::new(), block_tokens: 0, silent_from: 0 }
    }

    /// Folds one epoch; must be called for every epoch from the first, with no rows too. Gives its rows, sorted.
    pub fn epoch(&mut self, epoch: u64, rows: &[PromptRow]) -> Vec<CurveRow> {
        let mut rows: Vec<_> = rows.iter().filter(|row| row.check().is_ok()).collect();
        rows.sort();
        for row in rows {
            let (groups, prompt_tokens) = (CurveGroup::of(row), row.prompt_tokens.into());
            let hits = self.caches.iter_mut().map(|cache| cache.take(row)).collect();
            self.taken.push(Taken { epoch, groups, prompt_tokens, hits });
            self.block_tokens = row.block_tokens;
        }
        let mut from = 0;
        let mut groups = None;
        if let Forgetting::Windows { epochs, count } = self.config.forgetting {
            let window = epoch / epochs;
            from = (window + 1).saturating_sub(count) * epochs;
            // A group is known for one window longer than its rows count, and then reported empty.
            let known_from = window.saturating_sub(count) * epochs;
            groups = (epoch + 1).is_multiple_of(epochs).then(|| self.groups(known_from));
        }
        if groups.is_none() && (epoch + 1).is_multiple_of(self.config.emit_epochs) {
            groups = Some(self.groups(self.silent_from));
        }
        let Some(groups) = groups else { return Vec::new() };
        self.silent_from = epoch + 1;
        groups.into_iter().map(|group| self.curve(group, from, epoch)).collect()
    }

    fn groups(&self, from: u64) -> BTreeSet<CurveGroup> {
        self.taken.iter().filter(|taken| taken.epoch >= from).flat_map(|taken| taken.groups).collect()
    }

    /// The group's first epoch since it was last forgotten: a row after more than K windows without one starts anew.
    fn first_epoch(&self, group: CurveGroup) -> u64 {
        let mut first = None;
        let mut last_window = 0;
        for taken in self.taken.iter().filter(|taken| taken.groups.contains(&group)) {
            if let Forgetting::Windows { epochs, count } = self.config.forgetting {
                let window = taken.epoch / epochs;
                first = first.filter(|_| window - last_window <= count);
                last_window = window;
            }
            first = first.or(Some(taken.epoch));
        }
        first.unwrap_or(0)
    }

    fn curve(&self, group: CurveGroup, from: u64, epoch: u64) -> CurveRow {
        let of_group = |taken: &&Taken| taken.epoch >= from && taken.groups.contains(&group);
        let taken: Vec<_> = self.taken.iter().filter(of_group).collect();
        let hits = |cache: usize| taken.iter().map(|taken| taken.hits[cache]).sum::<u64>();
        let blocks = self.caches[self.capacities.len()].len() as u64;
        let last = self.capacities.iter().position(|capacity| *capacity >= 2 * blocks);
        let shown = last.map_or(self.capacities.len(), |last| last + 1);
        let point = |index| CurvePoint {
            capacity_blocks: self.capacities.get(index).copied().unwrap_or(u64::MAX),
            hit_tokens: hits(index),
            error_tokens: 0,
        };
        CurveRow {
            epoch,
            group,
            from_epoch: from.max(self.first_epoch(group)),
            requests: taken.len() as u64,
            prompt_tokens: taken.iter().map(|taken| taken.prompt_tokens).sum(),
            block_tokens: self.block_tokens,
            exact_blocks: u64::MAX,
            sampling_ppm: 1_000_000,
            blocks,
            points: (0..shown).map(point).collect(),
            infinite: point(self.capacities.len()),
        }
    }
}
