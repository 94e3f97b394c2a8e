//! C4: the global cache view.
use std::collections::{BTreeMap, BTreeSet};

use operators::{
    CacheHealth, CacheIndex, CacheIndexConfig, CacheKey, CacheTrust, KvChange, KvRow, Refusal, Refused,
    reference::cache_index::SlowCacheIndex,
};
use proptest::prelude::*;

use crate::harness::{Epochs, Schedule, Timed, apply, by_epoch, collect, run, schedules};

/// Events over few blocks. Sequence numbers are mostly small, so that duplicates, gaps and orderly runs all occur.
fn rows() -> impl Strategy<Value = KvRow> {
    let event = prop_oneof![
        10 => (0..6u64, 0..3u8).prop_map(|(hash, level)| KvChange::Stored { hash, parent: None, level, tokens: 16 }),
        5 => (0..7u64, 0..3u8).prop_map(|(hash, level)| KvChange::Removed { hash, level }),
        1 => Just(KvChange::Cleared),
        1 => Just(KvChange::Stored { hash: 1, parent: Some(0), level: 9, tokens: 16 }),
    ];
    let epoch = prop_oneof![8 => Just(1u64), 2 => Just(2), 1 => Just(3)];
    (0..3u32, epoch, 0..40u64, event).prop_map(|(instance, epoch, seq, event)| KvRow { instance, epoch, seq, event })
}

/// Renumbers most rows so that each instance counts up, as a real producer does.
fn numbered(mut schedule: Schedule<KvRow>) -> Schedule<KvRow> {
    let mut next = BTreeMap::<(u32, u64), u64>::new();
    for row in schedule.values_mut().flatten() {
        let next = next.entry((row.instance, row.epoch)).or_insert(1);
        if row.seq % 8 != 0 {
            row.seq = *next;
            *next += 1;
        } else if row.seq % 16 == 0 && row.seq > 0 {
            *next += 1;
        }
    }
    schedule
}

struct Run {
    blocks: Epochs<(CacheKey, i64)>,
    health: Epochs<CacheHealth>,
    refused: Epochs<Refused>,
}

fn operate(workers: usize, schedule: &Schedule<KvRow>, config: CacheIndexConfig) -> Run {
    let (blocks, health, refused): (Timed<_>, Timed<_>, Timed<_>) = Default::default();
    let (to_blocks, to_health, to_refused) = (blocks.clone(), health.clone(), refused.clone());
    run(workers, schedule, move |rows, _probe| {
        let index = rows.cache_index(config);
        collect(index.blocks.inner, &to_blocks, |(data, epoch, diff)| (*epoch, (*data, *diff as i64)));
        collect(index.health, &to_health, |health| (health.epoch, *health));
        collect(index.refused, &to_refused, |refused| (refused.epoch, *refused));
    });
    Run { blocks: by_epoch(&blocks), health: by_epoch(&health), refused: by_epoch(&refused) }
}

fn gaps(refused: &[Refused]) -> Vec<(u32, u64, u64)> {
    let gap = |row: &Refused| match row.reason {
        Refusal::SequenceGap { expected, got, .. } => Some((row.instance?, expected, got)),
        _ => None,
    };
    let mut gaps: Vec<_> = refused.iter().filter_map(gap).collect();
    gaps.sort();
    gaps
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Scenario: random stores, removals and clears by three instances in three incarnations each, with duplicates,
    /// gaps, rows of replaced workers, malformed rows; on one and on two workers.
    /// Guarantees: after every epoch the set, the gaps reported and the degraded instances equal the twin's; every
    /// difference is ±1 and no key changes twice in an epoch.
    #[test]
    fn equals_the_twin_after_every_epoch(schedule in schedules(rows(), 14, 16).prop_map(numbered)) {
        for workers in [1, 2] {
            let run = operate(workers, &schedule, CacheIndexConfig::default());
            let (mut twin, mut state, mut degraded) = (SlowCacheIndex::default(), BTreeMap::new(), BTreeSet::new());
            for (epoch, rows) in &schedule {
                let mut expected = twin.epoch(rows);
                expected.sort();
                let changes = run.blocks.get(epoch).map_or(&[][..], Vec::as_slice);
                let keys: BTreeSet<_> = changes.iter().map(|(key, _)| key).collect();
                prop_assert_eq!(keys.len(), changes.len(), "consolidated");
                prop_assert!(changes.iter().all(|(_, diff)| diff.abs() == 1));
                apply(&mut state, changes);
                let held: BTreeMap<_, _> = twin.blocks().into_iter().map(|key| (key, 1)).collect();
                prop_assert_eq!(&state, &held, "epoch {} on {} workers", epoch, workers);
                let refused = run.refused.get(epoch).map_or(&[][..], Vec::as_slice);
                prop_assert_eq!(gaps(refused), expected);
                for health in run.health.get(epoch).into_iter().flatten() {
                    match health.trust {
                        CacheTrust::Degraded => degraded.insert(health.instance),
                        CacheTrust::Exact | CacheTrust::Dropped => degraded.remove(&health.instance),
                    };
                }
                prop_assert_eq!(&degraded, &twin.degraded(), "epoch {} on {} workers", epoch, workers);
            }
        }
    }

    /// Scenario: room for few blocks and for two of three instances.
    /// Guarantees: the set never outgrows the bound, counts stay 0 or 1, what is held is what the events stored, and
    /// every block left out or dropped is reported and its instance no longer called exact.
    #[test]
    fn bounds_hold_and_are_reported(schedule in schedules(rows(), 14, 16).prop_map(numbered), max_entries in 0..5usize) {
        let run = operate(1, &schedule, CacheIndexConfig { max_entries, max_instances: 2 });
        let (mut stored, mut state, mut trust) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        for (epoch, rows) in &schedule {
            for row in rows {
                if let KvChange::Stored { hash, level, .. } = row.event { stored.insert((hash, row.instance, level)); }
            }
            apply(&mut state, run.blocks.get(epoch).map_or(&[], Vec::as_slice));
            prop_assert!(state.len() <= max_entries && state.values().all(|count| *count == 1));
            prop_assert!(state.keys().all(|key| stored.contains(key)));
            for health in run.health.get(epoch).into_iter().flatten() {
                trust.insert(health.instance, health.trust);
            }
            let known = trust.values().filter(|trust| **trust != CacheTrust::Dropped).count();
            prop_assert!(known <= 2);
        }
    }
}

fn row(epoch: u64, seq: u64, event: KvChange) -> KvRow {
    KvRow { instance: 5, epoch, seq, event }
}

fn stored(hash: u64) -> KvChange {
    KvChange::Stored { hash, parent: None, level: 1, tokens: 16 }
}

/// Scenario: a worker restarts, and a row of its old incarnation comes in after the new one's first.
/// Guarantees: all blocks of the old incarnation go, the old row changes nothing and is refused with both epochs named.
#[test]
fn a_restart_fences_off_the_old_incarnation() {
    let schedule = Schedule::from([
        (1, vec![row(1, 1, stored(10)), row(1, 2, stored(11))]),
        (2, vec![row(2, 1, stored(20))]),
        (3, vec![row(1, 3, stored(12))]),
    ]);
    let run = operate(2, &schedule, CacheIndexConfig::default());
    assert_eq!(run.blocks[&2], vec![((10, 5, 1), -1), ((11, 5, 1), -1), ((20, 5, 1), 1)]);
    assert_eq!(run.blocks.get(&3), None);
    assert_eq!(run.refused[&3][0].reason, Refusal::StaleIncarnation { current: 2, got: 1 });
}

/// Scenario: events 2 and 3 are lost, then the worker clears its store.
/// Guarantees: the gap is reported with what was expected and what came; the instance is degraded until the clear.
#[test]
fn a_gap_degrades_until_cleared() {
    let schedule = Schedule::from([
        (1, vec![row(1, 1, stored(10))]),
        (2, vec![row(1, 4, stored(13))]),
        (3, vec![row(1, 5, KvChange::Cleared)]),
    ]);
    let run = operate(1, &schedule, CacheIndexConfig::default());
    assert_eq!(gaps(&run.refused[&2]), vec![(5, 2, 4)]);
    let trust: Vec<_> = run.health.iter().map(|(epoch, health)| (*epoch, health[0].trust)).collect();
    assert_eq!(trust, vec![(1, CacheTrust::Exact), (2, CacheTrust::Degraded), (3, CacheTrust::Exact)]);
    assert_eq!(run.blocks[&3], vec![((10, 5, 1), -1), ((13, 5, 1), -1)]);
}

/// Scenario: two instances fill the index, a third comes.
/// Guarantees: the one silent for longest is dropped, its blocks retracted and the drop reported.
#[test]
fn the_silent_instance_makes_room() {
    let from = |instance, seq, hash| KvRow { instance, epoch: 1, seq, event: stored(hash) };
    let schedule = Schedule::from([
        (1, vec![from(1, 1, 10), from(2, 1, 20)]),
        (2, vec![from(1, 2, 11)]),
        (3, vec![from(3, 1, 30)]),
    ]);
    let run = operate(1, &schedule, CacheIndexConfig { max_entries: 100, max_instances: 2 });
    assert_eq!(run.blocks[&3], vec![((20, 2, 1), -1), ((30, 3, 1), 1)]);
    assert_eq!(run.refused[&3][0].reason, Refusal::InstancesFull { max_instances: 2 });
    assert_eq!(run.refused[&3][0].instance, Some(2));
}
