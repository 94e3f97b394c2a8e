//! The bucket plans in force, as the gateway's views read them: the range of each instance.
//!
//! Invariant: one writer, the planner; a reader sees the plans of one moment. Reading takes no lock.
//! State: a range an instance that is in a plan.

use std::collections::HashMap;

use arc_swap::ArcSwap;

use crate::{ids::InstanceId, policy::BucketSeat};

/// See the module.
#[derive(Debug, Default)]
pub struct PlanBook(ArcSwap<HashMap<InstanceId, BucketSeat>>);

impl PlanBook {
    /// The place of an instance on which `foreign_tokens` of other buckets' work are in flight.
    pub fn seat(&self, instance: InstanceId, foreign_tokens: u64) -> Option<BucketSeat> {
        self.0.load().get(&instance).map(|seat| BucketSeat { foreign_tokens, ..*seat })
    }

    /// Puts the plans of all models in the place of those before.
    pub(super) fn set(&self, seats: HashMap<InstanceId, BucketSeat>) {
        self.0.store(seats.into());
    }
}
