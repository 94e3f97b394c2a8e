//! Lanes and order (SPEC B8, A4 d): who goes first, who gives way, and that nobody starves.

use engine::{
    config::{EngineConfig, GrowthQuota, LanePreemption},
    engine::Engine,
    request::{GenerateRequest, Lane},
};
use proptest::prelude::*;

use crate::support::{engine_with, prompt, reference_tokens, request, run_to_end};

fn in_lane(id: u64, lane: Lane, max_tokens: u32) -> GenerateRequest {
    GenerateRequest { lane, ..request(id, &prompt(id as u32, 8), max_tokens) }
}

fn due(id: u64, deadline: Option<i64>) -> GenerateRequest {
    GenerateRequest { deadline, ..request(id, &prompt(id as u32, 8), 1) }
}

fn one_at_a_time() -> EngineConfig {
    EngineConfig { max_running: 1, token_budget: 64, ..EngineConfig::default() }
}

fn finishing_order(engine: &mut Engine) -> Vec<u64> {
    run_to_end(engine).finished
}

/// Scenario: one slot; L3 and L2 requests queue, then one of L1.
/// Guarantees: L1 overtakes the queues, L2 goes before L3, and each lane keeps the order of arrival.
#[test]
fn lanes_are_served_in_order() {
    let mut engine = engine_with(one_at_a_time(), 64);
    for (id, lane) in [(1, Lane::L3), (2, Lane::L2), (3, Lane::L3), (4, Lane::L2), (5, Lane::L1)] {
        engine.submit(in_lane(id, lane, 3), 0).unwrap();
    }
    assert_eq!(finishing_order(&mut engine), [5, 2, 4, 1, 3]);
}

/// Scenario: a long L2 prompt is being read in chunks when an L1 request arrives.
/// Guarantees: the L1 prompt is read whole in the very next step, before the next chunk.
#[test]
fn l1_overtakes_a_prefill_under_way() {
    let config = EngineConfig { token_budget: 16, max_running: 4, ..EngineConfig::default() };
    let mut engine = engine_with(config, 64);
    engine.submit(request(1, &prompt(1, 100), 4), 0).unwrap();
    engine.step(0);
    engine.submit(GenerateRequest { lane: Lane::L1, ..request(2, &prompt(2, 12), 4) }, 0).unwrap();
    let report = engine.step(0);
    assert_eq!(report.outputs.iter().map(|output| output.sequence.0).collect::<Vec<_>>(), [2]);
    assert_eq!(report.stats.prefill_tokens, 16, "the rest of the budget goes to the chunk");
}

/// Scenario: background work holds all slots when normal work arrives; then the same under each other rule.
/// Guarantees: L3 gives way at the next step and still completes with the right tokens; `Off` lets it finish first;
/// `Lower` makes L2 give way to L1.
#[test]
fn lower_lanes_give_way_as_the_rule_says() {
    let cases = [
        (LanePreemption::Background, Lane::L3, Lane::L2, [2, 1]),
        (LanePreemption::Background, Lane::L2, Lane::L1, [1, 2]),
        (LanePreemption::Lower, Lane::L2, Lane::L1, [2, 1]),
        (LanePreemption::Off, Lane::L3, Lane::L1, [1, 2]),
    ];
    for (rule, first, second, order) in cases {
        let mut engine = engine_with(EngineConfig { lane_preemption: rule, ..one_at_a_time() }, 64);
        engine.submit(in_lane(1, first, 20), 0).unwrap();
        let mut tokens: Vec<u32> = engine.step(0).outputs.into_iter().flat_map(|output| output.tokens).collect();
        engine.submit(in_lane(2, second, 20), 0).unwrap();
        let ledger = run_to_end(&mut engine);
        assert_eq!(ledger.finished, order, "{rule:?} {first:?} {second:?}");
        tokens.extend(&ledger.outcomes[&1].tokens);
        assert_eq!(tokens, reference_tokens(&in_lane(1, first, 20)));
    }
}

/// Scenario: background work decodes in the only slot; a prompt as long as the whole budget arrives.
/// Guarantees: the token that the background work was to take in this step goes to the prompt, which is read whole.
#[test]
fn who_gives_way_gives_its_tokens_back() {
    let mut engine = engine_with(EngineConfig { token_budget: 8, ..one_at_a_time() }, 64);
    engine.submit(in_lane(1, Lane::L3, 20), 0).unwrap();
    engine.step(0);
    engine.submit(in_lane(2, Lane::L2, 20), 0).unwrap();
    let report = engine.step(0);
    assert_eq!((report.stats.prefill_tokens, report.stats.decode_tokens), (8, 0));
    assert_eq!(report.outputs[0].sequence.0, 2);
}

/// Scenario: pages are held by a running sequence; an L1 request is too large for the rest, an L2 request behind it
/// would fit.
/// Guarantees: L2 does not slip past, so the pages that come free are L1's.
#[test]
fn a_lane_waits_while_a_higher_one_does() {
    let mut engine = engine_with(EngineConfig::default(), 12);
    engine.submit(in_lane(1, Lane::L2, 24), 0).unwrap();
    engine.step(0);
    engine.submit(in_lane(2, Lane::L1, 24), 0).unwrap();
    engine.submit(in_lane(3, Lane::L2, 4), 0).unwrap();
    let ledger = run_to_end(&mut engine);
    let start = |id| ledger.outcomes[&id].finish().first_scheduled.unwrap();
    assert!(start(2) > 20_000, "1 holds the pages for 24 steps; the scenario needs that");
    assert!(start(3) >= start(2));
}

/// Scenario: pages run out among sequences of different lanes: two of the three fit to their ends.
/// Guarantees: the lowest lane's latest gives way, and comes back before fresh sequences of its lane.
#[test]
fn the_victim_is_the_lowest_lane_and_returns_first() {
    let config = EngineConfig { growth_quota: GrowthQuota::Tokens(0), max_running: 3, ..EngineConfig::default() };
    let mut engine = engine_with(config, 18);
    engine.submit(in_lane(1, Lane::L2, 24), 0).unwrap();
    engine.submit(in_lane(2, Lane::L3, 24), 0).unwrap();
    engine.submit(in_lane(3, Lane::L1, 24), 0).unwrap();
    engine.step(0);
    engine.submit(in_lane(4, Lane::L3, 4), 0).unwrap();
    let ledger = run_to_end(&mut engine);
    let preemptions: Vec<u32> = (1..=4).map(|id| ledger.outcomes[&id].finish().preemptions).collect();
    assert_eq!((preemptions[0], preemptions[2], preemptions[3]), (0, 0, 0));
    assert!(preemptions[1] > 0);
    let place = |id| ledger.finished.iter().position(|other| *other == id).unwrap();
    assert!(place(3) < place(2) && place(1) < place(2), "{:?}", ledger.finished);
    assert_eq!(ledger.outcomes[&2].finish().completion_tokens, 24);
}

/// Scenario: deadlines against arrival; a deadline long past; no deadline.
/// Guarantees: least slack first; one that can't make it loses its precedence; a far deadline is no worse than none.
#[test]
fn least_slack_goes_first_unless_it_is_lost() {
    let config = EngineConfig { max_overtake_us: 1_000_000, ..one_at_a_time() };
    let mut engine = engine_with(config, 64);
    let deadlines = [(1, None), (2, Some(900_000)), (3, Some(500_000)), (4, Some(10)), (5, Some(i64::MAX))];
    for (id, deadline) in deadlines {
        engine.submit(due(id, deadline), 0).unwrap();
    }
    assert_eq!(finishing_order(&mut engine), [3, 2, 1, 4, 5], "4's deadline passed before the first step at 1 ms");
}

/// Scenario: two whose latest start passed before the first step at 1 ms, with 4 ms and 40 ms from there until they are dropped, beside
/// one with time.
/// Guarantees: the second may still make it and goes first; the first is lost, and goes last.
#[test]
fn a_latest_start_just_missed_is_not_lost() {
    let config = EngineConfig { max_running: 1, ..EngineConfig::default() };
    let mut engine = engine_with(config, 16);
    for (id, deadline, drop_at) in [(1, 10, Some(3_000)), (2, 10, Some(40_000)), (3, 500_000, None)] {
        engine.submit(GenerateRequest { drop_at, ..due(id, Some(deadline)) }, 0).unwrap();
    }
    assert_eq!(finishing_order(&mut engine), [2, 3, 1]);
}

/// Scenario: one request without a deadline, and in every step two new ones with a tight deadline, for one slot.
/// Guarantees: it is overtaken no longer than `max_overtake`.
#[test]
fn deadlines_overtake_for_a_bounded_time() {
    let config = EngineConfig { max_overtake_us: 50_000, ..one_at_a_time() };
    let mut engine = engine_with(config, 64);
    engine.submit(due(0, None), 0).unwrap();
    for step in 1..200i64 {
        let now = step * 1_000;
        for id in [2 * step, 2 * step + 1] {
            engine.submit(due(id as u64, Some(now + 5_000)), now).unwrap();
        }
        let report = engine.step(now);
        if report.outputs.iter().any(|output| output.sequence.0 == 0 && output.finish.is_some()) {
            assert!((40_000..=51_000).contains(&now), "served at {now}");
            return;
        }
    }
    panic!("starved for 200 steps");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Scenario: requests of one lane and any size arrive over time, in a pool that is short.
    /// Guarantees: they are first scheduled in the order of their arrival: later ones never slip past one that does not
    /// fit yet.
    #[test]
    fn equals_start_in_order_of_arrival(
        sizes in proptest::collection::vec((1usize..30, 1u32..20, 0usize..3), 2..20),
        lane in 0usize..3,
        slots in 1usize..5,
    ) {
        let config = EngineConfig { max_running: slots, token_budget: 16, ..EngineConfig::default() };
        let mut engine = engine_with(config, 14);
        let lane = [Lane::L1, Lane::L2, Lane::L3][lane];
        let mut now = 0;
        let mut finishes = std::collections::BTreeMap::new();
        let mut collect = |report: engine::step::StepReport| {
            for output in report.outputs {
                if let Some(finish) = output.finish {
                    finishes.insert(output.sequence.0, finish);
                }
            }
        };
        for (id, (length, max_tokens, pause)) in sizes.iter().enumerate() {
            let request = GenerateRequest { lane, ..request(id as u64, &prompt(id as u32, *length), *max_tokens) };
            engine.submit(request, now).unwrap();
            for _ in 0..*pause {
                now += 1;
                collect(engine.step(now));
            }
        }
        while engine.has_work() {
            now += 1;
            prop_assert!(now < 10_000);
            collect(engine.step(now));
        }
        let starts: Vec<i64> = finishes.values().map(|finish| finish.first_scheduled.unwrap()).collect();
        prop_assert_eq!(starts.len(), sizes.len());
        prop_assert!(starts.is_sorted(), "{:?}", starts);
    }
}
