//! Load as a difference: `(tokens, uncached tokens, requests)` added up by differential dataflow itself, so that a total costs one
//! number per key and never a list of requests (B2).
//!
//! Invariant: additions commute, and a total is zero exactly when no open request counts in its key.
//! Cost: O(1) per addition. State: none.
use differential_dataflow::difference::{Abelian, IsZero, Monoid, Semigroup};
use serde::{Deserialize, Serialize};

/// Length of an atom, the unit in which the length axis is cut (B2), in tokens.
pub const ATOM_TOKENS: u32 = 500;

/// The atom in which a request of `tokens` live context counts.
pub fn atom_of(tokens: u32) -> u32 {
    tokens / ATOM_TOKENS
}

/// Live context tokens and open requests; as a difference, a change of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LoadTotal {
    pub tokens: i64,
    /// Of the tokens, those that were not cached when their request came: the work it is.
    pub uncached: i64,
    pub requests: i64,
}

impl LoadTotal {
    /// One request of `tokens`, none of them cached.
    pub fn one(tokens: u32) -> Self {
        Self { tokens: tokens.into(), uncached: tokens.into(), requests: 1 }
    }

    /// The same with `cached` tokens found in a cache.
    pub fn less_cached(self, cached: u32) -> Self {
        Self { uncached: (self.uncached - i64::from(cached)).max(0), ..self }
    }
}

impl IsZero for LoadTotal {
    fn is_zero(&self) -> bool {
        self.tokens == 0 && self.uncached == 0 && self.requests == 0
    }
}

impl Semigroup for LoadTotal {
    fn plus_equals(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.uncached += other.uncached;
        self.requests += other.requests;
    }
}

impl Monoid for LoadTotal {
    fn zero() -> Self {
        Self::default()
    }
}

impl Abelian for LoadTotal {
    fn negate(&mut self) {
        self.tokens = -self.tokens;
        self.uncached = -self.uncached;
        self.requests = -self.requests;
    }
}

/// What a total is a total of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LoadKey {
    /// The requests of one atom on one instance.
    Cell { instance: u32, atom: u32 },
    /// The requests of one atom on all instances.
    Atom(u32),
    /// All requests on one instance.
    Instance(u32),
    /// All requests in one region.
    Region(u16),
    /// All requests for one model.
    Model(u32),
    /// All requests of one tier for one model: the concurrent tokens of the request distribution (D4).
    Group { model: u32, tier: u8 },
    /// The requests of one atom for one model: what a bucket plan cuts (B3).
    ModelAtom { model: u32, atom: u32 },
    /// The requests in one bucket of a model's plan.
    Bucket { model: u32, bucket: u32 },
}
