//! Affinity gives way gradually and locally (DESIGN §7 rule 7).

use proptest::prelude::*;

use super::{
    tests::{ask, instance, view},
    *,
};
use crate::policy::{ViewMode, test_policy};

/// Where each request goes in a fleet whose instance 0 has so many queued prefill tokens, and by how much that beats the next best.
fn placed(loads: &[u64], hits: &[Vec<u32>]) -> Vec<(InstanceId, f64, f64)> {
    let engines = (0..).zip(loads).map(|(id, queued)| instance(id, (0, 0), Some((0, *queued))));
    let fleet = view(ViewMode::Exact, engines.collect());
    let place = |held: &Vec<u32>| {
        let hits = PrefixHits::near((0..).map(InstanceId).zip(held.iter().copied()));
        let placement = route(&fleet, &ask(&hits, 0, &[]), &test_policy().route).unwrap();
        let seconds = |rank: usize| placement.candidates[rank].compared_seconds;
        (placement.instance, seconds(0), seconds(1) - seconds(0))
    };
    hits.iter().map(place).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Scenario: many requests with any hits on a fleet of five; then one instance's load rises, by little and by more.
    /// Guarantees: only requests that were on that instance move, and of them exactly those for which it was cheapest by less than it
    /// became dearer; more load moves those that moved and maybe others. No threshold moves them all at once.
    #[test]
    fn more_load_moves_only_those_it_is_dearer_for(
        loads in prop::collection::vec(0u64..400, 5), hits in prop::collection::vec(prop::collection::vec(0u32..400, 5), 1..40),
        little in 1u64..200, more in 1u64..4000,
    ) {
        let before = placed(&loads, &hits);
        let mut moved_before = vec![false; hits.len()];
        for rise in [little, little + more] {
            let risen: Vec<u64> = (0..).zip(&loads).map(|(id, load)| if id == 0 { load + rise } else { *load }).collect();
            // Default rates with their default error, weighted: what a queued token costs more.
            let dearer = rise as f64 / 400.0 * (1.0 + 0.5 * 0.5);
            for (at, (was, is)) in before.iter().zip(placed(&risen, &hits)).enumerate() {
                let has_moved = was.0 != is.0;
                prop_assert!(!has_moved || was.0 == InstanceId(0), "{was:?} {is:?}");
                // At a tie the last bit decides.
                if was.0 == InstanceId(0) && (was.2 - dearer).abs() > 1e-6 {
                    prop_assert_eq!(has_moved, was.2 < dearer, "{:?} {:?}", was, is);
                }
                prop_assert!(has_moved || !moved_before[at]);
                moved_before[at] |= has_moved;
            }
        }
    }
}

/// Scenario: forty requests with 10, 20 … 400 tokens cached on the one instance whose load rises in steps to above what a whole
/// prompt costs.
/// Guarantees: they leave it a few a step, the least cached first: at no step more than a tenth of them.
#[test]
fn affinity_is_given_up_gradually() {
    let hits: Vec<Vec<u32>> = (1..=40).map(|tens| vec![tens * 10, 0, 0]).collect();
    let mut stayed = 40;
    for load in (0..=420).step_by(20) {
        let placed = placed(&[load, 0, 0], &hits);
        let stays: Vec<bool> = placed.iter().map(|(instance, ..)| *instance == InstanceId(0)).collect();
        assert!(stays.is_sorted(), "the least cached leave first: {stays:?}");
        let count = stays.iter().filter(|stays| **stays).count();
        assert!(stayed - count <= 4, "{} left at once", stayed - count);
        stayed = count;
    }
    assert_eq!(stayed, 0);
}
