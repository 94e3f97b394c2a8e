//! C4: the global cache view.
use std::collections::{BTreeMap, BTreeSet};

use operators::{
    AUDIT_BUCKETS, CacheCause, CacheIndex, CacheIndexConfig, CacheKey, CacheReport, CacheTrust, KvChange, KvRow,
    Refusal, Refused, ReplayWant, audit_bucket, audit_weight, reference::cache_index::SlowCacheIndex,
};
use proptest::prelude::*;
use timely::dataflow::operators::Probe;

use crate::harness::{Epochs, Schedule, Timed, apply, by_epoch, collect, run, schedules};

/// A few blocks, spread over the audit buckets, each the child of the one before.
fn block(number: u64) -> u64 {
    number << 61 | number
}

/// Events over few blocks. Sequence numbers are mostly small, so that duplicates, gaps and orderly runs all occur.
fn rows() -> impl Strategy<Value = KvRow> {
    let stored = |hash: u64, parent: Option<u64>, level| KvChange::Stored { hash, parent, level, tokens: 16 };
    let event = prop_oneof![
        6 => (0..6u64, 0..3u8).prop_map(move |(n, level)| stored(block(n), None, level)),
        6 => (1..6u64, 0..3u8).prop_map(move |(n, level)| stored(block(n), Some(block(n - 1)), level)),
        6 => (0..7u64, 0..3u8).prop_map(|(n, level)| KvChange::Removed { hash: block(n), level }),
        1 => Just(KvChange::Cleared),
        1 => Just(KvChange::Gone),
        1 => Just(stored(1, Some(0), 9)),
        1 => Just(stored(1, Some(1), 1)),
        // Becomes an account of all buckets: of nothing, or of one block.
        1 => Just(KvChange::Sum { bucket: 0, blocks: 0, sum: 0 }),
        1 => (0..6u64, 0..3u8).prop_map(|(n, level)| KvChange::Sum {
            bucket: audit_bucket(block(n)),
            blocks: 1,
            sum: audit_weight(block(n), level),
        }),
        2 => (0..7u64, 0..3u32).prop_map(|(n, blocks)| KvChange::Listed { bucket: audit_bucket(block(n)), blocks }),
    ];
    let epoch = prop_oneof![8 => Just(1u64), 2 => Just(2), 1 => Just(3)];
    (0..3u32, epoch, 0..48u64, event).prop_map(|(instance, epoch, seq, event)| KvRow { instance, epoch, seq, event })
}

/// Makes whole accounts of sums.
fn whole(row: KvRow) -> Vec<KvRow> {
    let KvChange::Sum { bucket: of, blocks, sum } = row.event else { return vec![row] };
    let of_bucket = |bucket| match bucket == of {
        true => KvChange::Sum { bucket, blocks, sum },
        false => KvChange::Sum { bucket, blocks: 0, sum: 0 },
    };
    (0..AUDIT_BUCKETS).map(|bucket| KvRow { event: of_bucket(bucket), ..row }).collect()
}

/// Renumbers most rows so that each instance counts up, as a real producer does; some rows are far ahead of that, alone or as
/// the first of a run. One epoch more, so that the input does not
/// end before all that is due in the others.
fn numbered(mut schedule: Schedule<KvRow>) -> Schedule<KvRow> {
    let mut next = BTreeMap::<(u32, u64), u64>::new();
    let hit = KvChange::Hit { hash: 0, level: 1, tokens: 16 };
    let end = schedule.keys().next_back().unwrap() + 1;
    schedule.insert(end, vec![KvRow { instance: 9, epoch: 1, seq: 1, event: hit }]);
    for rows in schedule.values_mut() {
        *rows = rows.drain(..).flat_map(whole).collect();
        for row in rows {
            let next = next.entry((row.instance, row.epoch)).or_insert(1);
            if row.seq > 45 {
                row.seq += 1000 + *next;
            } else if row.seq > 44 {
                *next += 300;
            } else if row.seq % 8 != 0 {
                row.seq = *next;
                *next += 1;
            } else if row.seq % 16 == 0 && row.seq > 0 {
                *next += 1;
            }
        }
    }
    schedule
}

struct Run {
    blocks: Epochs<(CacheKey, i64)>,
    reports: Epochs<CacheReport>,
    refused: Epochs<Refused>,
}

fn operate(workers: usize, schedule: &Schedule<KvRow>, config: CacheIndexConfig) -> Run {
    let (blocks, reports, refused): (Timed<_>, Timed<_>, Timed<_>) = Default::default();
    let (to_blocks, to_reports, to_refused) = (blocks.clone(), reports.clone(), refused.clone());
    run(workers, schedule, move |rows, probe| {
        let index = rows.cache_index(config);
        index.reports.clone().probe_with(probe);
        collect(index.blocks.inner, &to_blocks, |(data, epoch, diff)| (*epoch, (*data, *diff as i64)));
        collect(index.reports, &to_reports, |report| (report.epoch(), *report));
        collect(index.refused, &to_refused, |refused| (refused.epoch, *refused));
    });
    Run { blocks: by_epoch(&blocks), reports: by_epoch(&reports), refused: by_epoch(&refused) }
}

impl Run {
    /// Trust and cause as told in an epoch, by instance.
    fn health(&self, epoch: u64) -> Vec<(u32, CacheTrust, CacheCause)> {
        let health = |report: &CacheReport| match report {
            CacheReport::Health(health) => Some((health.instance, health.trust, health.cause)),
            CacheReport::Audit(_) | CacheReport::Replay(_) => None,
        };
        self.reports.get(&epoch).into_iter().flatten().filter_map(health).collect()
    }

    fn wants(&self, epoch: u64) -> Vec<ReplayWant> {
        let want = |report: &CacheReport| match report {
            CacheReport::Replay(request) => Some(request.want),
            CacheReport::Health(_) | CacheReport::Audit(_) => None,
        };
        self.reports.get(&epoch).into_iter().flatten().filter_map(want).collect()
    }
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
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Scenario: random stores with and without parents, removals, clears, accounts of sums and listings by three
    /// instances in three incarnations each, with duplicates, gaps, rows of replaced workers, malformed rows; on one, two
    /// and four workers; rows far ahead of what should come, alone and in runs; incarnations that end.
    /// Guarantees: after every epoch the set, the new holes and what is amiss with each instance equal the twin's; every
    /// difference is ±1 and no key changes twice in an epoch.
    #[test]
    fn equals_the_twin_after_every_epoch(schedule in schedules(rows(), 14, 16).prop_map(numbered)) {
        let config = CacheIndexConfig { patience_epochs: 3, ask_again_epochs: 2, max_jump: 64, ..CacheIndexConfig::default() };
        for workers in [1, 2, 4] {
            let run = operate(workers, &schedule, config);
            let (mut twin, mut state, mut causes) = (SlowCacheIndex::new(config), BTreeMap::new(), BTreeMap::new());
            let mut past = 0;
            for (epoch, rows) in schedule.iter().take(schedule.len() - 1) {
                let mut expected = twin.epoch(*epoch, rows);
                expected.sort();
                for between in past..=*epoch {
                    let changes = run.blocks.get(&between).map_or(&[][..], Vec::as_slice);
                    let keys: BTreeSet<_> = changes.iter().map(|(key, _)| key).collect();
                    prop_assert_eq!(keys.len(), changes.len(), "consolidated");
                    prop_assert!(changes.iter().all(|(_, diff)| diff.abs() == 1));
                    apply(&mut state, changes);
                    causes.extend(run.health(between).into_iter().map(|(instance, _, cause)| (instance, cause)));
                }
                past = epoch + 1;
                let held: BTreeMap<_, _> = twin.blocks().into_iter().map(|key| (key, 1)).collect();
                prop_assert_eq!(&state, &held, "epoch {} on {} workers", epoch, workers);
                let refused = run.refused.get(epoch).map_or(&[][..], Vec::as_slice);
                prop_assert_eq!(gaps(refused), expected);
                prop_assert_eq!(&causes, &twin.causes(), "epoch {} on {} workers", epoch, workers);
            }
        }
    }

    /// Scenario: room for few blocks, orphans and waiting rows, and for two of three instances.
    /// Guarantees: the set never outgrows the bound, counts stay 0 or 1, what is held is what the events stored, and
    /// every block left out or dropped is reported and its instance no longer called exact.
    #[test]
    fn bounds_hold_and_are_reported(
        schedule in schedules(rows(), 14, 16).prop_map(numbered),
        (max_entries, max_orphans, max_waiting) in (0..5usize, 0..3usize, 0..4usize),
    ) {
        let config = CacheIndexConfig {
            max_entries, max_orphans, max_waiting, max_instances: 2, ..CacheIndexConfig::default()
        };
        let run = operate(1, &schedule, config);
        let (mut stored, mut state, mut trust) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        for (epoch, rows) in &schedule {
            for row in rows {
                if let KvChange::Stored { hash, level, .. } = row.event { stored.insert((hash, row.instance, level)); }
            }
            apply(&mut state, run.blocks.get(epoch).map_or(&[], Vec::as_slice));
            prop_assert!(state.len() <= max_entries && state.values().all(|count| *count == 1));
            prop_assert!(state.keys().all(|key| stored.contains(key)));
            trust.extend(run.health(*epoch).into_iter().map(|(instance, trust, _)| (instance, trust)));
            let known = trust.values().filter(|trust| **trust != CacheTrust::Dropped).count();
            prop_assert!(known <= 2);
            // Not exact, unless the content was told anew or the worker replaced in the same epoch.
            let anew = |row: &KvRow| row.epoch > 1 || matches!(row.event, KvChange::Cleared | KvChange::Sum { .. });
            if rows.iter().any(anew) {
                continue;
            }
            for refused in run.refused.get(epoch).into_iter().flatten() {
                let id = refused.instance.unwrap();
                if matches!(refused.reason, Refusal::EntriesFull { .. } | Refusal::OrphansFull { .. }) {
                    prop_assert!(trust.get(&id) != Some(&CacheTrust::Exact));
                }
            }
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

/// Scenario: events 2 and 3 are missing; one comes late, the other never, then the worker tells its content anew.
/// Guarantees: what follows the hole waits; the missing events are asked for, and asked for again when less is missing;
/// after the patience the rest is folded without, everything is asked for, and `Cleared` makes the instance exact.
#[test]
fn a_hole_is_asked_for_and_given_up() {
    let config = CacheIndexConfig { patience_epochs: 4, ask_again_epochs: 2, ..CacheIndexConfig::default() };
    let schedule = Schedule::from([
        (1, vec![row(1, 1, stored(10)), row(1, 4, stored(13))]),
        (2, vec![row(1, 2, stored(11))]),
        (9, vec![row(1, 5, KvChange::Cleared), row(1, 6, stored(14))]),
    ]);
    let run = operate(1, &schedule, config);
    assert_eq!(gaps(&run.refused[&1]), vec![(5, 2, 4)]);
    assert_eq!(run.blocks[&1], vec![((10, 5, 1), 1)]);
    assert_eq!(run.wants(1), vec![ReplayWant::Events { from_seq: 2, to_seq: 3 }]);
    assert_eq!(run.blocks[&2], vec![((11, 5, 1), 1)]);
    assert_eq!(run.wants(2), vec![ReplayWant::Events { from_seq: 3, to_seq: 3 }]);
    assert_eq!(run.wants(4), vec![ReplayWant::Events { from_seq: 3, to_seq: 3 }]);
    assert_eq!(run.blocks[&6], vec![((13, 5, 1), 1)]);
    let lost = Refusal::EventsLost { incarnation: 1, from_seq: 3, to_seq: 3 };
    assert_eq!(run.refused[&6].iter().map(|refused| refused.reason).collect::<Vec<_>>(), vec![lost]);
    assert_eq!(
        (run.health(6), run.wants(6)),
        (vec![(5, CacheTrust::Degraded, CacheCause::Lost)], vec![ReplayWant::Everything])
    );
    assert_eq!(run.health(9), vec![(5, CacheTrust::Exact, CacheCause::Sound)]);
    assert_eq!(run.blocks[&9], vec![((10, 5, 1), -1), ((11, 5, 1), -1), ((13, 5, 1), -1), ((14, 5, 1), 1)]);
}

/// Scenario: a block is stored twice and removed once, twice, and once more.
/// Guarantees: it is held until the second removal; the third changes nothing.
#[test]
fn references_are_counted() {
    let removed = KvChange::Removed { hash: 10, level: 1 };
    let schedule = Schedule::from([
        (1, vec![row(1, 1, stored(10)), row(1, 2, stored(10)), row(1, 3, removed)]),
        (2, vec![row(1, 4, removed)]),
        (3, vec![row(1, 5, removed)]),
    ]);
    let run = operate(1, &schedule, CacheIndexConfig::default());
    assert_eq!(
        (run.blocks[&1].as_slice(), run.blocks[&2].as_slice()),
        (&[((10, 5, 1), 1)][..], &[((10, 5, 1), -1)][..])
    );
    assert_eq!((run.blocks.get(&3), run.refused.is_empty()), (None, true));
}

/// Scenario: a chain is told from its end: child, then middle, then the root.
/// Guarantees: nothing is seen until the root is held, then all of it.
#[test]
fn orphans_wait_for_their_parent() {
    let behind = |hash, parent| KvChange::Stored { hash, parent: Some(parent), level: 1, tokens: 16 };
    let schedule = Schedule::from([
        (1, vec![row(1, 1, behind(12, 11))]),
        (2, vec![row(1, 2, behind(11, 10))]),
        (3, vec![row(1, 3, stored(10))]),
    ]);
    let run = operate(1, &schedule, CacheIndexConfig::default());
    assert_eq!(run.blocks.keys().collect::<Vec<_>>(), vec![&3]);
    assert_eq!(run.blocks[&3], vec![((10, 5, 1), 1), ((11, 5, 1), 1), ((12, 5, 1), 1)]);
}

/// Scenario: the worker's account of sums has a block more than the index in one bucket and one less in another; it then
/// lists both.
/// Guarantees: the buckets are asked for; drift is at least what the counts tell, then exact; the index becomes what was
/// listed, and exact.
#[test]
fn an_audit_finds_and_repairs_drift() {
    let (kept, gone, unseen) = (block(1), block(2), block(3));
    let sum = |bucket: u8| {
        let held: Vec<u64> = [kept, unseen].into_iter().filter(|hash| audit_bucket(*hash) == bucket).collect();
        let sum = held.iter().fold(0u64, |sum, hash| sum.wrapping_add(audit_weight(*hash, 1)));
        KvChange::Sum { bucket, blocks: held.len() as u32, sum }
    };
    let listed = |hash, blocks| KvChange::Listed { bucket: audit_bucket(hash), blocks };
    let rows =
        |first: u64, events: Vec<KvChange>| (first..).zip(events).map(|(seq, event)| row(1, seq, event)).collect();
    let schedule = Schedule::from([
        (1, rows(1, vec![stored(kept), stored(gone)])),
        (2, rows(3, (0..AUDIT_BUCKETS).map(sum).collect())),
        (3, rows(3 + u64::from(AUDIT_BUCKETS), vec![listed(gone, 0), listed(unseen, 1), stored(unseen)])),
    ]);
    let run = operate(1, &schedule, CacheIndexConfig::default());
    let mask = 1 << audit_bucket(gone) | 1 << audit_bucket(unseen);
    assert_eq!(run.wants(2), vec![ReplayWant::Buckets { mask }]);
    assert_eq!(run.health(2), vec![(5, CacheTrust::Degraded, CacheCause::Drift)]);
    let audits = |epoch: u64| -> Vec<_> {
        let audit = |report: &CacheReport| match report {
            CacheReport::Audit(audit) => Some((audit.held, audit.indexed, audit.differing, audit.is_listed)),
            _ => None,
        };
        run.reports[&epoch].iter().filter_map(audit).collect()
    };
    assert_eq!((audits(2), audits(3)), (vec![(2, 2, 2, false)], vec![(2, 2, 2, true)]));
    assert_eq!(run.health(3), vec![(5, CacheTrust::Exact, CacheCause::Sound)]);
    assert_eq!(run.blocks[&3], vec![((gone, 5, 1), -1), ((unseen, 5, 1), 1)]);
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
    let run = operate(1, &schedule, CacheIndexConfig { max_instances: 2, ..CacheIndexConfig::default() });
    assert_eq!(run.blocks[&3], vec![((20, 2, 1), -1), ((30, 3, 1), 1)]);
    assert_eq!(run.refused[&3][0].reason, Refusal::InstancesFull { max_instances: 2 });
    assert_eq!(run.refused[&3][0].instance, Some(2));
}

/// Scenario: between two events of a worker comes one that is numbered far ahead; the worker then tells its content anew.
/// Guarantees: it is refused with both numbers, everything is asked for, and the events after it are folded in their turn.
#[test]
fn an_event_far_ahead_hides_none_of_those_that_follow() {
    let config = CacheIndexConfig { max_jump: 1000, ..CacheIndexConfig::default() };
    let schedule = Schedule::from([
        (1, vec![row(1, 1, stored(10)), row(1, 5000, stored(99))]),
        (2, vec![row(1, 2, stored(11))]),
        (3, vec![row(1, 3, KvChange::Cleared), row(1, 4, stored(11))]),
    ]);
    let run = operate(1, &schedule, config);
    let jump = Refusal::SequenceJump { incarnation: 1, expected: 2, got: 5000, max_jump: 1000 };
    assert_eq!(run.refused[&1].iter().map(|refused| refused.reason).collect::<Vec<_>>(), vec![jump]);
    assert_eq!(run.wants(1), vec![ReplayWant::Everything]);
    assert_eq!(run.health(1), vec![(5, CacheTrust::Degraded, CacheCause::Lost)]);
    assert_eq!(run.blocks[&2], vec![((11, 5, 1), 1)]);
    assert_eq!(run.health(3), vec![(5, CacheTrust::Exact, CacheCause::Sound)]);
    assert_eq!(run.blocks[&3], vec![((10, 5, 1), -1)]);
}

/// Scenario: more events are lost than a row may jump over; the worker goes on beyond them.
/// Guarantees: after sixteen in a row it is followed there, what was lost is told, and everything is asked for.
#[test]
fn a_worker_that_goes_on_far_ahead_is_followed() {
    let config = CacheIndexConfig { max_jump: 1000, ..CacheIndexConfig::default() };
    let ahead = (5000..5017).map(|seq| row(1, seq, stored(seq))).collect();
    let schedule = Schedule::from([(1, vec![row(1, 1, stored(10))]), (2, ahead)]);
    let run = operate(1, &schedule, config);
    assert_eq!(run.blocks[&2], vec![((5015, 5, 1), 1), ((5016, 5, 1), 1)]);
    let lost = Refusal::EventsLost { incarnation: 1, from_seq: 2, to_seq: 5014 };
    assert_eq!(run.refused[&2].iter().filter(|refused| refused.reason == lost).count(), 1);
    assert_eq!(run.wants(2), vec![ReplayWant::Everything]);
}

/// Scenario: an incarnation ends; an event of it comes afterwards; then the next incarnation begins.
/// Guarantees: its blocks leave, it is told as dropped and nothing is asked of it; the late event is refused; the next one is
/// taken.
#[test]
fn an_incarnation_that_ended_leaves_with_its_blocks() {
    let schedule = Schedule::from([
        (1, vec![row(1, 1, stored(10)), row(1, 3, stored(11))]),
        (2, vec![row(1, 1, KvChange::Gone)]),
        (3, vec![row(1, 2, stored(12))]),
        (4, vec![row(2, 1, stored(20))]),
        (5, Vec::new()),
    ]);
    let run = operate(2, &schedule, CacheIndexConfig::default());
    assert_eq!(run.blocks[&2], vec![((10, 5, 1), -1)]);
    assert_eq!((run.health(2), run.wants(2)), (vec![(5, CacheTrust::Dropped, CacheCause::Gone)], vec![]));
    assert_eq!(run.refused[&3][0].reason, Refusal::StaleIncarnation { current: 2, got: 1 });
    assert_eq!(run.blocks[&4], vec![((20, 5, 1), 1)]);
    assert_eq!(run.health(4), vec![(5, CacheTrust::Exact, CacheCause::Sound)]);
}
