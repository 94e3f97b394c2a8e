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
    time::Instant,
};

use anyhow::{Context, bail, ensure};
use engine::{
    config::EngineConfig,
    engine::Engine,
    request::{FinishReason, GenerateRequest, Lane, SamplingParams, SequenceId, StopConditions},
    runner::{
        RunnerShape,
        simulated::{CostModel, PagingCheck, SimulatedRunner},
    },
};
use serde::{Deserialize, Serialize};

use super::CONTEXT_TOKENS;
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
const SCHEDULER_STEPS: usize = 50;

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
            Question::Prefill(tokens) => side.prefill(tokens)?,
            Question::Decode { sequences, tokens } => side.decode(sequences, tokens)?,
            Question::SchedulerShare { sequences } => side.scheduler_share(sequences)?,
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&Answer { figure })?)?;
        out.flush()?;
    }
    Ok(())
}

struct Side {
    engine: Engine,
    sequences: u64,
}

impl Side {
    fn load(options: &SideOptions) -> anyhow::Result<Self> {
        let mut worker = WorkerOptions {
            threads: options.threads,
            prefix_cache: CacheMode::Off,
            running_max: SEQUENCES_MAX,
            ..WorkerOptions::for_model(options.model.clone())
        };
        let shape = model::build(&worker)?.shape();
        worker.kv_bytes_max = (shape.block_bytes * CONTEXT_TOKENS.div_ceil(shape.block_size)) as u64;
        Ok(Side { engine: model::build(&worker)?, sequences: 0 })
    }

    fn prefill(&mut self, tokens: usize) -> anyhow::Result<f64> {
        self.submit(tokens, 1)?;
        let started = Instant::now();
        while self.engine.has_work() {
            self.step()?;
        }
        Ok(tokens as f64 / started.elapsed().as_secs_f64())
    }

    fn decode(&mut self, sequences: usize, tokens: usize) -> anyhow::Result<f64> {
        for _ in 0..sequences {
            self.submit(1, tokens + 1)?;
        }
        self.run_until_all_drew(sequences)?;
        let started = Instant::now();
        let mut generated = 0;
        while self.engine.has_work() {
            generated += self.step()?;
        }
        let seconds = started.elapsed().as_secs_f64();
        ensure!(generated == sequences * tokens, "{generated} tokens came; expected {}", sequences * tokens);
        Ok(generated as f64 / seconds)
    }

    fn scheduler_share(&mut self, sequences: usize) -> anyhow::Result<f64> {
        const STEPS: usize = 4;
        let real = self.step_seconds(sequences, STEPS)?;
        let shape = RunnerShape { vocab: SMALL_VOCAB, ..self.engine.shape() };
        let runner = SimulatedRunner::new(shape, CostModel::default(), PagingCheck::Newest);
        let config = EngineConfig { max_running: SEQUENCES_MAX, token_budget: 512, ..EngineConfig::default() };
        let engine = Engine::new(config, Box::new(runner), Arc::new(NumberedTokens::new(shape.vocab)))?;
        let simulated = Side { engine, sequences: 0 }.step_seconds(sequences, SCHEDULER_STEPS)?;
        Ok(simulated / real)
    }

    /// Mean time of a step in which `sequences` of uneven lengths decode.
    fn step_seconds(&mut self, sequences: usize, steps: usize) -> anyhow::Result<f64> {
        for index in 0..sequences {
            self.submit(1 + index % 24, 32 + steps)?;
        }
        self.run_until_all_drew(sequences)?;
        let started = Instant::now();
        for _ in 0..steps {
            self.step()?;
        }
        let seconds = started.elapsed().as_secs_f64() / steps as f64;
        for id in 0..sequences as u64 {
            self.engine.cancel(SequenceId(self.sequences - id));
        }
        while self.engine.has_work() {
            self.engine.step(0);
        }
        Ok(seconds)
    }

    fn run_until_all_drew(&mut self, sequences: usize) -> anyhow::Result<()> {
        let mut first = std::collections::HashSet::new();
        while first.len() < sequences {
            let report = self.engine.step(0);
            first
                .extend(report.outputs.iter().filter(|output| !output.tokens.is_empty()).map(|output| output.sequence));
            ensure!(self.engine.has_work(), "sequences ended before all had begun");
        }
        Ok(())
    }

    /// One step; tokens that came out of it.
    fn step(&mut self) -> anyhow::Result<usize> {
        let report = self.engine.step(0);
        for finish in report.outputs.iter().filter_map(|output| output.finish.as_ref()) {
            if finish.reason != FinishReason::Length {
                bail!("a sequence ended with {:?}: {}", finish.reason, finish.error.as_deref().unwrap_or("no error"));
            }
        }
        Ok(report.outputs.iter().map(|output| output.tokens.len()).sum())
    }

    fn submit(&mut self, prompt: usize, max_tokens: usize) -> anyhow::Result<()> {
        self.sequences += 1;
        let request = GenerateRequest {
            id: SequenceId(self.sequences),
            prompt: super::prompt_tokens(self.sequences, prompt, self.engine.shape().vocab).into(),
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            stop: StopConditions { max_tokens: max_tokens as u32, ..StopConditions::default() },
            lane: Lane::L2,
            deadline: None,
            cache_salt: 0,
            sampling_offset: 0,
            class: None,
            grammar: None,
        };
        Ok(self.engine.submit(request, 0)?)
    }
}
