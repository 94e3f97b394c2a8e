//! One instance: its events in order, what they make of its store, and how far the result can be trusted.
//!
//! Invariant: `trust` follows from what is amiss now: it is exact again as soon as the content is known again, by the
//! missing events, by `Cleared`, by sums that agree or by a listing of those that did not.
//! Cost: O(1) per event, and what `store` says; a listing costs the blocks of the instance once.
//! State: see `store` and `order`; one bucket's blocks during a listing.
use super::{
    CacheAudit, CacheCause, CacheTrust, ReplayWant,
    order::{Order, Turn},
    store::{AUDIT_BUCKETS, Change, Full, Room, Store, audit_bucket},
};
use crate::{IntSet, refused::Refusal, rows::KvChange};

/// What folding an instance's events gives and may use.
pub(super) struct Effects<'a> {
    pub epoch: u64,
    pub id: u32,
    pub room: Room,
    /// Bounds, for messages.
    pub bounds: Room,
    pub max_jump: u64,
    pub changes: &'a mut Vec<Change>,
    pub audits: &'a mut Vec<CacheAudit>,
    pub refused: &'a mut Vec<(u64, Refusal)>,
}

/// An account of sums under way.
struct Account {
    next: u8,
    held: u64,
    differing: u64,
    mask: u64,
}

/// A listing of one bucket under way.
struct Listing {
    bucket: u8,
    left: u32,
    /// What the index had, less what was listed.
    before: IntSet<(u64, u8)>,
    differing: u64,
}

/// See the module.
pub(super) struct Instance {
    pub incarnation: u64,
    /// The last epoch in which a row of this instance came.
    pub heard: u64,
    pub order: Order,
    pub store: Store,
    pub told: Option<(CacheTrust, CacheCause)>,
    /// The last request and when it was made.
    pub asked: Option<(u64, ReplayWant)>,
    pub lost: bool,
    /// The incarnation has ended: nothing is held, and what still comes of it is refused.
    pub is_gone: bool,
    full: bool,
    /// Buckets that differ and have not been listed since.
    drift: u64,
    account: Option<Account>,
    listing: Option<Listing>,
    /// The last account of sums, and what its listings found so far.
    audit: Option<CacheAudit>,
}

impl Instance {
    pub fn new(incarnation: u64, epoch: u64) -> Self {
        Self {
            incarnation,
            heard: epoch,
            order: Order::default(),
            store: Store::default(),
            told: None,
            asked: None,
            lost: false,
            is_gone: false,
            full: false,
            drift: 0,
            account: None,
            listing: None,
            audit: None,
        }
    }

    pub fn trust(&self) -> (CacheTrust, CacheCause) {
        match self {
            _ if self.is_gone => (CacheTrust::Dropped, CacheCause::Gone),
            _ if self.lost => (CacheTrust::Degraded, CacheCause::Lost),
            _ if self.order.hole().is_some() => (CacheTrust::Degraded, CacheCause::Gap),
            // A full index differs from what is held, of course, and a listing would not fit either.
            _ if self.full => (CacheTrust::Approximate, CacheCause::Full),
            _ if self.drift != 0 => (CacheTrust::Degraded, CacheCause::Drift),
            _ => (CacheTrust::Exact, CacheCause::Sound),
        }
    }

    /// What the index needs to hear to trust the instance again.
    pub fn want(&self) -> Option<ReplayWant> {
        match self.trust().1 {
            CacheCause::Lost => Some(ReplayWant::Everything),
            CacheCause::Gap => self.order.hole().map(|(from_seq, to_seq)| ReplayWant::Events { from_seq, to_seq }),
            CacheCause::Drift => Some(ReplayWant::Buckets { mask: self.drift }),
            CacheCause::Full | CacheCause::Sound | CacheCause::Silent | CacheCause::Gone => None,
        }
    }

    /// Takes an event of the current incarnation; `may_wait`: how many more events may wait.
    pub fn take(&mut self, (seq, event): (u64, KvChange), may_wait: usize, effects: &mut Effects<'_>) {
        match self.order.turn((seq, &event), effects.max_jump) {
            Turn::Known => {}
            Turn::Far => {
                // Nothing can be said of an instance in whose name somebody says such things, until it is heard out.
                self.lost = true;
                let (incarnation, expected) = (self.incarnation, self.order.next_seq());
                let reason = Refusal::SequenceJump { incarnation, expected, got: seq, max_jump: effects.max_jump };
                effects.refused.push((seq, reason));
            }
            Turn::Resumed => {
                self.order.wait(seq, event);
                self.give_up(effects);
            }
            Turn::Now => {
                self.fold((seq, event), effects);
                self.fold_waiting(effects);
            }
            Turn::Early if may_wait > 0 => self.order.wait(seq, event),
            Turn::Early => {
                self.order.wait(seq, event);
                self.give_up(effects);
            }
        }
    }

    /// The incarnation has ended, with all it held.
    pub fn leave(&mut self, effects: &mut Effects<'_>) {
        self.store.drain(effects.changes);
        *self = Self { is_gone: true, told: self.told, ..Self::new(self.incarnation, self.heard) };
    }

    fn fold_waiting(&mut self, effects: &mut Effects<'_>) {
        while let Some(next) = self.order.next() {
            self.fold(next, effects);
        }
    }

    /// Folds what waits without what is missing.
    pub fn give_up(&mut self, effects: &mut Effects<'_>) {
        while let Some((from_seq, to_seq)) = self.order.skip_hole() {
            self.lost = true;
            (self.account, self.listing) = (None, None);
            let reason = Refusal::EventsLost { incarnation: self.incarnation, from_seq, to_seq };
            effects.refused.push((from_seq, reason));
            self.fold_waiting(effects);
        }
    }

    /// One event, in its turn.
    fn fold(&mut self, (seq, event): (u64, KvChange), effects: &mut Effects<'_>) {
        if self.listing.is_some() && !matches!(event, KvChange::Stored { .. }) {
            // A listing comes in one piece.
            (self.listing, self.lost) = (None, true);
        }
        match event {
            KvChange::Stored { hash, parent, level, .. } => self.stored((hash, level), parent, (seq, effects)),
            KvChange::Removed { hash, level } => self.store.remove((hash, level), effects.changes),
            KvChange::Hit { .. } => {}
            KvChange::Cleared => {
                self.store.drain(effects.changes);
                (self.lost, self.full, self.drift) = (false, false, 0);
                (self.account, self.audit) = (None, None);
            }
            KvChange::Sum { bucket, blocks, sum } => self.sum(bucket, (u64::from(blocks), sum), (seq, effects)),
            KvChange::Listed { bucket, blocks } => self.list((bucket, blocks), (seq, effects)),
            KvChange::Void => self.lost = true,
            // Has no place among the events: see `leave`.
            KvChange::Gone => {}
        }
    }

    fn stored(&mut self, block: (u64, u8), parent: Option<u64>, (seq, effects): (u64, &mut Effects<'_>)) {
        // What is listed is held, whatever became of its parent.
        let parent = parent.filter(|_| self.listing.is_none());
        if let Err(full) = self.store.store(block, parent, effects.room, effects.changes) {
            self.full = true;
            let reason = match full {
                Full::Entries => Refusal::EntriesFull { max_entries: effects.bounds.entries as u64 },
                Full::Orphans => Refusal::OrphansFull { max_orphans: effects.bounds.orphans as u64 },
                Full::References => Refusal::ReferencesFull { max_references: super::MAX_REFERENCES.into() },
            };
            effects.refused.push((block.0, reason));
        }
        let Some(listing) = &mut self.listing else { return };
        if audit_bucket(block.0) != listing.bucket {
            (self.listing, self.lost) = (None, true);
            return;
        }
        listing.left -= 1;
        listing.differing += u64::from(!listing.before.remove(&block));
        if listing.left == 0 {
            self.end_listing(seq, effects);
        }
    }

    /// One part of an account: what the instance holds in a bucket.
    fn sum(&mut self, bucket: u8, (blocks, sum): (u64, u64), (seq, effects): (u64, &mut Effects<'_>)) {
        if bucket == 0 {
            self.account = Some(Account { next: 0, held: 0, differing: 0, mask: 0 });
        }
        let Some(account) = self.account.as_mut().filter(|account| account.next == bucket) else {
            self.account = None;
            return;
        };
        let indexed = self.store.sum(bucket);
        account.next += 1;
        account.held += blocks;
        if (indexed.blocks, indexed.sum) != (blocks, sum) {
            account.differing += blocks.abs_diff(indexed.blocks).max(1);
            account.mask |= 1 << bucket;
        }
        if account.next < AUDIT_BUCKETS {
            return;
        }
        let audit = CacheAudit {
            epoch: effects.epoch,
            instance: effects.id,
            incarnation: self.incarnation,
            seq,
            held: account.held,
            indexed: self.store.entries() as u64,
            differing: account.differing,
            is_listed: false,
        };
        self.drift = account.mask;
        if account.mask == 0 {
            (self.lost, self.full) = (false, false);
        }
        self.account = None;
        effects.audits.push(audit);
        self.audit = (audit.differing > 0).then_some(CacheAudit { differing: 0, ..audit });
    }

    fn list(&mut self, (bucket, blocks): (u8, u32), (seq, effects): (u64, &mut Effects<'_>)) {
        let before = self.store.drain_bucket(bucket, effects.changes).into_iter().collect();
        self.listing = Some(Listing { bucket, left: blocks, before, differing: 0 });
        if blocks == 0 {
            self.end_listing(seq, effects);
        }
    }

    fn end_listing(&mut self, seq: u64, effects: &mut Effects<'_>) {
        let Some(listing) = self.listing.take() else { return };
        self.drift &= !(1 << listing.bucket);
        let Some(audit) = &mut self.audit else { return };
        audit.differing += listing.differing + listing.before.len() as u64;
        if self.drift == 0 {
            let audit = CacheAudit { epoch: effects.epoch, seq, is_listed: true, ..*audit };
            effects.audits.push(audit);
            self.audit = None;
        }
    }
}
