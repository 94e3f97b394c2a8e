//! Which instance serves which bucket: the rebinding that moves the fewest (SPEC B3).
//!
//! An instance moves if less than half of the load it is bound to lies in the range it had: what it holds in its cache, and
//! what runs there, is then mostly foreign. One that had no range does not move, wherever it goes. Among bindings that move
//! equally few, the one that leaves the most load where it was is taken: an assignment problem, solved exactly.
//!
//! Invariants: every instance is bound once, every bucket to as many as its cut says; no binding moves fewer. The same inputs
//! give the same binding. Cost: O(instances³). State: instances² numbers, at most [`FLEET_MAX`]² of them.

use pathfinding::{kuhn_munkres::kuhn_munkres_min, matrix::Matrix};

use crate::{
    ids::InstanceId,
    policy::{AtomRange, AtomWork, Bucket},
};

/// Instances of one model that are planned; larger fleets are not cut, and say so.
pub const FLEET_MAX: usize = 512;

/// Load that is not where it was counts in thousandths, a move more than all of it together.
const STRANGE: f64 = 1000.0;
const MOVE: i64 = 1_000_000;
const _: () = assert!(FLEET_MAX as i64 * (STRANGE as i64) < MOVE, "one move outweighs any strangeness");

/// A bucket and the instances that serve it.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundBucket {
    pub bucket: Bucket,
    /// In order of id.
    pub instances: Vec<InstanceId>,
}

/// What the range of an instance would change to.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Change {
    is_move: bool,
    /// Share of the new load that is not in the old range.
    strange: f64,
}

/// Range of an instance in `bound`.
pub fn range_of(bound: &[BoundBucket], instance: InstanceId) -> Option<AtomRange> {
    bound.iter().find(|bound| bound.instances.contains(&instance)).map(|bound| bound.bucket.range)
}

fn change(old: Option<AtomRange>, new: &Bucket, atoms: &[AtomWork]) -> Change {
    let Some(old) = old else { return Change { is_move: false, strange: 0.0 } };
    if new.load <= 0.0 {
        return Change { is_move: old != new.range, strange: 0.0 };
    }
    let kept = atoms.iter().filter(|work| old.holds(work.atom) && new.range.holds(work.atom));
    let kept = kept.map(|work| work.load).sum::<f64>() / new.load;
    Change { is_move: kept < 0.5, strange: (1.0 - kept).clamp(0.0, 1.0) }
}

/// Binds `fleet` to `cut`, whose instances are as many.
pub fn bind(cut: &[Bucket], (old, atoms): (&[BoundBucket], &[AtomWork]), fleet: &[InstanceId]) -> Vec<BoundBucket> {
    let slots: Vec<usize> = cut.iter().enumerate().flat_map(|(at, b)| std::iter::repeat_n(at, b.instances)).collect();
    assert!(slots.len() == fleet.len() && fleet.len() <= FLEET_MAX, "invariant: a cut names the whole fleet");
    let mut bound: Vec<BoundBucket> =
        cut.iter().map(|bucket| BoundBucket { bucket: *bucket, instances: Vec::new() }).collect();
    if fleet.is_empty() {
        return bound;
    }
    let costs = fleet.iter().map(|instance| {
        let old = range_of(old, *instance);
        let costs: Vec<i64> = cut.iter().map(|bucket| cost(change(old, bucket, atoms))).collect();
        slots.iter().map(move |slot| costs[*slot]).collect::<Vec<_>>()
    });
    let costs = Matrix::from_rows(costs).expect("invariant: rows are of one length");
    let (_, taken) = kuhn_munkres_min(&costs);
    for (instance, slot) in fleet.iter().zip(taken) {
        bound[slots[slot]].instances.push(*instance);
    }
    bound.iter_mut().for_each(|bound| bound.instances.sort_unstable());
    bound
}

fn cost(change: Change) -> i64 {
    i64::from(change.is_move) * MOVE + (change.strange * STRANGE).round() as i64
}

/// Instances that `bound` moves, of those that had a range in `old`.
pub fn moves(bound: &[BoundBucket], (old, atoms): (&[BoundBucket], &[AtomWork])) -> usize {
    let moved = bound.iter().flat_map(|new| {
        let is_moved = |id: &&InstanceId| change(range_of(old, **id), &new.bucket, atoms).is_move;
        new.instances.iter().filter(is_moved)
    });
    moved.count()
}
