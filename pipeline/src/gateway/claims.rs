//! The deadlines of what runs on one incarnation: by when each request must be whole, and how much of it is still to come.
//!
//! A claim is entered with the lease and goes with it. Its tokens are those expected of the request; where more come than
//! expected, one more is always expected. Cost: O(claims) to enter, to leave and to read, under one lock an incarnation;
//! counting a token takes none. Bound: as many as leases.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU32, Ordering},
};

use crate::{
    ids::Micros,
    policy::{Claim, PromptDue},
};

/// What a request asks of an instance's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// By when it must be whole.
    pub at: Micros,
    /// Tokens expected of each of its sequences.
    pub tokens: u32,
    pub sequences: u32,
}

/// See the file's header.
#[derive(Debug, Default)]
pub struct Claims(Mutex<Vec<Arc<Entry>>>);

#[derive(Debug)]
struct Entry {
    due: Due,
    /// Of its prompts, that were to be computed when it came.
    prompt_tokens: u32,
    /// Over all sequences.
    drawn: AtomicU32,
}

impl Claims {
    fn entries(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(self: &Arc<Self>, due: Due, prompt_tokens: u32) -> Claimed {
        let entry = Arc::new(Entry { due, prompt_tokens, drawn: AtomicU32::new(0) });
        self.entries().push(entry.clone());
        Claimed { claims: self.clone(), entry }
    }

    pub fn read(&self) -> Vec<Claim> {
        let claim = |entry: &Arc<Entry>| {
            let drawn = entry.drawn.load(Ordering::Relaxed) / entry.due.sequences.max(1);
            Claim { due: entry.due.at, tokens_left: entry.due.tokens.saturating_sub(drawn).max(1) }
        };
        self.entries().iter().map(claim).collect()
    }

    /// Prompts of those that have not drawn a token yet.
    pub fn prompts(&self) -> Vec<PromptDue> {
        let entries = self.entries();
        let waiting = entries.iter().filter(|entry| entry.drawn.load(Ordering::Relaxed) == 0);
        waiting.map(|entry| PromptDue { due: entry.due.at, tokens: entry.prompt_tokens }).collect()
    }
}

/// A claim; it ends when this is dropped.
#[derive(Debug)]
pub struct Claimed {
    claims: Arc<Claims>,
    entry: Arc<Entry>,
}

impl Claimed {
    /// So many tokens came, of any of its sequences.
    pub fn drew(&self, tokens: u32) {
        self.entry.drawn.fetch_add(tokens, Ordering::Relaxed);
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let mut entries = self.claims.entries();
        if let Some(place) = entries.iter().position(|entry| Arc::ptr_eq(entry, &self.entry)) {
            entries.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: two claims, one of two sequences; tokens come, more than expected; one ends.
    /// Guarantees: what is left is that of one sequence and never nothing; a prompt is to be computed until a token comes; an
    /// ended claim is gone, the other stays.
    #[test]
    fn claims_shrink_and_leave() {
        let claims = Arc::new(Claims::default());
        let one = claims.enter(Due { at: 7, tokens: 10, sequences: 1 }, 70);
        let two = claims.enter(Due { at: 9, tokens: 10, sequences: 2 }, 90);
        let prompts = |claims: &Claims| claims.prompts().iter().map(|one| (one.due, one.tokens)).collect::<Vec<_>>();
        assert_eq!(prompts(&claims), [(7, 70), (9, 90)]);
        one.drew(4);
        assert_eq!(prompts(&claims), [(9, 90)]);
        two.drew(4);
        let left = || claims.read().iter().map(|claim| (claim.due, claim.tokens_left)).collect::<Vec<_>>();
        assert_eq!(left(), [(7, 6), (9, 8)]);
        one.drew(40);
        assert_eq!(left()[0], (7, 1));
        drop(one);
        assert_eq!(left(), [(9, 8)]);
        drop(two);
        assert!(left().is_empty());
    }
}
