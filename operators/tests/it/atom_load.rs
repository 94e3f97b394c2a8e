//! B2: load per atom and instance.
use std::collections::BTreeMap;

use operators::{
    AtomLoad, AtomLoadConfig, LoadEvent, LoadKey, LoadRow, LoadTotal, Refusal, Refused, atom_load::totals as totals_of,
    reference::atom_load::SlowAtomLoad,
};
use proptest::prelude::*;

use crate::harness::{Epochs, Schedule, Timed, apply, by_epoch, collect, run, schedules};

fn rows(requests: u64) -> impl Strategy<Value = LoadRow> {
    let event = prop_oneof![
        3 => Just(LoadEvent::Arrived),
        6 => Just(LoadEvent::Grew),
        1 => Just(LoadEvent::Finished),
    ];
    let seq = prop_oneof![1 => Just(0u32), 30 => 1..20u32];
    let tokens = prop_oneof![1 => Just(u32::MAX), 30 => 0..2500u32, 5 => 499..502u32];
    // An instance serves one model in one region, as it does in a fleet; the tier is the request's own.
    let cached = prop_oneof![1 => Just(0u32), 1 => 0..1500u32];
    (1..=requests, 0..4u32, seq, (tokens, cached), event).prop_map(
        |(request, instance, seq, (tokens, cached), event)| LoadRow {
            request,
            seq,
            instance,
            tokens,
            cached,
            event,
            region: (instance % 2) as u16,
            model: instance / 2,
            tier: (request % 3) as u8,
        },
    )
}

struct Run {
    totals: Epochs<((LoadKey, LoadTotal), i64)>,
    refused: Epochs<Refused>,
}

fn operate(workers: usize, schedule: &Schedule<LoadRow>, config: AtomLoadConfig) -> Run {
    let (totals, refused): (Timed<_>, Timed<_>) = Default::default();
    let (to_totals, to_refused) = (totals.clone(), refused.clone());
    run(workers, schedule, move |rows, _probe| {
        let loads = rows.atom_load(config);
        collect(totals_of(&loads.changes).inner, &to_totals, |(data, epoch, diff)| (*epoch, (*data, *diff as i64)));
        collect(loads.refused, &to_refused, |refused| (refused.epoch, *refused));
    });
    Run { totals: by_epoch(&totals), refused: by_epoch(&refused) }
}

/// The totals of the latest row of each request that has not finished: what the operator means, in one sentence.
fn declared(rows: &[LoadRow]) -> BTreeMap<LoadKey, LoadTotal> {
    let mut latest = BTreeMap::<u64, Option<LoadRow>>::new();
    for row in rows.iter().filter(|row| row.check().is_ok()) {
        let entry = latest.entry(row.request).or_insert(Some(*row));
        match entry {
            _ if row.event == LoadEvent::Finished => *entry = None,
            Some(before) if row.seq > before.seq => *entry = Some(*row),
            _ => {}
        }
    }
    let mut totals = BTreeMap::<LoadKey, LoadTotal>::new();
    for row in latest.into_values().flatten() {
        let LoadRow { instance, region, model, tier, .. } = row;
        let atom = row.tokens / 500;
        for key in [
            LoadKey::Cell { instance, atom },
            LoadKey::Atom(atom),
            LoadKey::Instance(instance),
            LoadKey::Region(region),
            LoadKey::Model(model),
            LoadKey::Group { model, tier },
            LoadKey::ModelAtom { model, atom },
        ] {
            let total = totals.entry(key).or_default();
            total.tokens += i64::from(row.tokens);
            total.uncached += i64::from(row.tokens.saturating_sub(row.cached));
            total.requests += 1;
        }
    }
    totals
}

fn as_counts(totals: BTreeMap<LoadKey, LoadTotal>) -> BTreeMap<(LoadKey, LoadTotal), i64> {
    totals.into_iter().map(|entry| (entry, 1)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Scenario: random events of few requests over few instances: duplicates, stale rows, rows after the end, moves
    /// between instances, malformed rows, skipped epochs; on one, two and four workers.
    /// Guarantees: after every epoch the totals equal the twin's; each malformed row is refused, each once.
    #[test]
    fn equals_the_twin_after_every_epoch(schedule in schedules(rows(12), 14, 16)) {
        let config = AtomLoadConfig::default();
        for workers in [1, 2, 4] {
            let mut run = operate(workers, &schedule, config);
            let (mut twin, mut state) = (SlowAtomLoad::new(config), BTreeMap::new());
            for (epoch, rows) in &schedule {
                twin.epoch(rows);
                apply(&mut state, &run.totals.remove(epoch).unwrap_or_default());
                prop_assert_eq!(&state, &as_counts(twin.totals()), "epoch {} on {} workers", epoch, workers);
                let malformed = rows.iter().filter(|row| row.check().is_err()).count();
                prop_assert_eq!(run.refused.get(epoch).map_or(0, Vec::len), malformed);
            }
            prop_assert!(run.totals.is_empty(), "changes in epochs without rows: {:?}", run.totals);
        }
    }

    /// Scenario: bounds far below the number of requests.
    /// Guarantees: totals and the requests dropped at the bound equal the twin's after every epoch.
    #[test]
    fn bounds_drop_the_oldest(schedule in schedules(rows(24), 14, 16), max_open in 1..6usize, max_closed in 0..5usize) {
        let config = AtomLoadConfig { max_open, max_closed };
        let run = operate(1, &schedule, config);
        let (mut twin, mut state) = (SlowAtomLoad::new(config), BTreeMap::new());
        for (epoch, rows) in &schedule {
            let mut dropped = twin.epoch(rows);
            dropped.sort();
            apply(&mut state, run.totals.get(epoch).map_or(&[], Vec::as_slice));
            prop_assert_eq!(&state, &as_counts(twin.totals()), "epoch {}", epoch);
            let full = Refusal::OpenRequestsFull { max_open: max_open as u64 };
            let refused = run.refused.get(epoch).map_or(&[][..], Vec::as_slice);
            let mut refused: Vec<u64> = refused.iter().filter(|row| row.reason == full).map(|row| row.subject).collect();
            refused.sort();
            prop_assert_eq!(refused, dropped);
        }
    }

    /// Scenario: the rows of a schedule where each request sends one row per `seq`.
    /// Guarantees: the twin itself equals the one-sentence meaning: the latest row of each unfinished request.
    #[test]
    fn the_twin_means_what_it_says(schedule in schedules(rows(8), 10, 12)) {
        let mut seen = std::collections::BTreeSet::new();
        let mut twin = SlowAtomLoad::new(AtomLoadConfig::default());
        let mut all = Vec::new();
        for mut rows in schedule.into_values() {
            rows.retain(|row| seen.insert((row.request, row.seq)));
            twin.epoch(&rows);
            all.extend(rows);
            prop_assert_eq!(twin.totals(), declared(&all));
        }
    }
}

/// The differences themselves, by epoch.
fn differences(workers: usize, schedule: &Schedule<LoadRow>) -> Epochs<(LoadKey, LoadTotal)> {
    let changes: Timed<_> = Default::default();
    let to = changes.clone();
    run(workers, schedule, move |rows, _probe| {
        let loads = rows.atom_load(AtomLoadConfig::default());
        collect(loads.changes.inner, &to, |(key, epoch, load)| (*epoch, (*key, *load)));
    });
    by_epoch(&changes)
}

/// Scenario: a request grows within an atom, past it, past it twice in one epoch, comes again as a duplicate, moves to
/// another instance, and ends; then a row that is late.
/// Guarantees: growth within an atom is one update of each of its seven keys; growth past it is two updates of the three
/// keys that name the atom and one of the four that do not; a duplicate and a late row are none.
#[test]
fn growth_past_an_atom_moves_by_two_updates() {
    let row = |seq, instance, tokens| LoadRow { request: 1, seq, instance, tokens, ..LoadRow::default() };
    let schedule = Schedule::from([
        (1, vec![row(1, 0, 300)]),
        (2, vec![row(2, 0, 499)]),
        (3, vec![row(3, 0, 500)]),
        (4, vec![row(4, 0, 900), row(5, 0, 1200)]),
        (5, vec![row(5, 0, 1200), row(3, 0, 500)]),
        (6, vec![row(6, 1, 1200)]),
        (7, vec![LoadRow { event: LoadEvent::Finished, ..row(7, 1, 1200) }]),
        (8, vec![row(8, 1, 1300)]),
    ]);
    for workers in [1, 2] {
        let differences = differences(workers, &schedule);
        let counts = |epoch: u64| {
            let changes = differences.get(&epoch).map_or(&[][..], Vec::as_slice);
            let of = |kind: fn(&LoadKey) -> bool| changes.iter().filter(|(key, _)| kind(key)).count();
            let cell = of(|key| matches!(key, LoadKey::Cell { .. }));
            let instance = of(|key| matches!(key, LoadKey::Instance(_)));
            let atoms = of(|key| matches!(key, LoadKey::Atom(_) | LoadKey::ModelAtom { .. }));
            [cell, instance, atoms, changes.len()]
        };
        assert_eq!(counts(1), [1, 1, 2, 7], "it comes");
        assert_eq!(counts(2), [1, 1, 2, 7], "it grows within its atom");
        assert_eq!(counts(3), [2, 1, 4, 10], "it grows past its atom");
        assert_eq!(counts(4), [2, 1, 4, 10], "it grows past it in two rows of one epoch");
        assert_eq!(counts(5), [0; 4], "duplicates and stale rows");
        assert_eq!(counts(6), [2, 2, 0, 4], "it moves to another instance");
        assert_eq!(counts(7), [1, 1, 2, 7], "it ends");
        assert_eq!(counts(8), [0; 4], "a row after the end");
        let past = LoadKey::Atom(1);
        let of = |epoch: u64| differences[&epoch].iter().find(|(key, _)| *key == past).map(|(_, load)| *load);
        assert_eq!(of(3), Some(LoadTotal { tokens: 500, uncached: 500, requests: 1 }));
        assert_eq!(of(4), Some(LoadTotal { tokens: -500, uncached: -500, requests: -1 }));
    }
}

/// Scenario: a request grows past an atom, moves to another instance and ends.
/// Guarantees: each step is a retraction of the old cell's total and an addition of the new one's, nothing else.
#[test]
fn growth_past_an_atom_moves_the_load() {
    let row = |seq, instance, tokens, event| LoadRow { request: 1, seq, instance, tokens, event, ..LoadRow::default() };
    let schedule = Schedule::from([
        (1, vec![row(1, 0, 499, LoadEvent::Arrived)]),
        (2, vec![row(2, 0, 500, LoadEvent::Grew)]),
        (3, vec![row(3, 1, 500, LoadEvent::Grew)]),
        (4, vec![row(4, 1, 500, LoadEvent::Finished)]),
        (5, vec![row(5, 1, 600, LoadEvent::Grew)]),
    ]);
    let run = operate(2, &schedule, AtomLoadConfig::default());
    let cells = |epoch: u64| -> Vec<_> {
        let changes = run.totals.get(&epoch).map_or(&[][..], Vec::as_slice);
        let cell = |key| if let LoadKey::Cell { instance, atom } = key { Some((instance, atom)) } else { None };
        changes.iter().filter_map(|((key, total), diff)| Some((cell(*key)?, total.tokens, *diff))).collect()
    };
    assert_eq!(cells(1), vec![((0, 0), 499, 1)]);
    assert_eq!(cells(2), vec![((0, 0), 499, -1), ((0, 1), 500, 1)]);
    assert_eq!(cells(3), vec![((0, 1), 500, -1), ((1, 1), 500, 1)]);
    assert_eq!(cells(4), vec![((1, 1), 500, -1)]);
    assert_eq!(cells(5), vec![]);
}
