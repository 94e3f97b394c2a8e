//! The twin of `cache_index` and of `PrefixIndex`: every event kept, the content told anew from the first one each time.
//!
//! Invariant: the same rules as the operator for unbounded state. Cost: O(all events) per question.
//! State: all events of each instance's highest incarnation, unbounded.
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    AUDIT_BUCKETS, CacheCause, CacheIndexConfig, CacheKey, KvChange, KvRow, Refusal, audit_bucket, audit_weight,
    refused::Field,
};

/// See the module.
pub struct SlowCacheIndex {
    patience: u64,
    max_jump: u64,
    instances: BTreeMap<u32, Events>,
}

#[derive(Default)]
struct Events {
    incarnation: u64,
    rows: BTreeMap<u64, KvChange>,
    /// Events that were given up.
    lost: BTreeSet<u64>,
    /// First missing event, and since when it is missed.
    hole: Option<(u64, u64)>,
    /// Events that should have come when one far ahead of them did.
    jumped: BTreeSet<u64>,
    /// Events that came too far ahead since the last that did not, in the order in which they came.
    far: Vec<u64>,
    is_gone: bool,
}

/// What the events of an instance come to.
#[derive(Default)]
struct Told {
    next_seq: u64,
    /// References per (hash, level).
    held: BTreeMap<(u64, u8), u32>,
    /// Block to the parent it waits for, and references by level.
    orphans: BTreeMap<u64, (u64, BTreeMap<u8, u32>)>,
    is_lost: bool,
    drift: BTreeSet<u8>,
    /// Next bucket of an account, and those that differed.
    account: Option<(u8, BTreeSet<u8>)>,
    listing: Option<(u8, u32)>,
}

impl Default for SlowCacheIndex {
    fn default() -> Self {
        Self::new(CacheIndexConfig::default())
    }
}

impl SlowCacheIndex {
    pub fn new(config: CacheIndexConfig) -> Self {
        Self { patience: config.patience_epochs, max_jump: config.max_jump, instances: BTreeMap::new() }
    }

    /// Folds one epoch; epochs between the last one and this passed without rows. Gives `(instance, expected, got)` of
    /// each new hole.
    pub fn epoch(&mut self, epoch: u64, rows: &[KvRow]) -> Vec<(u32, u64, u64)> {
        for events in self.instances.values_mut() {
            events.age(epoch.saturating_sub(1), self.patience);
        }
        let mut rows: Vec<KvRow> = rows.iter().copied().filter_map(taken).collect();
        rows.sort();
        let (ends, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.event == KvChange::Gone);
        for row in rows {
            let events =
                self.instances.entry(row.instance).or_insert(Events { incarnation: row.epoch, ..Events::default() });
            if row.epoch > events.incarnation {
                *events = Events { incarnation: row.epoch, ..Events::default() };
            }
            if row.epoch == events.incarnation && row.seq >= events.told().next_seq && !events.is_gone {
                events.come(row, self.max_jump);
            }
        }
        for row in ends {
            if let Some(events) = self.instances.get_mut(&row.instance).filter(|known| known.incarnation <= row.epoch) {
                *events = Events { incarnation: events.incarnation, is_gone: true, ..Events::default() };
            }
        }
        let holes = self.instances.iter_mut().filter_map(|(id, events)| {
            events.age(epoch, self.patience);
            let (from, got) = events.hole()?;
            let is_new = events.hole.is_none_or(|(known, _)| known != from);
            if is_new {
                events.hole = Some((from, epoch));
            }
            is_new.then_some((*id, from, got))
        });
        holes.collect()
    }

    /// What is held.
    pub fn blocks(&self) -> BTreeSet<CacheKey> {
        let held = |(id, events): (&u32, &Events)| {
            events.told().held.into_keys().map(|(hash, level)| (hash, *id, level)).collect::<Vec<_>>()
        };
        self.instances.iter().flat_map(held).collect()
    }

    /// What is amiss with each instance known.
    pub fn causes(&self) -> BTreeMap<u32, CacheCause> {
        let cause = |events: &Events| match events.told() {
            _ if events.is_gone => CacheCause::Gone,
            told if told.is_lost => CacheCause::Lost,
            _ if events.hole().is_some() => CacheCause::Gap,
            told if !told.drift.is_empty() => CacheCause::Drift,
            _ => CacheCause::Sound,
        };
        self.instances.iter().map(|(id, events)| (*id, cause(events))).collect()
    }
}

/// The row as it counts: what it says if it is well formed, that something was said if only its number is.
fn taken(row: KvRow) -> Option<KvRow> {
    match row.check() {
        Ok(()) => Some(row),
        Err(Refusal::OutOfRange { field: Field::Seq | Field::Instance, .. }) => None,
        Err(_) => Some(KvRow { event: KvChange::Void, ..row }),
    }
}

impl Events {
    /// Takes an event that is not known yet, if it is to be believed.
    fn come(&mut self, row: KvRow, max_jump: u64) {
        let next = self.told().next_seq;
        let is_beginning = self.rows.is_empty() && row.event == KvChange::Cleared;
        if row.seq - next > max_jump && !is_beginning && !self.rows.contains_key(&row.seq) {
            self.far.push(row.seq);
            let run = self.far.iter().rev().zip((0..=row.seq).rev()).take_while(|(far, seq)| **far == *seq).count();
            if run < 16 {
                self.jumped.insert(next);
                return;
            }
            self.lost.extend((next..row.seq).filter(|seq| !self.rows.contains_key(seq)));
        }
        if !self.rows.contains_key(&row.seq) {
            self.far.clear();
            self.rows.insert(row.seq, row.event);
        }
    }

    /// Gives holes up that are as old as the patience at `epoch`.
    fn age(&mut self, epoch: u64, patience: u64) {
        let Some((from, since)) = self.hole else { return };
        if self.hole().is_some_and(|(hole, _)| hole == from) && since + patience <= epoch {
            let last = self.rows.keys().next_back().copied().unwrap_or(from);
            self.lost.extend((from..last).filter(|seq| !self.rows.contains_key(seq)));
        }
    }

    /// First missing event and the first that waits for it.
    fn hole(&self) -> Option<(u64, u64)> {
        let next = self.told().next_seq;
        self.rows.range(next..).next().map(|(got, _)| (next, *got))
    }

    fn told(&self) -> Told {
        let mut told = Told { next_seq: 1, ..Told::default() };
        loop {
            let seq = told.next_seq;
            told.is_lost |= self.jumped.contains(&seq);
            if let Some(event) = self.rows.get(&seq) {
                told.take(event);
            } else if self.lost.contains(&seq) {
                (told.is_lost, told.account, told.listing) = (true, None, None);
            } else if let Some((cleared, event)) =
                self.rows.range(seq..).find(|(_, event)| **event == KvChange::Cleared)
            {
                told.next_seq = *cleared;
                told.take(event);
            } else {
                return told;
            }
            told.next_seq += 1;
        }
    }
}

impl Told {
    fn take(&mut self, event: &KvChange) {
        if self.listing.is_some() && !matches!(event, KvChange::Stored { .. }) {
            (self.listing, self.is_lost) = (None, true);
        }
        match *event {
            KvChange::Hit { .. } | KvChange::Gone => {}
            KvChange::Void => self.is_lost = true,
            KvChange::Cleared => *self = Told { next_seq: self.next_seq, ..Told::default() },
            KvChange::Removed { hash, level } => self.remove(hash, level),
            KvChange::Stored { hash, parent, level, .. } => {
                self.store((hash, level), parent.filter(|_| self.listing.is_none()));
                self.listed(hash);
            }
            KvChange::Sum { bucket, blocks, sum } => self.sum(bucket, (u64::from(blocks), sum)),
            KvChange::Listed { bucket, blocks } => {
                self.held.retain(|(hash, _), _| audit_bucket(*hash) != bucket);
                self.orphans.retain(|hash, _| audit_bucket(*hash) != bucket);
                self.listing = Some((bucket, blocks));
                self.end_listing();
            }
        }
    }

    fn has(&self, hash: u64) -> bool {
        self.held.keys().any(|(held, _)| *held == hash)
    }

    fn store(&mut self, (hash, level): (u64, u8), parent: Option<u64>) {
        let is_orphan = parent.is_some_and(|parent| !self.has(parent)) && !self.has(hash);
        if is_orphan {
            let (_, levels) = self.orphans.entry(hash).or_insert((parent.unwrap_or(0), BTreeMap::new()));
            *levels.entry(level).or_insert(0) += 1;
            return;
        }
        // What waited for the block, and the block itself if it did, are held from now on.
        let mut adopted = vec![hash];
        while let Some(hash) = adopted.pop() {
            let (_, levels) = self.orphans.remove(&hash).unwrap_or_default();
            levels.into_iter().for_each(|(level, count)| *self.held.entry((hash, level)).or_insert(0) += count);
            adopted.extend(self.orphans.iter().filter(|(_, (parent, _))| *parent == hash).map(|(orphan, _)| *orphan));
        }
        *self.held.entry((hash, level)).or_insert(0) += 1;
    }

    fn remove(&mut self, hash: u64, level: u8) {
        let less = |count: &mut u32| {
            *count -= 1;
            *count > 0
        };
        if let Some((_, levels)) = self.orphans.get_mut(&hash) {
            levels.retain(|at, count| *at != level || less(count));
            self.orphans.retain(|_, (_, levels)| !levels.is_empty());
        }
        self.held.retain(|block, count| *block != (hash, level) || less(count));
    }

    fn sum(&mut self, bucket: u8, told: (u64, u64)) {
        let mut account = self.account.take();
        if bucket == 0 {
            account = Some((0, BTreeSet::new()));
        }
        let Some((next, mut differing)) = account.filter(|(next, _)| *next == bucket) else { return };
        let held: Vec<_> = self.held.keys().filter(|(hash, _)| audit_bucket(*hash) == bucket).collect();
        let sum = held.iter().fold(0u64, |sum, (hash, level)| sum.wrapping_add(audit_weight(*hash, *level)));
        if (held.len() as u64, sum) != told {
            differing.insert(bucket);
        }
        if next + 1 < AUDIT_BUCKETS {
            self.account = Some((next + 1, differing));
            return;
        }
        self.is_lost &= !differing.is_empty();
        self.drift = differing;
    }

    fn listed(&mut self, hash: u64) {
        let Some((bucket, left)) = self.listing else { return };
        if audit_bucket(hash) != bucket {
            (self.listing, self.is_lost) = (None, true);
            return;
        }
        self.listing = Some((bucket, left - 1));
        self.end_listing();
    }

    fn end_listing(&mut self) {
        if let Some((bucket, 0)) = self.listing {
            self.drift.remove(&bucket);
            self.listing = None;
        }
    }
}

/// Per instance that holds the first of `hashes`: how many leading ones it holds; longest first, then by instance.
pub fn longest_prefix(blocks: &BTreeSet<CacheKey>, hashes: &[u64]) -> Vec<(u32, u32)> {
    let instances: BTreeSet<u32> = blocks.iter().map(|(_, instance, _)| *instance).collect();
    let holds = |instance: u32, hash: u64| blocks.iter().any(|(held, holder, _)| *held == hash && *holder == instance);
    let mut found: Vec<(u32, u32)> = instances
        .into_iter()
        .map(|instance| (instance, hashes.iter().take_while(|hash| holds(instance, **hash)).count() as u32))
        .filter(|(_, blocks)| *blocks > 0)
        .collect();
    found.sort_by_key(|(instance, blocks)| (std::cmp::Reverse(*blocks), *instance));
    found
}
