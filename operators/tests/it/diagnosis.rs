//! D4: why the slowest requests were slow.
use operators::{
    DiagnosedRequest, DiagnosedStep, Diagnosis, DiagnosisConfig, DiagnosisInput, DiagnosisRow, Refusal, Refused,
    Verdict, reference::diagnosis::SlowDiagnosis,
};
use proptest::prelude::*;
use timely::dataflow::operators::Probe;

use crate::harness::{Epochs, Schedule, Timed, by_epoch, collect, run, schedules};

fn inputs() -> impl Strategy<Value = DiagnosisInput> {
    let content = (0..3u32, 0..4u32, 0..2000u32, 0..2u32);
    let step_us = prop_oneof![8 => 100..2000u64, 1 => 2000..60_000u64, 1 => Just(0u64)];
    let step = ((0..2u32, 0..2u32), (1..3u64, 0..60u64), step_us, content).prop_map(
        |((model, instance), (epoch, step), step_us, (prefill, decode_tokens, context_tokens, paged_blocks))| {
            let prefill_tokens = prefill * 100;
            DiagnosisInput::Step(DiagnosedStep {
                model,
                instance,
                epoch,
                // A step of 0 stands for a malformed row.
                step,
                step_us,
                prefill_tokens,
                decode_tokens,
                context_tokens,
                paged_blocks,
            })
        },
    );
    let times = (0..50_000u64, 0..10u64, prop::option::of(0..40_000u64));
    let request = ((0..2u32, 0..1000u128), times, prop::option::of(0..3u32), 0..100u32).prop_map(
        |((model, request), (total_us, tenths, ttft_us), instance, computed_tokens)| {
            let queue_us = total_us * tenths / 10;
            DiagnosisInput::Request(DiagnosedRequest {
                model,
                total_us,
                request,
                queue_us,
                ttft_us,
                instance,
                computed_tokens,
            })
        },
    );
    prop_oneof![6 => step, 1 => request]
}

fn operate(
    workers: usize,
    schedule: &Schedule<DiagnosisInput>,
    config: DiagnosisConfig,
) -> (Epochs<DiagnosisRow>, Epochs<Refused>) {
    let (rows, refused): (Timed<_>, Timed<_>) = Default::default();
    let (to_rows, to_refused) = (rows.clone(), refused.clone());
    run(workers, schedule, move |inputs, probe| {
        let told = inputs.diagnosis(config);
        collect(told.rows.probe_with(probe), &to_rows, |row: &DiagnosisRow| (row.epoch, *row));
        collect(told.refused, &to_refused, |refused: &Refused| (refused.epoch, *refused));
    });
    (by_epoch(&rows), by_epoch(&refused))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Scenario: random steps of two models with two instances each, restarted, doubled and out of order, and requests that
    /// ended; windows of one to four epochs; on one, two and four workers.
    /// Guarantees: after every epoch the rows are the twin's, each judged by what was learnt before its window.
    #[test]
    fn equals_the_twin_after_every_epoch(schedule in schedules(inputs(), 12, 40), window_epochs in 1..5u64) {
        let config = DiagnosisConfig { window_epochs, min_samples: 3, spike_least_us: 500, ..DiagnosisConfig::default() };
        let mut schedule = schedule;
        let end = schedule.keys().last().unwrap() + window_epochs;
        schedule.insert(end + 1, Vec::new());
        for workers in [1, 2, 4] {
            let (mut got, refused) = operate(workers, &schedule, config);
            let mut twin = SlowDiagnosis::new(config);
            for epoch in 0..=end {
                let rows = schedule.get(&epoch).map_or(&[][..], Vec::as_slice);
                let expected = twin.epoch(epoch, rows);
                prop_assert_eq!(got.remove(&epoch).unwrap_or_default(), expected, "epoch {} on {}", epoch, workers);
                let malformed = rows.iter().filter(|row| row.check().is_err()).count();
                prop_assert_eq!(refused.get(&epoch).map_or(0, Vec::len), malformed);
            }
            prop_assert!(got.is_empty(), "rows after the last: {:?}", got);
        }
    }
}

/// A decode step of 1 ms and 1 ms per sequence and 1 µs per token of context.
fn step(step: u64) -> DiagnosedStep {
    let (decode_tokens, context_tokens) = (1 + step as u32 % 4, 500 * (step as u32 % 5));
    let step_us = 1000 + 1000 * u64::from(decode_tokens) + u64::from(context_tokens);
    let (model, instance, epoch, prefill_tokens, paged_blocks) = (0, 0, 1, 0, 0);
    DiagnosedStep { model, instance, epoch, step, step_us, prefill_tokens, decode_tokens, context_tokens, paged_blocks }
}

fn request(request: u128, total_us: u64, queue_us: u64) -> DiagnosisInput {
    let (model, ttft_us, instance, computed_tokens) = (0, Some(total_us / 2), Some(0), 10);
    DiagnosisInput::Request(DiagnosedRequest { model, total_us, request, queue_us, ttft_us, instance, computed_tokens })
}

/// The verdict on a window of `steps` and one request, after a window of plain steps.
fn judged(steps: impl Iterator<Item = DiagnosedStep>, ended: DiagnosisInput) -> DiagnosisRow {
    let config = DiagnosisConfig { window_epochs: 1, ..DiagnosisConfig::default() };
    let before = (1..200).map(|number| DiagnosisInput::Step(step(number))).collect();
    let now = steps.map(DiagnosisInput::Step).chain([ended]).collect();
    let (rows, _) = operate(1, &Schedule::from([(0, before), (1, now)]), config);
    rows[&1][0]
}

/// Scenario: windows that differ in one thing each: nothing; a request that waited; a few steps that page for long; all
/// steps half as long again.
/// Guarantees: each gets the verdict of its cause, with the evidence.
#[test]
fn each_cause_has_its_verdict() {
    let plain = || (200..300).map(step);
    let row = judged(plain(), request(1, 90_000, 10_000));
    assert_eq!((row.verdict, row.spikes, row.decodes, row.queue_share), (Verdict::Clear, 0, 100, Some(111)));
    assert!(row.decode_ratio.unwrap().abs_diff(1000) <= 1, "{row:?}");
    let row = judged(plain(), request(1, 90_000, 50_000));
    assert_eq!((row.verdict, row.queue_share, row.worst), (Verdict::Scheduling, Some(555), [Some(1), None, None]));
    let paged = plain().map(|step| match step.step % 20 {
        7 => DiagnosedStep { step_us: step.step_us + 40_000, paged_blocks: 9, ..step },
        _ => step,
    });
    let row = judged(paged, request(1, 90_000, 10_000));
    assert_eq!((row.verdict, row.spikes, row.spikes_paged), (Verdict::IterationSpikes, 5, 5));
    assert_eq!(row.worst_step.map(|worst| worst.step % 20), Some(7));
    let slow = plain().map(|step| DiagnosedStep { step_us: step.step_us * 3 / 2, ..step });
    let row = judged(slow, request(1, 90_000, 10_000));
    assert_eq!((row.verdict, row.spikes, row.decode_ratio.map(|ratio| ratio / 10)), (Verdict::Bandwidth, 0, Some(150)));
    assert!(row.context_us > 0);
}

/// Scenario: the first window of a model, whose steps nothing was learnt before; then one without requests.
/// Guarantees: neither is called clear.
#[test]
fn what_cannot_be_judged_is_not_called_clear() {
    let config = DiagnosisConfig { window_epochs: 1, ..DiagnosisConfig::default() };
    let steps = |from: u64| (from..from + 100).map(|number| DiagnosisInput::Step(step(number)));
    let first = steps(1).chain([request(1, 90_000, 0)]).collect();
    let (rows, _) = operate(1, &Schedule::from([(0, first), (1, steps(101).collect())]), config);
    let told: Vec<_> = rows.values().flatten().map(|row| (row.verdict, row.requests, row.steps)).collect();
    assert_eq!(told, vec![(Verdict::TooLittle, 1, 0), (Verdict::TooLittle, 0, 100)]);
}

/// Scenario: more models, instances and slow requests than fit.
/// Guarantees: rows of the model too many are refused by name; the silent instance is learnt anew; the slowest are kept.
#[test]
fn bounds_are_kept_and_told() {
    let config = DiagnosisConfig {
        window_epochs: 1,
        max_models: 1,
        max_slow: 1,
        max_instances: 1,
        min_samples: 1,
        ..DiagnosisConfig::default()
    };
    let other = DiagnosisInput::Step(DiagnosedStep { model: 7, ..step(1) });
    let mut first: Vec<_> = (0..250).map(|number| request(number, 1000 + number as u64, 0)).collect();
    first.extend([DiagnosisInput::Step(step(1)), other]);
    let second = DiagnosisInput::Step(DiagnosedStep { instance: 1, ..step(1) });
    let back = DiagnosisInput::Step(step(2));
    let schedule = Schedule::from([(0, first), (1, vec![second]), (2, vec![back])]);
    let (rows, refused) = operate(1, &schedule, config);
    let told: Vec<_> =
        rows.values().flatten().map(|row| (row.requests, row.slow_requests, row.worst[0], row.steps)).collect();
    assert_eq!(told, vec![(250, 1, Some(249), 0), (0, 0, None, 0), (0, 0, None, 0)]);
    let reasons: Vec<_> = refused.values().flatten().map(|row| (row.subject, row.reason)).collect();
    assert_eq!(reasons, vec![(7, Refusal::KeysFull { max_keys: 1 })]);
}
