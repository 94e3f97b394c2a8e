//! The tensors of a model, found by name and checked for size.
//!
//! Invariant: a [`Matrix`] names bytes that lie in the file and hold exactly its rows and columns. Cost: vectors are f32
//! copies; matrices are not copied, unless they are packed for int8 arithmetic: then the file is read once, a tensor at a
//! time, and the copies are as large as what they are copies of.

use std::{collections::BTreeSet, sync::Arc};

use kernels::{Dtype, PackedMatrix, Weight, WeightMatrix, reference::dequantize};

use super::{
    ModelError,
    config::Config,
    gguf::{Gguf, TensorInfo},
};

/// A matrix as stored in the file, and perhaps packed in memory.
#[derive(Debug, Clone)]
pub struct Matrix {
    dtype: Dtype,
    rows: usize,
    cols: usize,
    part: usize,
    offset: usize,
    len: usize,
    packed: Option<Arc<PackedMatrix>>,
}

impl Matrix {
    /// The view of this matrix over the bytes of its file.
    pub fn view<'a>(&self, file: &'a Gguf) -> WeightMatrix<'a> {
        let bytes = &file.part(self.part).as_slice()[self.offset..self.offset + self.len];
        WeightMatrix::new(self.dtype, [self.rows, self.cols], bytes)
            .expect("invariant: sizes were checked when the model was read")
    }

    /// What products are computed with: the packed matrix if there is one.
    pub fn weight<'a>(&'a self, file: &'a Gguf) -> Weight<'a> {
        match &self.packed {
            Some(packed) => Weight::Packed(packed),
            None => Weight::Stored(self.view(file)),
        }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Packs the matrix, if its layout can be. `buffer` is scratch.
    fn pack(&mut self, gguf: &Gguf, buffer: &mut Vec<u8>) -> Result<(), ModelError> {
        if PackedMatrix::can_pack(self.dtype) {
            gguf.part(self.part).read(self.offset, self.len, buffer)?;
            let stored = WeightMatrix::new(self.dtype, [self.rows, self.cols], buffer)?;
            self.packed = Some(Arc::new(PackedMatrix::new(&stored)?));
        }
        Ok(())
    }
}

/// A matrix with the bias that some families add.
#[derive(Debug, Clone)]
pub struct Linear {
    pub matrix: Matrix,
    pub bias: Option<Vec<f32>>,
}

/// One layer.
#[derive(Debug, Clone)]
pub struct Layer {
    pub attention_norm: Vec<f32>,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub attention_output: Linear,
    /// Norms that some families have, see [`ExtraNorms`](super::family::ExtraNorms): of a head's queries and keys, and
    /// of the outputs of attention and the feed-forward part.
    pub query_norm: Option<Vec<f32>>,
    pub key_norm: Option<Vec<f32>>,
    pub post_attention_norm: Option<Vec<f32>>,
    pub post_feed_forward_norm: Option<Vec<f32>>,
    pub feed_forward_norm: Vec<f32>,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

/// All tensors.
#[derive(Debug, Clone)]
pub struct Weights {
    pub embedding: Matrix,
    pub layers: Vec<Layer>,
    pub output_norm: Vec<f32>,
    /// The embedding itself where the file has no `output.weight` (tied).
    pub output: Matrix,
    /// Divisors of the rotation frequencies, one a pair (Llama 3.x files).
    pub rope_factors: Option<Vec<f32>>,
}

impl Weights {
    pub fn read(gguf: &Gguf, config: &Config) -> Result<Self, ModelError> {
        let mut reader = Reader { gguf, config, seen: BTreeSet::new() };
        let vocab = reader.vocab()?;
        let hidden = config.hidden;
        let embedding = reader.matrix("token_embd.weight", [vocab, hidden])?;
        let output = match gguf.tensors().contains_key("output.weight") {
            true => reader.matrix("output.weight", [vocab, hidden])?,
            false => embedding.clone(),
        };
        let weights = Self {
            embedding,
            output,
            output_norm: reader.vector("output_norm.weight", hidden)?,
            rope_factors: reader.optional_vector("rope_freqs.weight", config.rope_dims / 2)?,
            layers: (0..config.layers).map(|layer| reader.layer(layer)).collect::<Result<_, _>>()?,
        };
        reader.refuse_unknown()?;
        Ok(weights)
    }

    pub fn vocab(&self) -> usize {
        self.embedding.rows
    }

    /// Packs every matrix that takes part in products. Gives the parts of the file that only packed ones lie in, if they have a
    /// part to themselves.
    pub(super) fn pack(&mut self, gguf: &Gguf) -> Result<BTreeSet<usize>, ModelError> {
        let (mut buffer, mut packed) = (Vec::new(), BTreeSet::new());
        for layer in &mut self.layers {
            let attention = [&mut layer.query, &mut layer.key, &mut layer.value, &mut layer.attention_output];
            let feed_forward = [&mut layer.gate, &mut layer.up, &mut layer.down];
            for linear in attention.into_iter().chain(feed_forward) {
                linear.matrix.pack(gguf, &mut buffer)?;
                packed.extend(linear.matrix.packed.is_some().then_some(linear.matrix.part));
            }
        }
        self.output.pack(gguf, &mut buffer)?;
        packed.extend(self.output.packed.is_some().then_some(self.output.part));
        // Rows of it are looked up as stored.
        packed.remove(&self.embedding.part);
        Ok(packed)
    }
}

struct Reader<'a> {
    gguf: &'a Gguf,
    config: &'a Config,
    seen: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    fn find(&mut self, name: &str) -> Result<&'a TensorInfo, ModelError> {
        let missing = || ModelError::MissingTensor { name: name.to_owned(), family: self.config.family };
        let tensor = self.gguf.tensors().get(name).ok_or_else(missing)?;
        self.seen.insert(name.to_owned());
        Ok(tensor)
    }

    fn vocab(&mut self) -> Result<usize, ModelError> {
        let tensor = self.find("token_embd.weight")?;
        match tensor.dims.as_slice() {
            [_, vocab] if *vocab <= u32::MAX as usize => Ok(*vocab),
            dims => Err(ModelError::Sizes {
                name: tensor.name.clone(),
                got: dims.to_vec(),
                expected: vec![self.config.hidden, dims.get(1).copied().unwrap_or(1)],
            }),
        }
    }

    /// A matrix of `[rows, columns]`, which GGUF lists the other way round.
    fn matrix(&mut self, name: &str, [rows, cols]: [usize; 2]) -> Result<Matrix, ModelError> {
        let tensor = self.find(name)?;
        expect_sizes(tensor, &[cols, rows])?;
        WeightMatrix::new(tensor.dtype, [rows, cols], self.gguf.tensor_bytes(tensor))?;
        let TensorInfo { dtype, part, offset, len, .. } = *tensor;
        Ok(Matrix { dtype, rows, cols, part, offset, len, packed: None })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let tensor = self.find(name)?;
        expect_sizes(tensor, &[len])?;
        let stored = WeightMatrix::new(tensor.dtype, [1, len], self.gguf.tensor_bytes(tensor))?;
        Ok(dequantize::row(&stored, 0))
    }

    fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
        match self.gguf.tensors().contains_key(name) {
            true => self.vector(name, len).map(Some),
            false => Ok(None),
        }
    }

    fn linear(&mut self, name: &str, shape: [usize; 2]) -> Result<Linear, ModelError> {
        let matrix = self.matrix(&format!("{name}.weight"), shape)?;
        let bias = self.optional_vector(&format!("{name}.bias"), shape[0])?;
        Ok(Linear { matrix, bias })
    }

    fn layer(&mut self, index: usize) -> Result<Layer, ModelError> {
        let config = self.config;
        let (hidden, inner) = (config.hidden, config.feed_forward);
        let (query, kv) = (config.query_width(), config.kv_width());
        let name = |part: &str| format!("blk.{index}.{part}");
        let norms = config.family.recipe().norms;
        let mut norm = |wanted: bool, part: &str, len: usize| wanted.then(|| self.vector(&name(part), len)).transpose();
        Ok(Layer {
            query_norm: norm(norms.heads(), "attn_q_norm.weight", config.head_dim)?,
            key_norm: norm(norms.heads(), "attn_k_norm.weight", config.head_dim)?,
            post_attention_norm: norm(norms.outputs(), "post_attention_norm.weight", hidden)?,
            post_feed_forward_norm: norm(norms.outputs(), "post_ffw_norm.weight", hidden)?,
            attention_norm: self.vector(&name("attn_norm.weight"), hidden)?,
            query: self.linear(&name("attn_q"), [query, hidden])?,
            key: self.linear(&name("attn_k"), [kv, hidden])?,
            value: self.linear(&name("attn_v"), [kv, hidden])?,
            attention_output: self.linear(&name("attn_output"), [hidden, query])?,
            feed_forward_norm: self.vector(&name("ffn_norm.weight"), hidden)?,
            gate: self.linear(&name("ffn_gate"), [inner, hidden])?,
            up: self.linear(&name("ffn_up"), [inner, hidden])?,
            down: self.linear(&name("ffn_down"), [hidden, inner])?,
        })
    }

    fn refuse_unknown(&self) -> Result<(), ModelError> {
        match self.gguf.tensors().keys().find(|name| !self.seen.contains(*name)) {
            None => Ok(()),
            Some(name) => Err(ModelError::UnknownTensor {
                name: name.clone(),
                family: self.config.family,
                layers: self.config.layers,
            }),
        }
    }
}

/// Trailing sizes of 1 are as good as absent.
fn expect_sizes(tensor: &TensorInfo, expected: &[usize]) -> Result<(), ModelError> {
    let (head, tail) = tensor.dims.split_at(expected.len().min(tensor.dims.len()));
    if head == expected && tail.iter().all(|size| *size == 1) {
        return Ok(());
    }
    Err(ModelError::Sizes { name: tensor.name.clone(), got: tensor.dims.clone(), expected: expected.to_vec() })
}
