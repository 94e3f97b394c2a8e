//! Our engine in a process of its own, as a worker builds it: asked over its standard input, so that its peak memory
//! is its own and it takes turns with the peer.
//!
//! Invariant: the prefix cache is off, so each prompt is computed; every sequence runs to its length. Bounds: one
//! question at a time, one line each way. Cost: the model is mapped once, KV memory is for [`CONTEXT_TOKENS`].

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
};

use anyhow::Context;
use engine::{
    config::EngineConfig,
    engine::Engine,
    runner::{
        RunnerShape,
        simulated::{CostModel, PagingCheck, SimulatedRunner},
    },
};
use serde::{Deserialize, Serialize};

use super::CONTEXT_TOKENS;
use crate::app::driver::Driver;
use crate::worker::{
    model,
    options::{CacheMode, WorkerOptions},
    paced::NumberedTokens,
};

const WARM_TOKENS: usize = 16;
/// Most sequences of a question.
const SEQUENCES_MAX: usize = 256;
/// Vocabulary at which drawing costs nothing beside scheduling.
const SMALL_VOCAB: usize = 64;
/// Steps of a figure of the scheduler.
const SCHEDULER_STEPS: usize = 51;
/// Steps with the model beside it.
const MODEL_STEPS: usize = 3;

/// What the process is asked.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Question {
    /// Tokens a second from submitting a prompt of this many tokens to its first output token.
    Prefill(usize),
    /// Tokens a second over all sequences, each of which generates so many tokens after its first one.
    Decode { sequences: usize, tokens: usize },
    /// Share of scheduling in a decode step of so many uneven sequences: the step of the same engine over a runner that
    /// computes nothing and has a vocabulary of [`SMALL_VOCAB`], over the step with the model.
    SchedulerShare { sequences: usize },
}

#[derive(Serialize, Deserialize)]
struct Answer {
    figure: f64,
}

/// The asking end. Dropping it ends the process.
pub(super) struct OurEngine {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl OurEngine {
    /// Starts the process and waits until the model has run once, so that its pages are in memory.
    pub(super) fn start(model: &Path, threads: usize) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "engine-side", "--threads", &threads.to_string(), "--model"])
            .arg(model)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start our engine's process")?;
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("our engine's process has no output")?);
        let mut ours = OurEngine { child, questions, answers };
        ours.ask(Question::Prefill(WARM_TOKENS))?;
        Ok(ours)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn ask(&mut self, question: Question) -> anyhow::Result<f64> {
        let pipe = self.questions.as_mut().context("our engine's process is closed")?;
        writeln!(pipe, "{}", serde_json::to_string(&question)?)?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let answer: Answer = serde_json::from_str(&line)
            .with_context(|| format!("our engine's process did not answer {question:?}; it said {line:?}"))?;
        Ok(answer.figure)
    }
}

impl Drop for OurEngine {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.questions.take());
        let _ = self.child.wait();
    }
}

/// Options of the process.
#[derive(clap::Args)]
pub struct SideOptions {
    #[arg(long)]
    model: String,
    #[arg(long)]
    threads: usize,
}

/// The answering end: runs until its input ends.
pub(in crate::app::bench) fn answer(options: &SideOptions) -> anyhow::Result<()> {
    let mut side = Side::load(options)?;
    for line in std::io::stdin().lock().lines() {
        let figure = match serde_json::from_str(&line?)? {
            Question::Prefill(tokens) => tokens as f64 / side.0.prefill_seconds(tokens)?,
            Question::Decode { sequences, tokens } => side.0.decode_speed(sequences, tokens)?,
            Question::SchedulerShare { sequences } => side.scheduler_share(sequences)?,
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&Answer { figure })?)?;
        out.flush()?;
    }
    Ok(())
}

struct Side(Driver);

impl Side {
    fn load(options: &SideOptions) -> anyhow::Result<Self> {
        let mut worker = WorkerOptions {
            threads: options.threads,
            prefix_cache: CacheMode::Off,
            running_max: SEQUENCES_MAX,
            // Small, to learn the size of a block; then what it is meant to be.
            kv_bytes_max: 64 << 20,
            ..WorkerOptions::for_model(options.model.clone())
        };
        let shape = model::build(&worker)?.shape();
        worker.kv_bytes_max = (shape.block_bytes * CONTEXT_TOKENS.div_ceil(shape.block_size)) as u64;
        Ok(Side(Driver::new(model::build(&worker)?)))
    }

    fn scheduler_share(&mut self, sequences: usize) -> anyhow::Result<f64> {
        let uneven: Vec<usize> = (0..sequences).map(|index| 1 + index % 24).collect();
        let real = self.0.step_seconds(&uneven, MODEL_STEPS)?;
        let shape = RunnerShape { vocab: SMALL_VOCAB, ..self.0.engine().shape() };
        let runner = SimulatedRunner::new(shape, CostModel::default(), PagingCheck::Newest);
        let config = EngineConfig { max_running: SEQUENCES_MAX, token_budget: 512, ..EngineConfig::default() };
        let engine = Engine::new(config, Box::new(runner), Arc::new(NumberedTokens::new(shape.vocab)))?;
        Ok(Driver::new(engine).step_seconds(&uneven, SCHEDULER_STEPS)? / real)
    }
}
