//! Distinct sessions of some epochs, mergeable, in bounded room: all of them up to a bound, above it those whose mixed
//! key falls into a share of the key space that is halved until they fit (D4).
//!
//! Invariant: what is held depends only on the set of sessions added and the bound, not on their order nor on how they
//! were spread over sketches before a merge; a session that is held has all its requests counted. With n held of a share
//! 1/k the number of sessions is k · n, with a standard error of sqrt((1 - 1/k) / n) of it: with room for 4096, of which at
//! least about half is used once k is above 1, at most 2.3 %.
//! Cost: one map access per request; a halving is one pass. State: 24 bytes per session held, at most `most` of them.
use std::hash::BuildHasher;

use crate::IntMap;

/// What is known of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Session {
    /// Most user messages any of its requests stated.
    pub turns: u32,
    pub requests: u32,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct SessionSketch {
    most: usize,
    /// Sessions whose mixed key has at least this many leading zeros are held.
    level: u32,
    held: IntMap<u64, Session>,
    /// Requests added, held or not.
    requests: u64,
}

/// Spreads the keys evenly over the key space, however they were made.
pub(crate) fn mixed(session: u64) -> u64 {
    foldhash::fast::FixedState::default().hash_one(session)
}

impl SessionSketch {
    /// `most`: sessions held; at least 1.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), level: 0, held: IntMap::default(), requests: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    pub fn add(&mut self, session: u64, turns: u32) {
        self.requests += 1;
        self.put(mixed(session), Session { turns, requests: 1 });
    }

    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.raise(other.level.max(self.level));
        other.held.iter().for_each(|(key, session)| self.put(*key, *session));
    }

    fn put(&mut self, key: u64, seen: Session) {
        if key.leading_zeros() < self.level {
            return;
        }
        let session = self.held.entry(key).or_default();
        session.turns = session.turns.max(seen.turns);
        session.requests = session.requests.saturating_add(seen.requests);
        while self.held.len() > self.most && self.level < 63 {
            self.raise(self.level + 1);
        }
    }

    fn raise(&mut self, level: u32) {
        if level > self.level {
            self.level = level;
            self.held.retain(|key, _| key.leading_zeros() >= level);
        }
    }

    /// Of how many sessions one is held.
    pub fn one_in(&self) -> u64 {
        1 << self.level
    }

    /// Distinct sessions, estimated if not all are held.
    pub fn sessions(&self) -> u64 {
        self.held.len() as u64 * self.one_in()
    }

    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The sessions held, in any order.
    pub fn held(&self) -> impl Iterator<Item = Session> + '_ {
        self.held.values().copied()
    }
}
