//! A4: output lengths and how well they are predicted.
use std::collections::BTreeMap;

use operators::{
    End, FinishedRow, LengthGroup, LengthKey, OutputLength, OutputLengthConfig, OutputLengthRow, Refusal, Refused,
    TrafficRow,
    output_length::{PROMPT_CLASSES, predict, prompt_class},
    reference::output_length::SlowOutputLength,
};
use proptest::prelude::*;

use crate::harness::{Epochs, Schedule, Timed, collect, mixed, run, schedules};

const CONFIG: OutputLengthConfig =
    OutputLengthConfig { max_groups: 100, max_models: 100, forgetting: 0.9, min_samples: 3 };

fn rows() -> impl Strategy<Value = FinishedRow> {
    let output = prop_oneof![4 => 0..40u32, 4 => 40..200u32];
    let prompt = prop_oneof![2 => 0..600u32, 1 => 600..40_000u32];
    let end = prop_oneof![4 => Just(End::Stopped), 1 => Just(End::Capped)];
    let cached = prop_oneof![20 => Just(0u32), 1 => Just(u32::MAX)];
    (0..2u32, 0..2u8, output, prompt, (end, cached)).prop_map(
        |(model, tier, output_tokens, prompt_tokens, (end, cached_tokens))| FinishedRow {
            model,
            tier,
            tenant_class: tier,
            output_tokens,
            prompt_tokens,
            end,
            cached_tokens,
            ..FinishedRow::default()
        },
    )
}

fn operate(
    workers: usize,
    schedule: &Schedule<FinishedRow>,
    config: OutputLengthConfig,
) -> (Epochs<OutputLengthRow>, Epochs<Refused>) {
    let schedule =
        schedule.iter().map(|(epoch, rows)| (*epoch, rows.iter().copied().map(TrafficRow::Finished).collect()));
    let (rows, refused): (Timed<_>, Timed<_>) = Default::default();
    let (to_rows, to_refused) = (rows.clone(), refused.clone());
    run(workers, &schedule.collect(), move |traffic, _probe| {
        let lengths = traffic.output_length(config);
        collect(lengths.rows, &to_rows, |row: &OutputLengthRow| (row.epoch, row.clone()));
        collect(lengths.refused, &to_refused, |refused: &Refused| (refused.epoch, *refused));
    });
    let mut epochs = Epochs::<OutputLengthRow>::new();
    for (epoch, row) in rows.lock().unwrap().iter() {
        epochs.entry(*epoch).or_default().push(row.clone());
    }
    epochs.values_mut().for_each(|rows| rows.sort_by_key(|row| row.key));
    (epochs, crate::harness::by_epoch(&refused))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Scenario: random answers of two models in several groups, some cut off, some malformed; on one, two and four
    /// workers.
    /// Guarantees: after every epoch exactly the groups and models that learnt have a row; shares, quantiles and means,
    /// from the start and from the middle of an answer, and the predictor's errors are those of a batch estimate over all
    /// answers; the number of workers does not change a bit.
    #[test]
    fn equals_the_twin_after_every_epoch(schedule in schedules(rows(), 8, 10)) {
        let one = operate(1, &schedule, CONFIG).0;
        let mut twin = SlowOutputLength::new(CONFIG);
        for (epoch, rows) in &schedule {
            let keys = twin.epoch(rows);
            let got = one.get(epoch).map_or(&[][..], Vec::as_slice);
            prop_assert_eq!(got.iter().map(|row| row.key).collect::<Vec<_>>(), keys, "epoch {}", epoch);
            for row in got {
                let exact = twin.curve(row.key).unwrap();
                prop_assert_eq!(row.lengths.samples, twin.samples(row.key));
                for tokens in [0, 1, 7, 33, 100, 150, 500] {
                    let (got, exact) = (row.lengths.at_least(tokens), exact.at_least(tokens.into()));
                    prop_assert!((got - exact).abs() < 1e-9, "{} for {} at {}", got, exact, tokens);
                }
                for so_far in [0u32, 5, 60, 150] {
                    let Some(length) = row.lengths.predict(so_far) else {
                        prop_assert!(exact.at_least(so_far.into()) < 1e-9 || u64::from(so_far) >= exact.end());
                        continue;
                    };
                    let mean = exact.mean(so_far.into());
                    prop_assert!((length.mean - mean).abs() < 1e-6 * mean.max(1.0), "{} for {}", length.mean, mean);
                    for (got, share) in [(length.p05, 0.05), (length.p50, 0.5), (length.p95, 0.95)] {
                        let [least, most] = [1e-9, -1e-9].map(|slack| exact.quantile(so_far.into(), share, slack));
                        prop_assert!((least..=most).contains(&got), "{} within {}..={}", got, least, most);
                    }
                }
                let (got, exact) = (row.error, twin.error(row.key));
                prop_assert_eq!(got.samples, exact.samples);
                for (got, exact) in [(got.bias, exact.bias), (got.mape, exact.mape), (got.coverage_90, exact.coverage_90)] {
                    prop_assert!((got - exact).abs() <= 1e-6 * exact.abs().max(1.0), "{} for {}", got, exact);
                }
            }
        }
        for workers in [2, 4] {
            prop_assert_eq!(&operate(workers, &schedule, CONFIG).0, &one, "on {} workers", workers);
        }
    }
}

fn answer(output_tokens: u32) -> FinishedRow {
    FinishedRow { output_tokens, ..FinishedRow::default() }
}

fn learnt(rows: Vec<FinishedRow>) -> BTreeMap<LengthKey, OutputLengthRow> {
    let (rows, _) = operate(1, &Schedule::from([(1, rows)]), OutputLengthConfig::default());
    rows[&1].iter().map(|row| (row.key, row.clone())).collect()
}

/// Scenario: nine answers in ten stop at about 20 tokens, one in ten at about 1000; then one is asked about as it grows.
/// Guarantees: at the start it is believed to be short; past the short ones, to be long; past all, nothing is believed.
#[test]
fn what_is_out_already_changes_the_prediction() {
    let long =
        |n| answer(if mixed(n).is_multiple_of(10) { 950 + (mixed(n) >> 40) as u32 % 100 } else { 16 + n as u32 % 9 });
    let schedule = (1..=1000u64).map(|n| (n, vec![long(n)])).collect();
    let (rows, _) = operate(1, &schedule, OutputLengthConfig::default());
    let rows: BTreeMap<_, _> = rows[&1000].iter().map(|row| (row.key, row.clone())).collect();
    let lengths = &rows[&LengthKey { model: 0, group: None }].lengths;
    let at = |so_far| lengths.predict(so_far).unwrap();
    assert!((16..=25).contains(&at(0).p50), "{:?}", at(0));
    assert!((90.0..160.0).contains(&at(0).mean), "{:?}", at(0));
    assert!(at(30).p05 >= 928 && (960..=1040).contains(&at(30).p50), "{:?}", at(30));
    assert!(at(1000).p05 >= 1000);
    assert_eq!(lengths.predict(5000), None);
}

/// Scenario: answers of 200 tokens, half of which are cut off at 100.
/// Guarantees: what was cut off does not count as short: the median is 200 (to within its bin), not 100.
#[test]
fn answers_cut_off_are_not_taken_for_short() {
    let rows = (0..400).map(|n| if n % 2 == 0 { answer(200) } else { FinishedRow { end: End::Capped, ..answer(100) } });
    let schedule = (1..).zip(rows.map(|row| vec![row])).collect();
    let (rows, _) = operate(1, &schedule, OutputLengthConfig::default());
    let row = rows[&400].iter().find(|row| row.key.group.is_none()).unwrap();
    let length = row.lengths.predict(0).unwrap();
    assert!((200..208).contains(&length.p50) && length.p05 >= 192, "{length:?}");
    assert!(row.error.samples > 300 && row.error.coverage_90 > 0.95, "{:?}", row.error);
}

/// Scenario: a group with a few answers and one with many, of one model; and a model nobody has seen.
/// Guarantees: the first is predicted as its model, the second for itself, the third not at all.
#[test]
fn a_young_group_is_predicted_as_its_model() {
    let rows = (0..100).map(|_| answer(400)).chain((0..5).map(|_| FinishedRow { tier: 2, ..answer(10) }));
    let rows = learnt(rows.collect());
    let of = |model, tier| {
        predict(&rows, (model, LengthGroup { tier, tenant_class: 0, prompt_class: 0 }), 0).map(|length| length.p50)
    };
    assert!(of(0, 2) == of(0, 0) && of(0, 0) >= Some(400), "{:?}", of(0, 2));
    assert_eq!(of(1, 0), None);
}

/// Scenario: answers whose lengths are drawn evenly from 1 to 400, predicted one after another.
/// Guarantees: the predictor finds itself without bias, and its 90 % interval to hold 85 to 95 %.
#[test]
fn the_interval_holds_what_it_says() {
    let schedule = (1..=3000u64).map(|n| (n, vec![answer(mixed(n) as u32 % 400 + 1)]));
    let (rows, _) = operate(1, &schedule.collect(), OutputLengthConfig::default());
    let error = rows[&3000][0].error;
    assert!(error.samples > 2900 && error.bias.abs() < 10.0, "{error:?}");
    assert!((0.85..0.95).contains(&error.coverage_90), "{error:?}");
}

/// Scenario: one group and one model more than there is room for.
/// Guarantees: the group's answers are reported and still teach their model; the model's are refused.
#[test]
fn bounds_are_reported() {
    let config = OutputLengthConfig { max_groups: 1, max_models: 1, ..CONFIG };
    let rows = vec![answer(5), FinishedRow { tier: 1, ..answer(6) }, FinishedRow { model: 1, ..answer(7) }];
    let (rows, refused) = operate(1, &Schedule::from([(1, rows)]), config);
    assert_eq!(rows[&1].iter().map(|row| row.lengths.samples).collect::<Vec<_>>(), [2, 1]);
    let told: Vec<_> = refused[&1].iter().map(|refused| (refused.subject, refused.reason)).collect();
    let full = Refusal::KeysFull { max_keys: 1 };
    assert_eq!(told, [(1, full), (1 << 8, full)]);
}

/// Scenario: prompt lengths at the edges of classes.
/// Guarantees: each class begins where it says.
#[test]
fn prompt_classes_begin_where_they_say() {
    for (class, from) in PROMPT_CLASSES.into_iter().enumerate() {
        assert_eq!(prompt_class(from), class as u8);
        assert!(from == 0 || prompt_class(from - 1) == class as u8 - 1);
    }
    assert_eq!(prompt_class(u32::MAX), 5);
}
