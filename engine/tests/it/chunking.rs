//! How much of a prompt one step computes: by time, and by who needs the step to be short (SPEC B7, A4 d).

use std::sync::Arc;

use engine::{
    config::EngineConfig,
    engine::Engine,
    request::{FinishReason, GenerateRequest},
    runner::simulated::{CostModel, PagingCheck, SimulatedRunner},
    step::StepReport,
};

use crate::support::{Ledger, Pieces, engine_with, prompt, reference_tokens, request, shape};

/// One step of virtual time: the engine is told what the step took.
fn step(engine: &mut Engine, now: &mut i64) -> StepReport {
    let report = engine.step(*now);
    let took = report.stats.modelled_us.unwrap_or(1);
    engine.took(took);
    *now += took;
    report
}

/// Prompts and answers of several lengths, so that the engine knows its pace.
fn taught(config: EngineConfig, now: &mut i64) -> Engine {
    let mut engine = engine_with(config, 4_000);
    for id in 0..24 {
        engine.submit(request(id, &prompt(id as u32, 20 + 17 * (id as usize % 7)), 3 + id as u32 % 5), *now).unwrap();
        step(&mut engine, now);
    }
    while engine.has_work() {
        step(&mut engine, now);
    }
    engine
}

/// Scenario: a long prompt beside a sequence that decodes, with a bound of 20 ms on a step and without one.
/// Guarantees: with it no step takes longer, and no chunk is shorter than the time allows; the tokens are the same.
#[test]
fn a_step_keeps_to_its_time() {
    let chunks = |prefill_step_us| {
        let (mut now, config) = (0, EngineConfig { prefill_step_us, ..EngineConfig::default() });
        let mut engine = taught(config, &mut now);
        let (short, long) = (request(100, &prompt(100, 10), 200), request(101, &prompt(101, 1_900), 2));
        engine.submit(short.clone(), now).unwrap();
        step(&mut engine, &mut now);
        engine.submit(long.clone(), now).unwrap();
        let (mut ledger, mut sizes) = (Ledger::default(), Vec::new());
        while engine.has_work() {
            let report = step(&mut engine, &mut now);
            sizes.push((report.stats.prefill_tokens, report.stats.modelled_us.unwrap()));
            ledger.add(&report);
        }
        assert_eq!(ledger.outcomes[&101].tokens, reference_tokens(&long));
        sizes.retain(|(tokens, _)| *tokens > 0);
        sizes
    };
    let bounded = chunks(Some(20_000));
    let per_token = CostModel::default().prefill_token_us as i64;
    let (last, whole) = bounded.split_last().unwrap();
    assert!(last.1 <= 20_000 + per_token && whole.len() > 3, "{bounded:?}");
    for (tokens, us) in whole {
        assert!((18_000..=20_000 + per_token).contains(us), "{tokens} tokens in {us} us: {bounded:?}");
    }
    assert_eq!(chunks(None)[0].0, 511, "without a bound the token budget decides");
}

/// Scenario: a sequence that decodes needs a token each 12 ms to be whole in time; a long prompt comes. The same where it
/// needs more than the engine can give at all.
/// Guarantees: it is whole a while before it would be dropped, and the prompt gets on meanwhile; who cannot be saved holds nobody up.
#[test]
fn prompts_leave_the_pace_that_others_need() {
    let run = |pace_us: i64| {
        let (mut now, config) = (0, EngineConfig { prefill_step_us: Some(100_000), ..EngineConfig::default() });
        let mut engine = taught(config, &mut now);
        let drop_at = now + 50 * pace_us;
        engine.submit(GenerateRequest { drop_at: Some(drop_at), ..request(100, &prompt(100, 4), 50) }, now).unwrap();
        step(&mut engine, &mut now);
        engine.submit(request(101, &prompt(101, 3_000), 2), now).unwrap();
        let mut ledger = Ledger::default();
        let (mut first, mut left) = (0, 0);
        while engine.has_work() {
            let report = step(&mut engine, &mut now);
            if report.outputs.iter().any(|output| output.sequence.0 == 100 && output.finish.is_some()) {
                left = drop_at - now;
            }
            first = if first == 0 { report.stats.prefill_tokens } else { first };
            ledger.add(&report);
        }
        (ledger.outcomes[&100].finish().reason, first, left)
    };
    let (reason, chunk, left) = run(12_000);
    assert_eq!(reason, FinishReason::Length);
    assert!(left >= 600_000 / 12, "whole only {left} us before it is dropped");
    assert!((16..=130).contains(&chunk), "{chunk} tokens beside one that needs a token each 12 ms");
    let (reason, chunk, _) = run(2_000);
    assert!(reason == FinishReason::Late && chunk > 400, "{reason:?}, {chunk} tokens: it is late whatever is done");
}

/// Scenario: a sequence that decodes needs tokens so fast that no chunk of a prompt fits beside them. A long prompt comes with time
/// to wait for its end; then one whose latest start is near; then one with all the time there is, to a sequence that goes on for long.
/// Guarantees: the first waits until the other is nearly whole, which it is in time; the second is begun before that, at the
/// other's cost; the third waits no longer than ten of the longest steps.
#[test]
fn prompts_wait_for_one_that_could_not_be_in_time_beside_them() {
    let cost =
        CostModel { base_us: 2_000.0, decode_sequence_us: 2_000.0, prefill_token_us: 1_000.0, ..CostModel::default() };
    let run = |tokens: i64, latest_start_us: i64| {
        let (mut now, config) = (0, EngineConfig { prefill_step_us: Some(50_000), ..EngineConfig::default() });
        let runner = SimulatedRunner::new(shape(4_000), cost, PagingCheck::Full);
        let mut engine = Engine::new(config, Box::new(runner), Arc::new(Pieces)).unwrap();
        for id in 0..24 {
            engine.submit(request(id, &prompt(id as u32, 10 + id as usize), 2 + id as u32 % 5), now).unwrap();
            step(&mut engine, &mut now);
        }
        while engine.has_work() {
            step(&mut engine, &mut now);
        }
        // A token each 5 ms a sixth early, of which a step with nothing else takes four.
        let urgent =
            GenerateRequest { drop_at: Some(now + tokens * 6_000), ..request(100, &prompt(100, 2), tokens as u32) };
        engine.submit(urgent, now).unwrap();
        step(&mut engine, &mut now);
        let came = now;
        let long = GenerateRequest { deadline: Some(now + latest_start_us), ..request(101, &prompt(101, 300), 2) };
        engine.submit(long.clone(), now).unwrap();
        let (mut ledger, mut began) = (Ledger::default(), None);
        while engine.has_work() {
            let report = step(&mut engine, &mut now);
            if report.stats.prefill_tokens > 0 {
                let drawn = ledger.outcomes.get(&100).map_or(0, |outcome| outcome.tokens.len());
                began.get_or_insert((now - came, drawn));
            }
            ledger.add(&report);
        }
        assert_eq!(ledger.outcomes[&101].tokens, reference_tokens(&long));
        let (after, drawn) = began.unwrap();
        (ledger.outcomes[&100].finish().reason, after, drawn)
    };
    let (reason, _, drawn) = run(40, 900_000);
    assert!(reason == FinishReason::Length && drawn >= 35, "{reason:?}, begun after {drawn} tokens");
    let (_, after, drawn) = run(40, 100_000);
    assert!(after < 100_000 && drawn < 20, "begun after {after} us and {drawn} tokens");
    let (_, after, _) = run(1_000, i64::MAX / 4);
    assert!((500_000..700_000).contains(&after), "begun after {after} us");
}

/// Scenario: a long prompt is under way; a short one with less time comes; then one with more time.
/// Guarantees: the one due sooner is computed first, the one due later waits for the prompt under way.
#[test]
fn a_prompt_under_way_lets_one_due_sooner_go_first() {
    let config = EngineConfig { token_budget: 100, ..EngineConfig::default() };
    let mut engine = engine_with(config, 4_000);
    let due = |id, length, deadline| GenerateRequest {
        deadline: Some(deadline),
        ..request(id, &prompt(id as u32, length), 1)
    };
    engine.submit(due(1, 500, 900_000), 0).unwrap();
    engine.step(0);
    engine.submit(due(2, 60, 100_000), 1).unwrap();
    engine.submit(due(3, 60, 1_900_000), 1).unwrap();
    let mut order = Vec::new();
    for now in 2..20 {
        let report = engine.step(now);
        order.extend(report.outputs.iter().filter(|output| output.finish.is_some()).map(|output| output.sequence.0));
    }
    assert_eq!(order, [2, 1, 3]);
}

/// Scenario: twelve sequences decode; a short one comes that needs tokens faster than that batch gives them. With and
/// without a bound on the time of a step, by which the engine minds such needs.
/// Guarantees: it is whole a while before its time is over where it is minded, and late where it is not; the others give the tokens they must, each
/// within the bound and a step of the one before.
#[test]
fn those_with_time_rest_for_one_in_need() {
    let cost =
        CostModel { base_us: 2_000.0, decode_sequence_us: 2_000.0, prefill_token_us: 100.0, ..CostModel::default() };
    let run = |prefill_step_us| {
        let (mut now, config) = (0, EngineConfig { prefill_step_us, ..EngineConfig::default() });
        let runner = SimulatedRunner::new(shape(4_000), cost, PagingCheck::Full);
        let mut engine = Engine::new(config, Box::new(runner), Arc::new(Pieces)).unwrap();
        let others: Vec<_> = (0..12).map(|id| request(id, &prompt(id as u32, 20 + id as usize), 150)).collect();
        for other in &others {
            engine.submit(other.clone(), now).unwrap();
            step(&mut engine, &mut now);
        }
        for _ in 0..20 {
            step(&mut engine, &mut now);
        }
        let drop_at = now + 20 * 14_000;
        engine.submit(GenerateRequest { drop_at: Some(drop_at), ..request(100, &prompt(100, 4), 20) }, now).unwrap();
        let (mut ledger, mut drew, mut longest, mut left) = (Ledger::default(), [now; 12], 0, 0);
        while engine.has_work() {
            let report = step(&mut engine, &mut now);
            for output in report.outputs.iter().filter(|output| output.sequence.0 < 12) {
                let last = &mut drew[output.sequence.0 as usize];
                longest = longest.max(now - *last);
                *last = now;
            }
            if report.outputs.iter().any(|output| output.sequence.0 == 100 && output.finish.is_some()) {
                left = drop_at - now;
            }
            ledger.add(&report);
        }
        assert!(longest <= 150_000, "{longest} us between two tokens");
        assert!(others.iter().all(|other| reference_tokens(other).ends_with(&ledger.outcomes[&other.id.0].tokens)));
        (ledger.outcomes[&100].finish().reason, left)
    };
    let (reason, left) = run(Some(100_000));
    assert_eq!(reason, FinishReason::Length);
    assert!(left >= 280_000 / 12, "whole only {left} us before it is dropped");
    assert_eq!(run(None).0, FinishReason::Late);
}
