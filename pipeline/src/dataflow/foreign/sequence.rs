//! The order of a foreign wire's batches: no incarnation is told, so restarts are inferred, and gaps are asked for.
//!
//! A wire counts its batches from 0. A batch that was had before is dropped if it says the same as then; if its number
//! falls back and it says something else, the engine has restarted: its view starts anew, empty and exact. A batch beyond a
//! gap waits while the gap is asked for. When the replay ends without it, or [`WAITING_MAX`] batches wait, the view starts
//! anew without what is missing, and says that its content is not known.
//! Invariant: the rows given are those of one incarnation after the other, numbered from 1 without gaps.
//! Cost: one hash of a batch. State: the batches that wait, and the hashes of the last [`RECENT`] batches.

use std::collections::{BTreeMap, VecDeque};

use operators::{KvChange, KvRow};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    chain::ForeignChain,
    decode::{ForeignEngine, ForeignError, decode},
};

/// Batches that wait for those before them; at the bound the view starts anew.
pub const WAITING_MAX: usize = 256;
/// Bytes of batches that wait; the same.
pub const WAITING_BYTES_MAX: usize = 64 << 20;
/// Batches of which a duplicate is known.
pub const RECENT: usize = 1024;

/// What a batch gave.
#[derive(Debug, Default, PartialEq)]
pub struct ForeignRows {
    pub rows: Vec<KvRow>,
    pub refused: Vec<ForeignError>,
    /// Batches to ask the engine for, both inclusive.
    pub replay: Option<(u64, u64)>,
}

/// One instance's wire.
pub struct ForeignWire {
    engine: ForeignEngine,
    instance: u32,
    incarnation: u64,
    /// Number of the last row.
    row_seq: u64,
    next: u64,
    waiting: BTreeMap<u64, Vec<u8>>,
    recent: VecDeque<(u64, u64)>,
    chain: ForeignChain,
}

impl ForeignWire {
    /// `incarnation`: larger than any of this instance before, such as the time. `block_size`: tokens of our blocks.
    pub fn new(engine: ForeignEngine, instance: u32, incarnation: u64, block_size: usize) -> Self {
        Self {
            engine,
            instance,
            incarnation,
            row_seq: 0,
            next: 0,
            waiting: BTreeMap::new(),
            recent: VecDeque::new(),
            chain: ForeignChain::new(block_size),
        }
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Takes a batch as it was published.
    pub fn live(&mut self, seq: u64, payload: &[u8]) -> ForeignRows {
        let mut out = ForeignRows::default();
        if seq < self.next || self.waiting.contains_key(&seq) {
            let hash = xxh3_64(payload);
            let waits = self.waiting.get(&seq).is_some_and(|known| known == payload);
            if waits || self.recent.contains(&(seq, hash)) {
                return out;
            }
            self.start_anew(KvChange::Cleared, &mut out);
            (self.next, self.waiting) = (0, BTreeMap::new());
            self.recent.clear();
        }
        self.take(seq, payload.to_vec(), &mut out);
        out
    }

    /// Takes a batch that was asked for.
    pub fn replayed(&mut self, seq: u64, payload: &[u8]) -> ForeignRows {
        let mut out = ForeignRows::default();
        if seq >= self.next {
            self.take(seq, payload.to_vec(), &mut out);
            out.replay = None;
        }
        out
    }

    /// The engine has no more of what was asked for: what is still missing is lost.
    pub fn replay_ended(&mut self) -> ForeignRows {
        let mut out = ForeignRows::default();
        self.give_up(&mut out);
        out
    }

    fn take(&mut self, seq: u64, payload: Vec<u8>, out: &mut ForeignRows) {
        self.waiting.insert(seq, payload);
        self.fold_ready(out);
        let bytes: usize = self.waiting.values().map(Vec::len).sum();
        if self.waiting.len() > WAITING_MAX || bytes > WAITING_BYTES_MAX {
            self.give_up(out);
        }
        let first = self.waiting.keys().next();
        out.replay = first.map(|first| (self.next, first - 1));
    }

    fn fold_ready(&mut self, out: &mut ForeignRows) {
        while let Some(payload) = self.waiting.remove(&self.next) {
            self.recent.push_back((self.next, xxh3_64(&payload)));
            if self.recent.len() > RECENT {
                self.recent.pop_front();
            }
            self.next = self.next.saturating_add(1);
            self.fold(&payload, out);
        }
    }

    fn fold(&mut self, payload: &[u8], out: &mut ForeignRows) {
        let mut changes = Vec::new();
        match decode(self.engine, payload) {
            Ok(events) => {
                for event in events {
                    let taken = event.and_then(|event| self.chain.take(event, &mut changes));
                    // A kind of event that is not known says nothing of blocks; any other refusal leaves a doubt.
                    if let Err(error) = taken {
                        changes.extend((error.field != "type").then_some(KvChange::Void));
                        out.refused.push(error);
                    }
                }
            }
            Err(error) => {
                changes.push(KvChange::Void);
                out.refused.push(error);
            }
        }
        changes.into_iter().for_each(|change| self.row(change, out));
    }

    fn row(&mut self, event: KvChange, out: &mut ForeignRows) {
        self.row_seq += 1;
        out.rows.push(KvRow { instance: self.instance, epoch: self.incarnation, seq: self.row_seq, event });
    }

    fn start_anew(&mut self, first: KvChange, out: &mut ForeignRows) {
        self.chain.clear();
        self.incarnation += 1;
        self.row_seq = 0;
        self.row(first, out);
    }

    fn give_up(&mut self, out: &mut ForeignRows) {
        if !self.waiting.is_empty() {
            self.start_anew(KvChange::Void, out);
        }
        while let Some(first) = self.waiting.keys().next().copied() {
            self.next = first;
            self.fold_ready(out);
        }
    }
}
