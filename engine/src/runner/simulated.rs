//! A runner with a cost model instead of arithmetic (SPEC E5), and the judge of paging (C1).
//!
//! Where a model would write keys and values, it writes which history they belong to: a hash over all tokens up to that
//! position. A token's history is computed from what the *page* of the position before holds, and the logits from the
//! history alone. So a wrong block table gives wrong tokens, or, checked here, an error: a hole, a foreign page, a page
//! that two slots write, a page written while another reads it.
//!
//! Invariants: logits depend only on the sequence's own tokens; a batch that breaks the paging rules is an error and
//! never a result.
//!
//! The caller must not give a `SequenceId` to a second request in one runner's life: the runner is not told of ends, so
//! it would miss the first one's history and say so.
//!
//! Cost: O(new tokens + rows × vocab) a batch, and with [`PagingCheck::Full`] also O(context). Memory: 20 bytes a
//! position of the pool, 24 bytes a remembered sequence, at most [`MAX_REMEMBERED`] (then all are forgotten, and only
//! that check is lost for them).

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Batch, BatchLogits, BatchSlot, ModelRunner, RunnerError, RunnerShape};
use crate::{Micros, request::SequenceId};

/// Most sequences whose last history is remembered.
pub const MAX_REMEMBERED: usize = 65_536;

/// How much of each block table is checked in each batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagingCheck {
    /// Every position, and reads against writes within the batch.
    Full,
    /// The position before the new tokens only: for long simulations.
    Newest,
}

/// Time of a batch, in microseconds: a linear model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    pub base_us: f64,
    /// Per new token of a slot with more than one token or at position 0, and per guessed token.
    pub prefill_token_us: f64,
    /// Per slot with one token behind others.
    pub decode_sequence_us: f64,
    /// Per token of context before the new ones, over all slots.
    pub context_token_us: f64,
    /// Per block copied within L1, to L2 or from L2; added to the next batch.
    pub copy_block_us: f64,
}

impl Default for CostModel {
    /// The order of size of a 7 B model on one accelerator.
    fn default() -> Self {
        Self {
            base_us: 5_000.0,
            prefill_token_us: 60.0,
            decode_sequence_us: 40.0,
            context_token_us: 0.02,
            copy_block_us: 40.0,
        }
    }
}

impl CostModel {
    /// Modelled time of `batch`, rounded to microseconds.
    pub fn batch_us(&self, batch: &Batch) -> Micros {
        let mut total = self.base_us;
        for slot in &batch.slots {
            total += self.context_token_us * slot.position as f64;
            total += match slot.tokens.len() {
                1 if slot.position > 0 => self.decode_sequence_us,
                tokens if slot.proposed > 0 && tokens == slot.proposed + 1 => {
                    self.decode_sequence_us + self.prefill_token_us * slot.proposed as f64
                }
                tokens => self.prefill_token_us * tokens as f64,
            };
        }
        total.round() as Micros
    }
}

/// What a position of a page holds.
#[derive(Debug, Clone, Copy)]
struct Cell {
    position: u32,
    token: u32,
    /// Hash over all tokens of the sequence up to here; 0 only in pages never written.
    history: u64,
}

const EMPTY: Cell = Cell { position: u32::MAX, token: 0, history: 0 };
const ROOT: u64 = 0x51ED_270B_8F2C_4A11;

/// See the file's header.
pub struct SimulatedRunner {
    shape: RunnerShape,
    cost: CostModel,
    check: PagingCheck,
    cells: Vec<Cell>,
    /// L2, in the same shape.
    l2: Vec<Cell>,
    /// Time of copies since the last batch.
    copies_us: f64,
    /// Position and history of the newest token of each sequence.
    newest: HashMap<SequenceId, (u32, u64)>,
    /// The outstanding batch, computed at `submit` so that it need not be copied.
    pending: Option<Result<BatchLogits, RunnerError>>,
}

impl SimulatedRunner {
    /// A runner with empty pages.
    pub fn new(shape: RunnerShape, cost: CostModel, check: PagingCheck) -> Self {
        let cells = vec![EMPTY; shape.blocks * shape.block_size];
        Self { shape, cost, check, cells, l2: Vec::new(), copies_us: 0.0, newest: HashMap::new(), pending: None }
    }

    fn cell(&self, slot: &BatchSlot, position: usize) -> usize {
        slot.blocks[position / self.shape.block_size] as usize * self.shape.block_size
            + position % self.shape.block_size
    }

    fn check_table(&self, slot: &BatchSlot) -> Result<(), RunnerError> {
        let end = slot.position + slot.tokens.len();
        let id = slot.sequence;
        if slot.tokens.len() <= slot.proposed || end > self.shape.context {
            return Err(fault(format!("{id:?} has {} tokens at position {}", slot.tokens.len(), slot.position)));
        }
        if slot.blocks.len() * self.shape.block_size < end {
            return Err(fault(format!("{id:?} has {} blocks for {end} positions", slot.blocks.len())));
        }
        if let Some(block) = slot.blocks.iter().find(|block| **block as usize >= self.shape.blocks) {
            return Err(fault(format!("{id:?} names block {block} of {}", self.shape.blocks)));
        }
        if let Some(token) = slot.tokens.iter().find(|token| **token as usize >= self.shape.vocab) {
            return Err(fault(format!("{id:?} has token {token} in a vocabulary of {}", self.shape.vocab)));
        }
        Ok(())
    }

    /// Each block written by one slot only, and read by no other slot of the batch.
    fn check_writers(&self, batch: &Batch) -> Result<(), RunnerError> {
        let mut writers: HashMap<u32, usize> = HashMap::new();
        for (index, slot) in batch.slots.iter().enumerate() {
            let first = slot.position / self.shape.block_size;
            let last = (slot.position + slot.tokens.len() - 1) / self.shape.block_size;
            for block in &slot.blocks[first..=last] {
                if writers.insert(*block, index).is_some() {
                    return Err(fault(format!("block {block} is written twice in one batch")));
                }
            }
        }
        if self.check == PagingCheck::Newest {
            return Ok(());
        }
        for (index, slot) in batch.slots.iter().enumerate() {
            for block in &slot.blocks[..slot.position.div_ceil(self.shape.block_size)] {
                if writers.get(block).is_some_and(|writer| *writer != index) {
                    return Err(fault(format!("block {block} is read by {:?} while another writes it", slot.sequence)));
                }
            }
        }
        Ok(())
    }

    /// The history before the slot's new tokens, as its pages hold it.
    fn history_before(&self, slot: &BatchSlot) -> Result<u64, RunnerError> {
        if slot.position == 0 {
            return Ok(ROOT);
        }
        let first = match self.check {
            PagingCheck::Full => 0,
            PagingCheck::Newest => slot.position - 1,
        };
        let mut before = if first == 0 { Some(ROOT) } else { None };
        let mut history = ROOT;
        for position in first..slot.position {
            let cell = self.cells[self.cell(slot, position)];
            let chained = before.is_none_or(|before| extend(before, cell.token) == cell.history);
            if cell.position as usize != position || !chained {
                let (id, block) = (slot.sequence, slot.blocks[position / self.shape.block_size]);
                return Err(fault(format!("block {block} does not hold position {position} of {id:?}'s history")));
            }
            history = cell.history;
            before = Some(history);
        }
        match self.newest.get(&slot.sequence) {
            Some((position, expected)) if *position as usize == slot.position - 1 && *expected != history => {
                Err(fault(format!("the pages of {:?} hold another sequence's history", slot.sequence)))
            }
            _ => Ok(history),
        }
    }

    fn run(&mut self, batch: &Batch) -> Result<BatchLogits, RunnerError> {
        batch.slots.iter().try_for_each(|slot| self.check_table(slot))?;
        self.check_writers(batch)?;
        let mut values = Vec::new();
        for slot in &batch.slots {
            let mut history = self.history_before(slot)?;
            let known = slot.tokens.len() - slot.proposed;
            let first_row = slot.tokens.len() - slot.logit_rows();
            for (offset, token) in slot.tokens.iter().enumerate() {
                let position = slot.position + offset;
                history = extend(history, *token);
                let cell = self.cell(slot, position);
                self.cells[cell] = Cell { position: position as u32, token: *token, history };
                if offset + 1 == known {
                    self.remember(slot.sequence, (position, history));
                }
                if offset >= first_row {
                    values.extend(pseudo_logits(history, self.shape.vocab));
                }
            }
        }
        let modelled_us = self.cost.batch_us(batch) + std::mem::take(&mut self.copies_us).round() as Micros;
        Ok(BatchLogits { values, vocab: self.shape.vocab, modelled_us: Some(modelled_us) })
    }

    fn remember(&mut self, sequence: SequenceId, (position, history): (usize, u64)) {
        if self.newest.len() >= MAX_REMEMBERED && !self.newest.contains_key(&sequence) {
            self.newest.clear();
        }
        self.newest.insert(sequence, (position as u32, history));
    }
}

impl ModelRunner for SimulatedRunner {
    fn shape(&self) -> RunnerShape {
        self.shape
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError> {
        if self.pending.is_some() {
            return Err(fault("a batch is outstanding already".to_owned()));
        }
        self.pending = Some(self.run(batch));
        Ok(())
    }

    fn collect(&mut self) -> Result<BatchLogits, RunnerError> {
        self.pending.take().unwrap_or_else(|| Err(fault("no batch is outstanding".to_owned())))
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        let (blocks, size) = (self.shape.blocks, self.shape.block_size);
        for (from, to) in pairs {
            if *from as usize >= blocks || *to as usize >= blocks {
                return Err(fault(format!("copy of block {from} to {to} in a pool of {blocks}")));
            }
            self.copies_us += self.cost.copy_block_us;
            let start = *from as usize * size;
            self.cells.copy_within(start..start + size, *to as usize * size);
        }
        Ok(())
    }

    fn provide_l2(&mut self, blocks: usize) -> Result<(), RunnerError> {
        self.l2 = vec![EMPTY; blocks * self.shape.block_size];
        Ok(())
    }

    fn swap_out(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.copies_us += self.cost.copy_block_us * pairs.len() as f64;
        let size = self.shape.block_size;
        pairs.iter().try_for_each(|(block, slot)| copy_cells((&self.cells, *block), (&mut self.l2, *slot), size))
    }

    fn swap_in(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.copies_us += self.cost.copy_block_us * pairs.len() as f64;
        let size = self.shape.block_size;
        pairs.iter().try_for_each(|(slot, block)| copy_cells((&self.l2, *slot), (&mut self.cells, *block), size))
    }
}

/// Copies a block of `size` cells from one level to the other.
fn copy_cells(
    (source, from): (&[Cell], u32),
    (target, to): (&mut [Cell], u32),
    size: usize,
) -> Result<(), RunnerError> {
    let (from_start, to_start) = (from as usize * size, to as usize * size);
    let content = source.get(from_start..from_start + size);
    let (Some(content), Some(place)) = (content, target.get_mut(to_start..to_start + size)) else {
        return Err(fault(format!("swap of block {from} to {to}, beyond a level's end")));
    };
    place.copy_from_slice(content);
    Ok(())
}

/// Logits after `tokens`, computed without pages: what [`SimulatedRunner`] must give for a sequence with these tokens.
pub fn expected_logits(tokens: &[u32], vocab: usize) -> Vec<f32> {
    pseudo_logits(tokens.iter().fold(ROOT, |history, token| extend(history, *token)), vocab).collect()
}

fn extend(history: u64, token: u32) -> u64 {
    xxh3_64_with_seed(&token.to_le_bytes(), history)
}

/// `vocab` values in `[-6, 6)` from a splitmix walk that starts at the history.
fn pseudo_logits(history: u64, vocab: usize) -> impl Iterator<Item = f32> {
    let mut state = history;
    (0..vocab).map(move |_| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        (mixed >> 40) as f32 / (1u64 << 24) as f32 * 12.0 - 6.0
    })
}

fn fault(text: String) -> RunnerError {
    RunnerError(text)
}
