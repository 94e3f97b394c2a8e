//! What a step costs besides the model (SPEC B7): time of `Engine::step` less the time inside the runner, with 64 to
//! 4096 uneven sequences.
//!
//! The load is steady: prompts of 16 to 512 tokens of which up to 64 are shared by every eighth request, outputs of 16
//! to 256, a new request for each that ends. Sampling is greedy over a vocabulary of 32, so its share is small.
//! `--quick` measures fewer steps, `--only 256` one load. The last line is one JSON object; a build with debug assertions says so there,
//! because it includes the leak check, which is O(blocks).
//!
//! Cost: seconds. Memory: about 60 MB for 4096 sequences.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use engine::{
    config::EngineConfig,
    engine::Engine,
    request::{GenerateRequest, Lane, SamplingParams, SequenceId, StopConditions},
    runner::{
        Batch, BatchLogits, ModelRunner, RunnerError, RunnerShape,
        simulated::{CostModel, PagingCheck, SimulatedRunner},
    },
    stop::TokenBytes,
};

const VOCAB: usize = 32;
const BLOCK_SIZE: usize = 16;

struct Letters;

impl TokenBytes for Letters {
    fn token_bytes(&self, token: u32) -> &[u8] {
        &b"abcdefghijklmnopqrstuvwxyz .,!?\n"[token as usize..=token as usize]
    }
}

/// Adds up the time spent in the runner.
struct Timed {
    inner: SimulatedRunner,
    nanos: Arc<AtomicU64>,
}

impl Timed {
    fn timed<T>(&mut self, work: impl FnOnce(&mut SimulatedRunner) -> T) -> T {
        let start = Instant::now();
        let result = work(&mut self.inner);
        self.nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }
}

impl ModelRunner for Timed {
    fn shape(&self) -> RunnerShape {
        self.inner.shape()
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError> {
        self.timed(|inner| inner.submit(batch))
    }

    fn collect(&mut self) -> Result<BatchLogits, RunnerError> {
        self.timed(|inner| inner.collect())
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.timed(|inner| inner.copy_blocks(pairs))
    }

    fn provide_l2(&mut self, blocks: usize) -> Result<(), RunnerError> {
        self.inner.provide_l2(blocks)
    }

    fn swap_out(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.timed(|inner| inner.swap_out(pairs))
    }

    fn swap_in(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.timed(|inner| inner.swap_in(pairs))
    }
}

/// A request whose sizes follow from its number.
fn request(id: u64) -> GenerateRequest {
    let mix = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let length = 16 + mix % 497;
    let own = |index: u64| if index < 64 { id % 8 } else { mix.rotate_left(index as u32 % 61) };
    let prompt: Vec<u32> = (0..length).map(|index| ((index * index + own(index)) % VOCAB as u64) as u32).collect();
    GenerateRequest {
        id: SequenceId(id),
        prompt: prompt.into(),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        stop: StopConditions { max_tokens: 16 + (mix >> 9) as u32 % 241, ..StopConditions::default() },
        lane: if id.is_multiple_of(8) { Lane::L1 } else { Lane::L2 },
        deadline: None,
        cache_salt: 0,
        sampling_offset: 0,
    }
}

/// Figures of one load, in microseconds a step.
struct Row {
    sequences: usize,
    steps: usize,
    p50_us: f64,
    p99_us: f64,
    mean_us: f64,
    runner_mean_us: f64,
}

fn measure(sequences: usize, steps: usize) -> Result<Row, Box<dyn std::error::Error>> {
    let blocks = sequences * (768 / BLOCK_SIZE) / 2 + 64;
    let shape = RunnerShape { vocab: VOCAB, context: 4096, block_size: BLOCK_SIZE, blocks, block_bytes: 0 };
    let nanos = Arc::new(AtomicU64::new(0));
    let inner = SimulatedRunner::new(shape, CostModel::default(), PagingCheck::Newest);
    let runner = Timed { inner, nanos: Arc::clone(&nanos) };
    let config = EngineConfig {
        token_budget: sequences * 4,
        max_running: sequences,
        max_waiting: sequences * 2,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(config, Box::new(runner), Arc::new(Letters))?;
    let next = Cell::new(0u64);
    let step = |engine: &mut Engine, now: usize| -> Result<(f64, f64), Box<dyn std::error::Error>> {
        let figures = engine.queue_figures();
        for _ in figures.running + figures.waiting.iter().sum::<usize>()..sequences + sequences / 8 {
            engine.submit(request(next.replace(next.get() + 1)), now as i64)?;
        }
        nanos.store(0, Ordering::Relaxed);
        let start = Instant::now();
        let report = engine.step(now as i64);
        let total = start.elapsed().as_nanos() as f64;
        std::hint::black_box(report);
        let inside = nanos.load(Ordering::Relaxed) as f64;
        Ok(((total - inside) / 1e3, inside / 1e3))
    };
    let warm_up = 300;
    for now in 0..warm_up {
        step(&mut engine, now)?;
    }
    let mut outside = Vec::with_capacity(steps);
    let mut inside = 0.0;
    for now in warm_up..warm_up + steps {
        let (engine_us, runner_us) = step(&mut engine, now)?;
        outside.push(engine_us);
        inside += runner_us;
    }
    outside.sort_by(f64::total_cmp);
    Ok(Row {
        sequences,
        steps,
        p50_us: outside[steps / 2],
        p99_us: outside[steps * 99 / 100],
        mean_us: outside.iter().sum::<f64>() / steps as f64,
        runner_mean_us: inside / steps as f64,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let steps = if std::env::args().any(|argument| argument == "--quick") { 200 } else { 2_000 };
    println!(
        "{:>9} {:>10} {:>10} {:>10} {:>12} {:>12}",
        "sequences", "p50 us", "p99 us", "mean us", "ns/sequence", "runner us"
    );
    let mut rows = Vec::new();
    let only: Option<usize> =
        std::env::args().skip_while(|argument| argument != "--only").nth(1).and_then(|number| number.parse().ok());
    for sequences in [64, 256, 1024, 4096].into_iter().filter(|number| only.is_none_or(|only| only == *number)) {
        let row = measure(sequences, steps)?;
        let each = row.mean_us * 1e3 / sequences as f64;
        println!(
            "{:>9} {:>10.1} {:>10.1} {:>10.1} {each:>12.0} {:>12.1}",
            row.sequences, row.p50_us, row.p99_us, row.mean_us, row.runner_mean_us
        );
        rows.push(format!(
            r#"{{"sequences":{},"steps":{},"p50_us":{:.1},"p99_us":{:.1},"mean_us":{:.1},"runner_mean_us":{:.1}}}"#,
            row.sequences, row.steps, row.p50_us, row.p99_us, row.mean_us, row.runner_mean_us
        ));
    }
    let assertions = cfg!(debug_assertions);
    println!(r#"{{"bench":"engine_step","debug_assertions":{assertions},"rows":[{}]}}"#, rows.join(","));
    Ok(())
}
