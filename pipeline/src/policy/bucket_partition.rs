//! The optimal partition of the length axis: the smallest possible largest load per instance (a second policy beside SPEC
//! B3's scan).
//!
//! One bucket over the whole axis would be perfectly even, and no bucketing; so the partition has exactly as many buckets as
//! the scan cut finds, and no plan with that many has a smaller largest load per instance. A bound M on it is met if the axis falls into
//! that many buckets, each with `ceil(load / M)` instances, of which there are enough: a dynamic programme over the atoms says
//! so. The bound is halved in until the plans it finds do not get better.
//!
//! Invariant: never worse than the scan cut. Cost: O(buckets × atoms²) a bound, about 50 bounds. State: buckets × atoms numbers.

use crate::policy::{AtomWork, Bucket, bucket_plan::buckets, imbalance, scan_cut, target};

/// Bounds are no closer than this share of each other.
const RESOLUTION: f64 = 1e-9;

/// The optimal partition. `atoms`: rising, loads above 0.
pub fn optimal_cut(atoms: &[AtomWork], instances: usize) -> Vec<Bucket> {
    let mut best = scan_cut(atoms, instances);
    let Some(imbalance) = imbalance(&best) else { return best };
    let count = best.len();
    let even = target(atoms, instances);
    let (mut low, mut high) = (even, even * imbalance);
    while high - low > high * RESOLUTION {
        let bound = (low + high) / 2.0;
        match cut_within(atoms, count, (bound, instances)) {
            Some(ends) => {
                best = buckets(&ends, atoms, instances);
                high = best.iter().map(Bucket::load_per_instance).fold(0.0, f64::max).min(bound);
            }
            None => low = bound,
        }
    }
    best
}

/// Ends of the first `count - 1` buckets, if `count` of them need at most `instances` with at most `bound` each.
fn cut_within(atoms: &[AtomWork], count: usize, (bound, instances): (f64, usize)) -> Option<Vec<u32>> {
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(atoms.iter().scan(0.0, |sum, work| {
            *sum += work.load;
            Some(*sum)
        }))
        .collect();
    let needs = |from: usize, to: usize| ((sums[to] - sums[from]) / bound - RESOLUTION).ceil().max(1.0) as usize;
    // fewest[j]: instances that the first j atoms need in as many buckets as rounds so far; begins[b][j]: where the last one begins.
    let mut fewest: Vec<Option<usize>> = (0..sums.len()).map(|to| (to > 0).then(|| needs(0, to))).collect();
    let mut begins = vec![vec![0; sums.len()]];
    for _ in 1..count {
        let best = |to: usize| {
            let ways = (1..to).filter_map(|from| Some((fewest[from]? + needs(from, to), from)));
            ways.min()
        };
        let round: Vec<_> = (0..sums.len()).map(best).collect();
        fewest = round.iter().map(|way| way.map(|(needs, _)| needs)).collect();
        begins.push(round.iter().map(|way| way.map_or(0, |(_, from)| from)).collect());
    }
    let mut to = atoms.len();
    if fewest[to]? > instances {
        return None;
    }
    let mut ends = Vec::with_capacity(count - 1);
    for begins in begins.iter().skip(1).rev() {
        to = begins[to];
        ends.push(atoms[to - 1].atom + 1);
    }
    ends.reverse();
    Some(ends)
}
