//! D4: the request distribution.
use operators::{
    ArrivedRow, DistributionConfig, DistributionRow, FinishedRow, Quantiles, RELATIVE_ERROR, Refusal, Refused,
    RequestDistribution, Span, TrafficRow, reference::request_distribution::SlowRequestDistribution,
};
use proptest::prelude::*;
use timely::dataflow::operators::Probe;

use crate::harness::{Epochs, Schedule, Timed, by_epoch, collect, run, schedules};

/// Values over the whole range a row may state, small ones often.
fn tokens() -> impl Strategy<Value = u32> {
    prop_oneof![1 => Just(0u32), 4 => 1..100u32, 8 => 100..8192u32, 1 => 8192..1u32 << 31]
}

fn micros() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(0u64)),
        4 => (1..2000u64).prop_map(Some),
        8 => (2000..5_000_000u64).prop_map(Some),
        1 => (5_000_000..1u64 << 40).prop_map(Some),
    ]
}

fn rows() -> impl Strategy<Value = TrafficRow> {
    let arrived = (0..2u32, 0..2u8, tokens()).prop_map(|(model, tier, prompt_tokens)| {
        TrafficRow::Arrived(ArrivedRow { model, tier, prompt_tokens, at_us: 1, ..ArrivedRow::default() })
    });
    let finished = (0..2u32, 0..2u8, (tokens(), tokens(), 0..12u32), (micros(), micros())).prop_map(
        |(model, tier, (prompt_tokens, output_tokens, tenths), (ttft_us, itl_us_mean))| {
            // Eleven tenths of the prompt cached is a malformed row.
            let cached_tokens = (u64::from(prompt_tokens) * u64::from(tenths) / 10) as u32;
            let at_us = 2;
            TrafficRow::Finished(FinishedRow {
                model,
                tier,
                prompt_tokens,
                output_tokens,
                cached_tokens,
                ttft_us,
                itl_us_mean,
                at_us,
                ..FinishedRow::default()
            })
        },
    );
    prop_oneof![arrived, finished]
}

fn operate(
    workers: usize,
    schedule: &Schedule<TrafficRow>,
    config: DistributionConfig,
) -> (Epochs<DistributionRow>, Epochs<Refused>) {
    let (rows, refused): (Timed<_>, Timed<_>) = Default::default();
    let (to_rows, to_refused) = (rows.clone(), refused.clone());
    run(workers, schedule, move |traffic, probe| {
        let distribution = traffic.request_distribution(config);
        collect(distribution.rows.probe_with(probe), &to_rows, |row: &DistributionRow| (row.epoch, *row));
        collect(distribution.refused, &to_refused, |refused: &Refused| (refused.epoch, *refused));
    });
    (by_epoch(&rows), by_epoch(&refused))
}

fn near(got: Option<Quantiles>, exact: Option<Quantiles>) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.is_some(), exact.is_some());
    let Some((got, exact)) = got.zip(exact) else { return Ok(()) };
    for (got, exact) in [(got.p50, exact.p50), (got.p95, exact.p95), (got.p99, exact.p99)] {
        let error = (got as f64 - exact as f64).abs();
        prop_assert!(error <= RELATIVE_ERROR * exact as f64 * (1.0 + 1e-9) + 0.5, "{} for {}", got, exact);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Scenario: random arrivals and ends of four groups with skipped epochs and silent windows, over windows of one to
    /// four epochs, one to three of them running; on one, two and four workers.
    /// Guarantees: after every epoch, and until every group is forgotten, the rows are the twin's: counts, sums, rates and
    /// epochs exactly, quantiles within the stated error.
    #[test]
    fn equals_the_twin_after_every_epoch(
        schedule in schedules(rows(), 12, 24), window_epochs in 1..5u64, windows in 1..4u64,
    ) {
        let config = DistributionConfig { window_epochs, windows, epoch_us: 100_000, max_keys: 100 };
        let mut schedule = schedule;
        let end = schedule.keys().last().unwrap() + (windows + 2) * window_epochs;
        schedule.insert(end + 1, Vec::new());
        for workers in [1, 2, 4] {
            let (mut got, refused) = operate(workers, &schedule, config);
            let mut twin = SlowRequestDistribution::new(config);
            for epoch in 0..=end {
                let rows = schedule.get(&epoch).map_or(&[][..], Vec::as_slice);
                let expected = twin.epoch(epoch, rows);
                let got = got.remove(&epoch).unwrap_or_default();
                prop_assert_eq!(got.len(), expected.len(), "epoch {} on {} workers", epoch, workers);
                for (got, exact) in got.into_iter().zip(expected) {
                    let plain = DistributionRow {
                        prompt: exact.prompt, output: exact.output, ttft_us: exact.ttft_us, itl_us: exact.itl_us, ..got
                    };
                    prop_assert_eq!(plain, exact);
                    near(got.prompt, exact.prompt)?;
                    near(got.output, exact.output)?;
                    near(got.ttft_us, exact.ttft_us)?;
                    near(got.itl_us, exact.itl_us)?;
                }
                let malformed = rows.iter().filter(|row| row.check().is_err()).count();
                prop_assert_eq!(refused.get(&epoch).map_or(0, Vec::len), malformed);
            }
            prop_assert!(got.is_empty(), "rows after the last: {:?}", got);
        }
    }
}

fn arrived(model: u32) -> TrafficRow {
    TrafficRow::Arrived(ArrivedRow { model, prompt_tokens: 100, at_us: 1, ..ArrivedRow::default() })
}

/// Scenario: one group gets rows in one window and then never again; two windows count.
/// Guarantees: its window is reported once whole, it counts for one more window, is then reported as nothing, and after
/// that not at all.
#[test]
fn a_silent_group_fades_to_zero_and_is_forgotten() {
    let config = DistributionConfig { window_epochs: 2, windows: 2, epoch_us: 100_000, max_keys: 10 };
    let (rows, _) = operate(1, &Schedule::from([(4, vec![arrived(1), arrived(1)]), (100, vec![])]), config);
    let told: Vec<_> = rows.values().flatten().map(|row| (row.epoch, row.span, row.arrivals)).collect();
    let expected = vec![
        (4, Span::Running, 2),
        (5, Span::Tumbling, 2),
        (5, Span::Running, 2),
        (7, Span::Running, 2),
        (9, Span::Running, 0),
    ];
    assert_eq!(told, expected);
}

/// Scenario: three groups, room for two.
/// Guarantees: the third's rows are refused as one report that names the bound and counts them; the others go on.
#[test]
fn a_group_too_many_is_refused() {
    let config = DistributionConfig { max_keys: 2, ..DistributionConfig::default() };
    let schedule = Schedule::from([(1, vec![arrived(3), arrived(1), arrived(2), arrived(3)])]);
    let (rows, refused) = operate(1, &schedule, config);
    assert_eq!(rows[&1].iter().map(|row| row.model).collect::<Vec<_>>(), vec![1, 2]);
    assert_eq!(refused[&1].len(), 1);
    assert_eq!((refused[&1][0].rows, refused[&1][0].reason), (2, Refusal::KeysFull { max_keys: 2 }));
    assert_eq!(refused[&1][0].subject, 3 << 8);
}
