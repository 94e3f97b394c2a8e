//! Prefix reuse (SPEC C2): what is found, what is counted, and that tokens stay the same.

use engine::{
    config::EngineConfig, engine::Engine, events::KvEvent, prefix_cache::PrefixCacheMode, request::GenerateRequest,
};

use crate::support::{Outcome, engine_with, prompt, reference_tokens, request, run_to_end};

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
/// Guarantees: whole blocks are reused, the last prompt token is always recomputed, generated blocks are reusable too.
#[test]
fn whole_blocks_of_the_longest_prefix_are_reused() {
    let mut engine = engine_with(EngineConfig::default(), 256);
    let first = prompt(1, 40);
    let answer = run_one(&mut engine, &request(1, &first, 10)).tokens;
    assert_eq!(cached(&mut engine, &request(2, &first, 10)), 36, "the last of ten full blocks is recomputed");
    let mut forked = first[..21].to_vec();
    forked.extend([15; 9]);
    assert_eq!(cached(&mut engine, &request(3, &forked, 3)), 20);
    let second_turn: Vec<u32> = first.iter().chain(&answer).chain(&[1, 2, 3]).copied().collect();
    assert_eq!(cached(&mut engine, &request(4, &second_turn, 3)), 48, "49 tokens of 50 have KV: 12 full blocks");
}

/// Scenario: the same prompt under each limit.
/// Guarantees: `max_prefix_tokens` caps, `min_match_tokens` drops short matches, `Off` reuses and reports nothing.
#[test]
fn limits_and_off() {
    let cases = [
        (EngineConfig { max_prefix_tokens: Some(18), ..EngineConfig::default() }, 16),
        (EngineConfig { min_match_tokens: 36, ..EngineConfig::default() }, 36),
        (EngineConfig { min_match_tokens: 37, ..EngineConfig::default() }, 0),
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
    assert_eq!(cached(&mut engine, &with_salt(4, 6)), 36);
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
    assert_eq!(cached(&mut engine, &request(3, &prompt(1, 40), 4)), 36);
}
