//! A table of one snapshot as DataFusion scans it (SPEC E2).
//!
//! Invariant: a scan reads exactly the rows of its snapshot, those up to `as_of` if there is one. Chunks and log segments whose times cannot satisfy the
//! query's bounds on the time column are skipped; everything else is filtered by DataFusion, so pruning never changes an
//! answer. Row counts are exact when all rows are in memory, so `count(*)` costs nothing; they are unknown when older rows
//! have to be read. Older rows are read lazily, batch by batch, on the query's own threads; where rows in memory have text as views,
//! columns of theirs that are wanted get views, too, so that a table has one schema.

use std::sync::Arc;

use arrow::{
    array::{AsArray, BooleanArray, RecordBatch},
    compute::filter_record_batch,
    datatypes::{DataType, SchemaRef, TimeUnit, TimestampMicrosecondType},
};
use async_trait::async_trait;
use datafusion::{
    catalog::{
        Session,
        memory::{DataSourceExec, MemorySourceConfig},
    },
    common::{ColumnStatistics, DataFusionError, ScalarValue, Statistics, stats::Precision},
    datasource::{TableProvider, TableType},
    error::Result,
    execution::{SendableRecordBatchStream, TaskContext},
    logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown},
    physical_plan::{
        ExecutionPlan,
        stream::RecordBatchStreamAdapter,
        streaming::{PartitionStream, StreamingTableExec},
        union::UnionExec,
    },
};
use futures::StreamExt;

use crate::{
    live_table::{History, Older, TableSnapshot},
    ring::TimeRange,
    views,
};

/// One table at one moment, for DataFusion.
#[derive(Debug)]
pub(crate) struct SnapshotTable {
    pub(crate) table: Arc<TableSnapshot>,
    /// Rows whose time is later are not there.
    pub(crate) as_of: Option<i64>,
}

impl SnapshotTable {
    fn time_column(&self) -> String {
        self.schema().field(0).name().clone()
    }
}

/// The rows of a batch that had happened at `as_of`.
fn happened(batch: &RecordBatch, as_of: Option<i64>) -> Result<RecordBatch> {
    let Some(as_of) = as_of else { return Ok(batch.clone()) };
    let times = TimeRange::of(batch);
    if times.max <= as_of || times == TimeRange::ALL {
        return Ok(batch.clone());
    }
    let column = batch.column(0).as_primitive::<TimestampMicrosecondType>();
    let kept: BooleanArray = column.iter().map(|at| Some(at.is_some_and(|at| at <= as_of))).collect();
    Ok(filter_record_batch(batch, &kept)?)
}

#[async_trait]
impl TableProvider for SnapshotTable {
    fn schema(&self) -> SchemaRef {
        self.table.held_schema().clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut times = times_wanted(filters, &self.time_column());
        times.max = times.max.min(self.as_of.unwrap_or(i64::MAX));
        let kept = self.table.chunks().iter().filter(|chunk| chunk.times.overlaps(times));
        let kept = kept.map(|chunk| happened(&chunk.batch, self.as_of)).collect::<Result<Vec<_>>>()?;
        let per_partition = kept.len().div_ceil(session.config().target_partitions()).max(1);
        let mut partitions: Vec<Vec<RecordBatch>> = kept.chunks(per_partition).map(<[RecordBatch]>::to_vec).collect();
        if partitions.is_empty() {
            partitions.push(Vec::new());
        }
        let source = MemorySourceConfig::try_new(&partitions, self.schema(), projection.cloned())?.with_limit(limit);
        let live: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(source);
        let Some(history) = self.table.older_rows() else { return Ok(live) };
        let older = OlderRows {
            schema: live.schema(),
            columns: projection.cloned(),
            history: history.clone(),
            wanted: Older { topic: self.table.topic(), before: self.table.first_row(), times },
            as_of: self.as_of,
        };
        let older = StreamingTableExec::try_new(live.schema(), vec![Arc::new(older)], None, [], false, limit)?;
        UnionExec::try_new(vec![Arc::new(older), live])
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(filter_pushdown(filters, &self.time_column()))
    }

    fn statistics(&self) -> Option<Statistics> {
        let num_rows = match (self.table.older_rows(), self.as_of) {
            (None, None) => Precision::Exact(self.table.rows_live()),
            _ => Precision::Absent,
        };
        let column_statistics = vec![ColumnStatistics::new_unknown(); self.schema().fields().len()];
        Some(Statistics { num_rows, total_byte_size: Precision::Absent, column_statistics })
    }
}

/// Rows that left memory, as one partition.
#[derive(Debug, Clone)]
struct OlderRows {
    schema: SchemaRef,
    /// Those of the table that are wanted; `None`: all.
    columns: Option<Vec<usize>>,
    history: Arc<dyn History>,
    wanted: Older,
    as_of: Option<i64>,
}

impl OlderRows {
    /// What is wanted of a batch, as rows in memory are held.
    fn part(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let batch = happened(batch, self.as_of)?;
        let batch = self.columns.as_ref().map_or(Ok(batch.clone()), |columns| batch.project(columns))?;
        Ok(views::recast(batch, &self.schema)?)
    }
}

impl PartitionStream for OlderRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = self.clone();
        let batches = futures::stream::iter(self.history.older(self.wanted)).then(move |batch| {
            let rows = rows.clone();
            async move {
                // A pause after each batch lets the query's abort take effect.
                tokio::task::yield_now().await;
                rows.part(&batch.map_err(|error| DataFusionError::External(Box::new(error)))?)
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), batches))
    }
}

/// Filters on the time column prune and are checked again; others are DataFusion's alone.
pub(crate) fn filter_pushdown(filters: &[&Expr], column: &str) -> Vec<TableProviderFilterPushDown> {
    let pushed = |filter: &&Expr| match bounds(filter, column) {
        Some(_) => TableProviderFilterPushDown::Inexact,
        None => TableProviderFilterPushDown::Unsupported,
    };
    filters.iter().map(pushed).collect()
}

/// Times that rows passing all `filters` can have.
pub(crate) fn times_wanted(filters: &[Expr], column: &str) -> TimeRange {
    filters.iter().filter_map(|filter| bounds(filter, column)).fold(TimeRange::ALL, |wanted, range| TimeRange {
        min: wanted.min.max(range.min),
        max: wanted.max.min(range.max),
    })
}

/// Range that one filter allows the time column; `None` if the filter says nothing about it.
fn bounds(filter: &Expr, column: &str) -> Option<TimeRange> {
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            if is_time(left, column) {
                compare(*op, literal_micros(right)?)
            } else if is_time(right, column) {
                compare(op.swap()?, literal_micros(left)?)
            } else {
                None
            }
        }
        Expr::Between(between) if !between.negated && is_time(&between.expr, column) => {
            Some(TimeRange { min: literal_micros(&between.low)?.floor, max: literal_micros(&between.high)?.ceil })
        }
        _ => None,
    }
}

fn compare(op: Operator, at: Literal) -> Option<TimeRange> {
    match op {
        Operator::Gt | Operator::GtEq => Some(TimeRange { min: at.floor, max: i64::MAX }),
        Operator::Lt | Operator::LtEq => Some(TimeRange { min: i64::MIN, max: at.ceil }),
        Operator::Eq => Some(TimeRange { min: at.floor, max: at.ceil }),
        _ => None,
    }
}

/// The column itself, or a cast of it that loses nothing (a cast to seconds would round times down past a bound).
fn is_time(expr: &Expr, column: &str) -> bool {
    match expr {
        Expr::Column(found) => found.name == column,
        Expr::Cast(cast) => {
            let lossless =
                matches!(cast.field.data_type(), DataType::Timestamp(TimeUnit::Microsecond | TimeUnit::Nanosecond, _));
            lossless && is_time(&cast.expr, column)
        }
        _ => false,
    }
}

/// A moment between two microseconds, or exactly one.
#[derive(Clone, Copy)]
struct Literal {
    floor: i64,
    ceil: i64,
}

fn literal_micros(expr: &Expr) -> Option<Literal> {
    let Expr::Literal(value, _) = expr else { return None };
    let exact = |micros: i64| Literal { floor: micros, ceil: micros };
    match value {
        ScalarValue::TimestampSecond(Some(at), _) => at.checked_mul(1_000_000).map(exact),
        ScalarValue::TimestampMillisecond(Some(at), _) => at.checked_mul(1_000).map(exact),
        ScalarValue::TimestampMicrosecond(Some(at), _) => Some(exact(*at)),
        ScalarValue::TimestampNanosecond(Some(at), _) => {
            Some(Literal { floor: at.div_euclid(1_000), ceil: at.div_euclid(1_000) + 1 })
        }
        _ => None,
    }
}
