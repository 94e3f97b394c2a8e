//! The CPU runner: a model, its KV pages and a kernel device behind [`ModelRunner`].
//!
//! Invariant: a batch is checked in full before anything is computed, so a wrong batch changes no page. The same
//! sequence gives bit-equal logits alone or in company and with any number of threads. Cost: see `model::forward`;
//! memory: `blocks * block_bytes` of pages (touched only once used), the shared model, one workspace.

use std::sync::Arc;

use kernels::{
    Device,
    ops::attention::{AttentionSlot, KvLayout},
};
pub use kernels::{Limits, ops::attention::KvDtype};

use crate::{
    model::{
        Config, Model,
        forward::{PASS_TOKENS, Pass, Workspace, forward},
        kv_cache::KvCache,
    },
    runner::{Batch, BatchLogits, BatchSlot, ModelRunner, RunnerError, RunnerShape},
};

/// Most rows of logits whose memory is kept from step to step.
const SPARE_ROWS: usize = 64;

/// How a CPU runner is sized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRunnerOptions {
    /// Threads that compute, the caller's included.
    pub threads: usize,
    /// Tokens per KV block; 1 to 4096.
    pub block_size: usize,
    /// KV blocks; at least 1.
    pub blocks: usize,
    /// What keys and values are kept in; f16 takes half the memory and moves half the bytes.
    pub kv_dtype: KvDtype,
}

/// Runs batches on the CPU.
#[derive(Debug)]
pub struct CpuRunner {
    model: Arc<Model>,
    device: Device,
    cache: KvCache,
    /// KV of sequences that gave way; `None` until some is asked for.
    l2: Option<KvCache>,
    work: Workspace,
    pending: Option<Batch>,
    /// Logits given back: the next ones go where they were.
    spare: Vec<f32>,
}

impl CpuRunner {
    pub fn new(model: Arc<Model>, options: CpuRunnerOptions) -> Result<Self, RunnerError> {
        let CpuRunnerOptions { threads, block_size, blocks, kv_dtype } = options;
        if !(1..=4096).contains(&block_size) {
            return Err(RunnerError(format!("block_size is {block_size}, expected 1 to 4096 tokens")));
        }
        if blocks == 0 || u32::try_from(blocks).is_err() {
            return Err(RunnerError(format!("blocks is {blocks}, expected 1 to {}", u32::MAX)));
        }
        let config = model.config();
        let layout = KvLayout { blocks, block_size, kv_heads: config.kv_heads, head_dim: config.head_dim };
        let cache = KvCache::new(config.layers, layout, kv_dtype).ok_or_else(|| {
            RunnerError(format!(
                "no memory for {blocks} KV blocks of {block_size} tokens over {} layers",
                config.layers
            ))
        })?;
        let device = Device::new(threads);
        Ok(Self { model, device, cache, l2: None, work: Workspace::default(), pending: None, spare: Vec::new() })
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Bytes of keys and values of one token, over all layers.
    pub fn token_bytes(config: &Config, kv_dtype: KvDtype) -> usize {
        2 * config.layers * config.kv_heads * config.head_dim * kv_dtype.bytes()
    }

    fn check(&self, batch: &Batch) -> Result<(), RunnerError> {
        let KvLayout { blocks, block_size, .. } = self.cache.layout;
        let mut writer: Vec<Option<u64>> = vec![None; blocks];
        for slot in &batch.slots {
            let refuse = |why: String| Err(RunnerError(format!("sequence {}: {why}", slot.sequence.0)));
            if slot.tokens.is_empty() {
                return refuse("no new tokens, expected at least 1".to_owned());
            }
            if slot.proposed >= slot.tokens.len() {
                return refuse(format!(
                    "proposed is {}, expected below the {} tokens",
                    slot.proposed,
                    slot.tokens.len()
                ));
            }
            if let Some(token) = slot.tokens.iter().find(|token| **token as usize >= self.model.vocab()) {
                return refuse(format!("token is {token}, expected below {}", self.model.vocab()));
            }
            let (end, context) = (slot.position.saturating_add(slot.tokens.len()), self.model.config().context);
            if end > context {
                return refuse(format!("last position is {}, expected below {context}", end - 1));
            }
            if slot.blocks.len() < end.div_ceil(block_size) {
                let needed = end.div_ceil(block_size);
                return refuse(format!("block table has {} blocks, expected {needed}", slot.blocks.len()));
            }
            if let Some(block) = slot.blocks.iter().find(|block| **block as usize >= blocks) {
                return refuse(format!("block is {block}, expected below {blocks}"));
            }
            for block in &slot.blocks[slot.position / block_size..end.div_ceil(block_size)] {
                if let Some(other) = writer[*block as usize].replace(slot.sequence.0) {
                    return refuse(format!("block {block} is written by sequence {other} too, expected one writer"));
                }
            }
        }
        Ok(())
    }

    /// Cuts the batch into passes of at most [`PASS_TOKENS`] tokens, in order, and computes them.
    fn compute(&mut self, batch: &Batch) -> Result<Vec<f32>, RunnerError> {
        let wanted = batch.slots.iter().map(BatchSlot::logit_rows).sum::<usize>();
        let mut logits = std::mem::take(&mut self.spare);
        // Every place is overwritten: what stands there is as good as zeros.
        logits.resize(wanted * self.model.vocab(), 0.0);
        let mut rest = logits.as_mut_slice();
        let mut parts: Vec<Part<'_>> = Vec::new();
        let mut filled = 0;
        for slot in &batch.slots {
            let mut from = 0;
            while from < slot.tokens.len() {
                let len = (slot.tokens.len() - from).min(PASS_TOKENS - filled);
                parts.push(Part { slot, from, len });
                filled += len;
                from += len;
                if filled == PASS_TOKENS {
                    rest = self.pass(&parts, rest)?;
                    parts.clear();
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            self.pass(&parts, rest)?;
        }
        Ok(logits)
    }

    /// Fills the first rows of `logits`; gives the others back.
    fn pass<'l>(&mut self, parts: &[Part<'_>], logits: &'l mut [f32]) -> Result<&'l mut [f32], RunnerError> {
        let mut tokens = Vec::with_capacity(PASS_TOKENS);
        let (mut slots, mut wanted) = (Vec::with_capacity(parts.len()), Vec::new());
        for part in parts {
            let Part { slot, from, len } = *part;
            slots.push(AttentionSlot {
                first_row: tokens.len(),
                tokens: len,
                position: slot.position + from,
                blocks: &slot.blocks,
            });
            let first = (slot.tokens.len() - slot.logit_rows()).max(from);
            wanted.extend((first..from + len).map(|token| tokens.len() + token - from));
            tokens.extend_from_slice(&slot.tokens[from..from + len]);
        }
        let pass = Pass { tokens: &tokens, slots: &slots, wanted: &wanted };
        let (logits, rest) = logits.split_at_mut(wanted.len() * self.model.vocab());
        forward((&self.model, &self.device), &pass, (&mut self.cache, &mut self.work), logits)
            .map_err(|error| RunnerError(error.to_string()))?;
        Ok(rest)
    }
}

/// Tokens `from..from + len` of a slot.
#[derive(Clone, Copy)]
struct Part<'a> {
    slot: &'a BatchSlot,
    from: usize,
    len: usize,
}

impl ModelRunner for CpuRunner {
    fn shape(&self) -> RunnerShape {
        RunnerShape {
            vocab: self.model.vocab(),
            context: self.model.config().context,
            block_size: self.cache.layout.block_size,
            blocks: self.cache.layout.blocks,
            block_bytes: self.cache.block_bytes(),
        }
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError> {
        if self.pending.is_some() {
            return Err(RunnerError("a batch is outstanding, expected collect before the next submit".to_owned()));
        }
        self.check(batch)?;
        self.pending = Some(batch.clone());
        Ok(())
    }

    fn collect(&mut self) -> Result<BatchLogits, RunnerError> {
        let batch = self.pending.take().ok_or_else(|| RunnerError("no batch is outstanding".to_owned()))?;
        let values = self.compute(&batch)?;
        Ok(BatchLogits { values, vocab: self.model.vocab(), modelled_us: None })
    }

    fn recycle(&mut self, logits: BatchLogits) {
        // The logits of a long prompt's every token are not worth keeping.
        if logits.values.len() <= SPARE_ROWS * self.model.vocab() {
            self.spare = logits.values;
        }
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        let blocks = self.cache.layout.blocks;
        if let Some((from, to)) = pairs.iter().find(|(from, to)| (*from).max(*to) as usize >= blocks) {
            return Err(RunnerError(format!("copy of block {from} to {to}, expected numbers below {blocks}")));
        }
        for (from, to) in pairs {
            self.cache.copy_block(*from, *to);
        }
        Ok(())
    }

    fn provide_l2(&mut self, blocks: usize) -> Result<(), RunnerError> {
        if blocks == 0 {
            self.l2 = None;
            return Ok(());
        }
        let layout = KvLayout { blocks, ..self.cache.layout };
        let l2 = KvCache::new(self.model.config().layers, layout, self.cache.dtype);
        let needed = blocks.saturating_mul(self.cache.block_bytes());
        self.l2 = Some(l2.ok_or_else(|| RunnerError(format!("no memory for its {needed} bytes")))?);
        Ok(())
    }

    fn swap_out(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        let l2 = self.l2.as_mut().ok_or_else(no_l2)?;
        check_pairs(pairs, (self.cache.layout.blocks, l2.layout.blocks))?;
        pairs.iter().for_each(|(block, slot)| l2.copy_from((&self.cache, *block), *slot));
        Ok(())
    }

    fn swap_in(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        let l2 = self.l2.as_ref().ok_or_else(no_l2)?;
        check_pairs(pairs, (l2.layout.blocks, self.cache.layout.blocks))?;
        pairs.iter().for_each(|(slot, block)| self.cache.copy_from((l2, *slot), *block));
        Ok(())
    }
}

fn no_l2() -> RunnerError {
    RunnerError("no L2 was provided".to_owned())
}

/// Both numbers of each pair lie below their level's size.
fn check_pairs(pairs: &[(u32, u32)], (froms, tos): (usize, usize)) -> Result<(), RunnerError> {
    match pairs.iter().find(|(from, to)| *from as usize >= froms || *to as usize >= tos) {
        Some((from, to)) => Err(RunnerError(format!("swap of {from} to {to}, expected below {froms} and {tos}"))),
        None => Ok(()),
    }
}
