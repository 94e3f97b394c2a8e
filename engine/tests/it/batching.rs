//! Batch invariance (SPEC B7): whatever runs beside a request, however its prompt is cut and however often it gives
//! way, it gets the tokens it would get alone. The simulated runner refuses any batch whose block tables are wrong.

use std::collections::BTreeMap;

use engine::{
    config::{EngineConfig, GrowthQuota, LanePreemption, SwapRates},
    events::Level,
    prefix_cache::PrefixCacheMode,
    request::{FinishReason, GenerateRequest, Lane, SamplingParams, SequenceId},
};
use proptest::prelude::*;

use crate::support::{Ledger, engine_with, prompt, reference_tokens, request, run_to_end};

/// A request, when it comes, and when it is cancelled (in steps).
#[derive(Debug, Clone)]
struct Visit {
    request: GenerateRequest,
    arrives: usize,
    cancelled: Option<usize>,
}

fn sampling() -> impl Strategy<Value = SamplingParams> {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    prop_oneof![
        Just(greedy.clone()),
        any::<u64>().prop_map(|seed| SamplingParams { seed, ..SamplingParams::default() }),
        any::<u64>().prop_map(|seed| SamplingParams { seed, top_k: Some(5), top_p: 0.9, ..SamplingParams::default() }),
        Just(SamplingParams { repetition_penalty: 1.3, frequency_penalty: 0.5, presence_penalty: 0.2, ..greedy }),
    ]
}

fn visit() -> impl Strategy<Value = Visit> {
    let lane = prop_oneof![Just(Lane::L1), Just(Lane::L2), Just(Lane::L3)];
    let shape = (0u32..4, 1usize..40, 1u32..30);
    let times = (0usize..30, proptest::option::weighted(0.2, 0usize..40));
    (shape, sampling(), lane, proptest::option::of(0i64..60_000), times).prop_map(
        |((family, length, max_tokens), sampling, lane, deadline, (arrives, cancelled))| {
            // Prompts of a family share their beginning, so that blocks are shared and deduplicated.
            let base = request(0, &prompt(family, length), max_tokens);
            Visit { request: GenerateRequest { sampling, lane, deadline, ..base }, arrives, cancelled }
        },
    )
}

fn config() -> impl Strategy<Value = EngineConfig> {
    let quota = prop_oneof![(0usize..20).prop_map(GrowthQuota::Tokens), Just(GrowthQuota::Full)];
    let rule = prop_oneof![Just(LanePreemption::Background), Just(LanePreemption::Lower), Just(LanePreemption::Off)];
    let cache = prop_oneof![3 => Just(PrefixCacheMode::On), 1 => Just(PrefixCacheMode::Off)];
    let limits = (proptest::option::of(1usize..30), 0usize..12);
    let copies = prop_oneof![Just(1u64), Just(400_000), Just(2_000_000)];
    let swap =
        (0usize..30, copies.prop_map(|copy_ns_per_block| SwapRates { copy_ns_per_block, ..SwapRates::default() }));
    let sizes = (1usize..9, 1usize..24);
    (sizes, quota, rule, cache, limits, swap).prop_map(
        |(sizes, quota, rule, cache, limits, (l2_blocks, swap_rates))| {
            let (max_running, extra) = sizes;
            EngineConfig {
                token_budget: max_running + extra,
                max_running,
                prefix_cache: cache,
                max_prefix_tokens: limits.0,
                min_match_tokens: limits.1,
                growth_quota: quota,
                lane_preemption: rule,
                l2_blocks,
                swap_rates,
                max_overtake_us: 20_000,
                ..EngineConfig::default()
            }
        },
    )
}

/// Plays the visits and checks every step's bounds. Ids are the visits' positions.
fn play(config: EngineConfig, blocks: usize, visits: &[Visit]) -> Ledger {
    let mut engine = engine_with(config, blocks);
    let mut ledger = Ledger::default();
    for step in 0..20_000 {
        for (id, visit) in visits.iter().enumerate() {
            if visit.arrives == step {
                let request = GenerateRequest { id: SequenceId(id as u64), ..visit.request.clone() };
                engine.submit(request, step as i64 * 1_000).expect("the request fits");
            }
            if visit.cancelled == Some(step) {
                engine.cancel(SequenceId(id as u64));
            }
        }
        if step > 40 && !engine.has_work() {
            let figures = engine.queue_figures();
            assert_eq!((figures.pool.used, figures.pool.reserved), (0, 0), "blocks leaked");
            assert_eq!(figures.pool.cached, ledger.named.len(), "the KV events don't add up to what is cached");
            assert_eq!(ledger.swapped.len(), 0, "somebody left KV in L2");
            return ledger;
        }
        let report = engine.step(step as i64 * 1_000);
        engine.check_invariants().expect("no leak");
        let stats = report.stats;
        assert!(stats.prefill_tokens + stats.decode_tokens <= config.token_budget as u32, "{stats:?}");
        assert!(stats.running <= config.max_running as u32, "{stats:?}");
        ledger.add(&report);
        ledger.audit(&report);
        let mut held = BTreeMap::new();
        for block in engine.held_blocks().into_iter().filter(|block| block.level == Level::L1) {
            let parent = block.parent.map(|parent| parent.0);
            assert!(parent.is_none_or(|parent| held.contains_key(&parent)), "{block:?} is told before its parent");
            held.insert(block.hash.0, parent);
        }
        assert_eq!(held, ledger.named, "the blocks held are not what the KV events come to");
    }
    panic!("no end in 20000 steps: {:?}", engine.queue_figures());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Scenario: random requests in random lanes arrive and are cancelled at random, under random settings, in a pool
    /// from just large enough for the largest to roomy.
    /// Guarantees: every request ends exactly once, with the tokens of the reference (a beginning of them if
    /// cancelled); no block leaks; budget and slots are kept; KV events add up.
    #[test]
    fn tokens_do_not_depend_on_the_company(
        config in config(),
        extra_blocks in 0usize..30,
        visits in proptest::collection::vec(visit(), 1..14),
    ) {
        let largest = visits.iter().map(|visit| visit.request.prompt.len() + visit.request.stop.max_tokens as usize);
        let blocks = largest.max().unwrap_or(1).div_ceil(4) + extra_blocks;
        let ledger = play(config, blocks, &visits);
        for (id, visit) in visits.iter().enumerate() {
            let expected = reference_tokens(&visit.request);
            let outcome = &ledger.outcomes[&(id as u64)];
            let finish = outcome.finish();
            prop_assert_eq!(finish.completion_tokens as usize, outcome.tokens.len());
            if finish.reason == FinishReason::Cancelled {
                prop_assert!(visit.cancelled.is_some());
                prop_assert!(expected.starts_with(&outcome.tokens));
            } else {
                prop_assert_eq!(finish.reason, FinishReason::Length, "{:?}", finish.error);
                prop_assert_eq!(&outcome.tokens, &expected);
            }
        }
        prop_assert_eq!(ledger.finished.len(), visits.len());
    }
}

/// Scenario: eight requests whose KV needs four times the pool, with no growth promised.
/// Guarantees: sequences give way (the scenario is not vacuous) and all complete with the right tokens.
#[test]
fn a_tiny_pool_preempts_and_completes_everything() {
    let config = EngineConfig { growth_quota: GrowthQuota::Tokens(0), max_running: 8, ..EngineConfig::default() };
    let mut engine = engine_with(config, 16);
    let requests: Vec<_> = (0..8u32).map(|id| request(u64::from(id), &prompt(id, 6), 30)).collect();
    for request in &requests {
        engine.submit(request.clone(), 0).unwrap();
    }
    let ledger = run_to_end(&mut engine);
    let preemptions: u32 = ledger.outcomes.values().map(|outcome| outcome.finish().preemptions).sum();
    assert!(preemptions > 0);
    assert_eq!(ledger.outcomes[&0].finish().preemptions, 0, "the first in the order of service never gives way");
    for request in &requests {
        assert_eq!(ledger.outcomes[&request.id.0].tokens, reference_tokens(request));
    }
}

/// Scenario: the same load with the full quota promised at the start.
/// Guarantees: nobody ever gives way.
#[test]
fn a_full_quota_never_preempts() {
    let config = EngineConfig { growth_quota: GrowthQuota::Full, max_running: 8, ..EngineConfig::default() };
    let mut engine = engine_with(config, 16);
    for id in 0..8u32 {
        engine.submit(request(u64::from(id), &prompt(id, 6), 30), 0).unwrap();
    }
    let ledger = run_to_end(&mut engine);
    assert!(ledger.outcomes.values().all(|outcome| outcome.finish().preemptions == 0));
}

/// Scenario: one long prompt beside running decodes, with a budget of 16 tokens.
/// Guarantees: decodes take one token each in every step, and the prompt gets the rest in chunks.
#[test]
fn long_prompts_are_cut_around_decodes() {
    let config = EngineConfig { token_budget: 16, max_running: 8, ..EngineConfig::default() };
    let mut engine = engine_with(config, 64);
    for id in 0..4u32 {
        engine.submit(request(u64::from(id), &prompt(id, 4), 40), 0).unwrap();
    }
    engine.step(0);
    engine.submit(request(9, &prompt(9, 100), 4), 0).unwrap();
    for _ in 0..8 {
        let stats = engine.step(0).stats;
        assert_eq!((stats.decode_tokens, stats.prefill_tokens), (4, 12));
    }
    let last = engine.step(0).stats;
    assert_eq!((last.decode_tokens, last.prefill_tokens, last.queued_prefill_tokens), (4, 4, 0));
}
