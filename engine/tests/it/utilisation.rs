//! How full the pool gets before anybody gives way (SPEC C1), under the recorded conversation trace, lengths divided by
//! 16; beside it what contiguous allocation makes of the same requests.

use std::{io::Read, sync::Arc};

use engine::{
    config::{EngineConfig, GrowthQuota},
    engine::Engine,
    request::{GenerateRequest, SequenceId},
    runner::{
        RunnerShape,
        simulated::{CostModel, PagingCheck, SimulatedRunner},
    },
};
use serde::Deserialize;

use crate::{
    data::shared,
    support::{Pieces, VOCAB},
};

const SCALE: usize = 16;
const BLOCK: usize = 16;
const BLOCKS: usize = 4_096;
const REQUESTS: usize = 2_000;
/// Most output tokens of a request of the trace: what a client's `max_tokens` would say.
const MOST_OUTPUT: usize = 2_000;

#[derive(Deserialize)]
struct Row {
    input_length: usize,
    output_length: usize,
    /// One a block of 512 tokens; equal hashes stand for equal tokens up to there.
    hash_ids: Vec<u64>,
}

impl Row {
    fn prompt(&self) -> usize {
        (self.input_length / SCALE).max(1)
    }

    /// The output divided by `scale`.
    fn output(&self, scale: usize) -> usize {
        (self.output_length / scale).max(1)
    }
}

/// The first requests of the trace; `None` where it is not there.
fn trace() -> Option<Vec<Row>> {
    let path = shared("data/mooncake/conversation_trace.jsonl.zst")?;
    let mut decoder = zstd::Decoder::new(std::fs::File::open(path).unwrap()).unwrap();
    decoder.window_log_max(31).unwrap();
    let mut text = String::new();
    decoder.read_to_string(&mut text).unwrap();
    Some(text.lines().take(REQUESTS).map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// A row as a request: 32 tokens for each hash, made from it.
fn request(id: usize, row: &Row, output_scale: usize) -> GenerateRequest {
    let token = |at: usize| {
        let hash = row.hash_ids[(at / (512 / SCALE)).min(row.hash_ids.len() - 1)];
        let mixed = (hash * 512 + at as u64 % 512).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        (mixed % VOCAB as u64) as u32
    };
    let prompt: Vec<u32> = (0..row.prompt()).map(token).collect();
    GenerateRequest::greedy(SequenceId(id as u64), prompt, row.output(output_scale) as u32)
}

/// Shares of the pool in use by sequences, and what it cost.
#[derive(Debug, Default)]
struct Paged {
    /// Most before the first preemption (or at all, if there is none).
    before_first: f64,
    /// Mean over the steps in which somebody waited.
    mean: f64,
    preempted: u32,
    /// Tokens computed again, as a share of all computed.
    recomputed: f64,
    steps: u64,
}

fn paged(rows: &[Row], output_scale: usize, growth_quota: GrowthQuota) -> Paged {
    let shape = RunnerShape { vocab: VOCAB, context: 16_384, block_size: BLOCK, blocks: BLOCKS, block_bytes: 0 };
    let runner = SimulatedRunner::new(shape, CostModel::default(), PagingCheck::Newest);
    let config = EngineConfig { token_budget: 4_096, max_running: 1_024, growth_quota, ..EngineConfig::default() };
    let mut engine = Engine::new(config, Box::new(runner), Arc::new(Pieces)).unwrap();
    let (mut figures, mut sum, mut crowded) = (Paged::default(), 0.0, 0u32);
    let (mut next, mut computed, mut needed) = (0, 0u64, 0u64);
    while next < rows.len() || engine.has_work() {
        // A queue that never runs dry: the pool is the bottleneck, as at peak.
        while next < rows.len() && engine.queue_figures().waiting[1] < 64 {
            engine.submit(request(next, &rows[next], output_scale), 0).unwrap();
            next += 1;
        }
        let report = engine.step(0);
        let stats = report.stats;
        let share = f64::from(stats.blocks_used) / f64::from(stats.blocks_total);
        if figures.preempted == 0 {
            figures.before_first = figures.before_first.max(share);
        }
        if stats.waiting > 0 && next < rows.len() {
            sum += share;
            crowded += 1;
        }
        figures.preempted += stats.preempted;
        figures.steps += 1;
        computed += u64::from(stats.prefill_tokens + stats.decode_tokens);
        let ends = report.outputs.iter().filter_map(|output| output.finish.as_ref());
        needed +=
            ends.map(|end| u64::from(end.prompt_tokens + end.completion_tokens - 1 - end.cached_tokens)).sum::<u64>();
    }
    figures.mean = sum / f64::from(crowded.max(1));
    figures.recomputed = computed.saturating_sub(needed) as f64 / computed as f64;
    figures
}

/// A contiguous range of token places held by a sequence.
struct Extent {
    start: usize,
    len: usize,
    filled: usize,
    left: usize,
}

/// First-fit contiguous allocation of the same requests, each reserving places for its prompt and `room(output)` tokens
/// when it starts. `(used when the first request did not fit, mean while requests waited)`: places with KV, of all.
fn contiguous(rows: &[Row], output_scale: usize, room: impl Fn(usize) -> usize) -> (f64, f64) {
    let places = BLOCKS * BLOCK;
    let mut held: Vec<Extent> = Vec::new();
    let (mut next, mut first, mut sum, mut crowded) = (0, None, 0.0, 0u32);
    while next < rows.len() {
        while let Some(row) = rows.get(next) {
            let (prompt, output) = (row.prompt(), row.output(output_scale));
            let len = prompt + room(output);
            let ends = held.iter().map(|extent| extent.start + extent.len);
            let gaps = std::iter::once(0).chain(ends).zip(held.iter().map(|extent| extent.start).chain([places]));
            let Some(at) = gaps.into_iter().position(|(start, end)| end - start >= len) else { break };
            let start = at.checked_sub(1).map_or(0, |before| held[before].start + held[before].len);
            held.insert(at, Extent { start, len, filled: prompt, left: output });
            next += 1;
        }
        let share = held.iter().map(|extent| extent.filled).sum::<usize>() as f64 / places as f64;
        first.get_or_insert(share);
        sum += share;
        crowded += 1;
        held.iter_mut().for_each(|extent| (extent.filled, extent.left) = (extent.filled + 1, extent.left - 1));
        held.retain(|extent| extent.left > 0);
    }
    (first.unwrap_or(0.0), sum / f64::from(crowded))
}

/// Scenario: the first 2,000 requests of the trace, as many at once as the pool lets in, under each growth quota; the
/// same requests in contiguous ranges that fit them exactly (as if the output's length were known), and in ranges with
/// room for the longest output.
/// Guarantees: with the default quota at least 90 % of the blocks are in use before the first preemption and 85 % on the
/// mean, the ramp included, and nobody gives way; contiguous ranges with room for the longest output use less.
#[test]
fn the_pool_is_full_before_anybody_gives_way() {
    let Some(rows) = trace() else { return };
    let quotas = [0, 16, 32, 64].map(GrowthQuota::Tokens).into_iter().chain([GrowthQuota::Full]);
    for quota in quotas {
        let figures = paged(&rows, SCALE, quota);
        println!("{quota:?}: {figures:?}");
        if quota == EngineConfig::default().growth_quota {
            assert!(figures.before_first >= 0.9 && figures.mean >= 0.85 && figures.preempted == 0, "{figures:?}");
        }
    }
    let exact = contiguous(&rows, SCALE, |output| output);
    let usual = contiguous(&rows, SCALE, |_| MOST_OUTPUT / SCALE);
    println!("contiguous, exact: {exact:?}; with room for the longest output: {usual:?}");
    assert!(usual.1 < 0.9, "{usual:?}");
}

/// Scenario: the same prompts with the outputs as long as recorded, so that growth is half of what the pool holds.
/// Guarantees: with the default quota at least 90 % of the blocks are in use before the first preemption and on the
/// mean more than under `Full`, which preempts nobody; less than a tenth of the tokens is computed again.
#[test]
fn growth_does_not_thrash_the_pool() {
    let Some(mut rows) = trace() else { return };
    rows.truncate(600);
    let default = EngineConfig::default().growth_quota;
    let [none, some, full] = [GrowthQuota::Tokens(0), default, GrowthQuota::Full].map(|quota| {
        let figures = paged(&rows, 1, quota);
        println!("{quota:?}: {figures:?}");
        figures
    });
    let exact = contiguous(&rows, 1, |output| output);
    let usual = contiguous(&rows, 1, |_| MOST_OUTPUT);
    println!("contiguous, exact: {exact:?}; with room for the longest output: {usual:?}");
    assert!(some.before_first >= 0.9 && some.mean > full.mean && full.preempted == 0, "{none:?} {some:?} {full:?}");
    assert!(some.recomputed < 0.1, "{some:?}");
}
