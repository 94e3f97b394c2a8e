//! The twin of `bucket_load`: the latest plan of each model, and every sum over atoms taken anew.
//!
//! Invariant: the same rules as the operator. Cost: O(atoms × ranges) per call. State: one plan per model.
use std::collections::BTreeMap;

use crate::{BucketLoadConfig, BucketPlan, LoadKey, LoadTotal};

/// See the module.
pub struct SlowBucketLoad {
    config: BucketLoadConfig,
    plans: BTreeMap<u32, BucketPlan>,
}

impl SlowBucketLoad {
    pub fn new(config: BucketLoadConfig) -> Self {
        Self { config, plans: BTreeMap::new() }
    }

    /// Takes one epoch's plans; gives how many were refused.
    pub fn epoch(&mut self, plans: &[BucketPlan]) -> usize {
        let mut plans = plans.to_vec();
        plans.sort();
        let mut refused = 0;
        for plan in plans {
            let is_newer = self.plans.get(&plan.model).is_none_or(|known| known.version < plan.version);
            let has_room = self.plans.contains_key(&plan.model) || self.plans.len() < self.config.max_plans;
            if plan.check().is_err() || (is_newer && !has_room) {
                refused += 1;
            } else if is_newer {
                self.plans.insert(plan.model, plan);
            }
        }
        refused
    }

    /// The buckets' totals from those of all keys; none that are zero.
    pub fn totals(&self, totals: &BTreeMap<LoadKey, LoadTotal>) -> BTreeMap<LoadKey, LoadTotal> {
        let mut buckets = BTreeMap::<LoadKey, LoadTotal>::new();
        for (key, load) in totals {
            let LoadKey::ModelAtom { model, atom } = *key else { continue };
            let ranges = self.plans.get(&model).map_or(&[][..], |plan| &plan.ranges);
            let mut bucket = 0;
            for range in ranges {
                if range.from_atom <= atom {
                    bucket = range.bucket;
                }
            }
            let total = buckets.entry(LoadKey::Bucket { model, bucket }).or_default();
            total.tokens += load.tokens;
            total.uncached += load.uncached;
            total.requests += load.requests;
        }
        buckets.retain(|_, total| *total != LoadTotal::default());
        buckets
    }
}
