//! Nobody starves, and short requests do not wait for long prompts (SPEC B7, B8).

use engine::{
    config::{EngineConfig, GrowthQuota, LanePreemption, SwapRates},
    request::{GenerateRequest, Lane, SequenceId},
};
use proptest::prelude::*;

use crate::{
    queueing::{Discipline, serve},
    support::{engine_with, prompt, request},
};

#[derive(Debug, Clone)]
struct Visit {
    request: GenerateRequest,
    arrives: usize,
}

fn visit() -> impl Strategy<Value = Visit> {
    let lane = prop_oneof![Just(Lane::L1), Just(Lane::L2), Just(Lane::L3)];
    let sizes = (0u32..6, 1usize..60, 1u32..30);
    (sizes, lane, proptest::option::of(0i64..60_000), 0usize..60).prop_map(|(sizes, lane, slack, arrives)| {
        let (family, length, max_tokens) = sizes;
        let deadline = slack.map(|slack| arrives as i64 * 1_000 + slack);
        let base = request(0, &prompt(family, length), max_tokens);
        Visit { request: GenerateRequest { lane, deadline, ..base }, arrives }
    })
}

fn config() -> impl Strategy<Value = EngineConfig> {
    let quota = prop_oneof![(0usize..20).prop_map(GrowthQuota::Tokens), Just(GrowthQuota::Full)];
    let rule = prop_oneof![Just(LanePreemption::Background), Just(LanePreemption::Lower), Just(LanePreemption::Off)];
    let overtake = prop_oneof![Just(0i64), Just(10_000), Just(100_000)];
    (1usize..7, 1usize..24, quota, rule, overtake, 0usize..20).prop_map(
        |(max_running, extra, growth_quota, lane_preemption, max_overtake_us, l2_blocks)| EngineConfig {
            token_budget: max_running + extra,
            max_running,
            growth_quota,
            lane_preemption,
            max_overtake_us,
            l2_blocks,
            swap_rates: SwapRates { copy_ns_per_block: 400_000, ..SwapRates::default() },
            ..EngineConfig::default()
        },
    )
}

/// When each visit ended, in steps.
fn play(config: EngineConfig, blocks: usize, visits: &[Visit]) -> Vec<usize> {
    let mut engine = engine_with(config, blocks);
    let mut ended = vec![None; visits.len()];
    for step in 0..100_000 {
        for (id, visit) in visits.iter().enumerate().filter(|(_, visit)| visit.arrives == step) {
            let request = GenerateRequest { id: SequenceId(id as u64), ..visit.request.clone() };
            engine.submit(request, step as i64 * 1_000).expect("the request fits");
        }
        for output in engine.step(step as i64 * 1_000).outputs.iter().filter(|output| output.finish.is_some()) {
            ended[output.sequence.0 as usize] = Some(step);
        }
        if ended.iter().all(Option::is_some) {
            break;
        }
    }
    ended.into_iter().map(|step| step.expect("everybody ends within 100000 steps")).collect()
}

/// Whether `other` can go before `one`, which ended in step `end`: it was submitted before that end, and is in a higher
/// lane, or came to the same lane earlier or at most `overtake` steps later, or was there already.
fn can_precede(one: &Visit, other: &Visit, (end, overtake): (usize, usize)) -> bool {
    let same_lane = other.request.lane == one.request.lane && other.arrives <= one.arrives + overtake;
    other.arrives <= end && (other.request.lane < one.request.lane || same_lane || other.arrives <= one.arrives)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Scenario: requests of random lanes, lengths and deadlines arrive over time under random settings, in a pool from
    /// just large enough for the largest to roomy.
    ///
    /// Guarantees: every request ends within `2 (k + 1) L` steps of its submission, where `k` requests can go before it
    /// (see `can_precede`) and `L` is the longest of them and itself in tokens, prompt and output.
    ///
    /// Why: call the first in the order of service among those that run the *leader*. (1) In each step the leader gets
    /// at least one token and never loses one: decodes of its lane go before all others and the budget is above
    /// `max_running`; it is the last to give way for pages, and alone it fits in the pool; so a leader is done after
    /// `L` steps as leader. (2) While a request is in the engine, the leader is the request itself or one of the `k`:
    /// a smaller key is a higher lane or an earlier arrival in its lane, and a larger key runs beside a waiting request
    /// only if it was let in before, for a lane that waits lets nobody in below, and within a lane nobody due later
    /// goes first. (3) The leader changes when it ends, at most `k + 1` times, or when a smaller key is let in. The
    /// latter happens at most once for each of the `k + 1`: one that gave way was the last, so all that run go before
    /// it, and until it is back only those are let in that do too. Two times `k + 1` leaders of `L` steps each.
    #[test]
    fn everybody_ends_within_the_stated_bound(
        config in config(),
        extra_blocks in 0usize..30,
        visits in proptest::collection::vec(visit(), 1..24),
    ) {
        let tokens = |visit: &Visit| visit.request.prompt.len() + visit.request.stop.max_tokens as usize;
        let largest = visits.iter().map(tokens).max().unwrap_or(1);
        let ended = play(config, largest.div_ceil(4) + extra_blocks, &visits);
        let overtake = config.max_overtake_us as usize / 1_000;
        for (id, (visit, end)) in visits.iter().zip(&ended).enumerate() {
            let before = visits.iter().enumerate().filter(|(other, before)| {
                *other != id && can_precede(visit, before, (*end, overtake))
            });
            let (count, longest) = before.fold((0, tokens(visit)), |(count, longest), (_, before)| {
                (count + 1, longest.max(tokens(before)))
            });
            let (took, bound) = (end - visit.arrives, 2 * (count + 1) * longest);
            prop_assert!(took <= bound, "request {id} took {took} steps, the bound is {bound}");
        }
    }
}

/// Scenario: short requests among prompts of 8,000 tokens at 0.8 of capacity, three seeds; lanes and chunks against
/// first come, first served, in virtual time.
/// Guarantees: the 99th percentile of the time to the first token of short requests is at least ten times shorter,
/// that of long ones at most a quarter longer, and throughput is equal within 3 %.
#[test]
fn short_requests_do_not_wait_for_long_prompts() {
    for seed in [1, 2, 3] {
        let (lanes, fcfs) = (serve(Discipline::Lanes, seed, 1_500), serve(Discipline::Fcfs, seed, 1_500));
        println!("seed {seed}: lanes {lanes:?}, first come first served {fcfs:?}");
        assert!(lanes.short_p50_us <= fcfs.short_p50_us && lanes.long_p99_us * 4 <= fcfs.long_p99_us * 5);
        assert!(fcfs.short_p99_us >= 10 * lanes.short_p99_us, "{lanes:?} {fcfs:?}");
        assert!((lanes.throughput / fcfs.throughput - 1.0).abs() <= 0.03, "{lanes:?} {fcfs:?}");
    }
}
