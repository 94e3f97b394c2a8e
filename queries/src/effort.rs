//! How much a plan will look at, told before it runs, so that much of it runs on threads that give way (SPEC E2).
//!
//! Rows are counted where a plan begins, and pairs of rows where it compares each with each. Invariant: what is not known is
//! much: older rows from disk, series of numbers, recursion. An estimate, not a bound: a join of few rows with few keys may have more to
//! do than it seems; limits are `sql`'s matter. Cost: one walk over the plan, microseconds. No state.

use std::sync::Arc;

use datafusion::{
    common::stats::Precision,
    physical_plan::{ExecutionPlan, statistics::StatisticsArgs, statistics::StatisticsContext},
};

/// Most rows or pairs of rows of a light plan: 2 to 5 ms of one core for a GROUP BY, by the figures of docs/results.md.
pub(crate) const LIGHT_ROWS: u64 = 1 << 18;

/// See the file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    Light,
    Heavy,
}

impl Effort {
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>) -> Effort {
        match looked_at(plan, &StatisticsContext::new()) {
            Some(rows) if rows <= LIGHT_ROWS => Effort::Light,
            _ => Effort::Heavy,
        }
    }
}

/// Rows and pairs of rows; `None`: not known.
fn looked_at(plan: &Arc<dyn ExecutionPlan>, statistics: &StatisticsContext) -> Option<u64> {
    let inputs = plan.children();
    let own = match plan.name() {
        _ if inputs.is_empty() => rows(plan, statistics)?,
        "RecursiveQueryExec" => return None,
        "NestedLoopJoinExec" | "CrossJoinExec" => {
            inputs.iter().try_fold(1, |pairs: u64, input| Some(pairs.saturating_mul(rows(input, statistics)?)))?
        }
        _ => 0,
    };
    inputs.iter().try_fold(own, |sum: u64, input| Some(sum.saturating_add(looked_at(input, statistics)?)))
}

fn rows(plan: &Arc<dyn ExecutionPlan>, statistics: &StatisticsContext) -> Option<u64> {
    match statistics.compute(plan.as_ref(), &StatisticsArgs::new()).ok()?.num_rows {
        Precision::Exact(rows) | Precision::Inexact(rows) => Some(rows as u64),
        Precision::Absent => None,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::RecordBatch;
    use datafusion::{error::Result, prelude::SessionContext};

    use super::*;
    use crate::{
        live_table::{LiveTables, blank},
        schema::Topic,
    };

    async fn effort(sql: &str, rows: usize) -> Result<Effort> {
        let tables = LiveTables::new(1 << 20);
        let context = SessionContext::new();
        let schema = Topic::Faults.schema();
        let columns = schema.fields().iter().map(|field| blank(field, rows));
        let batch = RecordBatch::try_new(schema.clone(), columns.collect::<std::result::Result<_, _>>()?)?;
        tables.append(Topic::Faults, batch).expect("a blank batch fits");
        tables.register(&context)?;
        Ok(Effort::of(&context.sql(sql).await?.create_physical_plan().await?))
    }

    /// Scenario: plans over few and many rows, of each kind that multiplies them, and over what cannot be counted.
    /// Guarantees: each is told apart at the bound itself; what is not known is heavy.
    #[tokio::test]
    async fn what_a_plan_looks_at() {
        let most = LIGHT_ROWS as usize;
        for (sql, rows, expected) in [
            ("select 1", 0, Effort::Light),
            ("select kind, sum(count) from faults group by kind", most, Effort::Light),
            ("select kind, sum(count) from faults group by kind", most + 1, Effort::Heavy),
            ("select * from faults a join faults b on a.count = b.count", most / 2, Effort::Light),
            ("select * from faults a join faults b on a.count = b.count", most / 2 + 1, Effort::Heavy),
            ("select * from faults a join faults b on a.count < b.count", 400, Effort::Light),
            ("select * from faults a join faults b on a.count < b.count", 600, Effort::Heavy),
            ("select * from faults a, faults b", 600, Effort::Heavy),
            ("select * from faults where count > (select avg(count) from faults)", 1000, Effort::Light),
            ("select * from generate_series(1, 5)", 0, Effort::Heavy),
            (
                "with recursive t(n) as (select 1 union all select n + 1 from t where n < 3) select * from t",
                0,
                Effort::Heavy,
            ),
        ] {
            assert_eq!(effort(sql, rows).await.expect(sql), expected, "{sql} over {rows} rows");
        }
    }
}
