//! The waiting room: three lanes (SPEC B8), each in order of who runs next.
//!
//! Within a lane: interrupted sequences first (they wait as short as blocks allow), by arrival; then by least slack,
//! where the due time is the deadline or `submitted + max_overtake`, whichever is earlier; then by arrival. A sequence
//! whose deadline, a latest start, has passed can no longer make it and falls back to `submitted + max_overtake` (A4 d); if
//! it is known when it is dropped, only once a quarter of the time until then has passed, too: it could still be in time
//! with luck. So later arrivals overtake anyone for at most `max_overtake`, and equals go in order of arrival: nobody
//! starves within a lane.
//!
//! Cost: O(log n) to insert, remove and look at the head (an expired deadline moves its sequence once). Bound:
//! `max_waiting` is held by `submit`; interrupted sequences come on top, at most `max_running`.

use std::collections::BTreeMap;

use crate::{Micros, request::Lane, sequence::Arrival, sequence::Sequence};

/// A sequence is lost this part of the time after its latest start, counted to when it is dropped.
const LOST_PARTS: Micros = 4;

/// Whether the sequence ran before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    Interrupted,
    Fresh,
}

/// Place in a lane: smaller is sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitKey {
    standing: Standing,
    due: Micros,
    arrival: Arrival,
}

impl WaitKey {
    /// When it is due; whoever ran before is due at once.
    pub fn due(&self) -> Micros {
        self.due
    }
}

/// All lanes, first to last.
pub(crate) const LANES: [Lane; 3] = [Lane::L1, Lane::L2, Lane::L3];

/// Position of a lane in an array of three.
pub(crate) fn lane_index(lane: Lane) -> usize {
    lane as usize
}

/// See the file's header.
pub(crate) struct WaitingLanes {
    lanes: [BTreeMap<WaitKey, Box<Sequence>>; 3],
    max_overtake: Micros,
    /// Tokens without KV over all lanes.
    tokens: usize,
}

impl WaitingLanes {
    pub fn new(max_overtake: Micros) -> Self {
        Self { lanes: Default::default(), max_overtake, tokens: 0 }
    }

    pub fn len(&self) -> usize {
        self.lanes.iter().map(BTreeMap::len).sum()
    }

    pub fn lane_len(&self, lane: Lane) -> usize {
        self.lanes[lane_index(lane)].len()
    }

    /// Tokens of waiting sequences that need KV before they can draw.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Adds a sequence without KV and returns its place.
    pub fn push(&mut self, sequence: Box<Sequence>) -> WaitKey {
        let key = self.key_of(&sequence, self.first_due(&sequence));
        self.tokens += sequence.without_kv();
        self.lanes[lane_index(sequence.lane())].insert(key, sequence);
        key
    }

    pub fn get_mut(&mut self, lane: Lane, key: &WaitKey) -> Option<&mut Sequence> {
        self.lanes[lane_index(lane)].get_mut(key).map(Box::as_mut)
    }

    pub fn remove(&mut self, lane: Lane, key: &WaitKey) -> Option<Box<Sequence>> {
        let sequence = self.lanes[lane_index(lane)].remove(key)?;
        self.tokens -= sequence.without_kv();
        Some(sequence)
    }

    /// The next of `lane`. `moved` is told of sequences that changed place because their deadline has passed.
    pub fn head(
        &mut self,
        lane: Lane,
        now: Micros,
        mut moved: impl FnMut(&Sequence, WaitKey),
    ) -> Option<(WaitKey, &Sequence)> {
        let index = lane_index(lane);
        loop {
            let (key, sequence) = self.lanes[index].first_key_value()?;
            let last_due = self.last_due(sequence);
            if key.standing == Standing::Interrupted || self.lost_at(sequence) >= now || key.due == last_due {
                break;
            }
            let (_, sequence) = self.lanes[index].pop_first()?;
            let key = self.key_of(&sequence, last_due);
            moved(&sequence, key);
            self.lanes[index].insert(key, sequence);
        }
        self.lanes[index].first_key_value().map(|(key, sequence)| (*key, sequence.as_ref()))
    }

    /// Applies `change`, which may take KV in L2 away, to all.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(&mut Sequence)) {
        let sequences = self.lanes.iter_mut().flat_map(BTreeMap::values_mut);
        self.tokens = sequences
            .map(|sequence| {
                change(sequence);
                sequence.without_kv()
            })
            .sum();
    }

    pub fn iter(&self) -> impl Iterator<Item = (Lane, &WaitKey, &Sequence)> + '_ {
        LANES.into_iter().flat_map(|lane| {
            self.lanes[lane_index(lane)].iter().map(move |(key, sequence)| (lane, key, sequence.as_ref()))
        })
    }

    fn key_of(&self, sequence: &Sequence, due: Micros) -> WaitKey {
        match sequence.preemptions {
            0 => WaitKey { standing: Standing::Fresh, due, arrival: sequence.arrival },
            _ => WaitKey { standing: Standing::Interrupted, due: Micros::MIN, arrival: sequence.arrival },
        }
    }

    /// When a sequence is due, were it to wait.
    pub fn due(&self, sequence: &Sequence, now: Micros) -> Micros {
        if self.lost_at(sequence) < now { self.last_due(sequence) } else { self.first_due(sequence) }
    }

    /// From when on it is taken to be late anyway: its latest start, and a part of the time from there to its end, since the latest
    /// start is that of a good chance.
    fn lost_at(&self, sequence: &Sequence) -> Micros {
        let due = self.first_due(sequence);
        let end = sequence.request.drop_at.filter(|_| sequence.request.deadline == Some(due));
        end.map_or(due, |end| due.saturating_add(end.saturating_sub(due).max(0) / LOST_PARTS))
    }

    fn first_due(&self, sequence: &Sequence) -> Micros {
        sequence.request.deadline.unwrap_or(Micros::MAX).min(self.last_due(sequence))
    }

    fn last_due(&self, sequence: &Sequence) -> Micros {
        sequence.submitted.saturating_add(self.max_overtake)
    }
}
