//! Ids that cross module borders. Newtypes, so that an instance is never taken for an epoch.

use std::fmt;

use serde::{Deserialize, Serialize};

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
