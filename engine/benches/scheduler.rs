//! What a step costs besides the model (SPEC B7): time of `Engine::step` less the time inside the runner, with 64 to
//! 4096 uneven sequences.
//!
//! The load is steady: prompts of 16 to 512 tokens of which up to 64 are shared by every eighth request, outputs of 16
//! to 256, a new request for each that ends. Sampling is greedy over a vocabulary of 32, so its share is small.
//! Below the table: the share of a step at 256 sequences (median; the step is measured on the CPU runner where the model
//! file is there, else modelled), and how long short requests wait behind long prompts, in virtual time.
//!
//! `--quick` measures fewer steps, `--only 256` measures one load and nothing else. The last line is one JSON object; a build with debug assertions says so there,
//! because it includes the leak check: O(sequences) a step and O(blocks) in each 64th.
//!
//! Cost: seconds. Memory: about 60 MB for 4096 sequences.

use std::{
    cell::Cell,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use engine::{
    config::EngineConfig,
    engine::Engine,
    model::{Arithmetic, Model},
    request::{GenerateRequest, Lane, SequenceId},
    runner::{
        Batch, BatchLogits, BatchSlot, ModelRunner, RunnerError, RunnerShape,
        cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
        simulated::{CostModel, PagingCheck, SimulatedRunner},
    },
    stop::TokenBytes,
};

#[path = "../tests/it/queueing.rs"]
mod queueing;

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
        lane: if id.is_multiple_of(8) { Lane::L1 } else { Lane::L2 },
        ..GenerateRequest::greedy(SequenceId(id), prompt, 16 + (mix >> 9) as u32 % 241)
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
    /// Sequences that gave way, a step.
    preempted: f64,
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
    let step = |engine: &mut Engine, now: usize| -> Result<(f64, f64, u32), Box<dyn std::error::Error>> {
        let figures = engine.queue_figures();
        for _ in figures.running + figures.waiting.iter().sum::<usize>()..sequences + sequences / 8 {
            engine.submit(request(next.replace(next.get() + 1)), now as i64)?;
        }
        nanos.store(0, Ordering::Relaxed);
        let start = Instant::now();
        let report = engine.step(now as i64);
        let total = start.elapsed().as_nanos() as f64;
        let preempted = std::hint::black_box(report).stats.preempted;
        let inside = nanos.load(Ordering::Relaxed) as f64;
        Ok(((total - inside) / 1e3, inside / 1e3, preempted))
    };
    let warm_up = 300;
    for now in 0..warm_up {
        step(&mut engine, now)?;
    }
    let mut outside = Vec::with_capacity(steps);
    let (mut inside, mut preempted) = (0.0, 0);
    for now in warm_up..warm_up + steps {
        let (engine_us, runner_us, gave_way) = step(&mut engine, now)?;
        preempted += gave_way;
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
        preempted: f64::from(preempted) / steps as f64,
    })
}

/// What a step of 256 sequences takes, in microseconds, and where that was found.
struct ModelStep {
    us: f64,
    source: &'static str,
}

/// Decodes 256 sequences on the CPU runner if the model file is there: the shortest of three steps behind 4 tokens of
/// context each, so that the step is as short as it can be. Else the simulated runner's modelled step.
fn model_step() -> Result<ModelStep, Box<dyn std::error::Error>> {
    let home = std::env::var_os("EVENKEEL_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/evenkeel"));
    let path = home.join("models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf");
    let slots = |position: usize, tokens: usize| {
        let slot = |sequence: u32| BatchSlot {
            sequence: SequenceId(u64::from(sequence)),
            tokens: (0..tokens as u32).map(|token| (token + sequence) % 1_000).collect(),
            position,
            blocks: vec![sequence],
            proposed: 0,
            wants_logits: true,
        };
        Batch { slots: (0..256).map(slot).collect() }
    };
    if !path.exists() {
        let us = CostModel::default().batch_us(&slots(330, 1)) as f64;
        return Ok(ModelStep { us, source: "simulated runner's cost model, 330 tokens of context" });
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = CpuRunnerOptions { threads, block_size: 16, blocks: 256, kv_dtype: KvDtype::F16 };
    let mut runner = CpuRunner::new(Model::load(&path, Arithmetic::Int8)?, options)?;
    runner.submit(&slots(0, 4))?;
    runner.collect()?;
    let mut us = f64::INFINITY;
    for position in 4..7 {
        let start = Instant::now();
        runner.submit(&slots(position, 1))?;
        runner.collect()?;
        us = us.min(start.elapsed().as_nanos() as f64 / 1e3);
    }
    Ok(ModelStep { us, source: "CPU runner, SmolLM2-135M Q4_1, 4 tokens of context" })
}

/// Short requests among prompts of 8,000 tokens, in virtual time.
fn print_queueing() -> String {
    let lanes = queueing::serve(queueing::Discipline::Lanes, 1, 1_500);
    let fcfs = queueing::serve(queueing::Discipline::Fcfs, 1, 1_500);
    let gain = fcfs.short_p99_us as f64 / lanes.short_p99_us as f64;
    let throughput = lanes.throughput / fcfs.throughput;
    println!(
        "short requests among prompts of {} tokens (virtual time): TTFT p50 {} us, p99 {} us; first come first served \
         p50 {} us, p99 {} us: {gain:.1} times at {throughput:.3} of the throughput; long prompts p99 {} us, {} us",
        queueing::LONG_PROMPT,
        lanes.short_p50_us,
        lanes.short_p99_us,
        fcfs.short_p50_us,
        fcfs.short_p99_us,
        lanes.long_p99_us,
        fcfs.long_p99_us,
    );
    format!(r#""short_ttft_p99_gain":{gain:.1},"throughput_ratio":{throughput:.3}"#)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let steps = if std::env::args().any(|argument| argument == "--quick") { 200 } else { 2_000 };
    println!(
        "{:>9} {:>10} {:>10} {:>10} {:>12} {:>12} {:>9}",
        "sequences", "p50 us", "p99 us", "mean us", "ns/sequence", "runner us", "gave way"
    );
    let mut rows = Vec::new();
    let mut at_256 = None;
    let only: Option<usize> =
        std::env::args().skip_while(|argument| argument != "--only").nth(1).and_then(|number| number.parse().ok());
    for sequences in [64, 256, 1024, 4096].into_iter().filter(|number| only.is_none_or(|only| only == *number)) {
        let row = measure(sequences, steps)?;
        if sequences == 256 {
            at_256 = Some(row.p50_us);
        }
        let each = row.mean_us * 1e3 / sequences as f64;
        println!(
            "{:>9} {:>10.1} {:>10.1} {:>10.1} {each:>12.0} {:>12.1} {:>9.2}",
            row.sequences, row.p50_us, row.p99_us, row.mean_us, row.runner_mean_us, row.preempted
        );
        rows.push(format!(
            r#"{{"sequences":{},"steps":{},"p50_us":{:.1},"p99_us":{:.1},"mean_us":{:.1},"runner_mean_us":{:.1}}}"#,
            row.sequences, row.steps, row.p50_us, row.p99_us, row.mean_us, row.runner_mean_us
        ));
    }
    if only.is_some() {
        return Ok(());
    }
    let step = model_step()?;
    let share = at_256.map_or(f64::NAN, |us| us / step.us);
    println!("scheduler_share_256 {share:.4} of a step of {:.0} us ({})", step.us, step.source);
    let queueing = print_queueing();
    let assertions = cfg!(debug_assertions);
    println!(
        r#"{{"bench":"engine_step","debug_assertions":{assertions},"scheduler_share_256":{share:.4},{queueing},"rows":[{}]}}"#,
        rows.join(",")
    );
    Ok(())
}
