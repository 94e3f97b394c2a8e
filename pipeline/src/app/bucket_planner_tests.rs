//! The planner over views put together by hand.

use operators::LoadTotal;

use super::*;
use crate::{
    gateway::leases::Leases,
    ids::ProcessEpoch,
    policy::{FetchTimes, test_policy},
};

const SECOND: Micros = 1_000_000;

fn entry(id: u32, state: InstanceState) -> Arc<InstanceEntry> {
    Arc::new(InstanceEntry {
        id: InstanceId(id),
        name: format!("w{id}"),
        epoch: ProcessEpoch(1),
        model: "toy".into(),
        variant: "default".into(),
        state,
        client: None,
        leases: Arc::new(Leases::default()),
        fetch: FetchTimes::default(),
    })
}

fn fleet(count: u32) -> Vec<Arc<InstanceEntry>> {
    (0..count).map(|id| entry(id, InstanceState::Ready)).collect()
}

/// Model 1 with this much uncached work in each atom, and twice as many tokens.
fn state(atoms: &[(u32, i64)]) -> ViewState {
    let total = |uncached: i64| LoadTotal { tokens: 2 * uncached, uncached, requests: 1 };
    let of_others = ((0, 0), total(1_000_000));
    let own = atoms.iter().map(|(atom, uncached)| ((1, *atom), total(*uncached)));
    ViewState { as_of: Some(0), model_atoms: Arc::new(own.chain([of_others]).collect()), ..ViewState::default() }
}

fn planner(family: &str) -> Planner {
    let facts = ModelFacts {
        family: family.into(),
        curve: CapacityCurve::flat(1000),
        source: CapacitySource::Default("nobody measured".into()),
    };
    let config = BucketConfig { average: Duration::from_secs(1), ..test_policy().buckets };
    Planner::new(config, [("toy".to_string(), facts)].into())
}

fn look(planner: &mut Planner, now: Micros, state: &ViewState, entries: &[Arc<InstanceEntry>]) -> Vec<String> {
    let names = Names::default();
    assert_eq!((names.number("other"), names.number("toy")), (0, 1));
    let rows = planner.look(now, state, (entries, &names));
    let told = |row: &BucketRow| {
        let end = row.to_tokens.map_or(String::new(), |end| end.to_string());
        format!(
            "{} {} {}/{} {}..{end} {:?} {:.1} of {:.1}",
            row.plan, row.state, row.bucket, row.buckets, row.from_tokens, row.instances, row.load, row.target_load
        )
    };
    rows.iter().map(told).collect()
}

/// Scenario: no load, load, the same load, all of it at another length; then two instances die.
/// Guarantees: one row says that there is no load; a plan has a row a bucket and gives every instance its place; nothing is
/// told twice; drift makes a new plan; a fleet too small is one bucket again, and nobody has a place.
#[test]
fn plans_follow_the_load() {
    let (mut planner, four) = (planner("llama"), fleet(4));
    let early = state(&[(0, 1000), (4, 3000)]);
    let late = state(&[(0, 3000), (30, 1000)]);
    let mut told = look(&mut planner, 0, &state(&[]), &four);
    told.extend(look(&mut planner, SECOND, &early, &four));
    assert_eq!(planner.seats().len(), 4);
    let seat = planner.seats()[&InstanceId(0)];
    assert_eq!((seat.plan, seat.from_tokens, seat.to_tokens), (SECOND as u64, 0, Some(500)));
    told.extend(look(&mut planner, 2 * SECOND, &early, &four));
    for second in 3..40 {
        told.extend(look(&mut planner, second * SECOND, &late, &four));
    }
    let two: Vec<_> =
        (0..4).map(|id| entry(id, if id < 2 { InstanceState::Ready } else { InstanceState::Dead })).collect();
    told.extend(look(&mut planner, 40 * SECOND, &late, &two));
    told.extend(look(&mut planner, 41 * SECOND, &late, &two));
    assert!(planner.seats().is_empty());
    expect_test::expect![[r#"
        1 no_load 0/1 0.. [0, 1, 2, 3] 0.0 of 0.0
        1000000 cut 0/2 0..500 [0] 1.0 of 1.0
        1000000 cut 1/2 500.. [1, 2, 3] 3.0 of 1.0
        11000000 cut 0/2 0..500 [0, 2, 3] 3.0 of 1.0
        11000000 cut 1/2 500.. [1] 1.0 of 1.0
        40000000 small_fleet 0/1 0.. [0, 1] 4.0 of 2.0"#]]
    .assert_eq(&told.join("\n"));
}

/// Scenario: a model of linear attention, one of an unknown family, and a fleet of two.
/// Guarantees: each is told once, with its reason, as one bucket of all instances (SPEC B5).
#[test]
fn what_is_not_cut_says_so() {
    let load = state(&[(0, 1000), (4, 3000)]);
    let told = |mut planner: Planner, count| {
        let told = look(&mut planner, SECOND, &load, &fleet(count));
        assert!(look(&mut planner, 2 * SECOND, &load, &fleet(count)).is_empty() && planner.seats().is_empty());
        told
    };
    let lines = [told(planner("mamba"), 4), told(planner(""), 4), told(planner("llama"), 2)].concat();
    expect_test::expect![[r#"
        1000000 family 0/1 0.. [0, 1, 2, 3] 4.0 of 1.0
        1000000 family 0/1 0.. [0, 1, 2, 3] 4.0 of 1.0
        1000000 small_fleet 0/1 0.. [0, 1] 4.0 of 2.0"#]]
    .assert_eq(&lines.join("\n"));
}
