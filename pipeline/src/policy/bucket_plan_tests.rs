//! Tests of cuts and bindings: SPEC's scan by hand, and equality with twins that try everything.

use proptest::prelude::*;

use super::*;
use crate::{
    ids::InstanceId,
    policy::{BoundBucket, bind, moves, optimal_cut, range_of},
};

fn atoms(loads: &[f64]) -> Vec<AtomWork> {
    let works = (0..).zip(loads).map(|(atom, load)| AtomWork { atom, load: *load });
    works.filter(|work| work.load > 0.0).collect()
}

fn text(cut: &[Bucket]) -> String {
    let part = |b: &Bucket| {
        let end = b.range.to_atom.map_or(String::new(), |end| end.to_string());
        format!("{}..{end} {:.2}/{}", b.range.from_atom, b.load, b.instances)
    };
    cut.iter().map(part).collect::<Vec<_>>().join(", ")
}

fn most(cut: &[Bucket]) -> f64 {
    cut.iter().map(Bucket::load_per_instance).fold(0.0, f64::max)
}

/// Scenario: even atoms; an atom heavier than L_target; a rest at the end; light atoms before a heavy one; no load; no fleet.
/// Guarantees: cuts where SPEC B3 says, several instances for the heavy atom, an own bucket for the rest.
#[test]
fn the_scan_cuts_where_the_load_reaches_the_target() {
    let cut = |loads: &[f64], instances| text(&scan_cut(&atoms(loads), instances));
    let lines = [
        cut(&[1.0, 1.0, 1.0, 1.0], 2),
        cut(&[1.0, 6.0, 1.0], 4),
        cut(&[3.0, 3.0, 1.0], 3),
        cut(&[0.5, 0.5, 5.0, 0.0, 0.2], 4),
        cut(&[0.1, 0.2, 0.3, 0.1, 0.2, 0.3], 3),
        cut(&[0.0, 0.0], 4),
        cut(&[1.0], 0),
        cut(&[1.0], 3),
    ];
    expect_test::expect![[r#"
        0..2 2.00/1, 2.. 2.00/1
        0..2 7.00/3, 2.. 1.00/1
        0..1 3.00/1, 1..2 3.00/1, 2.. 1.00/1
        0..3 6.00/3, 3.. 0.20/1
        0..3 0.60/1, 3.. 0.60/2


        0.. 1.00/3"#]]
    .assert_eq(&lines.join("\n"));
}

/// Scenario: loads on which the scan fills its buckets unevenly. Guarantees: the optimal partition has as many buckets, and a
/// smaller largest load per instance.
#[test]
fn the_partition_is_more_even_than_the_scan() {
    let loads = atoms(&[0.9, 0.9, 0.9, 0.9, 0.2, 0.2]);
    let (scan, best) = (scan_cut(&loads, 3), optimal_cut(&loads, 3));
    expect_test::expect!["0..2 1.80/1, 2..4 1.80/1, 4.. 0.40/1 | 0..1 0.90/1, 1..3 1.80/1, 3.. 1.30/1"]
        .assert_eq(&format!("{} | {}", text(&scan), text(&best)));
}

/// All ways to write `total` as a sum of `parts` numbers of at least 1.
fn compositions(total: usize, parts: usize) -> Vec<Vec<usize>> {
    match parts {
        0 => Vec::new(),
        1 => vec![vec![total]],
        _ => (1..=total.saturating_sub(parts - 1))
            .flat_map(|first| {
                compositions(total - first, parts - 1).into_iter().map(move |rest| [vec![first], rest].concat())
            })
            .collect(),
    }
}

/// The smallest largest load per instance, by trying every partition into `count` buckets and every division of the fleet.
fn brute_force(atoms: &[AtomWork], count: usize, instances: usize) -> f64 {
    let mut best = f64::INFINITY;
    for sizes in compositions(atoms.len(), count) {
        let (mut at, mut loads) = (0, Vec::new());
        for size in sizes {
            loads.push(atoms[at..at + size].iter().map(|work| work.load).sum::<f64>());
            at += size;
        }
        for counts in compositions(instances, count) {
            let most = loads.iter().zip(&counts).map(|(load, count)| load / *count as f64).fold(0.0, f64::max);
            best = best.min(most);
        }
    }
    best
}

fn check_whole(cut: &[Bucket], atoms: &[AtomWork], instances: usize) -> Result<(), TestCaseError> {
    prop_assert_eq!(cut.iter().map(|b| b.instances).sum::<usize>(), instances);
    prop_assert_eq!((cut[0].range.from_atom, cut[cut.len() - 1].range.to_atom), (0, None));
    for pair in cut.windows(2) {
        prop_assert_eq!(pair[0].range.to_atom, Some(pair[1].range.from_atom));
    }
    for bucket in cut {
        prop_assert!(bucket.instances >= 1 && bucket.load > 0.0, "{}", text(cut));
        prop_assert!((bucket.load - bucket.range.load(atoms)).abs() < 1e-12);
    }
    Ok(())
}

fn any_loads() -> impl Strategy<Value = Vec<f64>> {
    let load = prop_oneof![2 => Just(0.0), 5 => (1u32..40).prop_map(|l| f64::from(l) / 8.0), 1 => 0.001f64..30.0];
    prop::collection::vec(load, 1..9)
}

proptest! {
    /// Scenario: any loads, any fleet.
    /// Guarantees: every bucket but the last reaches L_target and would not without its last atom; instances are divided so
    /// that no other division of the same cuts has a smaller largest load; buckets cover the axis.
    #[test]
    fn the_scan_cut_is_specs(loads in any_loads(), instances in 1usize..7) {
        let atoms = atoms(&loads);
        let (cut, target) = (scan_cut(&atoms, instances), target(&atoms, instances));
        if atoms.is_empty() {
            prop_assert!(cut.is_empty());
            return Ok(());
        }
        check_whole(&cut, &atoms, instances)?;
        for bucket in &cut[..cut.len() - 1] {
            let last = bucket.range.to_atom.unwrap() - 1;
            let before = AtomRange { to_atom: Some(last), ..bucket.range }.load(&atoms);
            prop_assert!(bucket.load >= target * (1.0 - 1e-8) && before < target, "{} of {target}", text(&cut));
        }
        let best = compositions(instances, cut.len()).into_iter().map(|counts| {
            cut.iter().zip(counts).map(|(b, count)| b.load / count as f64).fold(0.0, f64::max)
        });
        let best = best.fold(f64::INFINITY, f64::min);
        prop_assert!((most(&cut) - best).abs() <= best * 1e-9);
    }

    /// Scenario: any loads, any fleet.
    /// Guarantees: the optimal partition equals a twin that tries every partition and every division; never worse than the scan.
    #[test]
    fn the_partition_equals_brute_force(loads in any_loads(), instances in 1usize..7) {
        let atoms = atoms(&loads);
        let (scan, best) = (scan_cut(&atoms, instances), optimal_cut(&atoms, instances));
        prop_assert_eq!(scan.len(), best.len());
        if atoms.is_empty() {
            return Ok(());
        }
        check_whole(&best, &atoms, instances)?;
        let twin = brute_force(&atoms, scan.len(), instances);
        prop_assert!((most(&best) - twin).abs() <= twin * 1e-6, "{} but {twin}", text(&best));
        prop_assert!(most(&best) <= most(&scan) * (1.0 + 1e-12));
    }

    /// Scenario: a fleet bound by one load, rebound by another, with instances that left and came.
    /// Guarantees: everybody is bound, each bucket to its number, and no binding of all moves fewer.
    #[test]
    fn the_binding_moves_the_fewest(
        before in any_loads(), after in any_loads(), count in 1u32..6, gone in 0u32..6, come in 0u32..2,
    ) {
        let (before, after) = (atoms(&before), atoms(&after));
        prop_assume!(!before.is_empty() && !after.is_empty());
        let old_fleet: Vec<_> = (0..count).map(InstanceId).collect();
        let old = bind(&scan_cut(&before, old_fleet.len()), (&[], &before), &old_fleet);
        let mut fleet: Vec<_> = old_fleet.into_iter().filter(|id| id.0 != gone).collect();
        fleet.extend((0..come).map(|id| InstanceId(10 + id)));
        prop_assume!(!fleet.is_empty());
        let cut = scan_cut(&after, fleet.len());
        let new = bind(&cut, (&old, &after), &fleet);
        let mut bound: Vec<_> = new.iter().flat_map(|b| b.instances.clone()).collect();
        bound.sort_unstable();
        prop_assert_eq!(&bound, &fleet);
        prop_assert!(new.iter().all(|b| b.instances.len() == b.bucket.instances));
        let fewest = permutations(&fleet).into_iter().map(|order| {
            let mut order = order.into_iter();
            let made: Vec<_> = cut.iter()
                .map(|bucket| BoundBucket { bucket: *bucket, instances: order.by_ref().take(bucket.instances).collect() })
                .collect();
            moves(&made, (&old, &after))
        });
        prop_assert_eq!(moves(&new, (&old, &after)), fewest.min().unwrap());
    }

    /// Scenario: the same load again. Guarantees: nobody moves, and everybody keeps the range.
    #[test]
    fn the_same_load_moves_nobody(loads in any_loads(), count in 1u32..6) {
        let atoms = atoms(&loads);
        prop_assume!(!atoms.is_empty());
        let fleet: Vec<_> = (0..count).map(InstanceId).collect();
        let cut = scan_cut(&atoms, fleet.len());
        let old = bind(&cut, (&[], &atoms), &fleet);
        let new = bind(&cut, (&old, &atoms), &fleet);
        prop_assert_eq!(moves(&new, (&old, &atoms)), 0);
        prop_assert!(fleet.iter().all(|id| range_of(&old, *id) == range_of(&new, *id)));
    }
}

fn permutations(of: &[InstanceId]) -> Vec<Vec<InstanceId>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in of.iter().enumerate() {
        let rest: Vec<_> = of.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, id)| *id).collect();
        all.extend(permutations(&rest).into_iter().map(|rest| [vec![*first], rest].concat()));
    }
    all
}
