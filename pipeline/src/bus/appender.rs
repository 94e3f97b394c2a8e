//! Rows of one topic become a batch, and back (DESIGN §3).
//!
//! Invariant: a batch has exactly its topic's schema, metadata included. Rows are typed at the publisher and erased on the
//! way ([`AnyRow`]), so the bus needs one queue for all topics. Cost: one allocation and one virtual call a row.

use arrow::array::RecordBatch;
use queries::{Topic, live_table::conform};
use serde_arrow::ArrayBuilder;

use crate::rows::Row;

/// Rows could not be put into columns or taken out of them.
#[derive(Debug, thiserror::Error)]
#[error("rows of topic {topic} do not fit its columns: {detail}")]
pub struct RowsError {
    pub topic: &'static str,
    pub detail: String,
}

impl RowsError {
    pub(crate) fn new(topic: Topic, detail: impl ToString) -> RowsError {
        RowsError { topic: topic.name(), detail: detail.to_string() }
    }
}

/// A row of some topic.
pub(super) struct AnyRow(Box<dyn Pushable>);

trait Pushable: Send {
    fn topic(&self) -> Topic;
    fn push(&self, columns: &mut ArrayBuilder) -> Result<(), serde_arrow::Error>;
}

impl<R: Row> Pushable for R {
    fn topic(&self) -> Topic {
        R::TOPIC
    }

    fn push(&self, columns: &mut ArrayBuilder) -> Result<(), serde_arrow::Error> {
        columns.push(self)
    }
}

impl AnyRow {
    pub(super) fn new<R: Row>(row: R) -> AnyRow {
        AnyRow::boxed(Box::new(row))
    }

    pub(super) fn boxed<R: Row>(row: Box<R>) -> AnyRow {
        AnyRow(row)
    }

    pub(super) fn topic(&self) -> Topic {
        self.0.topic()
    }
}

impl std::fmt::Debug for AnyRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AnyRow({})", self.topic().name())
    }
}

/// Collects rows of one topic.
pub(super) struct Appender {
    topic: Topic,
    columns: Option<ArrayBuilder>,
    rows: usize,
    /// Rows of the last batch: the next has room for as many from its first on.
    last: usize,
}

impl Appender {
    pub(super) fn new(topic: Topic) -> Appender {
        Appender { topic, columns: None, rows: 0, last: 0 }
    }

    /// Rows collected.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Takes a row in. On an error the rows collected before it are lost with it: `rows()` says how many beforehand.
    pub(super) fn push(&mut self, row: &AnyRow) -> Result<(), RowsError> {
        let failed = |error: serde_arrow::Error| RowsError::new(self.topic, error);
        let mut columns = match self.columns.take() {
            Some(columns) => columns,
            None => ArrayBuilder::from_arrow(self.topic.schema().fields()).map_err(failed)?,
        };
        if self.rows == 0 {
            columns.reserve(self.last);
        }
        let pushed = row.0.push(&mut columns);
        if pushed.is_err() {
            // A half-written row leaves columns of different lengths behind.
            self.rows = 0;
            return pushed.map_err(|error| RowsError::new(self.topic, error));
        }
        self.columns = Some(columns);
        self.rows += 1;
        Ok(())
    }

    /// The rows collected, if any, and an empty appender.
    pub(super) fn take(&mut self) -> Result<Option<RecordBatch>, RowsError> {
        if self.rows == 0 {
            return Ok(None);
        }
        (self.last, self.rows) = (self.rows, 0);
        let Some(columns) = self.columns.as_mut() else { return Ok(None) };
        let taken = columns.to_record_batch();
        let batch = taken.map_err(|error| RowsError::new(self.topic, error))?;
        conform(self.topic, batch).map(Some).map_err(|error| RowsError::new(self.topic, error))
    }
}

/// The rows of a batch as structs, in order. Errors: the batch is not of `R`'s topic.
pub fn rows_of<R: Row>(batch: &RecordBatch) -> Result<Vec<R>, RowsError> {
    serde_arrow::from_record_batch(batch).map_err(|error| RowsError::new(R::TOPIC, error))
}
