//! A5: the trend of arrivals and how well it is forecast.
use operators::{
    ArrivalTrend, ArrivalTrendConfig, ArrivalTrendRow, ArrivedRow, FinishedRow, PredictionError, Refusal, Refused,
    TrafficRow, holt_winters::TrendGains, reference::arrival_trend::SlowArrivalTrend,
};
use proptest::prelude::*;
use timely::dataflow::operators::Probe;

use crate::harness::{Epochs, Schedule, Timed, by_epoch, collect, mixed, run, schedules};

fn arrived(model: u32) -> TrafficRow {
    TrafficRow::Arrived(ArrivedRow { model, ..ArrivedRow::default() })
}

fn rows() -> impl Strategy<Value = TrafficRow> {
    prop_oneof![9 => (0..2u32).prop_map(arrived), 1 => Just(TrafficRow::Finished(FinishedRow::default()))]
}

fn operate(
    workers: usize,
    schedule: &Schedule<TrafficRow>,
    config: ArrivalTrendConfig,
) -> (Epochs<ArrivalTrendRow>, Epochs<Refused>) {
    let (rows, refused): (Timed<_>, Timed<_>) = Default::default();
    let (to_rows, to_refused) = (rows.clone(), refused.clone());
    run(workers, schedule, move |traffic, probe| {
        let trend = traffic.arrival_trend(config);
        collect(trend.rows.probe_with(probe), &to_rows, |row: &ArrivalTrendRow| (row.epoch, row.clone()));
        collect(trend.refused, &to_refused, |refused: &Refused| (refused.epoch, *refused));
    });
    let mut epochs = Epochs::<ArrivalTrendRow>::new();
    for (epoch, row) in rows.lock().unwrap().iter() {
        epochs.entry(*epoch).or_default().push(row.clone());
    }
    epochs.values_mut().for_each(|rows| rows.sort_by_key(|row| row.model));
    (epochs, by_epoch(&refused))
}

fn near(got: f64, exact: f64) -> Result<(), TestCaseError> {
    prop_assert!((got - exact).abs() <= 1e-9 * exact.abs().max(1.0), "{} for {}", got, exact);
    Ok(())
}

fn same_error(got: PredictionError, exact: PredictionError) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.samples, exact.samples);
    near(got.bias, exact.bias)?;
    near(got.mape, exact.mape)?;
    near(got.coverage_90, exact.coverage_90)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Scenario: random arrivals of two models with silent periods, over periods of one to three epochs, with and without
    /// a season, at horizons beyond and within it, forgotten soon or never; on one, two and four workers.
    /// Guarantees: at every period's end the parts, both forecasts with their variances, and their errors are those of the
    /// recursion run again from the first period; the number of workers does not change a bit.
    #[test]
    fn equals_the_twin_after_every_period(
        schedule in schedules(rows(), 12, 16), period_epochs in 1..4u64, season_periods in 0..5usize, horizon in 1..6u32,
        forget_periods in prop_oneof![Just(1000u64), 2..5u64],
    ) {
        let gains = TrendGains { season: 0.5, ..TrendGains::default() };
        let config = ArrivalTrendConfig {
            period_epochs, season_periods, horizon, gains, forgetting: 0.9, max_models: 10, forget_periods,
        };
        let mut schedule = schedule;
        let end = schedule.keys().last().unwrap() + 4 * period_epochs;
        schedule.insert(end + 1, Vec::new());
        let one = operate(1, &schedule, config).0;
        let mut twin = SlowArrivalTrend::new(config);
        for epoch in 0..=end {
            let expected = twin.epoch(epoch, schedule.get(&epoch).map_or(&[][..], Vec::as_slice));
            let got = one.get(&epoch).map_or(&[][..], Vec::as_slice);
            prop_assert_eq!(got.len(), expected.len(), "epoch {}", epoch);
            for (got, exact) in got.iter().zip(expected) {
                prop_assert_eq!((got.model, got.arrivals), (exact.model, exact.arrivals));
                near(got.trend.level, exact.level)?;
                near(got.trend.slope, exact.slope)?;
                near(got.trend.noise, exact.noise)?;
                let next = got.trend.forecast(1);
                near(next.mean, exact.next.0)?;
                near(next.variance, exact.next.1)?;
                near(got.ahead.mean, exact.ahead.0)?;
                near(got.ahead.variance, exact.ahead.1)?;
                same_error(got.next_error, exact.next_error)?;
                same_error(got.ahead_error, exact.ahead_error)?;
            }
        }
        for workers in [2, 4] {
            prop_assert_eq!(&operate(workers, &schedule, config).0, &one, "on {} workers", workers);
        }
    }
}

/// `counts[n]` arrivals in epoch n, which is a period; the last row.
fn learnt(counts: impl Iterator<Item = u64>, config: ArrivalTrendConfig) -> ArrivalTrendRow {
    let mut schedule: Schedule<TrafficRow> =
        counts.enumerate().map(|(epoch, count)| (epoch as u64, vec![arrived(0); count as usize])).collect();
    let end = schedule.len() as u64;
    schedule.insert(end, Vec::new());
    operate(1, &schedule, config).0.remove(&(end - 1)).unwrap().remove(0)
}

const PERIODS: ArrivalTrendConfig = ArrivalTrendConfig {
    period_epochs: 1,
    season_periods: 0,
    horizon: 3,
    gains: TrendGains { level: 0.3, slope: 0.1, season: 0.2, damping: 0.95, forgetting: 0.98 },
    forgetting: 0.99,
    max_models: 1,
    forget_periods: 100_000,
};

/// Scenario: a season of eight periods on a level of 100, forty seasons long.
/// Guarantees: with a season the forecast three periods ahead comes within 5 %; without one it misses by more than 20 %.
#[test]
fn a_season_is_learnt() {
    let season = [0u64, 20, 60, 90, 60, 20, 0, 0];
    let counts = || (0..8 * 40).map(|period| 70 + season[period % 8]);
    let with = learnt(counts(), ArrivalTrendConfig { season_periods: 8, ..PERIODS });
    assert!(with.ahead_error.mape < 0.05, "{:?}", with.ahead_error);
    assert!((with.ahead.mean - 130.0).abs() < 6.0, "{:?}", with.ahead);
    let without = learnt(counts(), PERIODS);
    assert!(without.ahead_error.mape > 0.20, "{:?}", without.ahead_error);
}

/// Scenario: arrivals that grow by one a period, then noise around a level.
/// Guarantees: growth is followed ahead of time (damped, so not in full), and the 90 % interval of noise holds 85 to 96 %.
#[test]
fn growth_is_followed_and_the_interval_holds() {
    let grown = learnt(100..300, PERIODS);
    assert!((299.0..303.0).contains(&grown.ahead.mean), "{:?}", grown.ahead);
    let noise = |period: u64| mixed(period) % 81;
    let slow = ArrivalTrendConfig { forgetting: 0.999, ..PERIODS };
    let noisy = learnt((0..2000).map(|period| 160 + noise(period)), slow);
    for error in [noisy.next_error, noisy.ahead_error] {
        assert!((0.85..0.96).contains(&error.coverage_90) && error.bias.abs() < 5.0, "{error:?}");
    }
}

/// Scenario: two models, room for one.
/// Guarantees: the second one's arrivals are refused as one report that names the bound and counts them.
#[test]
fn a_model_too_many_is_refused() {
    let schedule = Schedule::from([(0, vec![arrived(2), arrived(1), arrived(2)]), (2, vec![])]);
    let (rows, refused) = operate(1, &schedule, PERIODS);
    assert_eq!(rows[&0].iter().map(|row| row.model).collect::<Vec<_>>(), [1]);
    assert_eq!((refused[&0][0].rows, refused[&0][0].reason), (2, Refusal::KeysFull { max_keys: 1 }));
}
