//! Columns of a batch read in place, without a struct and a string per row; and rows of some of its columns, which borrow
//! their texts from it ([`told`]).
//!
//! Invariant: a column is there with its topic's type, or the whole batch is refused with the column's name. Cost: one look
//! up a column and batch, nothing a row. No state.

use arrow::{
    array::{Array, ArrowPrimitiveType, PrimitiveArray, RecordBatch, StringArray},
    datatypes::{Int64Type, TimestampMicrosecondType, UInt32Type, UInt64Type},
};
use queries::Topic;
use serde::Deserialize;

use crate::bus::RowsError;

/// The columns of one batch.
pub(super) struct Columns<'a> {
    topic: Topic,
    batch: &'a RecordBatch,
}

impl<'a> Columns<'a> {
    pub(super) fn new(topic: Topic, batch: &'a RecordBatch) -> Self {
        Self { topic, batch }
    }

    fn column<A: Array + 'static>(&self, name: &str) -> Result<&'a A, RowsError> {
        let column = self.batch.column_by_name(name).and_then(|column| column.as_any().downcast_ref());
        column.ok_or_else(|| RowsError::new(self.topic, format!("no column {name} of the type expected")))
    }

    pub(super) fn text(&self, name: &str) -> Result<&'a StringArray, RowsError> {
        self.column(name)
    }

    pub(super) fn u32(&self, name: &str) -> Result<&'a PrimitiveArray<UInt32Type>, RowsError> {
        self.column(name)
    }

    pub(super) fn u64(&self, name: &str) -> Result<&'a PrimitiveArray<UInt64Type>, RowsError> {
        self.column(name)
    }

    pub(super) fn i64(&self, name: &str) -> Result<&'a PrimitiveArray<Int64Type>, RowsError> {
        self.column(name)
    }

    pub(super) fn time(&self, name: &str) -> Result<&'a PrimitiveArray<TimestampMicrosecondType>, RowsError> {
        self.column(name)
    }
}

/// The value in `row`, if there is one.
pub(super) fn maybe<T: ArrowPrimitiveType>(column: &PrimitiveArray<T>, row: usize) -> Option<T::Native> {
    column.is_valid(row).then(|| column.value(row))
}

/// The text in `row`, if there is one.
pub(super) fn maybe_text(column: &StringArray, row: usize) -> Option<&str> {
    column.is_valid(row).then(|| column.value(row))
}

/// The rows of a batch as structs that have some of its columns, and in lists of structs some of their fields.
///
/// Errors: a column is missing, or has another type.
pub(super) fn told<'a, R: Deserialize<'a>>(topic: Topic, batch: &'a RecordBatch) -> Result<Vec<R>, RowsError> {
    serde_arrow::from_record_batch(batch).map_err(|error| RowsError::new(topic, error))
}

/// A batch with these columns alone, in the order of the topic.
///
/// Errors: one is missing.
pub(super) fn only(topic: Topic, batch: &RecordBatch, names: &[&str]) -> Result<RecordBatch, RowsError> {
    let schema = batch.schema();
    let places: Result<Vec<usize>, _> = names.iter().map(|name| schema.index_of(name)).collect();
    let kept = places.and_then(|places| batch.project(&places));
    kept.map_err(|error| RowsError::new(topic, error))
}
