//! How much of what was learnt is still believed, while requests are refused beside an instance that has nothing to do (SPEC A4).
//!
//! Only what starts teaches. So whatever makes an entry believe that nothing can make its deadline (a machine that stood still, a noisy
//! neighbour for a minute) would be believed for good: all are refused, nothing starts, and nothing says otherwise. That an instance is
//! idle while others are refused is the sign of it; from there on what was learnt fades, by a half in some three seconds, towards what is
//! believed without evidence, until something starts and teaches anew.
//!
//! Invariants: while nothing is refused, or all instances have something to do, all is believed; [`BELIEVED_MIN`] of it always is, so that
//! what is far from possible is refused at once all the same. Cost: O(1). State: a time.

use crate::ids::Micros;

/// Seconds after which 1/e is believed.
pub const DOUBT_S: f64 = 5.0;
/// No less is ever believed.
pub const BELIEVED_MIN: f64 = 0.1;

/// See the file's header.
#[derive(Debug, Clone, Copy, Default)]
pub struct Doubt {
    /// A request was refused then though an instance was idle, and none has started or ended since.
    since: Option<Micros>,
}

impl Doubt {
    /// A request is refused, and an instance that could serve it has nothing to do.
    pub fn refused(&mut self, now: Micros) {
        self.since.get_or_insert(now);
    }

    /// The share of what was learnt that is believed, from 0 to 1.
    pub fn believed(&self, now: Micros) -> f64 {
        let believed = |since: Micros| libm::exp(-((now - since).max(0) as f64) / 1e6 / DOUBT_S).max(BELIEVED_MIN);
        self.since.map_or(1.0, believed)
    }

    /// A request has started or ended, so there is news; what was believed until now.
    pub fn end(&mut self, now: Micros) -> f64 {
        let believed = self.believed(now);
        self.since = None;
        believed
    }
}

#[cfg(test)]
#[path = "doubt_tests.rs"]
mod tests;
