//! Giving way by swap to L2 (SPEC B8): chosen where it is cheaper, right in every token, bounded, and seen.

use std::sync::Arc;

use engine::{
    config::{EngineConfig, GrowthQuota, LanePreemption, SwapRates},
    engine::Engine,
    preemption::{GivingWay, HeldKv, cheaper_way},
    prefix_cache::PrefixCacheMode,
    request::{FinishReason, GenerateRequest, Lane},
    runner::{Batch, BatchLogits, ModelRunner, RunnerError, RunnerShape, simulated::SimulatedRunner},
    step::StepStats,
};

use crate::support::{Ledger, Pieces, engine_with, judge, prompt, reference_tokens, request, run_to_end, shape};

/// Copies are cheap, computing is dear.
fn cheap_copies() -> SwapRates {
    SwapRates { prefill_ns_per_token: 1_000_000, copy_ns_per_block: 1_000 }
}

/// Eight sequences, four times what the pool holds, nothing kept for reuse.
fn crowded(l2_blocks: usize) -> EngineConfig {
    EngineConfig {
        growth_quota: GrowthQuota::Tokens(0),
        max_running: 8,
        prefix_cache: PrefixCacheMode::Off,
        l2_blocks,
        swap_rates: cheap_copies(),
        ..EngineConfig::default()
    }
}

/// Scenario: the prediction at its edges.
/// Guarantees: swap only if two copies a block cost less than the prefill, L2 has room for all, and there is KV at all.
#[test]
fn the_cheaper_way_is_predicted() {
    let rates = SwapRates { prefill_ns_per_token: 10, copy_ns_per_block: 80 };
    let held = |tokens, blocks, l2_free| HeldKv { tokens, blocks, l2_free };
    let cases = [
        (held(16, 1, 1), GivingWay::Recompute, "160 is not below 160"),
        (held(17, 1, 1), GivingWay::Swap, "160 < 170"),
        (held(400, 25, 24), GivingWay::Recompute, "a block more than L2 has free"),
        (held(408, 25, 25), GivingWay::Swap, "4000 < 4080"),
        (held(0, 0, 9), GivingWay::Recompute, "nothing to copy"),
    ];
    for (held, expected, why) in cases {
        assert_eq!(cheaper_way(rates, held), expected, "{why}");
    }
}

fn play(config: EngineConfig) -> (Ledger, StepStats) {
    let mut engine = engine_with(config, 16);
    let requests: Vec<_> = (0..8u32).map(|id| request(u64::from(id), &prompt(id, 6), 30)).collect();
    for request in &requests {
        engine.submit(request.clone(), 0).unwrap();
    }
    let (mut ledger, mut total) = (Ledger::default(), StepStats::default());
    while engine.has_work() {
        let report = engine.step(0);
        engine.check_invariants().unwrap();
        ledger.add(&report);
        ledger.audit(&report);
        total.preempted += report.stats.preempted;
        total.swapped += report.stats.swapped;
        total.swapped_out_blocks += report.stats.swapped_out_blocks;
        total.swapped_in_blocks += report.stats.swapped_in_blocks;
        total.l2_blocks_used = total.l2_blocks_used.max(report.stats.l2_blocks_used);
        total.prefill_tokens += report.stats.prefill_tokens;
    }
    for request in &requests {
        assert_eq!(ledger.outcomes[&request.id.0].tokens, reference_tokens(request));
    }
    (ledger, total)
}

/// Scenario: sequences give way for want of pages with a large L2, a small one and none, with and without the prefix
/// cache.
/// Guarantees: all tokens are right; with room everyone goes by swap and comes back by swap, so nothing is computed
/// twice; a small L2 is never exceeded and the rest is recomputed; every swap is counted and is in the KV events, and
/// L2 is empty at the end.
#[test]
fn sequences_give_way_by_swap_and_come_back() {
    let (_, roomy) = play(crowded(64));
    assert!(roomy.preempted > 0 && roomy.swapped == roomy.preempted, "{roomy:?}");
    assert_eq!(roomy.swapped_in_blocks, roomy.swapped_out_blocks);
    assert_eq!(roomy.prefill_tokens, 8 * 6, "each prompt is computed once");
    let (_, small) = play(crowded(5));
    assert!(small.swapped > 0 && small.swapped < small.preempted && small.l2_blocks_used <= 5, "{small:?}");
    let (_, none) = play(crowded(0));
    assert!(none.preempted > 0 && none.swapped == 0 && none.prefill_tokens > 8 * 6, "{none:?}");

    let (ledger, named) = play(EngineConfig { prefix_cache: PrefixCacheMode::On, ..crowded(64) });
    assert!(named.swapped > 0 && ledger.hits.1 > 0, "{named:?} {:?}", ledger.hits);
    assert!(ledger.swapped.is_empty(), "events of L2 add up to nothing at the end");
}

/// Scenario: background work with a long context holds the only slot; a normal request takes it and ends. Once with L2,
/// once by recomputation.
/// Guarantees: the interrupted sequence draws its next token within two iterations of the lane's being free.
#[test]
fn an_interrupted_sequence_resumes_within_two_iterations() {
    for l2_blocks in [0, 64] {
        let config = EngineConfig {
            max_running: 1,
            token_budget: 256,
            l2_blocks,
            swap_rates: cheap_copies(),
            ..EngineConfig::default()
        };
        let mut engine = engine_with(config, 64);
        let background = GenerateRequest { lane: Lane::L3, ..request(1, &prompt(1, 120), 40) };
        engine.submit(background.clone(), 0).unwrap();
        let mut ledger = Ledger::default();
        ledger.add(&engine.step(0));
        engine.submit(request(2, &prompt(2, 20), 6), 0).unwrap();
        let mut swapped = 0;
        let freed = (1..).find(|_| {
            let report = engine.step(0);
            swapped += report.stats.swapped;
            ledger.add(&report);
            ledger.finished.contains(&2)
        });
        assert_eq!((freed, swapped), (Some(6), u32::from(l2_blocks > 0)), "2 took the slot at once");
        let before = ledger.outcomes[&1].tokens.len();
        ledger.add(&engine.step(0));
        ledger.add(&engine.step(0));
        assert!(ledger.outcomes[&1].tokens.len() > before, "l2_blocks = {l2_blocks}");
        let rest = run_to_end(&mut engine);
        let tokens = [&ledger.outcomes[&1].tokens[..], &rest.outcomes[&1].tokens[..]].concat();
        assert_eq!(tokens, reference_tokens(&background));
    }
}

/// Scenario: background sequences decode and fill the slots and the budget; normal prompts longer than the budget come.
/// Guarantees: in each step in which a prompt could use the whole budget, no token of background work runs; afterwards
/// it goes on.
#[test]
fn background_work_gets_idle_capacity_only() {
    let config = EngineConfig { max_running: 8, token_budget: 16, ..EngineConfig::default() };
    let mut engine = engine_with(config, 256);
    for id in 0..6 {
        engine.submit(GenerateRequest { lane: Lane::L3, ..request(id, &prompt(id as u32, 2), 60) }, 0).unwrap();
    }
    assert_eq!(engine.step(0).outputs.len(), 6);
    assert_eq!(engine.step(0).stats.decode_tokens, 6, "the capacity is idle");
    engine.submit(request(7, &prompt(7, 64), 4), 0).unwrap();
    for _ in 0..4 {
        let stats = engine.step(0).stats;
        assert_eq!((stats.prefill_tokens, stats.decode_tokens, stats.preempted), (16, 0, 0));
    }
    assert_eq!(engine.step(0).stats.decode_tokens, 7);
    assert!(run_to_end(&mut engine).finished.len() == 7);
}

/// When the wrapped runner's copies fail.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Out,
    In,
}

struct BadCopies {
    inner: SimulatedRunner,
    fault: Fault,
    calls: usize,
}

impl BadCopies {
    fn fails(&mut self, now: Fault) -> Result<(), RunnerError> {
        self.calls += usize::from(self.fault == now);
        match self.fault == now && self.calls == 2 {
            true => Err(RunnerError("copy engine lost".into())),
            false => Ok(()),
        }
    }
}

impl ModelRunner for BadCopies {
    fn shape(&self) -> RunnerShape {
        self.inner.shape()
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError> {
        self.inner.submit(batch)
    }

    fn collect(&mut self) -> Result<BatchLogits, RunnerError> {
        self.inner.collect()
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.inner.copy_blocks(pairs)
    }

    fn provide_l2(&mut self, blocks: usize) -> Result<(), RunnerError> {
        self.inner.provide_l2(blocks)
    }

    fn swap_out(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.fails(Fault::Out)?;
        self.inner.swap_out(pairs)
    }

    fn swap_in(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.fails(Fault::In)?;
        self.inner.swap_in(pairs)
    }
}

/// Scenario: the second copy to L2, or from it, fails.
/// Guarantees: the batch of that step fails with the error's text; what waits is recomputed and ends with the right
/// tokens; no block and no slot leaks.
#[test]
fn a_failed_copy_fails_its_step_only() {
    for fault in [Fault::Out, Fault::In] {
        let runner = BadCopies { inner: judge(shape(16)), fault, calls: 0 };
        let mut engine = Engine::new(crowded(64), Box::new(runner), Arc::new(Pieces)).unwrap();
        let requests: Vec<_> = (0..8u32).map(|id| request(u64::from(id), &prompt(id, 6), 30)).collect();
        for request in &requests {
            engine.submit(request.clone(), 0).unwrap();
        }
        let ledger = run_to_end(&mut engine);
        let failed = ledger.outcomes.values().filter(|outcome| outcome.finish().reason == FinishReason::Failed);
        let errors: Vec<String> = failed.filter_map(|outcome| outcome.finish().error.clone()).collect();
        assert!(!errors.is_empty() && errors.len() < 8, "{errors:?}");
        assert!(errors.iter().all(|error| error.contains("copy engine lost")), "{errors:?}");
        for request in &requests {
            let outcome = &ledger.outcomes[&request.id.0];
            assert!(reference_tokens(request).starts_with(&outcome.tokens));
            assert!(outcome.finish().error.is_some() || outcome.tokens.len() == 30);
        }
        assert_eq!(engine.queue_figures().pool.used, 0);
    }
}

/// Scenario: a sequence is cancelled while its KV waits in L2; the cache is cleared while another's does.
/// Guarantees: its slots come back at once; the other is recomputed with the right tokens.
#[test]
fn slots_come_back_when_a_swapped_sequence_ends_or_the_cache_is_cleared() {
    let config = EngineConfig {
        max_running: 2,
        lane_preemption: LanePreemption::Lower,
        l2_blocks: 64,
        swap_rates: cheap_copies(),
        ..EngineConfig::default()
    };
    let mut engine = engine_with(config, 64);
    let low = [1, 2].map(|id| GenerateRequest { lane: Lane::L3, ..request(id, &prompt(id as u32, 20), 20) });
    let mut ledger = Ledger::default();
    low.iter().for_each(|request| engine.submit(request.clone(), 0).unwrap());
    ledger.add(&engine.step(0));
    for id in [3, 4] {
        engine.submit(request(id, &prompt(id as u32, 4), 8), 0).unwrap();
    }
    let report = engine.step(0);
    ledger.add(&report);
    assert_eq!((report.stats.swapped, report.stats.l2_blocks_used), (2, 10));
    engine.cancel(low[0].id);
    let report = engine.step(0);
    ledger.add(&report);
    assert_eq!(report.stats.l2_blocks_used, 5);
    engine.clear_prefix_cache();
    let report = engine.step(0);
    ledger.add(&report);
    assert_eq!(report.stats.l2_blocks_used, 0);
    let rest = run_to_end(&mut engine);
    let tokens = [&ledger.outcomes[&2].tokens[..], &rest.outcomes[&2].tokens[..]].concat();
    assert_eq!(tokens, reference_tokens(&low[1]));
}

/// Scenario: L2 is asked for and the runner has none.
/// Guarantees: refused at construction by name.
#[test]
fn l2_needs_a_runner_that_has_it() {
    struct Plain(SimulatedRunner);
    impl ModelRunner for Plain {
        fn shape(&self) -> RunnerShape {
            self.0.shape()
        }
        fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError> {
            self.0.submit(batch)
        }
        fn collect(&mut self) -> Result<BatchLogits, RunnerError> {
            self.0.collect()
        }
        fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
            self.0.copy_blocks(pairs)
        }
    }
    let refused = Engine::new(crowded(8), Box::new(Plain(judge(shape(16)))), Arc::new(Pieces)).err().unwrap();
    assert_eq!(refused.to_string(), "engine.l2_blocks is 8; the runner can't provide them: this runner has no L2");
    assert!(Engine::new(crowded(0), Box::new(Plain(judge(shape(16)))), Arc::new(Pieces)).is_ok());
}
