//! Proposals by a smaller model of the same vocabulary, with KV pages of its own.
//!
//! A token is proposed with the request's own parameters and the very number its real draw will use, so that two models
//! that nearly agree about the distribution nearly always draw the same token. Penalties count tokens up to the last
//! real one.
//!
//! Invariants: an entry's `tokens` are those its pages hold, so what was proposed and refused is found by comparison and
//! computed anew; a sequence has at most one entry. Cost: one small step a proposed token for all asks together, plus
//! catching up with tokens it has not seen, [`CATCH_UP_TOKENS`] a round at most (until then a sequence gets no proposal). Bounds:
//! pages are the runner's; a sequence that finds none, or outgrows the draft's context, gets no proposals.

use std::collections::HashMap;

use super::proposer::{Ask, ProposalCost, ProposalWork, Proposer, Trust};
use crate::{
    block_table::blocks_for,
    request::SequenceId,
    runner::{Batch, BatchSlot, ModelRunner, RunnerError, RunnerShape},
    sampler::{Draw, Sampler},
};

/// Most tokens that are computed in one round before anything is proposed.
pub const CATCH_UP_TOKENS: usize = 256;

#[derive(Debug, Default)]
struct Entry {
    blocks: Vec<u32>,
    /// Tokens whose KV is in the pages.
    tokens: Vec<u32>,
    /// Of these, how many were found to be the sequence's.
    sound: usize,
}

impl Entry {
    /// Cuts back to what is still true of the sequence, and to all but its last token.
    fn agree(&mut self, ask: &Ask<'_>) {
        let limit = self.tokens.len().min(ask.known() - 1);
        while self.sound < limit && self.tokens[self.sound] == ask.token(self.sound) {
            self.sound += 1;
        }
        self.sound = self.sound.min(limit);
        self.tokens.truncate(self.sound);
    }
}

/// See the file's header.
pub struct DraftModel {
    runner: Box<dyn ModelRunner>,
    shape: RunnerShape,
    entries: HashMap<SequenceId, Entry>,
    free: Vec<u32>,
    sampler: Sampler,
}

impl DraftModel {
    /// A draft without sequences.
    pub fn new(runner: Box<dyn ModelRunner>) -> Self {
        let shape = runner.shape();
        let blocks = u32::try_from(shape.blocks).unwrap_or(u32::MAX);
        Self { runner, shape, entries: HashMap::new(), free: (0..blocks).rev().collect(), sampler: Sampler::default() }
    }

    /// Pages for `positions` of a sequence; `None` if there are too few.
    fn grow(&mut self, id: SequenceId, positions: usize) -> Option<()> {
        if positions > self.shape.context {
            return None;
        }
        let entry = self.entries.get_mut(&id)?;
        let missing = blocks_for(positions, self.shape.block_size).saturating_sub(entry.blocks.len());
        let from = self.free.len().checked_sub(missing)?;
        entry.blocks.extend(self.free.drain(from..).rev());
        Some(())
    }

    /// The slot that brings a sequence's pages to the end of what is known, or as near as `room` allows. True if it
    /// gets there.
    fn catch_up(&mut self, ask: &Ask<'_>, room: &mut usize) -> Option<(BatchSlot, Reach)> {
        let entry = self.entries.entry(ask.id).or_default();
        entry.agree(ask);
        let (from, len) = (entry.sound, ask.known());
        // The last token is not backlog, it is what a proposal starts from.
        let take = (len - from).min(1 + *room);
        self.grow(ask.id, len + ask.most)?;
        *room -= take - 1;
        let entry = self.entries.get_mut(&ask.id)?;
        let tokens: Vec<u32> = (from..from + take).map(|position| ask.token(position)).collect();
        entry.tokens.extend_from_slice(&tokens);
        entry.sound = from + take;
        let reach = if from + take == len { Reach::End } else { Reach::Short };
        Some((self.slot(ask.id, tokens, from), reach))
    }

    fn slot(&self, id: SequenceId, tokens: Vec<u32>, position: usize) -> BatchSlot {
        let blocks = self.entries.get(&id).map(|entry| entry.blocks.clone()).unwrap_or_default();
        BatchSlot { sequence: id, tokens, position, blocks, wants_logits: true, proposed: 0 }
    }

    /// Runs a batch and appends the token drawn for each slot's ask. The slots' logits are all wanted.
    fn round(
        &mut self,
        slots: Vec<BatchSlot>,
        asks: &mut [Ask<'_>],
        wanting: &[usize],
        work: &mut ProposalWork,
    ) -> Result<(), RunnerError> {
        self.runner.submit(&Batch { slots })?;
        let logits = self.runner.collect()?;
        if logits.values.len() != wanting.len() * self.shape.vocab {
            return Err(RunnerError(format!("draft gave {} logits", logits.values.len())));
        }
        if let Some(us) = logits.modelled_us {
            work.modelled_us = Some(work.modelled_us.unwrap_or(0) + us);
        }
        for (row, index) in wanting.iter().enumerate() {
            let ask = &mut asks[*index];
            let draw = Draw { index: ask.draw.index + ask.tokens.len(), ..ask.draw };
            match self.sampler.sample(logits.row(row), &draw) {
                Ok(sampled) => ask.tokens.push(sampled.token),
                Err(_) => ask.most = ask.tokens.len(),
            }
        }
        Ok(())
    }

    fn forget(&mut self, id: SequenceId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.free.extend(entry.blocks);
        }
    }

    fn try_propose(&mut self, asks: &mut [Ask<'_>], work: &mut ProposalWork) -> Result<(), RunnerError> {
        let mut room = CATCH_UP_TOKENS;
        let (mut slots, mut wanting, mut short) = (Vec::new(), Vec::new(), Vec::new());
        for (index, ask) in asks.iter().enumerate() {
            match self.catch_up(ask, &mut room) {
                Some((slot, Reach::End)) => {
                    work.caught_up += slot.tokens.len() - 1;
                    slots.push(slot);
                    wanting.push(index);
                }
                Some((slot, Reach::Short)) => {
                    work.caught_up += slot.tokens.len();
                    short.push(BatchSlot { wants_logits: false, ..slot });
                }
                None => self.forget(ask.id),
            }
        }
        slots.extend(short);
        while !slots.is_empty() {
            self.round(std::mem::take(&mut slots), asks, &wanting, work)?;
            wanting.retain(|index| asks[*index].tokens.len() < asks[*index].most);
            for index in &wanting {
                let ask = &asks[*index];
                let Some(token) = ask.tokens.last() else { continue };
                let position = ask.known() + ask.tokens.len() - 1;
                if let Some(entry) = self.entries.get_mut(&ask.id) {
                    entry.tokens.push(*token);
                }
                slots.push(self.slot(ask.id, vec![*token], position));
            }
        }
        Ok(())
    }
}

/// How far a slot brings its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// To the end of what is known: a token can be drawn.
    End,
    Short,
}

impl Proposer for DraftModel {
    fn cost(&self) -> ProposalCost {
        ProposalCost::Model
    }

    fn backlog(&self, id: SequenceId, len: usize) -> usize {
        len - self.entries.get(&id).map_or(0, |entry| entry.tokens.len().min(len))
    }

    fn propose(&mut self, asks: &mut [Ask<'_>]) -> Result<ProposalWork, RunnerError> {
        let mut work = ProposalWork::default();
        let outcome = self.try_propose(asks, &mut work);
        for ask in asks.iter_mut() {
            ask.trust = Trust(0);
            if outcome.is_err() {
                // What its pages hold is not known any more.
                ask.tokens.clear();
                self.forget(ask.id);
            }
        }
        outcome.map(|()| work)
    }

    fn retain(&mut self, runs: &dyn Fn(SequenceId) -> bool) {
        let gone: Vec<SequenceId> = self.entries.keys().copied().filter(|id| !runs(*id)).collect();
        gone.into_iter().for_each(|id| self.forget(id));
    }
}
