//! Duplicates, gaps and restarts of remote producers (DESIGN §3; §7 rule 5: a later epoch fences the earlier).
//!
//! Invariant: of one producer, topic and epoch, batches are accepted in rising `seq` and each at most once; after a batch of
//! an epoch none of an earlier epoch is accepted. Memory: one entry a producer and topic, at most [`PRODUCERS_MAX`]; at the
//! bound the entry heard of longest ago is forgotten, so its next batch is taken as its first.
//! Cost: one hash look-up a batch.

use std::collections::HashMap;

use queries::Topic;

use crate::ids::{InstanceId, ProcessEpoch};

/// Producer-and-topic pairs remembered.
const PRODUCERS_MAX: usize = 4096;

/// Where a remote batch comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub producer: InstanceId,
    /// Incarnation of the producer; a restart has a higher one.
    pub epoch: ProcessEpoch,
    /// Number of the batch within producer, epoch and topic, from 1, rising by 1.
    pub seq: u64,
}

/// What a batch's origin says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The next batch, or the first ever heard of this producer.
    Next,
    /// Batches are missing before this one; it is accepted.
    Gap { missing: u64 },
    /// First batch of a new incarnation; `missing` before it.
    Restart { missing: u64 },
    /// Was there already: drop it.
    Duplicate,
    /// Of an incarnation that has a successor: drop it.
    Stale,
}

#[derive(Debug)]
struct Last {
    epoch: ProcessEpoch,
    seq: u64,
    heard: u64,
}

/// Last batch of every producer and topic.
#[derive(Debug, Default)]
pub(super) struct Origins {
    last: HashMap<(InstanceId, Topic), Last>,
    heard: u64,
}

impl Origins {
    /// Judges a batch and remembers it if it is accepted.
    pub(super) fn judge(&mut self, topic: Topic, origin: Origin) -> Verdict {
        self.heard += 1;
        let now = Last { epoch: origin.epoch, seq: origin.seq, heard: self.heard };
        let key = (origin.producer, topic);
        let Some(last) = self.last.get_mut(&key) else {
            self.forget_one_at_the_bound();
            self.last.insert(key, now);
            return Verdict::Next;
        };
        let verdict = if origin.epoch < last.epoch {
            Verdict::Stale
        } else if origin.epoch > last.epoch {
            Verdict::Restart { missing: origin.seq.saturating_sub(1) }
        } else if origin.seq <= last.seq {
            Verdict::Duplicate
        } else {
            match origin.seq - last.seq - 1 {
                0 => Verdict::Next,
                missing => Verdict::Gap { missing },
            }
        };
        if !matches!(verdict, Verdict::Stale | Verdict::Duplicate) {
            *last = now;
        }
        verdict
    }

    fn forget_one_at_the_bound(&mut self) {
        if self.last.len() < PRODUCERS_MAX {
            return;
        }
        if let Some(oldest) = self.last.iter().min_by_key(|(_, last)| last.heard).map(|(key, _)| *key) {
            self.last.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(epoch: u64, seq: u64) -> Origin {
        Origin { producer: InstanceId(3), epoch: ProcessEpoch(epoch), seq }
    }

    /// Scenario: one producer sends, resends, skips, restarts, and its earlier incarnation comes late.
    /// Guarantees: each batch is judged as documented, and a dropped one changes nothing.
    #[test]
    fn verdicts() {
        let mut origins = Origins::default();
        let mut judge = |epoch, seq| origins.judge(Topic::EngineSteps, origin(epoch, seq));
        assert_eq!(judge(1, 5), Verdict::Next);
        assert_eq!(judge(1, 6), Verdict::Next);
        assert_eq!(judge(1, 6), Verdict::Duplicate);
        assert_eq!(judge(1, 2), Verdict::Duplicate);
        assert_eq!(judge(1, 9), Verdict::Gap { missing: 2 });
        assert_eq!(judge(2, 1), Verdict::Restart { missing: 0 });
        assert_eq!(judge(1, 10), Verdict::Stale);
        assert_eq!(judge(2, 2), Verdict::Next);
        assert_eq!(judge(4, 3), Verdict::Restart { missing: 2 });
    }

    /// Scenario: more producers than are remembered.
    /// Guarantees: memory stays bounded and the one heard of last is still known.
    #[test]
    fn memory_is_bounded() {
        let mut origins = Origins::default();
        for producer in 0..PRODUCERS_MAX as u32 + 10 {
            let origin = Origin { producer: InstanceId(producer), epoch: ProcessEpoch(1), seq: 1 };
            assert_eq!(origins.judge(Topic::KvEvents, origin), Verdict::Next);
        }
        assert_eq!(origins.last.len(), PRODUCERS_MAX);
        let newest = Origin { producer: InstanceId(PRODUCERS_MAX as u32 + 9), epoch: ProcessEpoch(1), seq: 1 };
        assert_eq!(origins.judge(Topic::KvEvents, newest), Verdict::Duplicate);
    }
}
