//! The twin of `reuse_distance`: for each model one LRU cache simulated for each capacity of the curve, and one without a
//! bound.
//!
//! Invariant: the same spans, groups and emissions as the operator, no sample and no bound on models and groups. Cost: O(1)
//! a block and capacity. State: all requests and all uses, unbounded.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
    model: u32,
    groups: [CurveGroup; 4],
    prompt_tokens: u64,
    /// One a capacity; the last without a bound.
    hits: Vec<u64>,
}

/// One model's caches.
struct Caches {
    /// One a capacity; the last without a bound.
    by_capacity: Vec<DirectLru>,
    block_tokens: u32,
}

/// See the module.
pub struct SlowReuseDistance {
    config: ReuseDistanceConfig,
    capacities: Vec<u64>,
    caches: BTreeMap<u32, Caches>,
    taken: Vec<Taken>,
    /// The first epoch after the last that emitted.
    silent_from: u64,
    /// The last curve of each group under each model.
    latest: BTreeMap<CurveGroup, BTreeMap<u32, CurveRow>>,
}

impl SlowReuseDistance {
    pub fn new(config: ReuseDistanceConfig) -> Self {
        let capacities = capacities(config.capacity_max);
        Self { config, capacities, caches: BTreeMap::new(), taken: Vec::new(), silent_from: 0, latest: BTreeMap::new() }
    }

    /// Folds one epoch; must be called for every epoch from the first, with no rows too. Gives its rows, sorted.
    pub fn epoch(&mut self, epoch: u64, rows: &[PromptRow]) -> Vec<CurveRow> {
        let mut rows: Vec<_> = rows.iter().filter(|row| row.check().is_ok()).collect();
        rows.sort();
        for row in rows {
            let capacities = &self.capacities;
            let caches = self.caches.entry(row.model).or_insert_with(|| {
                let bounded = capacities.iter().map(|capacity| DirectLru::new(Some(*capacity as usize)));
                Caches { by_capacity: bounded.chain([DirectLru::new(None)]).collect(), block_tokens: 0 }
            });
            caches.block_tokens = row.block_tokens;
            let hits = caches.by_capacity.iter_mut().map(|cache| cache.take(row)).collect();
            let (model, groups, prompt_tokens) = (row.model, CurveGroup::of(row), row.prompt_tokens.into());
            self.taken.push(Taken { epoch, model, groups, prompt_tokens, hits });
        }
        let mut from = 0;
        let mut parts = None;
        if let Forgetting::Windows { epochs, count } = self.config.forgetting {
            let window = epoch / epochs;
            from = (window + 1).saturating_sub(count) * epochs;
            // A group is known for one window longer than its rows count, and then reported empty.
            let known_from = window.saturating_sub(count) * epochs;
            parts = (epoch + 1).is_multiple_of(epochs).then(|| self.parts(known_from));
        }
        if parts.is_none() && (epoch + 1).is_multiple_of(self.config.emit_epochs) {
            parts = Some(self.parts(self.silent_from));
        }
        let Some(parts) = parts else { return Vec::new() };
        self.silent_from = epoch + 1;
        let groups: BTreeSet<_> = parts.iter().map(|(group, _)| *group).collect();
        groups.into_iter().map(|group| self.curve_of_all_models((group, epoch), from, &parts)).collect()
    }

    /// Groups with rows since then, under each of their models.
    fn parts(&self, from: u64) -> BTreeSet<(CurveGroup, u32)> {
        let of = |taken: &Taken| taken.groups.map(|group| (group, taken.model));
        self.taken.iter().filter(|taken| taken.epoch >= from).flat_map(of).collect()
    }

    /// Each model counts as of when its part changed last; an empty part is its last.
    fn curve_of_all_models(
        &mut self,
        (group, epoch): (CurveGroup, u64),
        from: u64,
        parts: &BTreeSet<(CurveGroup, u32)>,
    ) -> CurveRow {
        let new: BTreeMap<u32, CurveRow> = parts
            .iter()
            .filter(|(of, _)| *of == group)
            .map(|(_, model)| (*model, self.curve((group, *model), from, epoch)))
            .collect();
        let latest = self.latest.entry(group).or_default();
        latest.extend(new.clone());
        latest.retain(|_, curve| curve.requests > 0);
        let counted: Vec<&CurveRow> =
            if latest.is_empty() { new.values().collect() } else { latest.values().collect() };
        let longest = counted.iter().max_by_key(|curve| curve.points.len()).expect("a group has a model");
        let hits = |index: usize| {
            counted.iter().map(|curve| curve.points.get(index).unwrap_or(&curve.infinite).hit_tokens).sum::<u64>()
        };
        let points = longest.points.iter().enumerate();
        CurveRow {
            epoch,
            from_epoch: counted.iter().map(|curve| curve.from_epoch).min().unwrap_or(0),
            requests: counted.iter().map(|curve| curve.requests).sum(),
            prompt_tokens: counted.iter().map(|curve| curve.prompt_tokens).sum(),
            block_tokens: counted.iter().map(|curve| curve.block_tokens).max().unwrap_or(0),
            blocks: counted.iter().map(|curve| curve.blocks).sum(),
            points: points.map(|(index, point)| CurvePoint { hit_tokens: hits(index), ..*point }).collect(),
            infinite: CurvePoint { hit_tokens: hits(usize::MAX), ..longest.infinite },
            ..(*longest).clone()
        }
    }

    /// The part's first epoch since it was last forgotten: a row after more than K windows without one starts anew.
    fn first_epoch(&self, group: CurveGroup, model: u32) -> u64 {
        let mut first = None;
        let mut last_window = 0;
        let of_part = |taken: &&Taken| taken.model == model && taken.groups.contains(&group);
        for taken in self.taken.iter().filter(of_part) {
            if let Forgetting::Windows { epochs, count } = self.config.forgetting {
                let window = taken.epoch / epochs;
                first = first.filter(|_| window - last_window <= count);
                last_window = window;
            }
            first = first.or(Some(taken.epoch));
        }
        first.unwrap_or(0)
    }

    /// What the group's requests to one model would have reused.
    fn curve(&self, (group, model): (CurveGroup, u32), from: u64, epoch: u64) -> CurveRow {
        let of_part = |taken: &&Taken| taken.epoch >= from && taken.model == model && taken.groups.contains(&group);
        let taken: Vec<_> = self.taken.iter().filter(of_part).collect();
        let hits = |cache: usize| taken.iter().map(|taken| taken.hits[cache]).sum::<u64>();
        let caches = &self.caches[&model];
        let blocks = caches.by_capacity[self.capacities.len()].len() as u64;
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
            from_epoch: from.max(self.first_epoch(group, model)),
            requests: taken.len() as u64,
            prompt_tokens: taken.iter().map(|taken| taken.prompt_tokens).sum(),
            block_tokens: caches.block_tokens,
            exact_blocks: u64::MAX,
            sampling_ppm: 1_000_000,
            blocks,
            points: (0..shown).map(point).collect(),
            infinite: point(self.capacities.len()),
        }
    }
}
