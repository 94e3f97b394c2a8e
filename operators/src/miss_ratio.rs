//! From counted reuse distances to hit tokens at each capacity, with the error of what was sampled (X4).
//!
//! Up to `exact_blocks` everything is counted. Above it, `W` tokens were reused at some greater distance: hashed tokens
//! less those reused within `exact_blocks`, less those seen for the first time. `W` is known well; only how it lies over
//! the distances comes from the sample, so the curve meets its exact part at one end and the infinite cache at the other.
//!
//! Invariant: hit tokens do not fall with the capacity. The error is one standard error, put together from: the number of
//! blocks sampled (a block used often counts as one), the count of first uses, and the number of sampled blocks that came
//! back within the capacity, which blurs distances, times the slope there.
//! Cost: O(capacities). State: 16 bytes a capacity, at most [`capacities`]`(u64::MAX)`, about 400.
use serde::{Deserialize, Serialize};

/// Twenty capacities a decade, in thousandths. Doubling most of them gives another.
const STEPS: [u64; 20] = [
    1000, 1120, 1250, 1400, 1600, 1800, 2000, 2240, 2500, 2800, 3200, 3600, 4000, 4500, 5000, 5600, 6400, 7200, 8000,
    9000,
];

/// The capacities at which a curve is kept, in blocks: 1, 2, 3 … and then 20 a decade, all powers of ten among them.
pub fn capacities(most: u64) -> Vec<u64> {
    let decades = (0..=19).map(|power| 10_u128.pow(power));
    let all = decades.flat_map(|decade| STEPS.iter().map(move |step| (u128::from(*step) * decade).div_ceil(1000)));
    let mut all: Vec<u64> =
        all.take_while(|capacity| *capacity <= most.into()).map(|capacity| capacity as u64).collect();
    all.dedup();
    all
}

/// What a cache of one capacity would have reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CurvePoint {
    pub capacity_blocks: u64,
    /// Prompt tokens.
    pub hit_tokens: u64,
    /// One standard error; 0 where every block was counted.
    pub error_tokens: u64,
}

/// Reuse distances of some requests, by capacity. Mergeable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub requests: u64,
    /// Tokens of the prompts.
    pub tokens: u64,
    /// Of these, in blocks with a hash: the others can never be reused.
    pub hashed: u64,
    /// Counted: tokens by the least capacity that holds them.
    pub near: Vec<u64>,
    /// Sampled, scaled up: the same for greater distances; the last place is beyond all capacities.
    pub far: Vec<f64>,
    /// Sampled, scaled up: tokens of blocks the sample does not hold.
    pub absent: f64,
    /// Sampled, scaled up: sum over blocks of the square of their tokens in `far`.
    pub far_squares: f64,
    /// Tokens of blocks first seen, and the variance of that number.
    pub first: f64,
    pub first_variance: f64,
}

impl Tally {
    /// Of a curve with this many capacities.
    pub fn new(capacities: usize) -> Self {
        Self { near: vec![0; capacities], far: vec![0.0; capacities + 1], ..Self::default() }
    }

    pub fn clear(&mut self) {
        let (mut near, mut far) = (std::mem::take(&mut self.near), std::mem::take(&mut self.far));
        near.fill(0);
        far.fill(0.0);
        *self = Self { near, far, ..Self::default() };
    }

    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.hashed += other.hashed;
        self.near.iter_mut().zip(&other.near).for_each(|(mine, theirs)| *mine += theirs);
        self.far.iter_mut().zip(&other.far).for_each(|(mine, theirs)| *mine += theirs);
        self.absent += other.absent;
        self.far_squares += other.far_squares;
        self.first += other.first;
        self.first_variance += other.first_variance;
    }
}

/// How the distances were found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// Distances up to this one are counted.
    pub exact_blocks: u64,
    /// Share of the blocks in the sample, as it is now; 1 while nothing is sampled.
    pub rate: f64,
    /// The sample has dropped blocks for their age: its distances end somewhere, and the curve with them.
    pub has_forgotten: bool,
    /// Different blocks held, estimated.
    pub blocks: u64,
}

/// Hit tokens at each capacity up to twice the blocks held, and without a bound.
pub(crate) fn curve(tally: &Tally, capacities: &[u64], reach: &Reach) -> (Vec<CurvePoint>, CurvePoint) {
    let near: u64 = tally.near.iter().sum();
    let missed = tally.hashed.saturating_sub(near) as f64;
    let reused = (missed - tally.first).clamp(0.0, missed);
    let (found, first_error) = (tally.far.iter().sum::<f64>(), tally.first_variance.sqrt().min(missed));
    let lost = if reach.has_forgotten { (tally.absent - tally.first).max(0.0) } else { 0.0 };
    let shares = shares(&tally.far, found + lost);
    let last = capacities.partition_point(|capacity| *capacity < reach.blocks.saturating_mul(2));
    let mut counted = 0;
    let mut points = Vec::with_capacity(last + 1);
    for (index, capacity) in capacities.iter().enumerate().take(last + 1) {
        counted += tally.near[index];
        let share = shares[index];
        let hits = counted as f64 + reused * share;
        let error = if *capacity <= reach.exact_blocks || missed == 0.0 {
            0.0
        } else if found == 0.0 {
            reused.max(first_error)
        } else {
            let blocks = found * found / tally.far_squares.max(f64::MIN_POSITIVE);
            let lie = reused * (share * (1.0 - share) / blocks.max(1.0)).sqrt();
            let (below, above) = (index.saturating_sub(1), (index + 1).min(capacities.len() - 1));
            let slope = reused * (shares[above] - shares[below])
                / ((capacities[above] as f64 / capacities[below] as f64).ln()).max(f64::MIN_POSITIVE);
            let came_back = reused * share / missed;
            let resolution =
                if reach.rate < 1.0 { slope * (came_back / (*capacity as f64 * reach.rate)).sqrt() } else { 0.0 };
            (lie.powi(2) + (share * first_error).powi(2) + resolution.powi(2)).sqrt()
        };
        let (hit_tokens, error_tokens) = (hits.round() as u64, error.round() as u64);
        points.push(CurvePoint { capacity_blocks: *capacity, hit_tokens, error_tokens });
    }
    let hit_tokens = near + reused.round() as u64;
    (points, CurvePoint { capacity_blocks: u64::MAX, hit_tokens, error_tokens: first_error.round() as u64 })
}

/// Of what was reused at a greater distance than the exact ones, the share within each capacity.
fn shares(far: &[f64], whole: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let add = |count: &f64| {
        sum += count;
        if whole > 0.0 { (sum / whole).min(1.0) } else { 0.0 }
    };
    far.iter().map(add).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guarantees: capacities rise, hold all powers of ten, are at most 15 % apart from 100 on, and end at the bound.
    #[test]
    fn capacities_are_fine_and_round() {
        let all = capacities(1_000_000);
        assert!(all.is_sorted_by(|a, b| a < b) && all[..10] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert!((0..=6).all(|power| all.contains(&10_u64.pow(power))) && all.last() == Some(&1_000_000));
        let from = all.partition_point(|capacity| *capacity < 100);
        assert!(all[from..].windows(2).all(|pair| pair[1] * 100 <= pair[0] * 115));
        assert_eq!(capacities(25), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 18, 20, 23, 25]);
        assert!(capacities(u64::MAX).len() < 400);
    }
}
