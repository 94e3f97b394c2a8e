//! Columns of a batch read in place, without a struct and a string per row.
//!
//! Invariant: a column is there with its topic's type, or the whole batch is refused with the column's name. Cost: one look
//! up a column and batch, nothing a row. No state.

use arrow::{
    array::{Array, ArrowPrimitiveType, PrimitiveArray, RecordBatch, StringArray},
    datatypes::{Int64Type, TimestampMicrosecondType, UInt32Type, UInt64Type},
};
use queries::Topic;

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
