//! Short requests behind long prompts, in virtual time: the modelled time of the simulated runner, no clock (SPEC B7,
//! E5). Used by a test and by the scheduler's bench, so it needs nothing but the engine.

use std::sync::Arc;

use engine::{
    Micros,
    config::{EngineConfig, LanePreemption},
    engine::Engine,
    request::{GenerateRequest, Lane, SequenceId},
    runner::{
        RunnerShape,
        simulated::{CostModel, PagingCheck, SimulatedRunner},
    },
    stop::TokenBytes,
};

/// Tokens of a long prompt.
pub const LONG_PROMPT: usize = 8_000;
const SHORT_PROMPT: usize = 64;
const VOCAB: usize = 16;

struct Dots;

impl TokenBytes for Dots {
    fn token_bytes(&self, _: u32) -> &[u8] {
        b"."
    }
}

/// How the engine orders its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discipline {
    /// Short requests in L1, long ones in L2, prompts in chunks.
    Lanes,
    /// First come, first served: one lane, and a prompt is computed whole in one step.
    Fcfs,
}

/// What a discipline gave.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Time to the first token of short requests.
    pub short_p50_us: Micros,
    pub short_p99_us: Micros,
    /// Time to the first token of long requests.
    pub long_p99_us: Micros,
    /// Tokens (prompt and output) a second, from the first arrival to the last end.
    pub throughput: f64,
}

fn engine(discipline: Discipline) -> Engine {
    let blocks = 40 * (LONG_PROMPT / 16 + 2);
    let shape = RunnerShape { vocab: VOCAB, context: LONG_PROMPT + 64, block_size: 16, blocks, block_bytes: 0 };
    let runner = SimulatedRunner::new(shape, CostModel::default(), PagingCheck::Newest);
    let base = EngineConfig { max_running: 64, max_waiting: 100_000, ..EngineConfig::default() };
    let config = match discipline {
        Discipline::Lanes => EngineConfig { token_budget: 1_024, ..base },
        Discipline::Fcfs => {
            EngineConfig { token_budget: LONG_PROMPT + 100, lane_preemption: LanePreemption::Off, ..base }
        }
    };
    Engine::new(config, Box::new(runner), Arc::new(Dots)).expect("valid settings")
}

/// Arrivals at random (exponential gaps from a seed): one long prompt in five requests, about 0.8 of what the model can
/// take.
fn arrivals(seed: u64, count: u64) -> Vec<(Micros, GenerateRequest)> {
    let mut state = seed;
    let mut at = 0.0;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    (0..count)
        .map(|id| {
            at += -uniform().ln() * 140_000.0;
            let long = uniform() < 0.2;
            let length = if long { LONG_PROMPT } else { SHORT_PROMPT };
            let prompt: Vec<u32> = (0..length).map(|_| (uniform() * VOCAB as f64) as u32).collect();
            let request = GenerateRequest {
                lane: if long { Lane::L2 } else { Lane::L1 },
                ..GenerateRequest::greedy(SequenceId(id), prompt, 16)
            };
            (at as Micros, request)
        })
        .collect()
}

/// Serves `count` requests and measures in virtual time.
pub fn serve(discipline: Discipline, seed: u64, count: u64) -> Figures {
    let mut engine = engine(discipline);
    let arrivals = arrivals(seed, count);
    let (mut now, mut next, mut tokens) = (0, 0, 0usize);
    let mut first_token: Vec<Option<Micros>> = vec![None; arrivals.len()];
    while next < arrivals.len() || engine.has_work() {
        if !engine.has_work() {
            now = now.max(arrivals[next].0);
        }
        while next < arrivals.len() && arrivals[next].0 <= now {
            let mut request = arrivals[next].1.clone();
            if discipline == Discipline::Fcfs {
                request.lane = Lane::L2;
            }
            tokens += request.prompt.len() + request.stop.max_tokens as usize;
            engine.submit(request, arrivals[next].0).expect("the queue has room");
            next += 1;
        }
        let report = engine.step(now);
        now += report.stats.modelled_us.unwrap_or(0);
        for output in report.outputs {
            first_token[output.sequence.0 as usize].get_or_insert(now);
        }
    }
    let waits = |long: bool| {
        let mut waits: Vec<Micros> = arrivals
            .iter()
            .zip(&first_token)
            .filter(|((_, request), _)| (request.prompt.len() == LONG_PROMPT) == long)
            .map(|((at, _), first)| first.expect("everyone is served") - at)
            .collect();
        waits.sort_unstable();
        waits
    };
    let (short, long) = (waits(false), waits(true));
    let at = |waits: &[Micros], share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
    Figures {
        short_p50_us: at(&short, 0.5),
        short_p99_us: at(&short, 0.99),
        long_p99_us: at(&long, 0.99),
        throughput: tokens as f64 / ((now - arrivals[0].0) as f64 / 1e6),
    }
}
