//! The running sequences in order of service (SPEC B7, B8): a dense list, ordered once.
//!
//! A step walks all of them a few times, so they lie side by side in one vector and nothing is looked up on the way.
//! Order changes only when somebody starts or ends: a start is an insertion (at the end for all but resumed sequences
//! and higher lanes), an end leaves a gap that [`Running::close_gaps`] removes once a step.
//!
//! Invariants: keys ascend strictly; `live` counts the entries that are no gaps; the last entry is never a gap, so the
//! one that gives way is found at once.
//!
//! Cost: O(1) to walk on, to remove, and to find the entry behind the one found before; O(log n) to find any; O(tail)
//! to insert; O(n) a step for the gaps. 24 bytes a sequence. Bound: `max_running` and the gaps of one step.

use crate::{request::Lane, sequence::Arrival, sequence::Sequence};

/// Order of service among running sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunKey {
    pub lane: Lane,
    pub arrival: Arrival,
}

struct Entry {
    key: RunKey,
    /// `None`: it ended in this step.
    sequence: Option<Box<Sequence>>,
}

/// See the file's header.
#[derive(Default)]
pub(crate) struct Running {
    entries: Vec<Entry>,
    live: usize,
    /// Where the last lookup hit: the next asks for the same or its neighbour.
    likely: usize,
}

impl Running {
    pub fn len(&self) -> usize {
        self.live
    }

    /// The last in the order of service.
    pub fn last_key(&self) -> Option<RunKey> {
        self.entries.last().map(|entry| entry.key)
    }

    /// Entries in order, gaps included: bounds for [`Running::at`].
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// The place of the first entry of `lane` or a lower one.
    pub fn first_of(&self, lane: Lane) -> usize {
        self.entries.partition_point(|entry| entry.key.lane < lane)
    }

    /// The sequence at a place; `None` for a gap and behind the end.
    pub fn at(&mut self, place: usize) -> Option<(RunKey, &mut Sequence)> {
        let Entry { key, sequence } = self.entries.get_mut(place)?;
        sequence.as_deref_mut().map(|sequence| (*key, sequence))
    }

    pub fn get(&self, key: &RunKey) -> Option<&Sequence> {
        self.entries[self.find(key).ok()?].sequence.as_deref()
    }

    pub fn get_mut(&mut self, key: &RunKey) -> Option<&mut Sequence> {
        let near = [self.likely, self.likely + 1];
        let hit = near.into_iter().find(|place| self.entries.get(*place).is_some_and(|entry| entry.key == *key));
        let place = match hit {
            Some(place) => place,
            None => self.find(key).ok()?,
        };
        self.likely = place;
        self.entries[place].sequence.as_deref_mut()
    }

    /// Adds a sequence.
    pub fn insert(&mut self, key: RunKey, sequence: Box<Sequence>) {
        let entry = Entry { key, sequence: Some(sequence) };
        match self.find(&key) {
            Ok(place) => {
                assert!(self.entries[place].sequence.is_none(), "invariant: {key:?} runs once");
                self.entries[place] = entry;
            }
            Err(place) => self.entries.insert(place, entry),
        }
        self.live += 1;
    }

    /// Takes a sequence out.
    pub fn remove(&mut self, key: &RunKey) -> Option<Box<Sequence>> {
        let place = self.find(key).ok()?;
        let sequence = self.entries[place].sequence.take()?;
        self.live -= 1;
        while self.entries.last().is_some_and(|entry| entry.sequence.is_none()) {
            self.entries.pop();
        }
        Some(sequence)
    }

    /// Drops the gaps that ended sequences left.
    pub fn close_gaps(&mut self) {
        if self.live < self.entries.len() {
            self.entries.retain(|entry| entry.sequence.is_some());
        }
        self.likely = 0;
    }

    pub fn iter(&self) -> impl Iterator<Item = (&RunKey, &Sequence)> {
        self.entries.iter().filter_map(|entry| Some((&entry.key, entry.sequence.as_deref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&RunKey, &mut Sequence)> {
        self.entries.iter_mut().filter_map(|entry| Some((&entry.key, entry.sequence.as_deref_mut()?)))
    }

    pub fn values(&self) -> impl Iterator<Item = &Sequence> {
        self.iter().map(|(_, sequence)| sequence)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.iter_mut().map(|(_, sequence)| sequence)
    }

    fn find(&self, key: &RunKey) -> Result<usize, usize> {
        // New arrivals of the lowest lane in use go behind all others.
        if self.entries.last().is_none_or(|last| last.key < *key) {
            return Err(self.entries.len());
        }
        self.entries.binary_search_by(|entry| entry.key.cmp(key))
    }
}
