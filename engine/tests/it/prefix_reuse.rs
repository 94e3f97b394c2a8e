//! Prefix reuse (SPEC C2): what is found, what is counted, and that tokens stay the same.

use engine::{
    config::{EngineConfig, GrowthQuota, SwapRates},
    engine::Engine,
    events::KvEvent,
    prefix_cache::PrefixCacheMode,
    request::GenerateRequest,
};

use crate::support::{Ledger, Outcome, engine_with, prompt, reference_tokens, request, run_to_end};

fn run_one(engine: &mut Engine, request: &GenerateRequest) -> Outcome {
    engine.submit(request.clone(), 0).unwrap();
    let outcome = run_to_end(engine).outcomes.remove(&request.id.0).unwrap();
    assert_eq!(outcome.tokens, reference_tokens(request));
    outcome
}

fn cached(engine: &mut Engine, request: &GenerateRequest) -> u32 {
    run_one(engine, request).finish().cached_tokens
}

/// Scenario: a prompt, the same again, one that shares 21 tokens, and a second turn that repeats the first answer.
/// Guarantees: whole blocks are reused, and of the block where the prompts part its common beginning; the last prompt
/// token is always recomputed; generated blocks are reusable too.
#[test]
fn the_longest_prefix_is_reused() {
    let mut engine = engine_with(EngineConfig::default(), 256);
    let first = prompt(1, 40);
    let answer = run_one(&mut engine, &request(1, &first, 10)).tokens;
    assert_eq!(cached(&mut engine, &request(2, &first, 10)), 39, "only the last token is recomputed");
    let mut forked = first[..21].to_vec();
    forked.extend([15; 9]);
    assert_eq!(cached(&mut engine, &request(3, &forked, 3)), 21, "five blocks and one token of the sixth");
    let second_turn: Vec<u32> = first.iter().chain(&answer).chain(&[1, 2, 3]).copied().collect();
    assert_eq!(cached(&mut engine, &request(4, &second_turn, 3)), 48, "49 tokens of 50 have KV: 12 full blocks");
}

/// A block's copy costs as much as computing `tokens` tokens.
fn copies_cost(tokens: u64) -> SwapRates {
    SwapRates { prefill_ns_per_token: 1_000, copy_ns_per_block: tokens * 1_000 }
}

/// Scenario: the same prompt under each limit.
/// Guarantees: `max_prefix_tokens` caps, `min_match_tokens` drops short matches, a part of a block is taken only where
/// the copy costs no more than computing it, `Off` reuses and reports nothing.
#[test]
fn limits_and_off() {
    let cases = [
        (EngineConfig { max_prefix_tokens: Some(18), ..EngineConfig::default() }, 16),
        (EngineConfig { min_match_tokens: 39, ..EngineConfig::default() }, 39),
        (EngineConfig { min_match_tokens: 40, ..EngineConfig::default() }, 0),
        (EngineConfig { swap_rates: copies_cost(3), ..EngineConfig::default() }, 39),
        (EngineConfig { swap_rates: copies_cost(4), ..EngineConfig::default() }, 36),
        (EngineConfig { prefix_cache: PrefixCacheMode::Off, ..EngineConfig::default() }, 0),
    ];
    for (config, expected) in cases {
        let mut engine = engine_with(config, 256);
        run_one(&mut engine, &request(1, &prompt(1, 40), 4));
        assert_eq!(cached(&mut engine, &request(2, &prompt(1, 40), 4)), expected, "{config:?}");
        if config.prefix_cache == PrefixCacheMode::Off {
            assert_eq!(engine.queue_figures().pool.free, 256, "nothing is kept");
        }
    }
}

/// Scenario: two tenants with different salts send the same prompt.
/// Guarantees: neither finds the other's blocks; each finds its own.
#[test]
fn salts_keep_tenants_apart() {
    let mut engine = engine_with(EngineConfig::default(), 256);
    let with_salt = |id, cache_salt| GenerateRequest { cache_salt, ..request(id, &prompt(1, 40), 4) };
    assert_eq!(cached(&mut engine, &with_salt(1, 5)), 0);
    assert_eq!(cached(&mut engine, &with_salt(2, 6)), 0);
    assert_eq!(cached(&mut engine, &with_salt(3, 0)), 0);
    assert_eq!(cached(&mut engine, &with_salt(4, 6)), 39);
}

/// Scenario: two sequences with the same prompt run side by side from the same step.
/// Guarantees: when both have computed it, one copy remains: 10 shared blocks and one of their own each.
#[test]
fn equal_blocks_computed_twice_become_one() {
    let mut engine = engine_with(EngineConfig::default(), 256);
    engine.submit(request(1, &prompt(1, 40), 20), 0).unwrap();
    engine.submit(request(2, &prompt(1, 40), 20), 0).unwrap();
    let first = engine.step(0);
    let stored = first.kv_events.iter().filter(|event| matches!(event, KvEvent::Stored { .. })).count();
    assert_eq!(stored, 10);
    assert_eq!(first.stats.blocks_used, 12, "10 shared, and one more each for the token that was drawn");
    let ledger = run_to_end(&mut engine);
    assert_eq!(ledger.outcomes[&1].tokens, ledger.outcomes[&2].tokens);
}

/// Scenario: the cache is cleared while a sequence runs.
/// Guarantees: the sequence ends with the right tokens; nothing of before is reused; new work is cached again.
#[test]
fn clearing_the_cache_is_safe() {
    let mut engine = engine_with(EngineConfig::default(), 256);
    let long = request(1, &prompt(1, 40), 20);
    engine.submit(long.clone(), 0).unwrap();
    let mut tokens: Vec<u32> = engine.step(0).outputs.into_iter().flat_map(|output| output.tokens).collect();
    engine.clear_prefix_cache();
    let mut ledger = run_to_end(&mut engine);
    tokens.append(&mut ledger.outcomes.get_mut(&1).unwrap().tokens);
    assert_eq!(tokens, reference_tokens(&long));
    assert_eq!(cached(&mut engine, &request(2, &prompt(1, 40), 4)), 0);
    assert_eq!(cached(&mut engine, &request(3, &prompt(1, 40), 4)), 39);
}

/// Scenario: a prompt parts from a cached one inside a block while the first still runs; then in a pool so small that
/// the page taken for the copy is the very block to be copied.
/// Guarantees: one block is copied, the tokens of both are right, the cached block stays as it was, the hit is an event.
#[test]
fn a_part_of_a_block_is_copied_before_it_is_written() {
    let mut engine = engine_with(EngineConfig::default(), 256);
    let first = request(1, &prompt(1, 40), 30);
    engine.submit(first.clone(), 0).unwrap();
    let mut ledger = Ledger::default();
    let report = engine.step(0);
    ledger.add(&report);
    ledger.audit(&report);
    let forked: Vec<u32> = first.prompt[..22].iter().copied().chain([15; 9]).collect();
    let second = request(2, &forked, 30);
    engine.submit(second.clone(), 0).unwrap();
    let report = engine.step(0);
    ledger.audit(&report);
    assert_eq!((report.stats.copied_blocks, report.stats.cached_tokens), (1, 22));
    assert_eq!(ledger.hits, (1, 0));
    let hit = report.kv_events.iter().find(|event| matches!(event, KvEvent::Hit { tokens: 22, .. }));
    assert!(hit.is_some(), "{:?}", report.kv_events);
    ledger.add(&report);
    while engine.has_work() {
        ledger.add(&engine.step(0));
        engine.check_invariants().unwrap();
    }
    assert_eq!(ledger.outcomes[&1].tokens, reference_tokens(&first));
    assert_eq!(ledger.outcomes[&2].tokens, reference_tokens(&second));
    assert_eq!(cached(&mut engine, &request(3, &prompt(1, 40), 3)), 39);

    let mut small = engine_with(EngineConfig { growth_quota: GrowthQuota::Tokens(0), ..EngineConfig::default() }, 3);
    run_one(&mut small, &request(1, &prompt(1, 12), 1));
    let forked: Vec<u32> = prompt(1, 10).into_iter().chain([15, 15]).collect();
    let again = run_one(&mut small, &request(2, &forked, 1));
    assert_eq!(again.finish().cached_tokens, 10, "two blocks, and the third page taken over with its content");
}
