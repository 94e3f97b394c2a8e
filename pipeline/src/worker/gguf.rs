//! A model file as a runner and its vocabulary.
//!
//! Invariant: the KV pool is never larger than the options' memory. Cost: the weights stay mapped from the file, unless they
//! are packed or made anew in another type; keys and
//! values take `blocks × block_bytes`. No state.

use std::{path::Path, sync::Arc};

use engine::{
    detokenizer::TokenBytes,
    model::{Arithmetic, Gguf, Model, ModelError, WeightFormat},
    runner::{
        ModelRunner,
        cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
    },
    speculation::vocabulary::same_vocabulary,
    tokenizer::Tokenizer,
};

use super::{
    model::{ModelSetupError, Parts, blocks_for},
    options::WorkerOptions,
};
use crate::config;

/// Bytes of a tokenizer's tokens, for the engine's detokeniser.
struct ModelTokens(Tokenizer);

impl TokenBytes for ModelTokens {
    fn token_bytes(&self, token: u32) -> &[u8] {
        self.0.token_bytes(token)
    }
}

pub(super) fn load(path: &Path, options: &WorkerOptions) -> Result<Parts, ModelSetupError> {
    let failed = |problem: String| ModelSetupError::Load { path: path.to_path_buf(), problem };
    let runner = runner_of_file(path, options)?;
    let tokenizer = Tokenizer::from_gguf(runner.model().gguf()).map_err(|error| failed(error.to_string()))?;
    Ok((Box::new(runner), Arc::new(ModelTokens(tokenizer))))
}

pub(super) fn runner_of_file(path: &Path, options: &WorkerOptions) -> Result<CpuRunner, ModelSetupError> {
    let failed = |problem: String| ModelSetupError::Load { path: path.to_path_buf(), problem };
    let model = open(path, options).map_err(|error| failed(error.to_string()))?;
    runner(model, options, failed)
}

/// The model that drafts, with a quarter of the KV memory's bytes of its own.
pub(super) fn load_draft(options: &WorkerOptions) -> Result<Box<dyn ModelRunner>, ModelSetupError> {
    let path = Path::new(options.draft_model.as_deref().ok_or(ModelSetupError::NoDraft)?);
    let failed = |problem: String| ModelSetupError::Draft { path: path.to_path_buf(), problem };
    let target = Gguf::open(options.model.as_ref()).map_err(|error| failed(error.to_string()))?;
    let model = Model::load(path, arithmetic(options)).map_err(|error| failed(error.to_string()))?;
    same_vocabulary(&target, model.gguf()).map_err(|error| failed(error.to_string()))?;
    let smaller = WorkerOptions { kv_bytes_max: options.kv_bytes_max / 4, ..options.clone() };
    Ok(Box::new(runner(model, &smaller, failed)?))
}

fn open(path: &Path, options: &WorkerOptions) -> Result<Arc<Model>, ModelError> {
    let format = match options.weights {
        config::Weights::AsStored => WeightFormat::AsStored,
        config::Weights::F32 => WeightFormat::F32,
        config::Weights::F16 => WeightFormat::F16,
        config::Weights::Q8 => WeightFormat::Q8_0,
        config::Weights::Q4 => WeightFormat::Q4_0,
    };
    Model::from_gguf(Gguf::open(path)?.requantised(format)?, arithmetic(options))
}

fn arithmetic(options: &WorkerOptions) -> Arithmetic {
    match options.arithmetic {
        config::Arithmetic::Int8 => Arithmetic::Int8,
        config::Arithmetic::F32 => Arithmetic::F32,
    }
}

fn runner(
    model: Arc<Model>,
    options: &WorkerOptions,
    failed: impl Fn(String) -> ModelSetupError,
) -> Result<CpuRunner, ModelSetupError> {
    let kv_dtype = match (options.kv, options.arithmetic) {
        (config::KvFormat::F16, _) | (config::KvFormat::Auto, config::Arithmetic::Int8) => KvDtype::F16,
        (config::KvFormat::F32, _) | (config::KvFormat::Auto, config::Arithmetic::F32) => KvDtype::F32,
    };
    let token_bytes = CpuRunner::token_bytes(model.config(), kv_dtype);
    let block_bytes = (token_bytes as u64).saturating_mul(options.block_size as u64);
    let runner_options = CpuRunnerOptions {
        threads: options.threads,
        block_size: options.block_size,
        blocks: blocks_for(options, block_bytes)?,
        kv_dtype,
    };
    CpuRunner::new(model, runner_options).map_err(|error| failed(error.to_string()))
}
