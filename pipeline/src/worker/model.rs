//! From a worker's options to an engine: which runner computes, how many KV blocks its memory holds.
//!
//! Invariant: a pool holds at least one block, else the options are refused with the size that would do.
//! Cost: the model file is mapped and read once. No state.

use std::{path::PathBuf, sync::Arc};

use engine::{
    config::{EngineConfig, SwapRates, check_block_size},
    engine::Engine,
    prefix_cache::PrefixCacheMode,
    runner::{
        ModelRunner, RunnerShape,
        cpu::CpuRunner,
        simulated::{CostModel, PagingCheck, SimulatedRunner},
    },
    speculation::config::{Speculation, SpeculationLimits},
    stop::TokenBytes,
};

use super::{
    options::{CacheMode, WorkerOptions},
    paced::{NumberedTokens, Paced},
    swap_rates,
};
use crate::config;

/// The model name that stands for an engine without a model.
pub const SIMULATED: &str = "simulated";
/// Tokens that must agree before prompt lookup guesses the next.
const LOOKUP_MATCH: usize = 3;
/// KV bytes of one token in the simulated model.
const SIMULATED_TOKEN_BYTES: u64 = 46_080;

/// Why a worker could not build its engine. The text names the option, its value and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum ModelSetupError {
    #[error("--model = {path}: {problem}", path = path.display())]
    Load { path: PathBuf, problem: String },
    #[error("--draft-model is not given; expected the path of a .gguf file, since --speculation is draft")]
    NoDraft,
    #[error("--draft-model = {path}: {problem}", path = path.display())]
    Draft { path: PathBuf, problem: String },
    #[error("--kv-bytes-max = {given}: one block of {block_size} tokens takes {needed} bytes; expected at least that")]
    TooLittleMemory { given: u64, needed: u64, block_size: usize },
    #[error(
        "--l2-bytes = {given}: one block of {block_size} tokens takes {needed} bytes; expected at least that, or 0 for no L2"
    )]
    TooLittleL2 { given: u64, needed: u64, block_size: usize },
    #[error("--l2-bytes: the runner can't be measured: {0}")]
    SwapRates(engine::runner::RunnerError),
    #[error(transparent)]
    Engine(#[from] engine::config::ConfigError),
}

/// Builds the engine that the options describe.
pub fn build(options: &WorkerOptions) -> Result<Engine, ModelSetupError> {
    check_block_size(options.block_size)?;
    let (mut runner, vocabulary) = match options.model.as_str() {
        SIMULATED => simulated(options)?,
        path => super::gguf::load(path.as_ref(), options)?,
    };
    let (l2_blocks, swap_rates) = second_level(options, runner.as_mut())?;
    let config = EngineConfig {
        l2_blocks,
        swap_rates,
        token_budget: options.token_budget,
        prefill_step_us: Some(options.prefill_step_time)
            .filter(|time| !time.is_zero())
            .map(|time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX).max(1)),
        max_running: options.running_max,
        max_waiting: options.waiting_max,
        prefix_cache: match options.prefix_cache {
            CacheMode::On => PrefixCacheMode::On,
            CacheMode::Off => PrefixCacheMode::Off,
        },
        speculation: speculation(options),
        ..EngineConfig::default()
    };
    match options.speculation {
        config::Speculation::Draft => {
            let draft = super::gguf::load_draft(options)?;
            Ok(Engine::with_draft(config, runner, draft, vocabulary)?)
        }
        config::Speculation::Off | config::Speculation::PromptLookup => Ok(Engine::new(config, runner, vocabulary)?),
    }
}

/// How many blocks L2 has, and what they cost; without L2 nothing is measured.
fn second_level(options: &WorkerOptions, runner: &mut dyn ModelRunner) -> Result<(usize, SwapRates), ModelSetupError> {
    if options.l2_bytes == 0 {
        return Ok((0, SwapRates::default()));
    }
    let (given, block_size) = (options.l2_bytes, options.block_size);
    let needed = runner.shape().block_bytes as u64;
    let blocks = usize::try_from((given / needed.max(1)).min(u64::from(u32::MAX))).unwrap_or(usize::MAX);
    if blocks == 0 {
        return Err(ModelSetupError::TooLittleL2 { given, needed, block_size });
    }
    let rates = swap_rates::measure(runner).map_err(ModelSetupError::SwapRates)?;
    Ok((blocks, rates))
}

fn speculation(options: &WorkerOptions) -> Speculation {
    let limits = SpeculationLimits { max_draft: options.draft_tokens_max, verify_interval: options.verify_interval };
    match options.speculation {
        config::Speculation::Off => Speculation::Off,
        config::Speculation::PromptLookup => Speculation::PromptLookup { limits, min_match: LOOKUP_MATCH },
        config::Speculation::Draft => Speculation::Draft { limits },
    }
}

/// The runner of a model file that the options describe, without an engine around it, and the bytes of the weights as held
/// before they are packed.
pub fn runner(options: &WorkerOptions) -> Result<(CpuRunner, usize), ModelSetupError> {
    check_block_size(options.block_size)?;
    let runner = super::gguf::runner_of_file(options.model.as_ref(), options)?;
    let bytes = runner.model().weight_bytes();
    Ok((runner, bytes))
}

/// A runner and the bytes of its tokens.
pub(super) type Parts = (Box<dyn ModelRunner>, Arc<dyn TokenBytes>);

fn simulated(options: &WorkerOptions) -> Result<Parts, ModelSetupError> {
    let block_bytes = SIMULATED_TOKEN_BYTES.saturating_mul(options.block_size as u64);
    let shape = RunnerShape {
        vocab: options.simulated_vocab,
        context: options.simulated_context,
        block_size: options.block_size,
        blocks: blocks_for(options, block_bytes)?,
        block_bytes: usize::try_from(block_bytes).unwrap_or(usize::MAX),
    };
    let runner = SimulatedRunner::new(shape, CostModel::default(), PagingCheck::Newest);
    let vocabulary = Arc::new(NumberedTokens::new(options.simulated_vocab));
    Ok((Box::new(Paced::new(runner, options.simulated_pace)), vocabulary))
}

/// Blocks of `block_bytes` that the options' memory holds; at least one.
pub(super) fn blocks_for(options: &WorkerOptions, block_bytes: u64) -> Result<usize, ModelSetupError> {
    let blocks = options.kv_bytes_max / block_bytes.max(1);
    if blocks == 0 {
        return Err(ModelSetupError::TooLittleMemory {
            given: options.kv_bytes_max,
            needed: block_bytes,
            block_size: options.block_size,
        });
    }
    Ok(usize::try_from(blocks.min(u64::from(u32::MAX))).unwrap_or(usize::MAX))
}
