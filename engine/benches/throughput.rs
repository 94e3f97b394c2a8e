//! What the CPU runner does with a model file: prefill and decode speed, and memory, without scheduler or server.
//!
//! `--quick` runs each case once, otherwise five times; the best counts. `--threads N` (default: all cores), `--only CASE`,
//! `--file PATH` (default: `$EVENKEEL_MODEL`, or SmolLM2-135M Q4_1 under `$EVENKEEL_HOME` or `~/.cache/evenkeel`). The last
//! line is one JSON object. Memory is the peak of the process (`VmHWM`), read after loading, after a prefill of 2048 tokens and at
//! the end; KV has room for 8192 tokens.

use std::{path::PathBuf, time::Instant};

use engine::{
    model::{Arithmetic, Model},
    request::SequenceId,
    runner::{
        Batch, BatchSlot, ModelRunner,
        cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
    },
};

type Fault = Box<dyn std::error::Error>;

const BLOCK: usize = 16;
const CAPACITY: usize = 8192;
/// Context behind which tokens are decoded, and how many a sequence.
const CONTEXT: usize = 128;
const DECODED: usize = 48;

fn main() -> Result<(), Fault> {
    let arguments: Vec<String> = std::env::args().collect();
    let after =
        |name: &str| arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1));
    let threads = match after("--threads") {
        Some(threads) => threads.parse()?,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let rounds = if arguments.iter().any(|argument| argument == "--quick") { 1 } else { 5 };
    let skipped = |name: &str| after("--only").is_some_and(|only| only != name);
    let Some(path) = after("--file").map(PathBuf::from).or_else(default_file) else {
        println!("SKIPPED (no model file; --file names one)");
        return Ok(());
    };
    let options = CpuRunnerOptions { threads, block_size: BLOCK, blocks: CAPACITY / BLOCK, kv_dtype: KvDtype::F16 };
    let mut runner = CpuRunner::new(Model::load(&path, Arithmetic::Int8)?, options)?;
    let mut figures = vec![("threads", threads as f64), ("loaded_mib", peak_mib()?)];
    for (name, tokens) in [("prefill_512", 512), ("prefill_2048", 2048), ("prefill_8000", 8000)] {
        if skipped(name) || (tokens > 2048 && rounds == 1) {
            continue;
        }
        let seconds = best(rounds, || prefill(&mut runner, tokens))?;
        report(&mut figures, (name, tokens as f64 / seconds));
        if tokens == 2048 {
            report(&mut figures, ("prefill_2048_mib", peak_mib()?));
        }
    }
    for (name, sequences) in [("decode_1", 1), ("decode_8", 8), ("decode_16", 16)] {
        if skipped(name) {
            continue;
        }
        let seconds = best(rounds, || decode(&mut runner, sequences))?;
        report(&mut figures, (name, (sequences * DECODED) as f64 / seconds));
    }
    report(&mut figures, ("peak_mib", peak_mib()?));
    let fields: Vec<String> = figures.iter().map(|(name, value)| format!("\"{name}\":{value:.1}")).collect();
    println!("{{\"bench\":\"throughput\",{}}}", fields.join(","));
    Ok(())
}

/// `$EVENKEEL_MODEL`, or the file that the tests fetch.
fn default_file() -> Option<PathBuf> {
    let named = std::env::var_os("EVENKEEL_MODEL").map(PathBuf::from);
    let fetched = || {
        let home = std::env::var_os("HOME").map(PathBuf::from)?.join(".cache/evenkeel");
        let home = std::env::var_os("EVENKEEL_HOME").map_or(home, PathBuf::from);
        Some(home.join("models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"))
    };
    named.or_else(fetched).filter(|path| path.exists())
}

fn report(figures: &mut Vec<(&'static str, f64)>, figure: (&'static str, f64)) {
    println!("{:20} {:10.1}", figure.0, figure.1);
    figures.push(figure);
}

fn best(rounds: usize, mut body: impl FnMut() -> Result<f64, Fault>) -> Result<f64, Fault> {
    (0..rounds).try_fold(f64::INFINITY, |best, _| Ok(best.min(body()?)))
}

/// Peak of resident memory.
fn peak_mib() -> Result<f64, Fault> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

fn token(index: usize) -> u32 {
    (index * 7919 % 40_000 + 100) as u32
}

fn slot(sequence: usize, tokens: &[u32], position: usize) -> BatchSlot {
    let pages = (CONTEXT + DECODED).div_ceil(BLOCK).max((position + tokens.len()).div_ceil(BLOCK));
    BatchSlot {
        sequence: SequenceId(sequence as u64),
        tokens: tokens.to_vec(),
        position,
        blocks: (0..pages).map(|page| (sequence * pages + page) as u32).collect(),
        wants_logits: true,
        proposed: 0,
    }
}

fn run(runner: &mut CpuRunner, slots: Vec<BatchSlot>) -> Result<Vec<u32>, Fault> {
    runner.submit(&Batch { slots })?;
    let logits = runner.collect()?;
    let rows = 0..logits.values.len() / logits.vocab;
    let tokens = rows.map(|row| kernels::ops::logits::argmax(logits.row(row)) as u32).collect();
    runner.recycle(logits);
    Ok(tokens)
}

/// Seconds of one prompt, in chunks of 512.
fn prefill(runner: &mut CpuRunner, tokens: usize) -> Result<f64, Fault> {
    let prompt: Vec<u32> = (0..tokens).map(token).collect();
    let start = Instant::now();
    for (index, chunk) in prompt.chunks(512).enumerate() {
        let position = index * 512;
        let mut slot = slot(0, chunk, position);
        slot.wants_logits = position + chunk.len() == tokens;
        run(runner, vec![slot])?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds in which each of some sequences gets [`DECODED`] tokens, behind a prompt that does not count.
fn decode(runner: &mut CpuRunner, sequences: usize) -> Result<f64, Fault> {
    let prompts = (0..sequences).map(|sequence| {
        let prompt: Vec<u32> = (0..CONTEXT).map(|index| token(index + sequence * 1000)).collect();
        slot(sequence, &prompt, 0)
    });
    let mut last = run(runner, prompts.collect())?;
    let start = Instant::now();
    for position in CONTEXT..CONTEXT + DECODED {
        let slots = last.iter().enumerate().map(|(sequence, token)| slot(sequence, &[*token], position));
        last = run(runner, slots.collect())?;
    }
    Ok(start.elapsed().as_secs_f64())
}
