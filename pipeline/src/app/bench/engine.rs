//! `evenkeel bench engine`: prefill and decode tokens a second of the engine, in turns with llama.cpp on the same
//! file.
//!
//! Ours is the engine a worker runs, steps and sampling included; the peer is `llama-bench` with the same lengths and
//! threads. Decode starts from one token of context on both sides. The machine's limit for decode is the speed at
//! which the same number of threads read memory, over the bytes of the weights. Invariant: an unknown figure is null.
//! Memory: one engine per thread count and [`memory::READ_BYTES`].

mod memory;
mod ours;
mod peer;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::Serialize;

use self::ours::OurEngine;
use super::figures::{median, paired_ratio, print_json, profile};
use crate::{
    config::{self, Overrides},
    models::{Catalogue, ModelFile, PullRequest, progress, pull, resolve},
};

const THREADS: [usize; 2] = [1, 2];
const PREFILL_TOKENS: usize = 512;
const DECODE_TOKENS: usize = 64;
const BATCH: usize = 8;
const DEFAULT_MODEL: &str = "smollm2-135m";
/// A further round of `--quick` starts only if, at the pace so far, it ends before this.
const QUICK_TIME_MAX: Duration = Duration::from_secs(45);

#[derive(clap::Args)]
pub struct EngineOptions {
    /// Path of a .gguf file, or a name in the catalogue
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// Path of llama.cpp's llama-bench; without it there is no peer
    #[arg(long)]
    llama_bench: Option<PathBuf>,
    /// Two rounds (one if the machine is slow) instead of five: under 50 s in all
    #[arg(long)]
    quick: bool,
}

/// Tokens a second of each round; the peer's are empty without a peer.
#[derive(Default)]
struct Samples {
    prefill: Vec<f64>,
    decode: Vec<f64>,
    decode_batch: Vec<f64>,
    peer_prefill: Vec<f64>,
    peer_decode: Vec<f64>,
    read_bytes_per_second: Vec<f64>,
}

/// Medians over rounds; ratios are medians of the rounds' own.
#[derive(Serialize)]
struct ThreadsReport {
    threads: usize,
    rounds: usize,
    prefill_tokens_per_second: Option<f64>,
    decode_tokens_per_second: Option<f64>,
    decode_batch8_tokens_per_second: Option<f64>,
    peer_prefill_tokens_per_second: Option<f64>,
    peer_decode_tokens_per_second: Option<f64>,
    prefill_ours_over_peer_ratio: Option<f64>,
    decode_ours_over_peer_ratio: Option<f64>,
    memory_read_gb_per_second: Option<f64>,
    decode_share_of_memory_read_ratio: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    quick: bool,
    model: String,
    weight_bytes: usize,
    prefill_tokens: usize,
    decode_tokens: usize,
    peer: Option<String>,
    threads: Vec<ThreadsReport>,
}

pub(super) fn run(options: EngineOptions) -> anyhow::Result<()> {
    let started = Instant::now();
    let path = model_path(&options.model)?;
    let weight_bytes = ours::weight_bytes(&path)?;
    let mut engines =
        THREADS.map(|threads| OurEngine::load(&path, threads)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let buffer = memory::buffer();
    let mut samples = THREADS.map(|_| Samples::default());
    let mut peer_build = None;
    if options.llama_bench.is_none() {
        println!("peer absent: give --llama-bench to compare with llama.cpp");
    }
    let rounds = if options.quick { 2 } else { 5 };
    let measuring = Instant::now();
    for round in 0..rounds {
        let next_ends = started.elapsed() + measuring.elapsed() / round.max(1) as u32;
        if options.quick && round > 0 && next_ends > QUICK_TIME_MAX {
            break;
        }
        for ((threads, engine), samples) in THREADS.into_iter().zip(&mut engines).zip(&mut samples) {
            samples.prefill.push(engine.prefill(PREFILL_TOKENS)?);
            samples.decode.push(engine.decode(1, DECODE_TOKENS)?);
            if let Some(program) = &options.llama_bench {
                let speeds = peer::measure(program, &path, threads)?;
                samples.peer_prefill.push(speeds.prefill);
                samples.peer_decode.push(speeds.decode);
                peer_build = Some(speeds.build);
            }
            samples.decode_batch.push(engine.decode(BATCH, if options.quick { 16 } else { DECODE_TOKENS })?);
            samples.read_bytes_per_second.push(memory::read_bytes_per_second(&buffer, threads)?);
        }
    }
    let threads = THREADS.iter().zip(&samples).map(|(threads, samples)| report(*threads, samples, weight_bytes));
    let threads: Vec<_> = threads.collect();
    threads.iter().for_each(show);
    print_json(&Report {
        bench: "engine",
        profile: profile(),
        quick: options.quick,
        model: path.display().to_string(),
        weight_bytes,
        prefill_tokens: PREFILL_TOKENS,
        decode_tokens: DECODE_TOKENS,
        peer: peer_build,
        threads,
    })
}

/// The file named, or the catalogue's, fetched if it is not there yet.
fn model_path(name: &str) -> anyhow::Result<PathBuf> {
    match resolve(Catalogue::embedded(), name)? {
        ModelFile::Local { path, .. } => Ok(path),
        ModelFile::Listed(entry) => {
            let config = config::load(None, Overrides::default())?;
            let request = PullRequest { entry, models_dir: &config.model.models_dir, from: None };
            Ok(pull(&request, progress::for_stderr().as_ref())?)
        }
    }
}

fn report(threads: usize, samples: &Samples, weight_bytes: usize) -> ThreadsReport {
    let weights_read: Vec<f64> = samples.decode.iter().map(|speed| speed * weight_bytes as f64).collect();
    ThreadsReport {
        threads,
        rounds: samples.prefill.len(),
        prefill_tokens_per_second: median(&samples.prefill),
        decode_tokens_per_second: median(&samples.decode),
        decode_batch8_tokens_per_second: median(&samples.decode_batch),
        peer_prefill_tokens_per_second: median(&samples.peer_prefill),
        peer_decode_tokens_per_second: median(&samples.peer_decode),
        prefill_ours_over_peer_ratio: paired_ratio(&samples.prefill, &samples.peer_prefill),
        decode_ours_over_peer_ratio: paired_ratio(&samples.decode, &samples.peer_decode),
        memory_read_gb_per_second: median(&samples.read_bytes_per_second).map(|bytes| bytes / 1e9),
        decode_share_of_memory_read_ratio: paired_ratio(&weights_read, &samples.read_bytes_per_second),
    }
}

fn show(report: &ThreadsReport) {
    let text = |figure: Option<f64>| figure.map_or("-".to_string(), |figure| format!("{figure:.2}"));
    println!(
        "{} thread(s): prefill {} tokens/s (peer {}, ratio {}), decode {} tokens/s \
         (peer {}, ratio {}), batch of 8 {} tokens/s",
        report.threads,
        text(report.prefill_tokens_per_second),
        text(report.peer_prefill_tokens_per_second),
        text(report.prefill_ours_over_peer_ratio),
        text(report.decode_tokens_per_second),
        text(report.peer_decode_tokens_per_second),
        text(report.decode_ours_over_peer_ratio),
        text(report.decode_batch8_tokens_per_second),
    );
}
