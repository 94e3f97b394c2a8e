//! Ids that cross module borders. Newtypes, so that an instance is never taken for an epoch.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
/// A name or an id that goes into many rows and views: up to 23 bytes are copied as they are, a longer one is shared.
pub use smol_str::SmolStr as Name;

/// One engine instance (a worker process's place in the fleet; it keeps the number over restarts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceId(pub u32);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

/// Incarnation of a process. A later one fences the earlier (DESIGN §7 rule 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessEpoch(pub u64);

/// Microseconds since the Unix epoch, UTC.
pub type Micros = i64;

/// A span of time in microseconds; one too long for that is as long as can be said.
pub fn micros(span: Duration) -> Micros {
    Micros::try_from(span.as_micros()).unwrap_or(Micros::MAX)
}
