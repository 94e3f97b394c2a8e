//! Who held a block at some time: the blocks held now, and what has changed of them lately.
//!
//! The blocks held now are not kept here a second time: they are read from a [`PrefixIndex`], which may lag by any number
//! of epochs. What the cache index changed is kept until the index has it and nobody asks for its date any more, and
//! overrides what the index says of the same block, instance and level. So an answer does not depend on the lag.
//! A block counts as held *from the time* its instance stored it *to the time* it dropped it, as block rows tell; what
//! is not dated, and what came more than twice `settle_epochs` ago, was always there.
//!
//! Invariant: an answer is a function of the rows of the epochs up to it.
//! Cost: one map access a row or change; an answer costs one more and one look-up in the index, and the block's holders.
//! State: 64 bytes and map slack per (block, instance, level) that was stored, came or went within twice `settle_epochs` or
//! since the index was last complete: so by what an epoch may hold. An index of its own, where none is given, holds at
//! most `max_holders`; at the bound a new holder is left out, which understates what is present.
use std::{collections::VecDeque, sync::Arc};

use smallvec::SmallVec;

use super::{BlocksHeld, FunnelConfig, rows::BlockRow};
use crate::{
    cache_index::CacheKey,
    prefix_index::{PrefixIndex, PrefixIndexConfig},
    shards::Shards,
};

#[derive(Clone, Copy)]
enum Hold {
    /// Said to be stored in this epoch, not in the cache index yet.
    Pending { told: u64 },
    /// In the cache index since this epoch.
    Held { came: u64 },
    /// Left the cache index; dropped at that time.
    Gone { came: u64, went: u64, until_us: i64 },
}

/// What changed of a block at a level of an instance.
#[derive(Clone, Copy)]
struct Recent {
    instance: u32,
    level: u8,
    since_us: i64,
    hold: Hold,
}

/// Since always.
const ALWAYS: i64 = i64::MIN;

impl Recent {
    fn is_of(&self, instance: u32, level: u8) -> bool {
        self.instance == instance && self.level == level
    }

    fn is_live(&self, instance: u32, level: u8) -> bool {
        self.is_of(instance, level) && !matches!(self.hold, Hold::Gone { .. })
    }

    fn is_pending(&self) -> bool {
        matches!(self.hold, Hold::Pending { .. })
    }

    /// Whether it was held then, as known in `epoch`.
    fn held_at(&self, at_us: i64, (epoch, settle_epochs): (u64, u64)) -> bool {
        let since = |came: u64| if came + 2 * settle_epochs >= epoch { self.since_us } else { ALWAYS };
        match self.hold {
            Hold::Pending { .. } => false,
            Hold::Held { came } => since(came) <= at_us,
            Hold::Gone { came, went, until_us } => {
                went + settle_epochs >= epoch && at_us < until_us && since(came) <= at_us
            }
        }
    }

    /// The epoch after which it says no more than the index.
    fn last_of_use(&self, settle_epochs: u64) -> u64 {
        match self.hold {
            Hold::Pending { told } => told + settle_epochs,
            Hold::Held { came } => came + 2 * settle_epochs,
            Hold::Gone { went, .. } => went + settle_epochs,
        }
    }

    /// The epoch that the index must have before it can do without this.
    fn changed(&self) -> Option<u64> {
        match self.hold {
            Hold::Pending { .. } => None,
            Hold::Held { came } => Some(came),
            Hold::Gone { went, .. } => Some(went),
        }
    }
}

/// See the module.
pub(super) struct Holders {
    settle_epochs: u64,
    index: Arc<PrefixIndex>,
    /// Changes for an index of its own; `None`: somebody else sees to the index.
    own: Option<Vec<(CacheKey, i64)>>,
    own_dropped: u64,
    recent: Shards<SmallVec<[Recent; 1]>>,
    /// Hashes to look at for sweeping, by the epoch in which something was told of them.
    sweep: VecDeque<(u64, u64)>,
}

impl Holders {
    pub fn new(config: FunnelConfig, held: BlocksHeld) -> Self {
        let (index, own) = match held {
            BlocksHeld::Shared(index) => (index, None),
            BlocksHeld::Own => {
                let config = PrefixIndexConfig { max_entries: config.max_holders, ..PrefixIndexConfig::default() };
                (Arc::new(PrefixIndex::new(config)), Some(Vec::new()))
            }
        };
        Self {
            settle_epochs: config.settle_epochs,
            index,
            own,
            own_dropped: 0,
            recent: Shards::default(),
            sweep: VecDeque::new(),
        }
    }

    /// An instance says it stored a block.
    pub fn stored(&mut self, row: &BlockRow, epoch: u64) {
        let recents = self.recent.of_mut(row.hash).entry(row.hash).or_default();
        match recents.iter_mut().find(|recent| recent.is_live(row.instance, row.level)) {
            Some(recent) => match recent.hold {
                Hold::Pending { told } if told == epoch => {
                    recent.since_us = recent.since_us.min(row.at_us);
                    return;
                }
                Hold::Pending { .. } => (recent.since_us, recent.hold) = (row.at_us, Hold::Pending { told: epoch }),
                _ => return,
            },
            None => recents.push(Recent {
                instance: row.instance,
                level: row.level,
                since_us: row.at_us,
                hold: Hold::Pending { told: epoch },
            }),
        }
        self.sweep.push_back((epoch, row.hash));
    }

    /// The cache index's set gained or lost `key`. `until_us`: when its instance dropped it.
    pub fn change(&mut self, key: CacheKey, diff: i64, (epoch, until_us): (u64, Option<i64>)) {
        if let Some(own) = &mut self.own {
            own.push((key, diff));
        }
        let (hash, instance, level) = key;
        let recents = self.recent.of_mut(hash).entry(hash).or_default();
        let known = recents.iter_mut().find(|recent| recent.is_live(instance, level));
        let before = known.as_ref().map(|recent| (recent.since_us, recent.hold));
        let is_listed = matches!(before, Some((_, Hold::Pending { told })) if told == epoch);
        let (since_us, hold) = if diff > 0 {
            let since_us = match before {
                Some((since_us, Hold::Pending { told })) if told + self.settle_epochs >= epoch => since_us,
                _ => ALWAYS,
            };
            (since_us, Hold::Held { came: epoch })
        } else {
            let (since_us, came) = match before {
                Some((since_us, Hold::Held { came })) => (since_us, came),
                _ => (ALWAYS, 0),
            };
            (since_us, Hold::Gone { came, went: epoch, until_us: until_us.unwrap_or(ALWAYS) })
        };
        let recent = Recent { instance, level, since_us, hold };
        match known {
            Some(known) => *known = recent,
            None => recents.push(recent),
        }
        if !is_listed {
            self.sweep.push_back((epoch, hash));
        }
    }

    /// Ends the changes of an epoch.
    pub fn changed(&mut self, epoch: u64) {
        if let Some(own) = &mut self.own {
            self.index.apply(own);
            self.index.complete(epoch);
            own.clear();
        }
    }

    /// Who held a block at a time, as known in `epoch`, in no order.
    pub fn at(&self, (hash, at_us): (u64, i64), epoch: u64, (found, scratch): (&mut Vec<(u32, u8)>, &mut Vec<u32>)) {
        let recents = self.recent.get(hash).map_or(&[][..], SmallVec::as_slice);
        let then = recents.iter().filter(|recent| recent.held_at(at_us, (epoch, self.settle_epochs)));
        found.extend(then.map(|recent| (recent.instance, recent.level)));
        let is_settled = |(instance, level): &(u32, u8)| {
            !recents.iter().any(|recent| recent.is_of(*instance, *level) && !recent.is_pending())
        };
        found.extend(self.index.holders(hash, scratch).filter(is_settled));
    }

    /// Drops what says no more than the index.
    pub fn sweep(&mut self, epoch: u64) {
        let (settle_epochs, open) = (self.settle_epochs, self.index.open());
        let is_due = |told: u64| told + 2 * settle_epochs < epoch && told < open;
        while let Some((_, hash)) = self.sweep.pop_front_if(|(told, _)| is_due(*told)) {
            let table = self.recent.of_mut(hash);
            let Some(recents) = table.get_mut(&hash) else { continue };
            recents.retain(|recent| {
                recent.last_of_use(settle_epochs) >= epoch || recent.changed().is_some_and(|changed| changed >= open)
            });
            if recents.is_empty() {
                table.remove(&hash);
            }
        }
    }

    /// Holders left out at the bound since the last call.
    pub fn take_left_out(&mut self) -> u64 {
        if self.own.is_none() {
            return 0;
        }
        let dropped = self.index.dropped();
        dropped - std::mem::replace(&mut self.own_dropped, dropped)
    }
}
