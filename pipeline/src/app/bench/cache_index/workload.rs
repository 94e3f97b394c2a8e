//! The events and questions of the bench: prompts of 2 000 blocks, the first 200 of which are one of eight beginnings that
//! every instance holds; the rest of a prompt is held by one instance.
//!
//! Invariant: made from numbers alone, so both sides get the same. Questions are about the older half of the prompts;
//! the events replace the younger half, oldest first, from its end, as an engine evicts. Memory: a counter an instance.

use std::ops::Range;

use operators::{KvChange, KvRow};

pub(in crate::app::bench) const INSTANCES: u32 = 64;
pub(in crate::app::bench) const PROMPT_BLOCKS: u32 = 2000;
pub(in crate::app::bench) const EVENTS_PER_SECOND: u64 = 200_000;
/// Leading blocks of a prompt that all instances hold.
const SHARED_BLOCKS: u32 = 200;
const BEGINNINGS: u64 = 8;
const OWN_BLOCKS: u64 = (PROMPT_BLOCKS - SHARED_BLOCKS) as u64;

pub(super) struct Workload {
    prompts: u64,
    seqs: [u64; INSTANCES as usize],
    /// Own blocks stored and removed while absorbing.
    stored: u64,
    removed: u64,
}

pub(super) fn instance_of(prompt: u64) -> u32 {
    (prompt % u64::from(INSTANCES)) as u32
}

fn hash(prompt: u64, depth: u32) -> u64 {
    let chain = if depth < SHARED_BLOCKS { prompt / u64::from(INSTANCES) % BEGINNINGS } else { BEGINNINGS + prompt };
    let mut value = (chain << 16 | u64::from(depth)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The blocks of a prompt.
pub(super) fn question(prompt: u64, hashes: &mut Vec<u64>) {
    hashes.clear();
    hashes.extend((0..PROMPT_BLOCKS).map(|depth| hash(prompt, depth)));
}

impl Workload {
    /// About `blocks` distinct blocks.
    pub fn new(blocks: u64) -> Self {
        let prompts = (blocks / OWN_BLOCKS).max(2 * BEGINNINGS * u64::from(INSTANCES).min(4));
        Self { prompts, seqs: [0; INSTANCES as usize], stored: prompts * OWN_BLOCKS, removed: prompts / 2 * OWN_BLOCKS }
    }

    pub fn blocks(&self) -> u64 {
        self.prompts * OWN_BLOCKS + BEGINNINGS * u64::from(SHARED_BLOCKS)
    }

    pub fn entries(&self) -> u64 {
        self.prompts * OWN_BLOCKS + BEGINNINGS * u64::from(SHARED_BLOCKS) * u64::from(INSTANCES)
    }

    /// Prompts that stay.
    pub fn asked(&self) -> Range<u64> {
        0..self.prompts / 2
    }

    fn row(&mut self, instance: u32, event: KvChange) -> KvRow {
        let seq = &mut self.seqs[instance as usize];
        *seq += 1;
        KvRow { instance, epoch: 1, seq: *seq, event }
    }

    fn store(&mut self, instance: u32, (prompt, depth): (u64, u32)) -> KvRow {
        let parent = depth.checked_sub(1).map(|depth| hash(prompt, depth));
        self.row(instance, KvChange::Stored { hash: hash(prompt, depth), parent, level: 0, tokens: 16 })
    }

    /// The beginnings, on all instances.
    pub fn beginnings(&mut self) -> Vec<KvRow> {
        let mut rows = Vec::new();
        for instance in 0..INSTANCES {
            for beginning in 0..BEGINNINGS {
                let prompt = beginning * u64::from(INSTANCES);
                rows.extend((0..SHARED_BLOCKS).map(|depth| self.store(instance, (prompt, depth))));
            }
        }
        rows
    }

    /// What is particular to some prompts.
    pub fn prompts(&mut self, prompts: Range<u64>) -> Vec<KvRow> {
        let blocks = prompts.flat_map(|prompt| (SHARED_BLOCKS..PROMPT_BLOCKS).map(move |depth| (prompt, depth)));
        blocks.map(|(prompt, depth)| self.store(instance_of(prompt), (prompt, depth))).collect()
    }

    pub fn all_prompts(&self) -> Range<u64> {
        0..self.prompts
    }

    /// As many stores of new prompts as removals of the oldest that may go.
    pub fn replace(&mut self, events: u64) -> Vec<KvRow> {
        let mut rows = Vec::with_capacity(events as usize);
        for _ in 0..events / 2 {
            let (prompt, place) = (self.stored / OWN_BLOCKS, (self.stored % OWN_BLOCKS) as u32);
            self.stored += 1;
            rows.push(self.store(instance_of(prompt), (prompt, SHARED_BLOCKS + place)));
            let (prompt, place) = (self.removed / OWN_BLOCKS, (self.removed % OWN_BLOCKS) as u32);
            self.removed += 1;
            let hash = hash(prompt, PROMPT_BLOCKS - 1 - place);
            rows.push(self.row(instance_of(prompt), KvChange::Removed { hash, level: 0 }));
        }
        rows
    }
}
