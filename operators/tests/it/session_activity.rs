//! D4: sessions and their turns.
use operators::{
    ArrivedRow, FinishedRow, Refusal, Refused, SessionActivity, SessionConfig, SessionRow, TrafficRow,
    reference::session_activity::SlowSessionActivity,
};
use proptest::prelude::*;
use timely::dataflow::operators::Probe;

use crate::harness::{Epochs, Schedule, Timed, by_epoch, collect, run, schedules};

fn arrived(model: u32, session: Option<u64>, turns: u32) -> TrafficRow {
    TrafficRow::Arrived(ArrivedRow { model, session, turns, ..ArrivedRow::default() })
}

fn rows() -> impl Strategy<Value = TrafficRow> {
    prop_oneof![
        8 => (0..2u32, prop::option::of(0..40u64), 1..9u32)
            .prop_map(|(model, session, turns)| arrived(model, session, turns)),
        1 => Just(TrafficRow::Finished(FinishedRow::default())),
    ]
}

fn operate(
    workers: usize,
    schedule: &Schedule<TrafficRow>,
    config: SessionConfig,
) -> (Epochs<SessionRow>, Epochs<Refused>) {
    let (rows, refused): (Timed<_>, Timed<_>) = Default::default();
    let (to_rows, to_refused) = (rows.clone(), refused.clone());
    run(workers, schedule, move |traffic, probe| {
        let sessions = traffic.session_activity(config);
        collect(sessions.rows.probe_with(probe), &to_rows, |row: &SessionRow| (row.epoch, *row));
        collect(sessions.refused, &to_refused, |refused: &Refused| (refused.epoch, *refused));
    });
    (by_epoch(&rows), by_epoch(&refused))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Scenario: random arrivals of forty sessions of two models, some of no known session, with silent windows and with
    /// room for all, or for only a few sessions; on one, two and four workers.
    /// Guarantees: the rows of every epoch are the twin's exactly, sampled ones too.
    #[test]
    fn equals_the_twin_after_every_epoch(
        schedule in schedules(rows(), 12, 24), window_epochs in 1..5u64, windows in 1..4u64,
        max_sessions in prop_oneof![Just(1000usize), 1..12usize],
    ) {
        let config = SessionConfig { window_epochs, windows, max_sessions, max_models: 100 };
        let mut schedule = schedule;
        let end = schedule.keys().last().unwrap() + (windows + 2) * window_epochs;
        schedule.insert(end + 1, Vec::new());
        for workers in [1, 2, 4] {
            let (mut got, _) = operate(workers, &schedule, config);
            let mut twin = SlowSessionActivity::new(config);
            for epoch in 0..=end {
                let expected = twin.epoch(epoch, schedule.get(&epoch).map_or(&[][..], Vec::as_slice));
                prop_assert_eq!(got.remove(&epoch).unwrap_or_default(), expected, "epoch {} on {} workers", epoch, workers);
            }
            prop_assert!(got.is_empty(), "rows after the last: {:?}", got);
        }
    }
}

/// Scenario: a hundred thousand sessions within one window, room for 4096.
/// Guarantees: the estimate is within four standard errors of the truth, and no more than 4096 are held.
#[test]
fn many_sessions_are_counted_by_a_sample() {
    let rows = (0..100_000u64).map(|session| arrived(0, Some(session), 1 + (session % 10) as u32)).collect();
    let config = SessionConfig { window_epochs: 1, windows: 1, ..SessionConfig::default() };
    let (rows, _) = operate(1, &Schedule::from([(0, rows), (2, vec![])]), config);
    let row = rows[&0][0];
    let held = row.sessions / row.sampled_one_in;
    assert!(held <= 4096 && row.sampled_one_in == 32, "{row:?}");
    assert!((row.sessions as f64 / 100_000.0 - 1.0).abs() < 4.0 / (held as f64).sqrt(), "{row:?}");
    assert_eq!(row.requests, 100_000);
    assert!((4..=6).contains(&row.turns.unwrap().p50));
}

/// Scenario: one model more than there is room for.
/// Guarantees: its arrivals are refused as one report that names the bound.
#[test]
fn a_model_too_many_is_refused() {
    let config = SessionConfig { max_models: 1, ..SessionConfig::default() };
    let rows = vec![arrived(2, Some(1), 1), arrived(1, Some(1), 1), arrived(2, Some(2), 1)];
    let (_, refused) = operate(1, &Schedule::from([(1, rows)]), config);
    assert_eq!((refused[&1][0].rows, refused[&1][0].reason), (2, Refusal::KeysFull { max_keys: 1 }));
}
