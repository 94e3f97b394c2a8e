//! A map of at most so many keys: at the bound, the key put in first is forgotten.
//!
//! Invariant: `values` has at most `max` keys. Cost: O(1) an insertion, amortised. State: the values, and at most two keys a
//! value.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// See the module.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    max: usize,
    values: HashMap<K, V>,
    /// Keys in the order in which they came, those removed since included.
    order: VecDeque<K>,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    /// `max`: keys held; 0 counts as 1.
    pub(super) fn new(max: usize) -> Self {
        Self { max: max.max(1), values: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.values.insert(key, value);
        self.order.push_back(key);
        while self.values.len() > self.max || self.order.len() > 2 * self.max {
            match self.order.pop_front() {
                Some(oldest) => drop(self.values.remove(&oldest)),
                None => break,
            }
        }
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.values.get_mut(key)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.values.remove(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: more keys than there is room for, some removed, one put in again and again.
    /// Guarantees: the oldest go first, and neither part outgrows its bound.
    #[test]
    fn the_oldest_go_first() {
        let mut recent = Recent::new(3);
        (0..5).for_each(|key| recent.insert(key, key));
        assert_eq!((0..5).filter_map(|key| recent.remove(&key)).collect::<Vec<_>>(), [2, 3, 4]);
        (0..100).for_each(|value| recent.insert(7, value));
        assert!(recent.values.len() <= 3 && recent.order.len() <= 6);
        recent.insert(8, 0);
        assert!(recent.get_mut(&8).is_some());
    }
}
