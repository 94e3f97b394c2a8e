//! One tier of the queue: its tenants share it evenly by tokens, and inside a tenant the entry with the least slack goes
//! first (SPEC A3, A4 d).
//!
//! Each tenant has a *tag*, the tokens it was served. The waiting tenant with the lowest tag goes next, names decide ties. A
//! tenant that had nothing waiting starts again at the lowest tag that waits, unless its own is higher: it cannot save up,
//! and it cannot shed what it took by asking for one thing at a time.
//!
//! Time: O(log n) each. State: the waiting entries, and the tag of at most [`IDLE_MAX`] tenants that took more than their
//! share and have nothing waiting; at the bound the one that took least is forgiven.

use std::collections::{BTreeSet, HashMap};

use super::Ticket;
use crate::ids::{Micros, Name};

/// Tenants without anything waiting whose tag is remembered.
pub const IDLE_MAX: usize = 4096;

/// Place inside a tenant: the latest start, then arrival.
pub(super) type Slack = (Micros, Ticket);

#[derive(Debug, Default)]
struct Tenant {
    tag: u128,
    waiting: BTreeSet<Slack>,
}

/// See the file's header.
#[derive(Debug)]
pub(super) struct Lane {
    /// Tokens served, over the tier's weight.
    pub tag: u128,
    /// Growth of `tag` per token.
    pub pace: u128,
    /// Lowest tag that waited, as of the last service.
    floor: u128,
    tenants: HashMap<Name, Tenant>,
    /// Tenants with something waiting, by tag.
    order: BTreeSet<(u128, Name)>,
    /// Tenants with nothing waiting and a tag above `floor`.
    idle: BTreeSet<(u128, Name)>,
}

impl Lane {
    pub fn new(pace: u128) -> Self {
        let (tenants, order, idle) = (HashMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { tag: 0, pace, floor: 0, tenants, order, idle }
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub fn insert(&mut self, tenant: &Name, slack: Slack) {
        let floor = self.floor;
        let known = self.tenants.entry(tenant.clone()).or_default();
        if known.waiting.is_empty() {
            self.idle.remove(&(known.tag, tenant.clone()));
            known.tag = known.tag.max(floor);
            self.order.insert((known.tag, tenant.clone()));
        }
        known.waiting.insert(slack);
    }

    pub fn remove(&mut self, tenant: &Name, slack: Slack) {
        let known = self.tenants.get_mut(tenant).expect("invariant: who waits is known");
        let was_there = known.waiting.remove(&slack);
        debug_assert!(was_there, "an entry is where its slack says");
        if known.waiting.is_empty() {
            self.order.remove(&(known.tag, tenant.clone()));
            self.idle.insert((known.tag, tenant.clone()));
            self.forgive();
        }
    }

    /// The tenant is served this much; call before the entry is taken out.
    pub fn charge(&mut self, tenant: &Name, tokens: u64) {
        self.floor = self.floor.max(self.order.first().map_or(0, |(tag, _)| *tag));
        let floor = self.floor;
        let known = self.tenants.entry(tenant.clone()).or_default();
        let before = known.tag;
        known.tag = before.max(floor) + u128::from(tokens);
        let places = if known.waiting.is_empty() { &mut self.idle } else { &mut self.order };
        places.remove(&(before, tenant.clone()));
        places.insert((known.tag, tenant.clone()));
        self.forgive();
    }

    /// Forgets tenants that have nothing waiting and whose tag no longer counts.
    fn forgive(&mut self) {
        while let Some((tag, _)) = self.idle.first() {
            if *tag > self.floor && self.idle.len() <= IDLE_MAX {
                return;
            }
            if let Some((_, tenant)) = self.idle.pop_first() {
                self.tenants.remove(&tenant);
            }
        }
    }

    /// The head of each tenant, in the order of service.
    pub fn heads(&self) -> impl Iterator<Item = Ticket> {
        self.order.iter().filter_map(|(_, tenant)| {
            let first = self.tenants.get(tenant)?.waiting.first();
            first.map(|(_, ticket)| *ticket)
        })
    }

    #[cfg(test)]
    pub fn remembered(&self) -> usize {
        self.tenants.len()
    }
}
