//! Curves of one group under several models, added up (X4).
//!
//! Invariant: a group's curve is the sum of the latest curves of its models, each at the same capacity; the errors are of
//! samples that know nothing of each other, so their squares add up. Where a model's curve has ended it goes on level.
//! Cost: O(models · capacities) per group that changed. State: the latest curve of each model and group, bounded by
//! `max_models` and `max_groups` of `reuse_distance`.
use std::collections::BTreeMap;

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};

use crate::{
    epochs::{Closed, EpochFold},
    miss_ratio::CurvePoint,
    miss_ratio_rows::{CurveGroup, CurveRow},
};

/// A group's curve under one model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct CurvePart {
    pub model: u32,
    pub curve: CurveRow,
}

impl CurvePart {
    /// The curve of a model is a part of that of all, too.
    pub fn in_model_and_in_all(self) -> impl Iterator<Item = CurvePart> {
        let is_whole = matches!(self.curve.group, CurveGroup::Model(_));
        let in_all = is_whole
            .then(|| CurvePart { model: self.model, curve: CurveRow { group: CurveGroup::All, ..self.curve.clone() } });
        std::iter::once(self).chain(in_all)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct ReuseSum {
    groups: BTreeMap<CurveGroup, BTreeMap<u32, CurveRow>>,
}

impl EpochFold for ReuseSum {
    type Row = CurvePart;
    type Out = CurveRow;
    const NAME: &'static str = "ReuseSum";

    fn route(part: &CurvePart) -> u64 {
        part.curve.group.hashed()
    }

    fn close(&mut self, epoch: u64, parts: &mut Vec<CurvePart>, closed: &mut Closed<CurveRow>) {
        parts.sort_unstable_by_key(|part| (part.curve.group, part.model));
        for parts in parts.chunk_by(|a, b| a.curve.group == b.curve.group) {
            let group = parts[0].curve.group;
            let models = self.groups.entry(group).or_default();
            for part in parts {
                // An empty curve is a group's last.
                match part.curve.requests {
                    0 => drop(models.remove(&part.model)),
                    _ => drop(models.insert(part.model, part.curve.clone())),
                }
            }
            if models.is_empty() {
                self.groups.remove(&group);
                closed.out.push(sum((epoch, group), parts.iter().map(|part| &part.curve)));
            } else {
                closed.out.push(sum((epoch, group), models.values()));
            }
        }
    }
}

/// The sum of at least one curve.
pub(crate) fn sum<'a>(
    (epoch, group): (u64, CurveGroup),
    curves: impl Iterator<Item = &'a CurveRow> + Clone,
) -> CurveRow {
    let total = |of: fn(&CurveRow) -> u64| curves.clone().map(of).sum::<u64>();
    let least = |of: fn(&CurveRow) -> u64| curves.clone().map(of).min().unwrap_or_default();
    let longest = curves.clone().map(|curve| curve.points.len()).max().unwrap_or_default();
    let at = |index: usize| curves.clone().filter_map(move |curve| curve.points.get(index).or(curve.points.last()));
    let capacity = |index: usize| {
        curves.clone().find_map(|curve| curve.points.get(index)).map_or(0, |point| point.capacity_blocks)
    };
    CurveRow {
        epoch,
        group,
        from_epoch: least(|curve| curve.from_epoch),
        requests: total(|curve| curve.requests),
        prompt_tokens: total(|curve| curve.prompt_tokens),
        block_tokens: curves.clone().map(|curve| curve.block_tokens).max().unwrap_or_default(),
        exact_blocks: least(|curve| curve.exact_blocks),
        sampling_ppm: curves.clone().map(|curve| curve.sampling_ppm).min().unwrap_or_default(),
        blocks: total(|curve| curve.blocks),
        points: (0..longest).map(|index| point(capacity(index), at(index))).collect(),
        infinite: point(u64::MAX, curves.clone().map(|curve| &curve.infinite)),
    }
}

fn point<'a>(capacity_blocks: u64, points: impl Iterator<Item = &'a CurvePoint>) -> CurvePoint {
    let mut hit_tokens = 0;
    let mut squares = 0.0;
    for point in points {
        hit_tokens += point.hit_tokens;
        squares += (point.error_tokens as f64).powi(2);
    }
    CurvePoint { capacity_blocks, hit_tokens, error_tokens: squares.sqrt().round() as u64 }
}
