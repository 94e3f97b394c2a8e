//! `evenkeel bench engine`: the engine a worker runs, in turns with llama.cpp on the same file with the same threads.
//!
//! Prefill of two lengths, decode at three batches, peak memory with KV for the same number of tokens, and the share of
//! scheduling in a step. Decode starts from one token of context on both sides. `--peer-model` adds llama.cpp on its
//! fastest format of the model. Beside each figure stands the most that this machine can do (`roofline`), from limits
//! measured in the same rounds on as many threads. Invariants: an unknown figure is null; who has no turn is stopped, so
//! that no waiting thread of it runs. Memory: one process a side and 256 MiB a thread.

mod ours;
mod peer;
mod roofline;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use engine::{
    model::{Arithmetic, Model},
    runner::cpu::Limits,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::{
    ours::{OurEngine, Question},
    peer::Peer,
    roofline::Work,
};
pub(super) use self::{
    ours::{SideOptions, answer},
    peer::{PeerSideOptions, become_peer},
};
use super::figures::{median, paired_ratio, peak_bytes, print_json, profile};
use crate::{
    config::{self, Overrides},
    models::{Catalogue, ModelFile, PullRequest, progress, pull, resolve},
};

/// Tokens that the KV memory of each side holds.
const CONTEXT_TOKENS: usize = 8192;
const PREFILLS: [usize; 2] = [512, 2048];
const BATCHES: [usize; 3] = [1, 8, 16];
/// Sequences at which scheduling is weighed.
const SCHEDULED: usize = 256;
const DEFAULT_MODEL: &str = "smollm2-135m";
/// A further round of `--quick` starts only if, at the pace so far, it ends before this.
const QUICK_TIME_MAX: Duration = Duration::from_secs(40);

#[derive(clap::Args)]
pub struct EngineOptions {
    /// Path of a .gguf file, or a name in the catalogue
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// Path of llama.cpp's llama-server; without it there is no peer
    #[arg(long)]
    peer: Option<PathBuf>,
    /// The same model in the peer's fastest format, compared too
    #[arg(long, requires = "peer")]
    peer_model: Option<PathBuf>,
    /// Compute threads of each side; without it all the machine has
    #[arg(long)]
    threads: Option<usize>,
    /// Two rounds (one if the machine is slow) of fewer tokens instead of five: under 50 s on an idle machine with one
    /// peer, half as much again with --peer-model
    #[arg(long)]
    quick: bool,
}

/// What is measured, in the order of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Prefill(usize),
    Decode(usize),
}

impl Case {
    fn all() -> Vec<Case> {
        PREFILLS.into_iter().map(Case::Prefill).chain(BATCHES.into_iter().map(Case::Decode)).collect()
    }

    fn name(self) -> String {
        match self {
            Case::Prefill(tokens) => format!("prefill_{tokens}"),
            Case::Decode(batch) => format!("decode_batch{batch}"),
        }
    }
}

/// Tokens a second of each round.
#[derive(Default)]
struct Samples {
    ours: Vec<f64>,
    peer: Vec<f64>,
    fast: Vec<f64>,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    quick: bool,
    model: String,
    peer: Option<String>,
    peer_model: Option<PathBuf>,
    threads: usize,
    rounds: usize,
    context_tokens: usize,
    weight_bytes: usize,
    #[serde(flatten)]
    figures: Map<String, Value>,
}

pub(super) fn run(options: EngineOptions) -> anyhow::Result<()> {
    let path = model_path(&options.model)?;
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let mut ours = OurEngine::start(&path, threads)?;
    let start = |program: &PathBuf, model: &PathBuf| Peer::start(program, model, threads);
    let mut peer = options.peer.as_ref().map(|program| start(program, &path)).transpose()?;
    let mut fast = options.peer.as_ref().zip(options.peer_model.as_ref()).map(|(p, m)| start(p, m)).transpose()?;
    if peer.is_none() {
        println!("peer absent: give --peer PATH-OF-llama-server to compare with llama.cpp");
    }
    let measured = measure(&options, threads, (&mut ours, [peer.as_mut(), fast.as_mut()]))?;
    // Before the scheduler's figure, which takes memory that nothing else does.
    let memories = [Some(ours.pid()), peer.as_ref().map(Peer::pid), fast.as_ref().map(Peer::pid)];
    let [own, theirs, fastest] = memories.map(|pid| pid.and_then(|pid| peak_bytes(pid).ok()).map(|bytes| bytes as f64));
    let share = ours.ask(Question::SchedulerShare { sequences: SCHEDULED })?;
    let model = Model::load(&path, Arithmetic::F32)?;
    let work = Work::new(model.config(), model.vocab(), model.weight_bytes());
    let mut figures = Map::new();
    for (case, samples) in &measured.samples {
        show(*case, (samples, &measured.limits), &work, &mut figures);
    }
    let ratio = |ours: Option<f64>, theirs: Option<f64>| Some(ours? / theirs?);
    let limit = |of: fn(&Limits) -> f64| median(&measured.limits.iter().map(of).collect::<Vec<_>>());
    let further = json!({
        "peak_memory_mib": own.map(mib), "peer_peak_memory_mib": theirs.map(mib),
        "peak_memory_ratio": ratio(own, theirs), "peak_memory_over_peer_model_ratio": ratio(own, fastest),
        "int8_gops": limit(|limits| limits.int8_gops), "f32_gflops": limit(|limits| limits.f32_gflops),
        "l3_gb_per_second": limit(|limits| limits.l3_gbytes),
        "memory_gb_per_second": limit(|limits| limits.memory_gbytes),
        "scheduler_share_256": share,
    });
    println!(
        "this machine on {threads} threads: int8 {} Gop/s, f32 {} GFLOP/s, third-level cache {} GB/s, memory {} GB/s",
        text(limit(|limits| limits.int8_gops)),
        text(limit(|limits| limits.f32_gflops)),
        text(limit(|limits| limits.l3_gbytes)),
        text(limit(|limits| limits.memory_gbytes)),
    );
    println!("peak memory: ours {} MiB, peer {} MiB", text(own.map(mib)), text(theirs.map(mib)));
    println!("scheduling at {SCHEDULED} sequences: {:.2} % of a step", share * 100.0);
    figures.extend(further.as_object().cloned().unwrap_or_default());
    print_json(&Report {
        bench: "engine",
        profile: profile(),
        quick: options.quick,
        model: path.display().to_string(),
        peer: peer.as_mut().map(Peer::build).transpose()?,
        peer_model: options.peer_model,
        threads,
        rounds: measured.limits.len(),
        context_tokens: CONTEXT_TOKENS,
        weight_bytes: model.weight_bytes(),
        figures,
    })
}

/// What the rounds gave.
struct Measured {
    samples: Vec<(Case, Samples)>,
    /// One a round.
    limits: Vec<Limits>,
}

fn measure(
    options: &EngineOptions,
    threads: usize,
    (ours, mut peers): (&mut OurEngine, [Option<&mut Peer>; 2]),
) -> anyhow::Result<Measured> {
    let started = Instant::now();
    let decode_tokens = if options.quick { 24 } else { 64 };
    let rounds = if options.quick { 2 } else { 5 };
    let mut samples: Vec<(Case, Samples)> = Case::all().into_iter().map(|case| (case, Samples::default())).collect();
    let mut limits = Vec::new();
    for round in 0..rounds {
        let next_ends = started.elapsed() + started.elapsed() / round.max(1);
        if options.quick && round > 0 && next_ends > QUICK_TIME_MAX {
            break;
        }
        for (case, samples) in &mut samples {
            let question = match *case {
                Case::Prefill(tokens) => Question::Prefill(tokens),
                Case::Decode(sequences) => Question::Decode { sequences, tokens: decode_tokens },
            };
            samples.ours.push(ours.ask(question)?);
            for (peer, speeds) in peers.iter_mut().zip([&mut samples.peer, &mut samples.fast]) {
                if let Some(peer) = peer {
                    speeds.push(match *case {
                        Case::Prefill(tokens) => peer.prefill(tokens)?,
                        Case::Decode(sequences) => peer.decode(sequences, decode_tokens)?,
                    });
                }
            }
        }
        limits.push(Limits::measure(threads, &|| started.elapsed().as_secs_f64()));
        eprintln!("round {} of {rounds} done after {:.0?}", round + 1, started.elapsed());
    }
    Ok(Measured { samples, limits })
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// The file named, or the catalogue's, fetched if it is not there yet.
pub(in crate::app) fn model_path(name: &str) -> anyhow::Result<PathBuf> {
    match resolve(Catalogue::embedded(), name)? {
        ModelFile::Local { path, .. } => Ok(path),
        ModelFile::Listed(entry) => {
            let config = config::load(None, Overrides::default())?;
            let request = PullRequest { entry, models_dir: &config.model.models_dir, from: None };
            Ok(pull(&request, progress::for_stderr().as_ref())?)
        }
    }
}

/// Prints a case and keeps its figures: medians over rounds; ratios are medians of the rounds' own.
fn show(case: Case, (samples, limits): (&Samples, &[Limits]), work: &Work, figures: &mut Map<String, Value>) {
    let name = case.name();
    let (ours, peer) = (median(&samples.ours), median(&samples.peer));
    let (ratio, fast) = (paired_ratio(&samples.ours, &samples.peer), paired_ratio(&samples.ours, &samples.fast));
    let most: Vec<f64> = limits
        .iter()
        .map(|limits| match case {
            Case::Prefill(tokens) => work.prefill_tokens_per_second(tokens, limits),
            Case::Decode(sequences) => work.decode_tokens_per_second(sequences, limits),
        })
        .collect();
    let share = paired_ratio(&samples.ours, &most);
    println!(
        "{name}: ours {} tokens/s ({} of the roofline), peer {} (ratio {}), peer's fastest format {} (ratio {})",
        text(ours),
        text(share),
        text(peer),
        text(ratio),
        text(median(&samples.fast)),
        text(fast),
    );
    figures.insert(format!("{name}_tokens_per_second"), json!(ours));
    figures.insert(format!("{name}_roofline_share"), json!(share));
    figures.insert(format!("peer_{name}_tokens_per_second"), json!(peer));
    figures.insert(format!("peer_model_{name}_tokens_per_second"), json!(median(&samples.fast)));
    figures.insert(format!("{name}_ratio"), json!(ratio));
    figures.insert(format!("{name}_over_peer_model_ratio"), json!(fast));
}

fn text(figure: Option<f64>) -> String {
    figure.map_or("-".to_string(), |figure| format!("{figure:.2}"))
}
