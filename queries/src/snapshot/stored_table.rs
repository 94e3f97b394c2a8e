//! A table of a stored snapshot as DataFusion scans it (SPEC E3).
//!
//! Invariant: a scan reads exactly the rows of the snapshot, its chain followed. Parts and row groups whose times cannot
//! satisfy the query's bounds on the time column are passed over; everything else is filtered by DataFusion. What is left is
//! read into memory where it is at most [`MEMORY_ROWS_MAX`] rows, so that its size is known to the guards; else it streams,
//! a row group at a time for each partition.

use std::{collections::VecDeque, sync::Arc};

use arrow::{
    array::RecordBatch,
    datatypes::{Schema, SchemaRef},
};
use async_trait::async_trait;
use datafusion::{
    catalog::{
        Session,
        memory::{DataSourceExec, MemorySourceConfig},
    },
    common::{ColumnStatistics, DataFusionError, Statistics, stats::Precision},
    datasource::{TableProvider, TableType},
    error::Result,
    execution::{SendableRecordBatchStream, TaskContext},
    logical_expr::{Expr, TableProviderFilterPushDown},
    physical_plan::{
        ExecutionPlan,
        stream::RecordBatchStreamAdapter,
        streaming::{PartitionStream, StreamingTableExec},
    },
};
use futures::TryStreamExt;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;

use super::{
    SnapshotError,
    parquet_part::{ParquetPart, next_batch},
};
use crate::{
    live_table::widen,
    provider::{filter_pushdown, times_wanted},
    schema::Topic,
};

/// Rows of a scan that are read into memory before the query runs.
const MEMORY_ROWS_MAX: u64 = 1 << 16;

/// One table of a snapshot.
#[derive(Debug)]
pub(super) struct StoredTable {
    pub(super) topic: Topic,
    pub(super) rows: u64,
    pub(super) parts: Vec<Arc<ParquetPart>>,
}

impl StoredTable {
    fn time_column(&self) -> String {
        self.topic.schema().field(0).name().clone()
    }
}

#[async_trait]
impl TableProvider for StoredTable {
    fn schema(&self) -> SchemaRef {
        self.topic.schema()
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
        let times = times_wanted(filters, &self.time_column());
        let mut units = Vec::new();
        for part in self.parts.iter().filter(|part| part.times.is_some_and(|held| held.overlaps(times))) {
            let groups = part.groups(times).await.map_err(external)?;
            units.extend(groups.into_iter().map(|(group, rows)| Unit { part: part.clone(), group, rows }));
        }
        let all = || (0..self.schema().fields().len()).collect();
        let columns = Columns::new(self.topic, projection.cloned().unwrap_or_else(all))?;
        if units.iter().map(|unit| unit.rows).sum::<u64>() <= MEMORY_ROWS_MAX {
            let batches = batches(units, columns.clone()).try_collect().await?;
            let source = MemorySourceConfig::try_new(&[batches], columns.schema, None)?.with_limit(limit);
            return Ok(DataSourceExec::from_data_source(source));
        }
        let per_partition = units.len().div_ceil(session.config().target_partitions()).max(1);
        let partitions = units.chunks(per_partition).map(|units| -> Arc<dyn PartitionStream> {
            Arc::new(StoredRows { units: units.to_vec(), columns: columns.clone() })
        });
        let partitions = partitions.collect();
        let plan = StreamingTableExec::try_new(columns.schema.clone(), partitions, None, [], false, limit)?;
        Ok(Arc::new(plan))
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(filter_pushdown(filters, &self.time_column()))
    }

    fn statistics(&self) -> Option<Statistics> {
        let column_statistics = vec![ColumnStatistics::new_unknown(); self.schema().fields().len()];
        let num_rows = Precision::Exact(self.rows as usize);
        Some(Statistics { num_rows, total_byte_size: Precision::Absent, column_statistics })
    }
}

/// A row group that is wanted.
#[derive(Debug, Clone)]
struct Unit {
    part: Arc<ParquetPart>,
    group: usize,
    rows: u64,
}

/// Columns that are wanted, in order.
#[derive(Debug, Clone)]
struct Columns {
    topic: Topic,
    wanted: Arc<[usize]>,
    schema: SchemaRef,
}

impl Columns {
    fn new(topic: Topic, wanted: Vec<usize>) -> Result<Columns> {
        let schema = Arc::new(topic.schema().project(&wanted)?);
        Ok(Columns { topic, wanted: wanted.into(), schema })
    }

    /// Positions to read from a file, if it has the table's columns of today.
    fn of_file(&self, file: &Schema) -> Option<Vec<usize>> {
        let table = self.topic.schema();
        let alike = file.fields().len() == table.fields().len()
            && file.fields().iter().zip(table.fields()).all(|(stored, field)| {
                stored.name() == field.name() && stored.data_type().equals_datatype(field.data_type())
            });
        let mut positions = self.wanted.to_vec();
        positions.sort_unstable();
        alike.then_some(positions)
    }

    /// The wanted columns of a batch that holds those at `positions`, or all that the file had.
    fn conform(&self, batch: RecordBatch, positions: Option<&[usize]>) -> Result<RecordBatch, String> {
        let (batch, order) = match positions {
            Some(positions) => {
                let place = |wanted: &usize| positions.partition_point(|position| position < wanted);
                (batch, self.wanted.iter().map(place).collect::<Vec<_>>())
            }
            None => (widen(self.topic, batch).map_err(|error| error.to_string())?, self.wanted.to_vec()),
        };
        let batch = batch.project(&order).map_err(|error| error.to_string())?;
        let columns = batch.columns().iter().zip(self.schema.fields()).map(|(column, field)| {
            match column.data_type() == field.data_type() {
                true => Ok(column.clone()),
                // The name of a list's inner field alone differs.
                false => arrow::compute::cast(column, field.data_type()),
            }
        });
        let columns = columns.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        let rows = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &rows).map_err(|error| error.to_string())
    }
}

/// Row groups as one partition of a scan.
#[derive(Debug)]
struct StoredRows {
    units: Vec<Unit>,
    columns: Columns,
}

impl PartitionStream for StoredRows {
    fn schema(&self) -> &SchemaRef {
        &self.columns.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batches = batches(self.units.clone(), self.columns.clone());
        Box::pin(RecordBatchStreamAdapter::new(self.columns.schema.clone(), batches))
    }
}

struct Reading {
    units: VecDeque<Unit>,
    open: Option<(Arc<ParquetPart>, Option<Vec<usize>>, ParquetRecordBatchReader)>,
    columns: Columns,
}

fn batches(units: Vec<Unit>, columns: Columns) -> impl futures::Stream<Item = Result<RecordBatch>> + Send {
    let reading = Reading { units: units.into(), open: None, columns };
    futures::stream::try_unfold(reading, |mut reading| async move {
        let next = reading.next().await.map_err(external)?;
        Ok(next.map(|batch| (batch, reading)))
    })
}

impl Reading {
    async fn next(&mut self) -> Result<Option<RecordBatch>, SnapshotError> {
        loop {
            if let Some((part, positions, reader)) = &mut self.open {
                // A pause before each batch lets the query's abort take effect.
                tokio::task::yield_now().await;
                if let Some(batch) = next_batch(part, reader)? {
                    let batch = self.columns.conform(batch, positions.as_deref());
                    return batch.map(Some).map_err(|detail| part.damaged(detail));
                }
                self.open = None;
            }
            let Some(unit) = self.units.pop_front() else { return Ok(None) };
            let positions = self.columns.of_file(unit.part.metadata().await?.schema());
            let reader = unit.part.read(unit.group, positions.as_deref()).await?;
            self.open = Some((unit.part, positions, reader));
        }
    }
}

fn external(error: SnapshotError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
