//! B1, D4: the state of instances and what their steps teach.
use operators::{
    InstanceState, InstanceStateConfig, InstanceStates, Refusal, Refused, StepRow,
    reference::instance_state::SlowInstanceState,
};
use proptest::prelude::*;

use crate::harness::{Epochs, Schedule, Timed, by_epoch, collect, run, schedules};

const CONFIG: InstanceStateConfig = InstanceStateConfig { max_instances: 100, forgetting: 0.9, min_samples: 3 };

fn step(instance: u32, epoch: u64, step: u64) -> StepRow {
    StepRow {
        instance,
        epoch,
        step,
        at_us: 1_000_000 + step as i64 * 10_000,
        running: 4,
        waiting: 1,
        queued_prefill_tokens: 100,
        context_tokens: 3000,
        blocks_used: 50,
        blocks_cached: 20,
        blocks_total: 100,
        prefill_tokens: 0,
        decode_tokens: 4,
        step_us: 9000,
        shape: 0,
    }
}

fn rows() -> impl Strategy<Value = StepRow> {
    let epoch = prop_oneof![12 => Just(1u64), 2 => Just(2), 1 => Just(3)];
    let prefill = prop_oneof![2 => Just(0u32), 3 => 1..2048u32];
    let blocks = prop_oneof![20 => 0..100u32, 1 => Just(101)];
    (0..3u32, epoch, 0..60u64, (0..4_000_000i64, 0..64u32, prefill, 0..50_000u64), blocks).prop_map(
        |(instance, epoch, number, (at_us, decode_tokens, prefill_tokens, step_us), blocks_used)| StepRow {
            at_us,
            decode_tokens,
            prefill_tokens,
            step_us,
            blocks_used,
            ..step(instance, epoch, number)
        },
    )
}

fn operate(
    workers: usize,
    schedule: &Schedule<StepRow>,
    config: InstanceStateConfig,
) -> (Epochs<InstanceState>, Epochs<Refused>) {
    let (rows, refused): (Timed<_>, Timed<_>) = Default::default();
    let (to_rows, to_refused) = (rows.clone(), refused.clone());
    run(workers, schedule, move |steps, _probe| {
        let states = steps.instance_state(config);
        collect(states.rows, &to_rows, |state: &InstanceState| (state.epoch, *state));
        collect(states.refused, &to_refused, |refused: &Refused| (refused.epoch, *refused));
    });
    (by_epoch(&rows), by_epoch(&refused))
}

/// Equal but for the estimates, and those within a thousandth and a few units: the two add in different orders.
fn same(got: &InstanceState, expected: &InstanceState) -> Result<(), TestCaseError> {
    let plain = InstanceState { prefill_tokens_per_s: expected.prefill_tokens_per_s, fit: expected.fit, ..*got };
    prop_assert_eq!(&plain, expected);
    let near = |got: u64, exact: u64| got.abs_diff(exact) as f64 <= 1e-3 * exact as f64 + 50.0;
    prop_assert_eq!(got.prefill_tokens_per_s.is_some(), expected.prefill_tokens_per_s.is_some());
    if let Some((got, exact)) = got.prefill_tokens_per_s.zip(expected.prefill_tokens_per_s) {
        prop_assert!(near(got, exact), "prefill speed {} for {}", got, exact);
    }
    prop_assert_eq!(got.fit.map(|fit| fit.samples), expected.fit.map(|fit| fit.samples));
    if let Some((got, exact)) = got.fit.zip(expected.fit) {
        let all = near(got.base_ns, exact.base_ns)
            && near(got.per_sequence_ns, exact.per_sequence_ns)
            && near(got.per_prefill_token_ns, exact.per_prefill_token_ns);
        prop_assert!(all, "fit {:?} for {:?}", got, exact);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Scenario: random steps of three instances: repeated, out of order, of replaced workers, with clocks that jump,
    /// empty and malformed; on one, two and four workers.
    /// Guarantees: after every epoch exactly the instances that changed have a row, with the twin's figures; estimates
    /// equal the batch solution.
    #[test]
    fn equals_the_twin_after_every_epoch(schedule in schedules(rows(), 14, 16)) {
        for workers in [1, 2, 4] {
            let (mut got, refused) = operate(workers, &schedule, CONFIG);
            let mut twin = SlowInstanceState::new(CONFIG);
            for (epoch, rows) in &schedule {
                let mut expected = twin.epoch(*epoch, rows);
                expected.sort();
                let mut got = got.remove(epoch).unwrap_or_default();
                got.sort_by_key(|state| state.step.instance);
                expected.sort_by_key(|state| state.step.instance);
                prop_assert_eq!(got.len(), expected.len(), "epoch {} on {} workers", epoch, workers);
                for (got, expected) in got.iter().zip(&expected) {
                    same(got, expected)?;
                }
                let range = |row: &&Refused| matches!(row.reason, Refusal::OutOfRange { .. });
                let malformed = rows.iter().filter(|row| row.check().is_err()).count();
                prop_assert_eq!(refused.get(epoch).into_iter().flatten().filter(range).count(), malformed);
            }
            prop_assert!(got.is_empty());
        }
    }

    /// Scenario: steps whose length follows a law exactly, with mixed content.
    /// Guarantees: the law is found within 1 % and 1 µs, whatever it is; no coefficient is lost.
    #[test]
    fn finds_the_law_behind_the_steps(base in 500..20_000u64, sequence in 10..500u64, token in 5..200u64) {
        let rows: Vec<_> = (1..=60u64)
            .map(|number| {
                let (decode, prefill) = (number * 7 % 31, number * 11 % 5 * 100);
                let step_us = base + sequence * decode + token * prefill;
                StepRow { decode_tokens: decode as u32, prefill_tokens: prefill as u32, step_us, ..step(0, 1, number) }
            })
            .collect();
        let (got, _) = operate(1, &Schedule::from([(1, rows)]), CONFIG);
        let fit = got[&1][0].fit.unwrap();
        for (got, exact_us) in
            [(fit.base_ns, base), (fit.per_sequence_ns, sequence), (fit.per_prefill_token_ns, token)]
        {
            prop_assert!(got.abs_diff(exact_us * 1000) <= exact_us * 10 + 1000, "{:?}", fit);
        }
        prop_assert!(fit.predict_ns(10, 100).abs_diff((base + 10 * sequence + 100 * token) * 1000) < 1_000_000);
    }
}

/// Scenario: two steps a second apart and one in between.
/// Guarantees: the rate counts the steps that ended within the last second, and a restart starts from nothing.
#[test]
fn the_rate_is_over_the_last_second() {
    let at = |number, at_us| StepRow { at_us, ..step(0, 1, number) };
    let schedule = Schedule::from([
        (1, vec![at(1, 1_000_000), at(2, 1_500_000)]),
        (2, vec![at(3, 2_000_000)]),
        (3, vec![StepRow { at_us: 2_100_000, ..step(0, 2, 1) }]),
        (4, vec![at(4, 2_200_000)]),
    ]);
    let (got, refused) = operate(2, &schedule, CONFIG);
    let rates: Vec<_> = got.iter().map(|(epoch, rows)| (*epoch, rows[0].tokens_per_s)).collect();
    assert_eq!(rates, vec![(1, 8), (2, 8), (3, 4)]);
    assert_eq!(refused[&4][0].reason, Refusal::StaleIncarnation { current: 2, got: 1 });
    assert_eq!(got[&3][0].fit, None);
}

/// Scenario: more steps within a second than are held apart.
/// Guarantees: the rate still counts every token.
#[test]
fn a_crowded_second_still_counts_every_token() {
    let rows = (1..=3000).map(|number| StepRow { at_us: 1_000_000 + number as i64, ..step(0, 1, number) }).collect();
    let (got, _) = operate(1, &Schedule::from([(1, rows)]), CONFIG);
    assert_eq!(got[&1][0].tokens_per_s, 12_000);
}

/// Scenario: room for two instances, three step.
/// Guarantees: the one silent for longest is dropped and reported by name.
#[test]
fn the_silent_instance_makes_room() {
    let config = InstanceStateConfig { max_instances: 2, ..CONFIG };
    let schedule =
        Schedule::from([(1, vec![step(1, 1, 1), step(2, 1, 1)]), (2, vec![step(1, 1, 2)]), (3, vec![step(3, 1, 1)])]);
    let (got, refused) = operate(1, &schedule, config);
    assert_eq!(got[&3][0].step.instance, 3);
    assert_eq!(refused[&3][0].instance, Some(2));
    assert_eq!(refused[&3][0].reason, Refusal::InstancesFull { max_instances: 2 });
}
