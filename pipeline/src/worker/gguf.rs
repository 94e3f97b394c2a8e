//! A model file as a runner and its vocabulary.
//!
//! Invariant: the KV pool is never larger than the options' memory. Cost: the weights stay mapped from the file; keys and
//! values take `blocks × block_bytes`. No state.

use std::{path::Path, sync::Arc};

use engine::{
    detokenizer::TokenBytes,
    model::{Arithmetic, Model},
    runner::cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
    tokenizer::Tokenizer,
};

use super::{
    model::{ModelSetupError, Parts, blocks_for},
    options::WorkerOptions,
};

/// Bytes of a tokenizer's tokens, for the engine's detokeniser.
struct ModelTokens(Tokenizer);

impl TokenBytes for ModelTokens {
    fn token_bytes(&self, token: u32) -> &[u8] {
        self.0.token_bytes(token)
    }
}

pub(super) fn load(path: &Path, options: &WorkerOptions) -> Result<Parts, ModelSetupError> {
    let failed = |problem: String| ModelSetupError::Load { path: path.to_path_buf(), problem };
    let model = Model::load(path, Arithmetic::Int8).map_err(|error| failed(error.to_string()))?;
    let tokenizer = Tokenizer::from_gguf(model.gguf()).map_err(|error| failed(error.to_string()))?;
    let token_bytes = CpuRunner::token_bytes(model.config(), KvDtype::F16);
    let block_bytes = (token_bytes as u64).saturating_mul(options.block_size as u64);
    let runner_options = CpuRunnerOptions {
        threads: options.threads,
        block_size: options.block_size,
        blocks: blocks_for(options, block_bytes)?,
        kv_dtype: KvDtype::F16,
    };
    let runner = CpuRunner::new(model, runner_options).map_err(|error| failed(error.to_string()))?;
    Ok((Box::new(runner), Arc::new(ModelTokens(tokenizer))))
}
