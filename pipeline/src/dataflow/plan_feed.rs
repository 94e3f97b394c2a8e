//! Rows of `buckets` become bucket plans for the operators (SPEC B3).
//!
//! The rows of a plan follow each other, a row a bucket, maybe over several batches; a plan is handed on when its last row is
//! there. Invariant: a plan with a row missing is not handed on. Cost: O(rows). State: the ranges of one unfinished plan a
//! model, at most `BUCKETS_MAX` of them, for at most [`MODELS_MAX`] models; beyond both, rows are left out, and that plan with them.

use std::collections::HashMap;

use operators::{ATOM_TOKENS, BucketPlan, BucketRange, FlowRows, bucket_load::BUCKETS_MAX};

use super::{columns::Columns, feed::Names};
use crate::bus::RowsError;

/// Models with an unfinished plan.
const MODELS_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PlanFeed(HashMap<u32, (u64, Vec<BucketRange>)>);

impl PlanFeed {
    pub(super) fn take(&mut self, columns: &Columns<'_>, names: &Names, rows: &mut FlowRows) -> Result<(), RowsError> {
        let (plan, model) = (columns.u64("plan")?, columns.text("model")?);
        let (bucket, buckets, from) = (columns.u32("bucket")?, columns.u32("buckets")?, columns.u32("from_tokens")?);
        for row in 0..plan.len() {
            let number = names.number(model.value(row));
            let range = BucketRange { from_atom: from.value(row) / ATOM_TOKENS, bucket: bucket.value(row) };
            rows.plans.extend(self.row((number, plan.value(row)), range, buckets.value(row)));
        }
        Ok(())
    }

    /// The plan, with its last row.
    fn row(&mut self, (model, version): (u32, u64), range: BucketRange, buckets: u32) -> Option<BucketPlan> {
        if range.bucket == 0 && (self.0.len() < MODELS_MAX || self.0.contains_key(&model)) {
            self.0.insert(model, (version, Vec::new()));
        }
        let (begun, ranges) = self.0.get_mut(&model)?;
        if *begun != version || ranges.len() as u32 != range.bucket || ranges.len() >= BUCKETS_MAX {
            return None;
        }
        ranges.push(range);
        if range.bucket + 1 < buckets {
            return None;
        }
        let (version, ranges) = self.0.remove(&model)?;
        Some(BucketPlan { model, version, ranges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a whole plan; one whose first row never came; one with a hole; one of another model between its rows.
    /// Guarantees: whole plans come once, with their last row; the others never.
    #[test]
    fn whole_plans_are_handed_on() {
        let mut feed = PlanFeed::default();
        let mut row = |model, version, bucket, buckets| {
            let range = BucketRange { from_atom: bucket * 4, bucket };
            feed.row((model, version), range, buckets).map(|plan| (plan.version, plan.ranges.len()))
        };
        assert_eq!((row(0, 5, 0, 2), row(0, 5, 1, 2)), (None, Some((5, 2))));
        assert_eq!(row(0, 6, 1, 2), None);
        assert_eq!((row(0, 7, 0, 3), row(0, 7, 2, 3)), (None, None));
        assert_eq!((row(0, 8, 0, 2), row(1, 9, 0, 1), row(0, 8, 1, 2)), (None, Some((9, 1)), Some((8, 2))));
        assert_eq!(row(0, 8, 1, 2), None);
    }
}
