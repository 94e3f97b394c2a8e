//! The engine's loop (SPEC B7): schedule → submit → take back → collect → finish. Control flow only; decisions are in
//! `scheduler`, arithmetic in the runner and `sampler`, and what happened is returned and not done.
//!
//! Invariants: one thread owns an engine; after each step every block is free, cached or held by a running sequence
//! (debug builds compare sums in each step and every block in each 64th; tests every block in each); a runner's error ends the sequences of its batch and the engine goes on.
//!
//! Cost: see `scheduler` and `sampler`; debug builds add O(running) a step and O(blocks) each 64th for the leak check. State: sequences (bounded
//! by `max_running + max_waiting`) and the pool's tables.

use std::sync::Arc;

use crate::{
    Micros,
    block_hash::prompt_block_hashes,
    config::{ConfigError, EngineConfig},
    events::{HeldBlock, KvEvent},
    finish::{Finishing, check_logits, close_output},
    lanes::LANES,
    masks::compute_beside,
    request::{FinishReason, GenerateRequest, SequenceId, SubmitRejection},
    runner::{ModelRunner, RunnerError, RunnerShape, Transfer},
    sampler::Sampler,
    scheduler::{Plan, Scheduler},
    sequence::Sequence,
    speculation::{
        Speculator, config::Speculation, draft_model::DraftModel, prompt_lookup::PromptLookup, proposer::Proposer,
        report::ClassFigures,
    },
    step::{QueueFigures, StepReport, StepStats},
    stop::TokenBytes,
    swap::carry_out,
    validate::validate_request,
};

/// In debug builds each block is looked at once in this many steps; sums are compared in each.
const FULL_CHECK_STEPS: u64 = 64;

/// See the file's header.
pub struct Engine {
    config: EngineConfig,
    shape: RunnerShape,
    runner: Box<dyn ModelRunner>,
    vocabulary: Arc<dyn TokenBytes>,
    scheduler: Scheduler,
    sampler: Sampler,
    steps: u64,
    /// Figures of the last step, until [`Engine::took`] tells its time.
    untimed: Option<StepStats>,
}

impl Engine {
    /// An engine without sequences. `vocabulary` gives the bytes of the runner's token ids.
    pub fn new(
        config: EngineConfig,
        runner: Box<dyn ModelRunner>,
        vocabulary: Arc<dyn TokenBytes>,
    ) -> Result<Self, ConfigError> {
        match config.speculation {
            Speculation::Draft { .. } => Err(ConfigError::DraftMissing),
            Speculation::PromptLookup { min_match, .. } => {
                Self::build((config, runner, vocabulary), Some(Box::new(PromptLookup::new(min_match))))
            }
            Speculation::Off => Self::build((config, runner, vocabulary), None),
        }
    }

    /// An engine for which `draft` guesses tokens if the configuration says so. Its ids must mean the same; see
    /// `speculation::vocabulary::same_vocabulary` for files. It has KV pages of its own.
    pub fn with_draft(
        config: EngineConfig,
        runner: Box<dyn ModelRunner>,
        draft: Box<dyn ModelRunner>,
        vocabulary: Arc<dyn TokenBytes>,
    ) -> Result<Self, ConfigError> {
        if !matches!(config.speculation, Speculation::Draft { .. }) {
            return Self::new(config, runner, vocabulary);
        }
        let (draft_vocab, target) = (draft.shape().vocab, runner.shape().vocab);
        if draft_vocab != target {
            return Err(ConfigError::DraftVocabulary { draft: draft_vocab, target });
        }
        Self::build((config, runner, vocabulary), Some(Box::new(DraftModel::new(draft))))
    }

    fn build(
        (config, mut runner, vocabulary): (EngineConfig, Box<dyn ModelRunner>, Arc<dyn TokenBytes>),
        proposer: Option<Box<dyn Proposer>>,
    ) -> Result<Self, ConfigError> {
        let shape = runner.shape();
        config.validate(&shape)?;
        let blocks = config.l2_blocks;
        runner.provide_l2(blocks).map_err(|error| ConfigError::SecondLevel { blocks, problem: error.0 })?;
        let mut scheduler = Scheduler::new(config, &shape);
        let limits = config.speculation.limits();
        scheduler.speculator = proposer.zip(limits).map(|(proposer, limits)| Speculator::new(proposer, limits));
        Ok(Self { config, shape, runner, vocabulary, scheduler, sampler: Sampler::default(), steps: 0, untimed: None })
    }

    /// Takes a request into its lane, or says why not and keeps nothing. Hashes the prompt's blocks and replays drawn tokens into
    /// the grammar: O(prompt).
    pub fn submit(&mut self, request: GenerateRequest, now: Micros) -> Result<(), SubmitRejection> {
        validate_request(&request, &self.shape)?;
        if self.scheduler.roster.contains(request.id) {
            return Err(SubmitRejection::DuplicateId(request.id.0));
        }
        let (waiting, bound) = (self.scheduler.roster.waiting().len(), self.config.max_waiting);
        if waiting >= bound {
            return Err(SubmitRejection::QueueFull { waiting, bound });
        }
        let block_size = self.shape.block_size;
        let reusable = self.scheduler.cache.reusable_blocks(request.prompt.len(), block_size) * block_size;
        let hashes = prompt_block_hashes(&request.prompt[..reusable], block_size, request.cache_salt);
        let arrival = self.scheduler.roster.next_arrival();
        let sequence = Sequence::new(request, arrival, now, hashes)?;
        self.scheduler.roster.wait(Box::new(sequence));
        Ok(())
    }

    /// Ends a sequence at the start of the next step, which reports it. False if there is no such sequence.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        self.scheduler.roster.cancel(id)
    }

    /// KV events since the last step: of sequences that were cancelled. Those left are in the next step's report.
    pub fn take_kv_events(&mut self) -> Vec<KvEvent> {
        self.scheduler.pool.take_events()
    }

    /// The blocks that can be reused now, parents first; for whoever checks what the KV events told. O(blocks).
    pub fn held_blocks(&self) -> Vec<HeldBlock> {
        self.scheduler.pool.held_blocks()
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        !self.scheduler.roster.is_empty()
    }

    /// One iteration.
    pub fn step(&mut self, now: Micros) -> StepReport {
        let mut report = StepReport::default();
        self.retire_cancelled(&mut report);
        self.retire_late(now, &mut report);
        if let Some(speculator) = &mut self.scheduler.speculator {
            speculator.begin(now);
        }
        let plan = self.scheduler.schedule(now);
        let moved = self.transfer(&plan.transfers);
        if !plan.keys.is_empty() {
            self.execute(plan, moved, &mut report);
        }
        self.steps += 1;
        report.kv_events = self.scheduler.pool.take_events();
        report.stats = self.scheduler.close_stats();
        report.stats.step = self.steps;
        self.untimed = Some(report.stats);
        self.close_speculation(&mut report);
        if cfg!(debug_assertions)
            && let Err(fault) = self.check_step()
        {
            panic!("invariant broken in step {}: {fault}", self.steps);
        }
        report
    }

    /// Tells how long the last step took, in microseconds: later ones keep to `prefill_step_us` by it.
    pub fn took(&mut self, us: Micros) {
        if let Some(stats) = self.untimed.take() {
            self.scheduler.pace.learn(&stats, us);
        }
    }

    /// Copies blocks before the batch. What waits in L2 is dropped if that fails.
    fn transfer(&mut self, transfers: &[Transfer]) -> Result<(), RunnerError> {
        let moved = carry_out(self.runner.as_mut(), transfers);
        if moved.is_err() {
            self.scheduler.forget_swapped();
        }
        moved
    }

    fn execute(&mut self, plan: Plan, moved: Result<(), RunnerError>, report: &mut StepReport) {
        let Plan { batch, keys, rows, .. } = plan;
        report.outputs.reserve(rows);
        let submitted = moved.and_then(|()| self.runner.submit(&batch));
        self.scheduler.take_back(batch);
        let outcome = submitted.and_then(|()| compute_beside(&mut self.scheduler.roster, || self.runner.collect()));
        let checked = outcome.and_then(|logits| check_logits(logits, rows, self.shape.vocab));
        let mut finishing = Finishing {
            scheduler: &mut self.scheduler,
            sampler: &mut self.sampler,
            vocabulary: self.vocabulary.as_ref(),
            outputs: &mut report.outputs,
        };
        match checked {
            Ok(logits) => {
                finishing.scheduler.stats.modelled_us = logits.modelled_us;
                if let (Some(speculator), Some(us)) = (&mut finishing.scheduler.speculator, logits.modelled_us) {
                    speculator.modelled(us);
                }
                finishing.accept(&keys, &logits);
                self.runner.recycle(logits);
            }
            Err(error) => finishing.fail(&keys, &error),
        }
    }

    fn retire_cancelled(&mut self, report: &mut StepReport) {
        let Scheduler { roster, pool, .. } = &mut self.scheduler;
        for sequence in roster.take_cancelled(pool) {
            let output = sequence.empty_output();
            report.outputs.push(close_output(sequence, output, (FinishReason::Cancelled, None)));
        }
    }

    fn retire_late(&mut self, now: Micros, report: &mut StepReport) {
        let Scheduler { roster, pool, .. } = &mut self.scheduler;
        for sequence in roster.take_late(now, pool) {
            let output = sequence.empty_output();
            report.outputs.push(close_output(sequence, output, (FinishReason::Late, None)));
        }
    }

    fn close_speculation(&mut self, report: &mut StepReport) {
        let Scheduler { speculator: Some(speculator), roster, .. } = &mut self.scheduler else { return };
        if report.stats.preempted > 0 || report.outputs.iter().any(|output| output.finish.is_some()) {
            speculator.retain(&|id| roster.is_running(id));
        }
        if roster.is_empty() {
            speculator.idle();
        }
        report.speculation = speculator.take_changes();
        report.draft_error = speculator.take_error();
    }

    /// How guesses fare, by class of requests, of the classes that drew anything. Empty if speculation is off.
    pub fn speculation_figures(&self) -> Vec<ClassFigures> {
        self.scheduler.speculator.as_ref().map(Speculator::figures).unwrap_or_default()
    }

    /// Drops all reusable KV, and what waits in L2. Running sequences go on and stop publishing.
    pub fn clear_prefix_cache(&mut self) {
        self.scheduler.forget_swapped();
        self.scheduler.pool.clear();
        self.scheduler.roster.running.values_mut().for_each(|sequence| sequence.table.break_chain());
    }

    /// How full the engine is, between steps. O(sequences).
    pub fn queue_figures(&self) -> QueueFigures {
        let roster = &self.scheduler.roster;
        let running = roster.running.values();
        let prefilling: usize = running.filter(|s| !s.is_decoding()).map(|s| s.remaining()).sum();
        QueueFigures {
            waiting: LANES.map(|lane| roster.waiting().lane_len(lane)),
            max_waiting: self.config.max_waiting,
            running: roster.running.len(),
            max_running: self.config.max_running,
            queued_prefill_tokens: roster.waiting().tokens() + prefilling,
            pool: self.scheduler.pool.figures(),
            oldest_waiting: roster.waiting().iter().map(|(_, _, sequence)| sequence.submitted).min(),
        }
    }

    /// The model's sizes.
    pub fn shape(&self) -> RunnerShape {
        self.shape
    }

    /// The settings in force.
    pub fn config(&self) -> EngineConfig {
        self.config
    }

    /// The leak check of debug builds: sums in every step, the whole in one of [`FULL_CHECK_STEPS`].
    fn check_step(&self) -> Result<(), String> {
        match self.steps % FULL_CHECK_STEPS {
            0 => self.check_invariants(),
            _ => self.scheduler.roster.check_sums(&self.scheduler.pool),
        }
    }

    /// The leak check: every block is free, cached or held; names, references and promises add up. O(blocks).
    pub fn check_invariants(&self) -> Result<(), String> {
        self.scheduler.roster.check_invariants(&self.scheduler.pool)
    }
}
