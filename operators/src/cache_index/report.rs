//! What the index says of itself: how far an instance can be trusted, what an audit found, what it asks for again.
//!
//! Invariant: one health row per change of trust or cause, one audit row per audit that came whole, one request per
//! hole, sum or loss and `ask_again_epochs`. Cost and state: none.
use serde::{Deserialize, Serialize};

/// How far an instance's part of the index can be trusted; one row whenever that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CacheHealth {
    pub epoch: u64,
    pub instance: u32,
    pub incarnation: u64,
    pub trust: CacheTrust,
    pub cause: CacheCause,
}

/// See [`CacheHealth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CacheTrust {
    /// Every event of the incarnation was folded, or all since its content was last known.
    Exact,
    /// Part of the instance's blocks is left out at a bound; what is there is held.
    Approximate,
    /// Events are missing or an audit differs: blocks may be missing or stale.
    Degraded,
    /// The instance was dropped from the index.
    Dropped,
}

impl CacheTrust {
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Approximate => "approximate",
            Self::Degraded => "degraded",
            Self::Dropped => "dropped",
        }
    }
}

/// Why an instance is trusted as it is; the gravest of its causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CacheCause {
    /// Nothing is amiss.
    Sound,
    /// A block was left out: entries, orphans or references are at their bound.
    Full,
    /// The last audit differs, and the blocks concerned have not been listed yet.
    Drift,
    /// Events are missing and have been asked for.
    Gap,
    /// Events are missing for good, or one was malformed, and the content has not been told anew.
    Lost,
    /// Nothing was heard of it for longest, and room was needed.
    Silent,
    /// Its incarnation has ended.
    Gone,
}

impl CacheCause {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Full => "full",
            Self::Drift => "drift",
            Self::Gap => "gap",
            Self::Lost => "lost",
            Self::Silent => "silent",
            Self::Gone => "gone",
        }
    }
}

/// An instance's account of what it holds against the index, at the same place in its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CacheAudit {
    pub epoch: u64,
    pub instance: u32,
    pub incarnation: u64,
    /// The last event of the account.
    pub seq: u64,
    /// (hash, level) pairs the instance holds.
    pub held: u64,
    /// (hash, level) pairs of it in the index.
    pub indexed: u64,
    /// Pairs that are in one of the two alone: at least as many, and exactly if `is_listed`.
    pub differing: u64,
    /// The account was a listing of the buckets that differed, else sums.
    pub is_listed: bool,
}

impl CacheAudit {
    /// Differing pairs over held ones: 0 is an exact index.
    pub fn drift_ratio(&self) -> f64 {
        self.differing as f64 / self.held.max(1) as f64
    }
}

/// What the index wants to hear again from an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplayRequest {
    pub epoch: u64,
    pub instance: u32,
    pub incarnation: u64,
    pub want: ReplayWant,
}

/// See [`ReplayRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ReplayWant {
    /// The events with these numbers, both inclusive; or, if they are not kept any more, everything.
    Events { from_seq: u64, to_seq: u64 },
    /// The blocks of these audit buckets, one bit each.
    Buckets { mask: u64 },
    /// `Cleared` and all that is held, parents first.
    Everything,
}
