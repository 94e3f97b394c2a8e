//! The seam between scheduling and arithmetic.
//!
//! A step is two calls: [`ModelRunner::submit`] hands over the batch and may return before the work is done (a device
//! uploads metadata and launches), [`ModelRunner::collect`] waits for the logits. The CPU runner computes in `collect`.
//! The engine plans the next step between the two, so a runner must not need the engine meanwhile.

pub mod cpu;
pub mod simulated;

use crate::request::SequenceId;

/// One sequence's share of a batch: `tokens` are new and start at `position`; all earlier positions are in its blocks.
///
/// Invariant: `blocks.len() * block_size >= position + tokens.len()`, `proposed < tokens.len()`, and no two slots of one batch write the same
/// block.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchSlot {
    pub sequence: SequenceId,
    pub tokens: Vec<u32>,
    /// Position of `tokens[0]` in the sequence, in tokens.
    pub position: usize,
    /// The block table: physical block of each `block_size` positions, from position 0.
    pub blocks: Vec<u32>,
    /// Logits of the last token are wanted (false for a prefill chunk that is not the last).
    pub wants_logits: bool,
    /// How many tokens at the end are guesses (0: none). Logits of the token before each are wanted besides the last's,
    /// and the next batch may start at any of them with another token.
    pub proposed: usize,
}

impl BatchSlot {
    /// Rows of logits wanted: of the last so many tokens, in order.
    pub fn logit_rows(&self) -> usize {
        if self.wants_logits { 1 + self.proposed } else { 0 }
    }
}

/// What one step computes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    pub slots: Vec<BatchSlot>,
}

impl Batch {
    /// New tokens in the batch.
    pub fn token_count(&self) -> usize {
        self.slots.iter().map(|slot| slot.tokens.len()).sum()
    }
}

/// Logits of the slots that wanted them, in slot order; see [`BatchSlot::logit_rows`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BatchLogits {
    /// Row-major, `rows × vocab`.
    pub values: Vec<f32>,
    pub vocab: usize,
    /// Measured or modelled time of the batch, in microseconds. `None`: the caller takes the time itself.
    pub modelled_us: Option<i64>,
}

impl BatchLogits {
    /// The `row`-th row of those wanted, slot by slot; `vocab` values.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.vocab..(row + 1) * self.vocab]
    }
}

/// What the engine must know of a model to plan for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerShape {
    pub vocab: usize,
    /// Longest sequence, in tokens.
    pub context: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Blocks the runner has memory for.
    pub blocks: usize,
    /// Bytes of keys and values in one block, over all layers.
    pub block_bytes: usize,
}

/// A batch the runner could not compute. Sequences of that batch fail; the engine goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("runner: {0}")]
pub struct RunnerError(pub String);

/// A copy of one whole KV block, done before the batch of the step that decided it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// Within L1: copy on write.
    Copy { from: u32, to: u32 },
    /// From L1 to a slot of L2.
    SwapOut { from: u32, to: u32 },
    /// From a slot of L2 to L1.
    SwapIn { from: u32, to: u32 },
}

impl Transfer {
    /// `(from, to)`.
    pub fn pair(&self) -> (u32, u32) {
        let (Self::Copy { from, to } | Self::SwapOut { from, to } | Self::SwapIn { from, to }) = *self;
        (from, to)
    }
}

/// Computes batches over a paged KV cache that it owns.
pub trait ModelRunner: Send {
    fn shape(&self) -> RunnerShape;
    /// Takes the batch. At most one batch is outstanding.
    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError>;
    /// Waits for the batch given to `submit`.
    fn collect(&mut self) -> Result<BatchLogits, RunnerError>;
    /// Takes back logits that are done with, so that the next ones need no new memory.
    fn recycle(&mut self, _logits: BatchLogits) {}
    /// Copies whole KV blocks `(from, to)` before the next batch, for partial-block reuse and copy-on-write.
    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError>;

    /// Provides host memory for `blocks` KV blocks (L2), numbered from 0. Called once, before the first batch.
    fn provide_l2(&mut self, blocks: usize) -> Result<(), RunnerError> {
        match blocks {
            0 => Ok(()),
            _ => Err(RunnerError("this runner has no L2".to_owned())),
        }
    }

    /// Copies whole KV blocks to L2, `(block, slot)`, before the next batch. A device may copy while it computes as long
    /// as each block is read before anything writes it.
    fn swap_out(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        Err(RunnerError(format!("this runner has no L2 to take {} blocks", pairs.len())))
    }

    /// Copies whole KV blocks back from L2, `(slot, block)`, before the next batch.
    fn swap_in(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        Err(RunnerError(format!("this runner has no L2 to give {} blocks", pairs.len())))
    }
}
