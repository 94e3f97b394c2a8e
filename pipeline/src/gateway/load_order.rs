//! Ready instances of each model and variant in the order of their leased tokens, kept as leases come and go, so that routing in a large
//! fleet need not look at all of them.
//!
//! Invariant: after each reservation, return and change of an entry has ended, an instance stands where its leased tokens put it; an
//! incarnation that was replaced moves nothing. Cost: O(log n) a change, under one lock; [`least`](LoadOrder::least) takes the
//! first of each group. State: about 150 bytes an instance.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    instances::{InstanceEntry, InstanceState},
    leases::Leases,
};
use crate::{
    ids::{InstanceId, Name},
    policy::LEAST_LOADED,
};

type Group = (Name, Name);

#[derive(Default)]
struct Order {
    groups: BTreeMap<Group, BTreeSet<(u64, InstanceId)>>,
    places: HashMap<InstanceId, Place>,
}

struct Place {
    group: Group,
    tokens: u64,
    leases: Arc<Leases>,
}

impl Order {
    fn take(&mut self, instance: InstanceId) -> Option<Place> {
        let place = self.places.remove(&instance)?;
        if let Some(group) = self.groups.get_mut(&place.group) {
            group.remove(&(place.tokens, instance));
            if group.is_empty() {
                self.groups.remove(&place.group);
            }
        }
        Some(place)
    }

    fn put(&mut self, instance: InstanceId, (group, leases): (Group, Arc<Leases>)) {
        let tokens = leases.tokens();
        self.groups.entry(group.clone()).or_default().insert((tokens, instance));
        self.places.insert(instance, Place { group, tokens, leases });
    }
}

/// See the module.
#[derive(Default)]
pub struct LoadOrder(Mutex<Order>);

impl LoadOrder {
    /// The entry of an instance is another now.
    pub fn entered(&self, entry: &InstanceEntry) {
        let mut order = self.lock();
        order.take(entry.id);
        if entry.state == InstanceState::Ready {
            order.put(entry.id, ((entry.model.clone(), entry.variant.clone()), entry.leases.clone()));
        }
    }

    /// Leases of an incarnation came or went.
    pub fn moved(&self, instance: InstanceId, leases: &Leases) {
        let mut order = self.lock();
        let is_current = order.places.get(&instance).is_some_and(|place| std::ptr::eq(&*place.leases, leases));
        if is_current && let Some(Place { group, leases, .. }) = order.take(instance) {
            order.put(instance, (group, leases));
        }
    }

    /// Of each group, the [`LEAST_LOADED`] with the fewest leased tokens; empty where there are no more instances than that.
    pub fn least(&self) -> Vec<InstanceId> {
        let order = self.lock();
        if order.places.len() <= LEAST_LOADED {
            return Vec::new();
        }
        let groups = order.groups.values();
        groups.flat_map(|group| group.iter().take(LEAST_LOADED).map(|(_, instance)| *instance)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Order> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{gateway::instances::InstanceDirectory, ids::ProcessEpoch};

    fn entry(id: u32, epoch: u64, (variant, state): (&str, InstanceState), leases: &Arc<Leases>) -> InstanceEntry {
        InstanceEntry {
            id: InstanceId(id),
            name: format!("w{id}"),
            epoch: ProcessEpoch(epoch),
            model: "m".into(),
            variant: variant.into(),
            state,
            client: None,
            leases: leases.clone(),
            fetch: Default::default(),
        }
    }

    proptest! {
        /// Scenario: 70 instances of two variants; leases are taken and given back, instances die and come back with leases anew.
        /// Guarantees: at any time the directory names those that a sort by leased tokens puts first, of each variant.
        #[test]
        fn order_equals_a_sort(steps in prop::collection::vec((0u32..70, 0u8..4, 1u64..50), 0..200)) {
            let directory = InstanceDirectory::default();
            let mut fleet: Vec<(u64, InstanceState, Arc<Leases>)> =
                (0..70).map(|_| (1, InstanceState::Ready, Arc::default())).collect();
            let variant = |id: u32| if id.is_multiple_of(5) { "q4" } else { "f16" };
            for (id, (epoch, state, leases)) in (0..).zip(&fleet) {
                directory.put(entry(id, *epoch, (variant(id), *state), leases));
            }
            let mut held = Vec::new();
            for (id, what, tokens) in steps {
                let (epoch, state, leases) = &mut fleet[id as usize];
                match what {
                    0 | 1 => held.extend(leases.reserve(tokens, u64::MAX)),
                    2 if !held.is_empty() => drop(held.swap_remove(tokens as usize % held.len())),
                    _ => {
                        (*epoch, *leases) = (*epoch + 1, Arc::default());
                        *state = if tokens % 3 == 0 { InstanceState::Dead } else { InstanceState::Ready };
                        directory.put(entry(id, *epoch, (variant(id), *state), leases));
                    }
                }
                let ready = || (0u32..).zip(&fleet).filter(|(_, (_, state, _))| *state == InstanceState::Ready);
                let mut expected = Vec::new();
                for group in ["f16", "q4"] {
                    let mut group: Vec<_> = ready().filter(|(id, _)| variant(*id) == group)
                        .map(|(id, (_, _, leases))| (leases.tokens(), InstanceId(id))).collect();
                    group.sort_unstable();
                    expected.extend(group.into_iter().take(LEAST_LOADED).map(|(_, id)| id));
                }
                let is_large = ready().count() > LEAST_LOADED;
                prop_assert_eq!(directory.least_loaded(), if is_large { expected } else { Vec::new() });
            }
        }
    }
}
