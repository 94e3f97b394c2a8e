//! A4: service times and how well they are predicted.
use operators::{
    DecodeWork, LinearFit, PredictionError, PrefillWork, Refusal, Refused, ServiceTime, ServiceTimeConfig,
    ServiceTimeRow, ServiceTimes, StepRow,
    reference::{least_squares::SlowFit, service_time::SlowServiceTime},
};
use proptest::prelude::*;

use crate::harness::{Epochs, Schedule, Timed, collect, mixed, run, schedules};

const CONFIG: ServiceTimeConfig = ServiceTimeConfig { max_shapes: 16, forgetting: 0.9, min_samples: 3 };

fn rows() -> impl Strategy<Value = StepRow> {
    let prefill = prop_oneof![1 => Just(0u32), 1 => 1..2048u32];
    let blocks = prop_oneof![20 => 0..100u32, 1 => Just(101)];
    let numbers = (1..3u64, 0..60u64, 0..50_000u64, 0..40_000u64);
    (0..4u32, prefill, 0..40u32, numbers, blocks).prop_map(
        |(instance, prefill_tokens, decode_tokens, (epoch, step, step_us, context_tokens), blocks_used)| StepRow {
            instance,
            epoch,
            step,
            prefill_tokens,
            decode_tokens,
            step_us,
            context_tokens,
            running: decode_tokens + u32::from(prefill_tokens > 0),
            blocks_used,
            blocks_total: 100,
            shape: instance % 2,
            ..StepRow::default()
        },
    )
}

fn operate(
    workers: usize,
    schedule: &Schedule<StepRow>,
    config: ServiceTimeConfig,
) -> (Epochs<ServiceTimeRow>, Vec<Refused>) {
    let (rows, refused): (Timed<_>, Timed<_>) = Default::default();
    let (to_rows, to_refused) = (rows.clone(), refused.clone());
    run(workers, schedule, move |steps, _probe| {
        let times = steps.service_time(config);
        collect(times.rows, &to_rows, |row: &ServiceTimeRow| (row.epoch, *row));
        collect(times.refused, &to_refused, |refused: &Refused| (refused.epoch, *refused));
    });
    let mut epochs = Epochs::<ServiceTimeRow>::new();
    for (epoch, row) in rows.lock().unwrap().iter() {
        epochs.entry(*epoch).or_default().push(*row);
    }
    epochs.values_mut().for_each(|rows| rows.sort_by_key(|row| row.shape));
    let refused = refused.lock().unwrap().iter().map(|(_, refused)| *refused).collect();
    (epochs, refused)
}

/// Equal within a millionth, and as much of the scale of what is compared: the two add in different orders.
fn near(got: f64, exact: f64, scale: f64) -> Result<(), TestCaseError> {
    prop_assert!((got - exact).abs() <= 1e-6 * (exact.abs() + scale), "{} for {}", got, exact);
    Ok(())
}

fn same_error(got: PredictionError, exact: PredictionError) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.samples, exact.samples);
    near(got.bias, exact.bias, 1.0)?;
    near(got.mape, exact.mape, 1e4)?;
    near(got.coverage_90, exact.coverage_90, 1.0)
}

/// What the two predict of some work, since coefficients of columns that hardly vary are not known to the last digit.
fn same_fit<const N: usize>(
    got: Option<LinearFit<N>>,
    (samples, exact): (u64, Option<SlowFit>),
    works: [[f64; N]; 3],
) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.is_some(), exact.is_some());
    let Some((got, exact)) = got.zip(exact) else { return Ok(()) };
    prop_assert_eq!(got.samples, samples);
    for columns in works {
        let (mean, variance) = exact.predict(&columns, 1.0);
        let predicted = got.predict(&columns, 1.0);
        near(predicted.mean, mean, 10.0)?;
        near(predicted.variance, variance, 1.0)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Scenario: random steps of four instances of two shapes: repeated, out of order, of replaced workers, idle, of no
    /// length and malformed; on one, two and four workers.
    /// Guarantees: after every epoch exactly the shapes that learnt have a row; what it predicts, with its variance, and
    /// its errors equal a batch fit over all steps; the number of workers does not change a bit.
    #[test]
    fn equals_the_twin_after_every_epoch(schedule in schedules(rows(), 12, 16)) {
        let one = operate(1, &schedule, CONFIG).0;
        let mut twin = SlowServiceTime::new(CONFIG);
        for (epoch, rows) in &schedule {
            let expected = twin.epoch(rows);
            let got = one.get(epoch).map_or(&[][..], Vec::as_slice);
            prop_assert_eq!(got.len(), expected.len(), "epoch {}", epoch);
            for (got, exact) in got.iter().zip(expected) {
                prop_assert_eq!((got.shape, got.time.chunk_tokens), (exact.shape, exact.chunk_tokens));
                let (samples, fit, error) = exact.prefill;
                let works = [[1.0, 1.0, 0.5, 0.0], [1.0, 4.0, 2.0, 1.0], [1.0, 0.1, 0.1, 2.0]];
                same_fit(got.time.prefill, (samples, fit), works)?;
                same_error(got.prefill_error, error)?;
                let (samples, fit, error) = exact.decode;
                same_fit(got.time.decode, (samples, fit), [[1.0, 1.0, 0.5], [1.0, 0.1, 0.0], [1.0, 2.0, 0.1]])?;
                same_error(got.decode_error, error)?;
            }
        }
        for workers in [2, 4] {
            prop_assert_eq!(&operate(workers, &schedule, CONFIG).0, &one, "on {} workers", workers);
        }
    }
}

/// A step of a law: 3 ms, 12 ms per 256 prompt tokens, 40 µs per decoding sequence, 2 µs per 1000 tokens of context, and
/// a noise of up to `noise_us` to either side.
fn lawful(number: u64, noise_us: u64) -> StepRow {
    let mix = mixed(number) >> 1;
    let (decode_tokens, context_tokens) = ((1 + mix % 31) as u32, 1000 + mix % 97 * 300);
    let prefill_tokens = if number.is_multiple_of(3) { 64 + (mix % 7 * 64) as u32 } else { 0 };
    let noise = if noise_us == 0 { 0 } else { mixed(number + 1_000_000) % (2 * noise_us + 1) };
    let context = if prefill_tokens == 0 { context_tokens * 2 / 1000 } else { 0 };
    let work = u64::from(prefill_tokens) * 12_000 / 256 + u64::from(decode_tokens) * 40 + context;
    StepRow {
        step: number,
        prefill_tokens,
        decode_tokens,
        context_tokens,
        running: decode_tokens + u32::from(prefill_tokens > 0),
        step_us: 3000 + work + noise - noise_us,
        ..StepRow::default()
    }
}

fn learnt(steps: Vec<StepRow>) -> ServiceTimeRow {
    let config = ServiceTimeConfig::default();
    operate(1, &Schedule::from([(1, steps)]), config).0[&1][0]
}

/// Scenario: steps that follow a law exactly.
/// Guarantees: prefill of several chunks, decoding of a batch and a whole request are predicted within 1 %, and the
/// predictor says so of itself.
#[test]
fn finds_the_law_behind_the_steps() {
    let row = learnt((1..=600).map(|number| lawful(number, 0)).collect());
    let time: ServiceTime = row.time;
    assert_eq!(time.chunk_tokens, 448);
    let prefill = PrefillWork { uncached_tokens: 1000, cached_tokens: 200, beside: 0 };
    let close = |got: f64, law: f64| assert!((got / law - 1.0).abs() < 0.01, "{got} s for {law} s");
    let prefill_law = 3.0 * 0.003 + 1000.0 * 0.012 / 256.0;
    close(time.prefill(&prefill).unwrap().mean, prefill_law);
    let decode = DecodeWork { tokens: 100, sequences: 8, context_tokens: 4000 };
    let context_law: f64 = (0..100).map(|step| (4000.0 + 8.0 * f64::from(step)) * 2e-9).sum();
    let decode_law = 100.0 * (0.003 + 8.0 * 40e-6) + context_law;
    close(time.decode(&decode).unwrap().mean, decode_law);
    let whole = time.request(&prefill, &decode).unwrap();
    close(whole.mean, prefill_law + decode_law);
    assert!(whole.within(whole.mean * 1.05) > 0.99 && whole.within(whole.mean * 0.95) < 0.01);
    assert!(row.decode_error.mape < 0.02 && row.prefill_error.mape < 0.02, "{row:?}");
}

/// Scenario: the same law with noise of up to 1 ms to either side.
/// Guarantees: the predictor's own error finds no bias, and its 90 % interval holds 85 to 97 % of the steps.
#[test]
fn the_interval_holds_what_it_says() {
    let row = learnt((1..=3000).map(|number| lawful(number, 1000)).collect());
    for error in [row.prefill_error, row.decode_error] {
        assert!(error.samples > 900 && error.bias.abs() < 1e-4, "{error:?}");
        assert!((0.85..0.97).contains(&error.coverage_90), "{error:?}");
    }
    let noise = row.time.decode.unwrap().noise.sqrt();
    assert!((noise / (0.002 / 12f64.sqrt()) - 1.0).abs() < 0.1, "a noise of {noise} s");
}

/// Scenario: two thousand lawful steps; one that took three seconds, as when a machine stood still; then steps ten times as long.
/// Guarantees: after the one an answer is still as good as certain to take no more than twice what the law says; a world that has changed
/// is learnt.
#[test]
fn a_step_that_stood_still_says_little_of_the_others() {
    let lawful = |numbers: std::ops::RangeInclusive<u64>| numbers.map(|number| lawful(number, 200));
    let stalled = StepRow { step_us: 3_000_000, prefill_tokens: 0, ..lawful(2001..=2001).next().unwrap() };
    let decode = DecodeWork { tokens: 50, sequences: 8, context_tokens: 4000 };
    let steps: Vec<_> = lawful(1..=2000).chain([stalled]).collect();
    let seconds = learnt(steps.clone()).time.decode(&decode).unwrap();
    let law = 50.0 * (0.003 + 8.0 * 40e-6 + 8e-6);
    assert!((seconds.mean / law - 1.0).abs() < 0.1 && seconds.within(2.0 * law) > 0.999, "{seconds:?} for {law} s");
    let slow = lawful(2002..=9000).map(|row| StepRow { step_us: 10 * row.step_us, ..row });
    let seconds = learnt(steps.into_iter().chain(slow).collect()).time.decode(&decode).unwrap();
    assert!((seconds.mean / (10.0 * law) - 1.0).abs() < 0.1, "{seconds:?} for {} s", 10.0 * law);
}

/// Scenario: two shapes, room for one.
/// Guarantees: the second one's steps are refused as one report that names the bound.
#[test]
fn a_shape_too_many_is_refused() {
    let steps = vec![lawful(1, 0), StepRow { shape: 7, ..lawful(1, 0) }, StepRow { shape: 7, ..lawful(2, 0) }];
    let config = ServiceTimeConfig { max_shapes: 1, ..CONFIG };
    let (_, refused) = operate(1, &Schedule::from([(1, steps)]), config);
    assert_eq!(refused.len(), 1);
    assert_eq!((refused[0].subject, refused[0].rows, refused[0].reason), (7, 2, Refusal::KeysFull { max_keys: 1 }));
}
