//! C5: the funnel summed up.
use operators::{
    FunnelCase, FunnelGroup, FunnelWindow, FunnelWindowConfig, FunnelWindowRow, LAYERS, LOSSES, Layer, Loss, Span,
    reference::funnel_window::SlowFunnelWindow,
};
use proptest::prelude::*;
use timely::dataflow::operators::Probe;

use crate::harness::{Epochs, Schedule, Timed, by_epoch, collect, run, schedules};

/// Cases that reconcile: losses are random, layers follow from them.
fn cases() -> impl Strategy<Value = FunnelCase> {
    let losses = prop::collection::vec(-20..40i64, LOSSES);
    ((0..2u32, 0..2u8, 0..2u32), losses, 500..900i64, 0..1000u64).prop_map(
        |((model, tier, tenant), losses, prompt, ns_per_token)| {
            let losses: [i64; LOSSES] = losses.try_into().unwrap();
            let mut layers = [prompt as u64; LAYERS];
            for layer in &Layer::ALL[1..] {
                let lost = Loss::ALL.iter().filter(|loss| loss.layer() == *layer).map(|loss| losses[*loss as usize]);
                layers[*layer as usize] = layers[*layer as usize - 1].saturating_add_signed(-lost.sum::<i64>());
            }
            FunnelCase {
                epoch: 0,
                request: u128::from(ns_per_token),
                at_us: 1,
                model,
                region: 0,
                tier,
                tenant,
                instance: Some(tier.into()),
                is_reported: true,
                ns_per_token,
                layers,
                present_by_level: [layers[2], 0, 0, 0, 0, 0, 0, 0],
                losses,
            }
        },
    )
}

fn operate(workers: usize, schedule: &Schedule<FunnelCase>, config: FunnelWindowConfig) -> Epochs<FunnelWindowRow> {
    let rows = Timed::default();
    let to_rows = rows.clone();
    run(workers, schedule, move |cases, probe| {
        let rows = cases.funnel_window(config).probe_with(probe);
        collect(rows, &to_rows, |row: &FunnelWindowRow| (row.epoch, *row));
    });
    by_epoch(&rows)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Scenario: random cases of eight groups with skipped epochs, windows of one to four epochs; on one, two and four
    /// workers.
    /// Guarantees: after every epoch the rows are the twin's; in every row each layer is the next plus its losses.
    #[test]
    fn equals_the_twin_after_every_epoch(schedule in schedules(cases(), 10, 12), window_epochs in 1..5u64) {
        let config = FunnelWindowConfig { window_epochs, max_groups: 100 };
        let mut schedule = schedule;
        let end = schedule.keys().last().unwrap() + window_epochs;
        schedule.insert(end + 1, Vec::new());
        for workers in [1, 2, 4] {
            let mut got = operate(workers, &schedule, config);
            let mut twin = SlowFunnelWindow::new(config);
            for epoch in 0..=end {
                let expected = twin.epoch(epoch, schedule.get(&epoch).map_or(&[][..], Vec::as_slice));
                for row in &expected {
                    for layer in &Layer::ALL[1..] {
                        let of = Loss::ALL.iter().filter(|loss| loss.layer() == *layer);
                        let lost: i64 = of.map(|loss| row.sums.losses[*loss as usize]).sum();
                        let layers = row.sums.layers.map(|tokens| tokens as i64);
                        prop_assert_eq!(layers[*layer as usize - 1], layers[*layer as usize] + lost);
                    }
                }
                prop_assert_eq!(got.remove(&epoch).unwrap_or_default(), expected, "epoch {} on {}", epoch, workers);
            }
            prop_assert!(got.is_empty(), "rows after the last: {:?}", got);
        }
    }
}

/// Scenario: three groups with room for one.
/// Guarantees: the others are counted in one named group; no request and no token is left out of the sum.
#[test]
fn groups_beyond_the_bound_are_counted_together() {
    let case = |tenant, request| FunnelCase {
        epoch: 0,
        request,
        at_us: 1,
        model: 0,
        region: 0,
        tier: 0,
        tenant,
        instance: None,
        is_reported: true,
        ns_per_token: 1,
        layers: [10, 0, 0, 0, 0, 0, 0],
        present_by_level: [0; 8],
        losses: std::array::from_fn(|place| if place == 0 { 10 } else { 0 }),
    };
    let config = FunnelWindowConfig { window_epochs: 2, max_groups: 1 };
    let schedule = Schedule::from([(2, vec![case(5, 1), case(6, 2), case(4, 3), case(4, 4)]), (9, Vec::new())]);
    let rows = operate(1, &schedule, config);
    let told: Vec<_> = rows[&3].iter().map(|row| (row.group, row.span, row.from_epoch, row.sums.requests)).collect();
    let first = FunnelGroup { model: 0, region: 0, tier: 0, tenant: 4 };
    let expected = vec![
        (first, Span::Tumbling, 2, 2),
        (first, Span::Running, 2, 2),
        (FunnelGroup::OTHER, Span::Tumbling, 2, 2),
        (FunnelGroup::OTHER, Span::Running, 2, 2),
    ];
    assert_eq!(told, expected);
    assert_eq!(rows[&3].iter().map(|row| row.sums.losses[0]).sum::<i64>(), 80);
}
