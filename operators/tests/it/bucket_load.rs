//! B2, B3: load per bucket of a plan.
use std::collections::BTreeMap;

use operators::{
    AtomLoad, AtomLoadConfig, BucketLoad, BucketLoadConfig, BucketPlan, BucketRange, LoadEvent, LoadKey, LoadRow,
    LoadTotal, Refusal, Refused,
    atom_load::totals,
    reference::{atom_load::SlowAtomLoad, bucket_load::SlowBucketLoad},
};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use timely::dataflow::operators::vec::Map;

use crate::harness::{Epochs, Schedule, Timed, apply, by_epoch, collect, run, schedules};

/// A total that came or went.
type Change = ((LoadKey, LoadTotal), i64);

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Row {
    Load(LoadRow),
    Plan(BucketPlan),
}

fn plan(model: u32, version: u64, cuts: &[(u32, u32)]) -> BucketPlan {
    let ranges = cuts.iter().map(|(from_atom, bucket)| BucketRange { from_atom: *from_atom, bucket: *bucket });
    BucketPlan { model, version, ranges: ranges.collect() }
}

fn rows() -> impl Strategy<Value = Row> {
    let load = (
        1..12u64,
        1..20u32,
        0..2u32,
        0..3000u32,
        prop_oneof![9 => Just(LoadEvent::Grew), 1 => Just(LoadEvent::Finished)],
    )
        .prop_map(|(request, seq, model, tokens, event)| {
            Row::Load(LoadRow { request, seq, model, tokens, event, ..LoadRow::default() })
        });
    // Cuts may repeat or fall, and may not start at 0: then the plan is refused.
    let cuts = prop::collection::vec((0..6u32, 0..4u32), 0..4).prop_map(|mut cuts| {
        cuts.insert(0, (0, 0));
        cuts
    });
    let plans = (0..2u32, 0..6u64, cuts, 0..8u32).prop_map(|(model, version, mut cuts, sorted)| {
        if sorted > 0 {
            cuts.sort();
            cuts.dedup_by_key(|cut| cut.0);
        }
        Row::Plan(plan(model, version, &cuts))
    });
    prop_oneof![6 => load, 1 => plans]
}

fn operate(workers: usize, schedule: &Schedule<Row>, config: BucketLoadConfig) -> (Epochs<Change>, Epochs<Refused>) {
    let (changes, refused): (Timed<_>, Timed<_>) = Default::default();
    let (to_changes, to_refused) = (changes.clone(), refused.clone());
    run(workers, schedule, move |rows, _probe| {
        let plans = rows.clone().flat_map(|row| if let Row::Plan(plan) = row { Some(plan) } else { None });
        let loads = rows.flat_map(|row| if let Row::Load(row) = row { Some(row) } else { None });
        let buckets = loads.atom_load(AtomLoadConfig::default()).changes.bucket_load(plans, config);
        collect(totals(&buckets.changes).inner, &to_changes, |(data, epoch, diff)| (*epoch, (*data, *diff as i64)));
        collect(buckets.refused, &to_refused, |refused| (refused.epoch, *refused));
    });
    (by_epoch(&changes), by_epoch(&refused))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Scenario: requests of two models come, grow, shrink, end and repeat while plans of random versions come, some of
    /// them malformed or older than the one in force; room for one or two plans; on one, two and four workers.
    /// Guarantees: after every epoch each bucket's total is the sum of its atoms under the newest plan, and each plan not
    /// taken is refused once.
    #[test]
    fn equals_the_twin_after_every_epoch(schedule in schedules(rows(), 14, 16), max_plans in 1..3usize) {
        for workers in [1, 2, 4] {
            // The bound is per worker: met on one, it is judged on one.
            let config = BucketLoadConfig { max_plans: if workers == 1 { max_plans } else { 8 } };
            let (mut changes, refused) = operate(workers, &schedule, config);
            let (mut loads, mut buckets) = (SlowAtomLoad::new(AtomLoadConfig::default()), SlowBucketLoad::new(config));
            let mut state = BTreeMap::new();
            for (epoch, rows) in &schedule {
                let of_load: Vec<LoadRow> =
                    rows.iter().filter_map(|row| if let Row::Load(row) = row { Some(*row) } else { None }).collect();
                let of_plan: Vec<BucketPlan> =
                    rows.iter().filter_map(|row| if let Row::Plan(plan) = row { Some(plan.clone()) } else { None }).collect();
                loads.epoch(&of_load);
                let expected = buckets.epoch(&of_plan);
                prop_assert_eq!(refused.get(epoch).map_or(0, Vec::len), expected, "epoch {}", epoch);
                apply(&mut state, &changes.remove(epoch).unwrap_or_default());
                let totals: BTreeMap<_, _> = buckets.totals(&loads.totals()).into_iter().map(|total| (total, 1)).collect();
                prop_assert_eq!(&state, &totals, "epoch {} on {} workers", epoch, workers);
            }
            prop_assert!(changes.is_empty(), "changes in epochs without rows: {:?}", changes);
        }
    }
}

/// Scenario: three requests in atoms 0, 1 and 4; a plan cuts at atom 1, a later one at atom 2, one that names the same
/// buckets follows, and an old one comes again.
/// Guarantees: a change of plan moves the atoms that change their bucket, once; the sum over buckets never changes; a plan
/// that changes no atom's bucket, and an old plan, change nothing.
#[test]
fn a_change_of_plan_moves_whole_atoms() {
    let loads = [(1, 100), (2, 700), (3, 2200)]
        .map(|(request, tokens)| Row::Load(LoadRow { request, seq: 1, tokens, ..LoadRow::default() }));
    let schedule = Schedule::from([
        (1, loads.to_vec()),
        (2, vec![Row::Plan(plan(0, 1, &[(0, 1), (1, 2)]))]),
        (3, vec![Row::Plan(plan(0, 2, &[(0, 1), (2, 2)]))]),
        (4, vec![Row::Plan(plan(0, 3, &[(0, 1), (3, 2)]))]),
        (5, vec![Row::Plan(plan(0, 1, &[(0, 9)])), Row::Plan(plan(0, 7, &[(1, 9)]))]),
    ]);
    let (changes, refused) = operate(1, &schedule, BucketLoadConfig::default());
    let mut state = BTreeMap::new();
    let mut after = |epoch: u64| -> Vec<(u32, i64, i64)> {
        apply(&mut state, changes.get(&epoch).map_or(&[], Vec::as_slice));
        let totals = state.keys().map(|(key, total): &(LoadKey, LoadTotal)| match key {
            LoadKey::Bucket { bucket, .. } => (*bucket, total.tokens, total.requests),
            key => panic!("not a bucket: {key:?}"),
        });
        totals.collect()
    };
    assert_eq!(after(1), [(0, 3000, 3)], "one bucket before there is a plan");
    assert_eq!(after(2), [(1, 100, 1), (2, 2900, 2)]);
    assert_eq!(after(3), [(1, 800, 2), (2, 2200, 1)]);
    assert_eq!(changes.get(&4), None);
    assert_eq!(changes.get(&5), None);
    assert_eq!(refused[&5][0].reason, Refusal::MalformedPlan { version: 7, ranges: 1 });
}
