//! The fold of one epoch over all instances of a worker.
//!
//! Invariant: an instance is touched by its own rows and by the passing of epochs alone, so any number of workers gives
//! the same result until a bound is met. Cost: one sort of the epoch's rows; instances with a hole are looked at when
//! they are due. State: see `cache_index`.
use std::collections::{BTreeMap, BTreeSet};

use differential_dataflow::{Hashable, consolidation::consolidate};

use super::{
    CacheCause, CacheChange, CacheHealth, CacheIndexConfig, CacheKey, CacheReport, CacheTrust, ReplayRequest,
    instance::{Effects, Instance},
    store::{Change, Room},
};
use crate::{
    epochs::{Closed, EpochFold},
    refused::{Field, Input, Refusal, Refused},
    rows::{KvChange, KvRow},
};

pub(crate) struct CacheFold {
    config: CacheIndexConfig,
    instances: BTreeMap<u32, Instance>,
    /// Instances with a hole in their events.
    holes: BTreeSet<u32>,
    used: Used,
    changes: Vec<(CacheKey, isize)>,
}

/// What all instances of the worker use of its bounds.
#[derive(Clone, Copy, Default)]
struct Used {
    entries: usize,
    orphans: usize,
    waiting: usize,
}

impl Used {
    fn of(instance: &Instance) -> Self {
        let Instance { store, order, .. } = instance;
        Self { entries: store.entries(), orphans: store.orphans(), waiting: order.waiting() }
    }

    fn add(&mut self, other: Self) {
        self.entries += other.entries;
        self.orphans += other.orphans;
        self.waiting += other.waiting;
    }

    fn subtract(&mut self, other: Self) {
        self.entries -= other.entries;
        self.orphans -= other.orphans;
        self.waiting -= other.waiting;
    }
}

impl CacheFold {
    pub(crate) fn new(config: CacheIndexConfig) -> Self {
        Self { config, instances: BTreeMap::new(), holes: BTreeSet::new(), used: Used::default(), changes: Vec::new() }
    }

    /// Makes room for one more instance; those heard from in this very epoch are dropped last.
    fn drop_silent(&mut self, epoch: u64, closed: &mut Closed<CacheChange>) {
        let max_instances = self.config.max_instances.max(1);
        while self.instances.len() >= max_instances {
            let silent = self.instances.iter().min_by_key(|(id, state)| (state.heard, **id)).map(|(id, _)| *id);
            let Some((instance, mut state)) = silent.and_then(|id| self.instances.remove_entry(&id)) else { return };
            self.used.subtract(Used::of(&state));
            self.holes.remove(&instance);
            let (rows, incarnation) = (state.store.entries().max(1) as u64, state.incarnation);
            let mut gone = Vec::new();
            state.store.drain(&mut gone);
            self.keep(instance, gone);
            let (trust, cause) = (CacheTrust::Dropped, CacheCause::Silent);
            let health = CacheHealth { epoch, instance, incarnation, trust, cause };
            closed.out.push(CacheChange::Report(CacheReport::Health(health)));
            let reason = Refusal::InstancesFull { max_instances: max_instances as u64 };
            closed.refused.push(refused((epoch, instance), (0, rows), reason));
        }
    }

    fn keep(&mut self, instance: u32, changes: Vec<Change>) {
        self.changes.extend(changes.into_iter().map(|(hash, level, diff)| ((hash, instance, level), diff)));
    }

    /// Runs `fold` on an instance that was taken out of the map, with what is left of the bounds.
    fn with(
        &mut self,
        (epoch, id, state): (u64, u32, &mut Instance),
        closed: &mut Closed<CacheChange>,
        fold: impl FnOnce(&mut Instance, usize, &mut Effects<'_>),
    ) {
        let before = Used::of(state);
        self.used.subtract(before);
        let config = self.config;
        let (mut changes, mut audits, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
        let mut effects = Effects {
            epoch,
            id,
            room: Room {
                entries: config.max_entries.saturating_sub(self.used.entries),
                orphans: config.max_orphans.saturating_sub(self.used.orphans),
            },
            bounds: Room { entries: config.max_entries, orphans: config.max_orphans },
            max_jump: config.max_jump,
            changes: &mut changes,
            audits: &mut audits,
            refused: &mut refusals,
        };
        fold(state, config.max_waiting.saturating_sub(self.used.waiting), &mut effects);
        self.used.add(Used::of(state));
        self.keep(id, changes);
        closed.out.extend(audits.into_iter().map(|audit| CacheChange::Report(CacheReport::Audit(audit))));
        let refusals = refusals.into_iter().map(|(subject, reason)| refused((epoch, id), (subject, 1), reason));
        closed.refused.extend(refusals);
    }

    /// All rows of one instance in one epoch, sorted by incarnation and `seq`.
    fn fold_instance(&mut self, epoch: u64, rows: &[KvRow], closed: &mut Closed<CacheChange>) {
        let id = rows[0].instance;
        let known = self.instances.remove(&id);
        if known.is_none() && rows.iter().all(is_end) {
            return;
        }
        if known.is_none() {
            self.drop_silent(epoch, closed);
        }
        let mut state = known.unwrap_or_else(|| Instance::new(rows[0].epoch, epoch));
        state.heard = epoch;
        for group in rows.chunk_by(|a, b| a.epoch == b.epoch) {
            let (got, ends) = (group[0].epoch, group.iter().any(is_end));
            let events = group.iter().filter(|row| !is_end(row));
            let current = state.incarnation + u64::from(state.is_gone);
            if got < current && events.clone().next().is_some() {
                let reason = Refusal::StaleIncarnation { current, got };
                closed.refused.push(refused((epoch, id), (0, events.count() as u64), reason));
                continue;
            }
            self.with((epoch, id, &mut state), closed, |state, may_wait, effects| {
                if got > state.incarnation && events.clone().next().is_some() {
                    state.store.drain(effects.changes);
                    *state = Instance::new(got, epoch);
                }
                for row in events {
                    let may_wait = may_wait.saturating_sub(state.order.waiting());
                    state.take((row.seq, row.event), may_wait, effects);
                }
                if ends && got >= state.incarnation {
                    state.leave(effects);
                }
            });
        }
        self.tend(epoch, (id, &mut state), closed);
        self.instances.insert(id, state);
    }

    /// What an epoch ends with for an instance: a hole gets older, trust is told, what is missing is asked for.
    fn tend(&mut self, epoch: u64, (id, state): (u32, &mut Instance), closed: &mut Closed<CacheChange>) {
        match state.order.hole_since(epoch) {
            Some((since, _)) if epoch >= since.saturating_add(self.config.patience_epochs) => {
                self.with((epoch, id, state), closed, |state, _, effects| state.give_up(effects));
            }
            Some((_, true)) => {
                if let Some((expected, to)) = state.order.hole() {
                    let reason = Refusal::SequenceGap { incarnation: state.incarnation, expected, got: to + 1 };
                    closed.refused.push(refused((epoch, id), (to + 1, 1), reason));
                }
            }
            Some((_, false)) | None => {}
        }
        match state.order.hole() {
            Some(_) => self.holes.insert(id),
            None => self.holes.remove(&id),
        };
        let incarnation = state.incarnation;
        let (trust, cause) = state.trust();
        if state.told.replace((trust, cause)) != Some((trust, cause)) {
            let health = CacheHealth { epoch, instance: id, incarnation, trust, cause };
            closed.out.push(CacheChange::Report(CacheReport::Health(health)));
        }
        let Some(want) = state.want() else { return state.asked = None };
        let again = self.config.ask_again_epochs.max(1);
        if state.asked.is_none_or(|(at, asked)| asked != want || epoch >= at.saturating_add(again)) {
            state.asked = Some((epoch, want));
            let request = ReplayRequest { epoch, instance: id, incarnation, want };
            closed.out.push(CacheChange::Report(CacheReport::Replay(request)));
        }
    }

    /// The epoch in which an instance with a hole must be looked at, rows or not.
    fn due(&self, id: u32) -> Option<u64> {
        let state = self.instances.get(&id)?;
        let patience = state.order.since()?.saturating_add(self.config.patience_epochs);
        let again = state.asked.map(|(at, _)| at.saturating_add(self.config.ask_again_epochs.max(1)));
        Some(again.map_or(patience, |again| again.min(patience)))
    }
}

/// Says that an incarnation has ended.
fn is_end(row: &KvRow) -> bool {
    row.event == KvChange::Gone
}

fn refused((epoch, instance): (u64, u32), (subject, rows): (u64, u64), reason: Refusal) -> Refused {
    Refused { epoch, input: Input::Kv, instance: Some(instance), subject, rows, reason }
}

impl EpochFold for CacheFold {
    type Row = KvRow;
    type Out = CacheChange;
    const NAME: &'static str = "CacheIndex";

    fn route(row: &KvRow) -> u64 {
        row.instance.hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<KvRow>, closed: &mut Closed<CacheChange>) {
        rows.retain_mut(|row| {
            let Err(reason) = row.check() else { return true };
            closed.refused.push(refused((epoch, row.instance), (row.seq, 1), reason));
            // Its number is used up, whatever it said; without a number it is nothing.
            row.event = KvChange::Void;
            !matches!(reason, Refusal::OutOfRange { field: Field::Seq | Field::Instance, .. })
        });
        rows.sort_unstable();
        for group in rows.chunk_by(|a, b| a.instance == b.instance) {
            self.fold_instance(epoch, group, closed);
        }
        let overdue: Vec<u32> =
            self.holes.iter().copied().filter(|id| self.due(*id).is_some_and(|at| at <= epoch)).collect();
        for id in overdue {
            let Some(mut state) = self.instances.remove(&id) else { continue };
            self.tend(epoch, (id, &mut state), closed);
            self.instances.insert(id, state);
        }
        consolidate(&mut self.changes);
        closed.out.extend(self.changes.drain(..).map(|(key, diff)| CacheChange::Block(key, epoch, diff)));
    }

    fn wake_at(&self) -> Option<u64> {
        self.holes.iter().filter_map(|id| self.due(*id)).min()
    }
}
