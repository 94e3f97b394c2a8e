//! A model file in memory: its shape, its weights, and what text handling needs.
//!
//! Invariant: a [`Model`] that exists is complete: every tensor its family needs is there with the right sizes, and
//! there is none that the family does not know. It never changes, so workers share it through an `Arc`. Cost: weights
//! stay in the mapped file, quantised, or are packed beside it ([`Arithmetic`]); norms and biases are copied as f32.

pub mod config;
pub mod family;
pub mod forward;
pub mod gguf;
pub mod hugging_face;
pub mod kv_cache;
pub mod tiny;
pub mod weights;

use std::{path::Path, sync::Arc};

pub use config::Config;
pub use family::Family;
pub use gguf::{Gguf, GgufError, WeightFormat};
use kernels::KernelError;
pub use weights::Weights;

/// Why a file gives no model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("tensor {name} is missing; a {family:?} model needs it")]
    MissingTensor { name: String, family: Family },
    #[error(
        "tensor {name} is not one that a {family:?} model of {layers} layers has; results without it would be wrong"
    )]
    UnknownTensor { name: String, family: Family, layers: usize },
    #[error("tensor {name}: sizes are {got:?}, expected {expected:?}")]
    Sizes { name: String, got: Vec<usize>, expected: Vec<usize> },
    #[error("metadata key tokenizer.ggml.tokens has {tokens} entries, expected the {rows} rows of token_embd.weight")]
    Vocabulary { tokens: usize, rows: usize },
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// What products are computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arithmetic {
    /// Weights and activations in f32: as exact as the file allows. Weights stay in the mapped file.
    F32,
    /// Quantised weights are packed in memory and activations are rounded to int8, a block of 32 at a time: several times
    /// as fast. Matrices in f32, f16 and bf16 are computed as with [`Arithmetic::F32`].
    #[default]
    Int8,
}

/// A loaded model.
#[derive(Debug)]
pub struct Model {
    config: Config,
    weights: Weights,
    gguf: Gguf,
}

impl Model {
    /// Maps and checks a GGUF file or a Hugging Face folder. The files must not change while the model lives.
    pub fn load(path: &Path, arithmetic: Arithmetic) -> Result<Arc<Self>, ModelError> {
        Self::from_gguf(Gguf::open(path)?, arithmetic)
    }

    /// A model from a parsed file.
    pub fn from_gguf(mut gguf: Gguf, arithmetic: Arithmetic) -> Result<Arc<Self>, ModelError> {
        let config = Config::read(&gguf)?;
        let mut weights = Weights::read(&gguf, &config)?;
        if let Some(tokens) = gguf.find_texts("tokenizer.ggml.tokens")?
            && tokens.len() != weights.vocab()
        {
            return Err(ModelError::Vocabulary { tokens: tokens.len(), rows: weights.vocab() });
        }
        if arithmetic == Arithmetic::Int8 {
            for part in weights.pack(&gguf)? {
                gguf.release(part);
            }
        }
        Ok(Arc::new(Self { config, weights, gguf }))
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Tokens the model knows.
    pub fn vocab(&self) -> usize {
        self.weights.vocab()
    }

    /// The file: metadata for the tokenizer and for whoever wants to show it.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// `general.name`, if the file has one.
    pub fn name(&self) -> Option<&str> {
        self.gguf.find_text("general.name").ok().flatten()
    }

    /// Source of the chat template, if the file has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.gguf.find_text("tokenizer.chat_template").ok().flatten()
    }

    /// Bytes of all weights as stored.
    pub fn weight_bytes(&self) -> usize {
        self.gguf.tensors().values().map(|tensor| tensor.len).sum()
    }
}
