//! Tests of hysteresis, triggers and states.

use proptest::prelude::*;

use super::*;
use crate::policy::test_policy;

const SECOND: Micros = 1_000_000;

fn atoms(loads: &[f64]) -> Vec<AtomWork> {
    let works = (0..).zip(loads).map(|(atom, load)| AtomWork { atom, load: *load });
    works.filter(|work| work.load > 0.0).collect()
}

fn fleet(count: u32) -> Vec<InstanceId> {
    (0..count).map(InstanceId).collect()
}

fn look<'a>(now: Micros, atoms: &'a [AtomWork], fleet: &'a [InstanceId]) -> PlanLook<'a> {
    PlanLook { now, policy: CutPolicy::ScanCut, atoms, fleet, variants: 1 }
}

fn told(replan: &Replan) -> String {
    match replan {
        Replan::Keep => "keep".into(),
        Replan::KeepCompared => "keep, compared".into(),
        Replan::Off(reason) => format!("off: {}", reason.name()),
        Replan::Replace(new) => {
            let ends: Vec<_> = new.plan.buckets.iter().map(|b| (b.bucket.range.from_atom, b.instances.len())).collect();
            let (trigger, moved) = (new.trigger.name(), new.moved);
            let before = new.imbalance_before.map_or("-".into(), |before| format!("{before:.2}"));
            format!("{trigger}: {ends:?}, imbalance {before} to {:.2}, {moved} moved", new.imbalance)
        }
    }
}

/// Scenario: families off, fleets too small, too large and of two variants, no load.
/// Guarantees: each is a state of its own; a fleet of two, the default, is never cut.
#[test]
fn states_are_named() {
    let config = test_policy().buckets;
    let (loads, large) = (atoms(&[1.0, 2.0]), fleet(FLEET_MAX as u32 + 1));
    let lines = [
        told(&replan(None, &look(0, &loads, &fleet(2)), &config)),
        told(&replan(None, &look(0, &loads, &fleet(3)), &config)),
        told(&replan(None, &look(0, &loads, &large), &config)),
        told(&replan(None, &PlanLook { policy: CutPolicy::Off, ..look(0, &loads, &fleet(8)) }, &config)),
        told(&replan(None, &PlanLook { variants: 2, ..look(0, &loads, &fleet(8)) }, &config)),
        told(&replan(None, &look(0, &[], &fleet(8)), &config)),
        told(&replan(None, &look(0, &loads, &fleet(6)), &config)),
    ];
    expect_test::expect![[r#"
        off: small_fleet
        off: small_fleet
        off: large_fleet
        off: family
        off: several_variants
        off: no_load
        start: [(0, 2), (1, 4)], imbalance - to 1.00, 0 moved"#]]
    .assert_eq(&lines.join("\n"));
}

/// Scenario: a plan; load that hardly changes, drifts early, drifts late; an instance that goes, one that comes, the only one
/// of a bucket that goes; no load.
/// Guarantees: nothing before the dwell time but for an empty bucket; a comparison a period; drift does not wait for it; a plan that is
/// hardly better does not win.
#[test]
fn plans_give_way_for_a_reason() {
    let config = test_policy().buckets;
    let (even, late) = (atoms(&[4.0, 4.0]), atoms(&[2.0, 6.0]));
    let four = fleet(4);
    let Replan::Replace(first) = replan(None, &look(0, &even, &four), &config) else { panic!("a first plan") };
    let plan = first.plan;
    let at = |seconds: Micros, atoms: &[AtomWork], fleet: &[InstanceId]| {
        told(&replan(Some(&plan), &look(seconds * SECOND, atoms, fleet), &config))
    };
    let without = |id: u32| -> Vec<InstanceId> { four.iter().copied().filter(|known| known.0 != id).collect() };
    let five = fleet(5);
    let three = BucketConfig { instances_min: 2, ..config.clone() };
    let gone = |seconds: Micros, fleet: &[InstanceId]| {
        told(&replan(Some(&plan), &look(seconds * SECOND, &even, fleet), &three))
    };
    let lines = [
        at(29, &even, &four),
        at(30, &even, &four),
        at(9, &late, &four),
        at(10, &late, &four),
        at(10, &atoms(&[3.6, 4.4]), &four),
        at(30, &atoms(&[3.6, 4.4]), &four),
        at(9, &even, &five),
        at(10, &even, &five),
        at(10, &[], &five),
        gone(1, &without(0)),
        gone(1, &[plan.buckets[1].instances.clone(), vec![InstanceId(9)]].concat()),
    ];
    expect_test::expect![[r#"
        keep
        keep, compared
        keep
        drift: [(0, 1), (1, 3)], imbalance 1.50 to 1.00, 1 moved
        keep
        keep, compared
        keep
        fleet: [(0, 2), (1, 3)], imbalance 1.00 to 1.25, 0 moved
        fleet: [(0, 2), (1, 3)], imbalance 1.00 to 1.25, 0 moved
        keep
        fleet: [(0, 1), (1, 2)], imbalance 1.00 to 1.50, 0 moved"#]]
    .assert_eq(&lines.join("\n"));
}

/// Scenario: a plan cut when there was one length; then there are two.
/// Guarantees: the one bucket, even as it is, gives way to one a length.
#[test]
fn one_bucket_gives_way_to_lengths() {
    let (config, four) = (test_policy().buckets, fleet(4));
    let one = atoms(&[4.0]);
    let Replan::Replace(first) = replan(None, &look(0, &one, &four), &config) else { panic!("a first plan") };
    let two = atoms(&[3.0, 0.0, 0.0, 1.5]);
    let told = told(&replan(Some(&first.plan), &look(10 * SECOND, &two, &four), &config));
    expect_test::expect!["drift: [(0, 2), (1, 2)], imbalance 1.00 to 1.33, 0 moved"].assert_eq(&told);
}

/// Scenario: a load that is there for one span and then gone; one longer than all atoms told apart.
/// Guarantees: the average follows by its span, forgets, and holds no more atoms than it may.
#[test]
fn the_average_follows() {
    let mut average = LoadAverage::default();
    let span = Duration::from_secs(10);
    average.take(0, [(3, 100.0), (u32::MAX, 50.0)], span);
    assert_eq!(average.tokens().collect::<Vec<_>>(), [(3, 100.0), (ATOMS_MAX - 1, 50.0)]);
    average.take(10 * SECOND, [(4, 100.0)], span);
    let held: Vec<_> = average.tokens().map(|(atom, tokens)| (atom, tokens.round() as u32)).collect();
    assert_eq!(held, [(3, 37), (4, 63), (ATOMS_MAX - 1, 18)]);
    (2..40).for_each(|step| average.take(step * 10 * SECOND, [(4, 100.0)], span));
    assert_eq!(average.tokens().count(), 1);
}

fn any_loads() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec((0u32..30).prop_map(f64::from), 1..10)
}

proptest! {
    /// Scenario: any sequence of loads, a look every 5 s.
    /// Guarantees: plans are at least the dwell time apart, each that wins by comparison is better by the named share or tells more
    /// lengths apart, and its ranges
    /// name the whole fleet.
    #[test]
    fn hysteresis_holds(steps in prop::collection::vec(any_loads(), 1..30), count in 4u32..8) {
        let (config, fleet) = (test_policy().buckets, fleet(count));
        let mut plan: Option<PlanInForce> = None;
        for (step, loads) in steps.iter().enumerate() {
            let now = step as Micros * 5 * SECOND;
            let atoms = atoms(loads);
            match replan(plan.as_ref(), &look(now, &atoms, &fleet), &config) {
                Replan::Replace(new) => {
                    if let Some(old) = &plan {
                        prop_assert!(now - old.since >= config.dwell.as_micros() as Micros);
                        let is_better = new.imbalance <= new.imbalance_before.unwrap() * (1.0 - config.improvement_min);
                        prop_assert!(is_better || new.plan.buckets.len() > old.buckets.len());
                        prop_assert!(matches!(new.trigger, Trigger::Period | Trigger::Drift));
                    }
                    prop_assert_eq!(new.plan.buckets.iter().map(|b| b.instances.len()).sum::<usize>(), fleet.len());
                    plan = Some(new.plan);
                }
                Replan::KeepCompared => plan.as_mut().unwrap().looked = now,
                Replan::Off(reason) => prop_assert_eq!((reason, plan.is_none()), (NotCut::NoLoad, true)),
                Replan::Keep => prop_assert!(plan.is_some()),
            }
        }
    }

    /// Scenario: any two loads. Guarantees: drift is 0 of itself, 1 of one with nothing in common, symmetric, and no more than 1.
    #[test]
    fn drift_is_a_distance(a in any_loads(), b in any_loads()) {
        let (a, b) = (atoms(&a), atoms(&b));
        prop_assume!(!a.is_empty() && !b.is_empty());
        let apart: Vec<_> = b.iter().map(|work| AtomWork { atom: work.atom + 100, ..*work }).collect();
        prop_assert!(drift(&a, &a) < 1e-12 && (drift(&a, &apart) - 1.0).abs() < 1e-9);
        prop_assert!((drift(&a, &b) - drift(&b, &a)).abs() < 1e-12 && drift(&a, &b) <= 1.0 + 1e-12);
    }
}
