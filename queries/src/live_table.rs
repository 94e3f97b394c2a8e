//! All tables of the bus in memory, and one moment of them (SPEC E2).
//!
//! Invariant: a [`TablesSnapshot`] never changes and holds all tables at one moment, so that a query with a self-join or
//! with two tables sees one state. Writers take a lock per append; readers load one pointer and never wait.
//! Cost: append O(rows + chunks of the table), snapshot O(1). Memory: bounded by `rows_max` rows a table plus one chunk
//! (see [`crate::ring`]), and whatever snapshots are still held.
//! Text is held as it comes, or as views where only SQL is asked of the tables ([`LiveTables::for_sql`], see `views`).
//! Rows that left memory are read through [`History`] when a table has one: live and older rows answer in one query.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use arc_swap::ArcSwap;
use arrow::{
    array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, new_empty_array, new_null_array},
    buffer::OffsetBuffer,
    datatypes::{DataType, Field, Schema, SchemaRef},
    error::ArrowError,
};
use datafusion::prelude::SessionContext;

use crate::{
    nested::deepen,
    ring::{Chunk, Ring, TimeRange},
    schema::Topic,
    views,
};

/// Older rows that are wanted: of `topic`, numbered below `before`, and only from places that may hold `times`
/// (rows outside `times` may come too: who asks filters).
#[derive(Debug, Clone, Copy)]
pub struct Older {
    pub topic: Topic,
    pub before: u64,
    pub times: TimeRange,
}

/// Batches of older rows, oldest first; read as they are asked for.
pub type HistoryBatches = Box<dyn Iterator<Item = Result<RecordBatch, HistoryError>> + Send>;

/// Batches of older rows with the number of each one's first row.
pub type NumberedBatches = Box<dyn Iterator<Item = Result<(u64, RecordBatch), HistoryError>> + Send>;

/// Where rows are read that left memory. `pipeline`'s log implements it.
pub trait History: Send + Sync + fmt::Debug {
    /// Rows kept of `topic` that are numbered below `before`. An upper bound is enough: it decides whether to look.
    fn rows_before(&self, topic: Topic, before: u64) -> u64;

    /// The rows wanted. The call itself is quick; reading happens in the iterator, which may block on a disk.
    fn older(&self, wanted: Older) -> HistoryBatches;

    /// Exactly the rows kept of `topic` with these numbers, oldest first.
    fn numbered(&self, topic: Topic, rows: Range<u64>) -> NumberedBatches;
}

/// Older rows could not be read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot read older rows of table {table}: {detail}")]
pub struct HistoryError {
    pub table: &'static str,
    pub detail: String,
}

/// One table at one moment.
#[derive(Debug)]
pub struct TableSnapshot {
    topic: Topic,
    schema: SchemaRef,
    chunks: Vec<Arc<Chunk>>,
    rows: usize,
    first_row: u64,
    next_row: u64,
    history: Option<Arc<dyn History>>,
}

impl TableSnapshot {
    pub fn topic(&self) -> Topic {
        self.topic
    }

    /// The topic's, but with views where text is held as views.
    pub(crate) fn held_schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows in memory.
    pub fn rows_live(&self) -> usize {
        self.rows
    }

    /// Number of the oldest row in memory, of the next row if there is none.
    pub fn first_row(&self) -> u64 {
        self.first_row
    }

    /// Number that the next row gets.
    pub fn next_row(&self) -> u64 {
        self.next_row
    }

    pub fn chunks(&self) -> &[Arc<Chunk>] {
        &self.chunks
    }

    /// Where rows older than those in memory are read, if there are any.
    pub fn older_rows(&self) -> Option<&Arc<dyn History>> {
        self.history.as_ref().filter(|history| history.rows_before(self.topic, self.first_row) > 0)
    }

    /// Number of the oldest row that is kept anywhere.
    pub fn first_kept_row(&self) -> u64 {
        let kept = self.older_rows().map_or(0, |history| history.rows_before(self.topic, self.first_row));
        self.first_row.saturating_sub(kept)
    }

    /// All rows, oldest first: those that left memory, if they were kept, then those in memory. Text is plain.
    pub fn batches(&self) -> HistoryBatches {
        self.batches_from(0)
    }

    /// The same without rows numbered below `from`.
    pub fn batches_from(&self, from: u64) -> HistoryBatches {
        let since = |chunk: &Arc<Chunk>| {
            let passed = from.saturating_sub(chunk.first_row).min(chunk.batch.num_rows() as u64) as usize;
            let rest = chunk.batch.slice(passed, chunk.batch.num_rows() - passed);
            views::recast(rest, &self.topic.schema())
                .map_err(|error| HistoryError { table: self.topic.name(), detail: error.to_string() })
        };
        let live: Vec<Result<RecordBatch, HistoryError>> = self.chunks.iter().map(since).collect();
        match self.older_rows().filter(|_| from < self.first_row) {
            None => Box::new(live.into_iter()),
            Some(history) => {
                let older = history.numbered(self.topic, from..self.first_row);
                Box::new(older.map(|read| read.map(|(_, batch)| batch)).chain(live))
            }
        }
    }
}

/// All tables at one moment. A clone is a pointer.
#[derive(Debug, Clone)]
pub struct TablesSnapshot {
    tables: Arc<[Arc<TableSnapshot>]>,
}

impl TablesSnapshot {
    pub fn table(&self, topic: Topic) -> &Arc<TableSnapshot> {
        &self.tables[topic.index()]
    }

    pub fn tables(&self) -> impl Iterator<Item = &Arc<TableSnapshot>> {
        self.tables.iter()
    }

    /// Registers every table of this moment under its name, and `column_comments`.
    /// Fails if a table of that name is there already.
    pub fn register(&self, context: &SessionContext) -> datafusion::error::Result<()> {
        for (name, table) in crate::catalog::providers(self, None) {
            context.register_table(name, table)?;
        }
        Ok(())
    }

    fn with(&self, table: TableSnapshot) -> TablesSnapshot {
        let at = table.topic.index();
        let mut tables: Vec<_> = self.tables.to_vec();
        tables[at] = Arc::new(table);
        TablesSnapshot { tables: tables.into() }
    }
}

/// The tables of the bus: newest rows of each topic.
#[derive(Debug)]
pub struct LiveTables {
    rows_max: usize,
    /// Of the rows as they are held, by topic.
    schemas: Vec<SchemaRef>,
    /// Most rows of a batch that will be joined to others, by topic.
    joined_rows: Vec<usize>,
    rings: Mutex<Vec<Ring>>,
    state: ArcSwap<TablesSnapshot>,
    history: OnceLock<Arc<dyn History>>,
}

/// A batch that is not of its topic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("batch for table {table} does not fit: {detail}")]
pub struct SchemaMismatch {
    pub table: &'static str,
    pub detail: String,
}

impl LiveTables {
    /// Empty tables that keep at least the newest `rows_max` rows each.
    pub fn new(rows_max: usize) -> LiveTables {
        LiveTables::with_schemas(rows_max, Topic::schema)
    }

    /// The same, with text as views, for where only SQL is asked of them.
    pub fn for_sql(rows_max: usize) -> LiveTables {
        LiveTables::with_schemas(rows_max, |topic| views::view_schema(&topic.schema()))
    }

    fn with_schemas(rows_max: usize, schema: impl Fn(Topic) -> SchemaRef) -> LiveTables {
        let schemas: Vec<_> = Topic::ALL.into_iter().map(schema).collect();
        let rings: Vec<_> = Topic::ALL.iter().map(|topic| Ring::new(rows_max.min(topic.live_rows_max()))).collect();
        let empty = |topic: Topic| freeze(topic, (&schemas[topic.index()], &rings[topic.index()]), None);
        let tables = Topic::ALL.into_iter().map(|topic| Arc::new(empty(topic))).collect();
        LiveTables {
            rows_max,
            schemas,
            joined_rows: rings.iter().map(Ring::joined_rows).collect(),
            rings: Mutex::new(rings),
            state: ArcSwap::from_pointee(TablesSnapshot { tables }),
            history: OnceLock::new(),
        }
    }

    /// Rows that each table keeps at least, if its topic has so many.
    pub fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// Says where rows are read that left memory. The first call counts; `false` when there was one already.
    pub fn set_history(&self, history: Arc<dyn History>) -> bool {
        let first = self.history.set(history).is_ok();
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        for topic in Topic::ALL {
            self.publish(topic, &rings[topic.index()]);
        }
        first
    }

    /// Adds rows to a table; they are visible when this returns. Returns the number of the first row.
    /// Columns must have the topic's names, types and order; the topic's own metadata is put on.
    pub fn append(&self, topic: Topic, batch: RecordBatch) -> Result<u64, SchemaMismatch> {
        let batch = self.held(topic, conform(topic, batch)?)?;
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = &mut rings[topic.index()];
        let first_row = ring.push(batch);
        self.publish(topic, ring);
        Ok(first_row)
    }

    /// The rows as they are held: those that stay as they come own their memory, smaller batches are joined to ones that do.
    fn held(&self, topic: Topic, batch: RecordBatch) -> Result<RecordBatch, SchemaMismatch> {
        let schema = &self.schemas[topic.index()];
        if Arc::ptr_eq(batch.schema_ref(), schema) {
            return Ok(batch);
        }
        let is_joined = batch.num_rows() <= self.joined_rows[topic.index()];
        let held = if is_joined { views::recast(batch, schema) } else { views::owned(&batch, schema) };
        held.map_err(|error| SchemaMismatch { table: topic.name(), detail: error.to_string() })
    }

    /// Numbers the next row of a table `row` or higher: rows before it exist, but not in memory.
    pub fn skip_to(&self, topic: Topic, row: u64) {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = &mut rings[topic.index()];
        ring.skip_to(row);
        self.publish(topic, ring);
    }

    /// All tables at this moment.
    pub fn snapshot(&self) -> TablesSnapshot {
        TablesSnapshot::clone(&self.state.load())
    }

    /// Registers the tables of this moment with a context; see [`TablesSnapshot::register`].
    pub fn register(&self, context: &SessionContext) -> datafusion::error::Result<()> {
        self.snapshot().register(context)
    }

    /// Called with the rings' lock held, which makes it the only writer of `state`.
    fn publish(&self, topic: Topic, ring: &Ring) {
        let table = freeze(topic, (&self.schemas[topic.index()], ring), self.history.get().cloned());
        self.state.store(Arc::new(self.state.load().with(table)));
    }
}

fn freeze(topic: Topic, (schema, ring): (&SchemaRef, &Ring), history: Option<Arc<dyn History>>) -> TableSnapshot {
    TableSnapshot {
        topic,
        schema: schema.clone(),
        chunks: ring.chunks().cloned().collect(),
        rows: ring.rows(),
        first_row: ring.first_row(),
        next_row: ring.next_row(),
        history,
    }
}

/// A batch that this or an earlier version wrote, with the topic's schema: columns added since, also to structs in lists, hold NULL
/// where the topic allows it, else zero, the empty text or no items, which is true of rows that knew nothing of them (see `schema`).
/// Errors: as for [`conform`], and a column that is missing and has a type without a zero.
pub fn widen(topic: Topic, batch: RecordBatch) -> Result<RecordBatch, SchemaMismatch> {
    let schema = topic.schema();
    let mismatch = |detail: String| SchemaMismatch { table: topic.name(), detail };
    let batch = deepen(&schema, batch).map_err(|error| mismatch(error.to_string()))?;
    if batch.num_columns() >= schema.fields().len() {
        return conform(topic, batch);
    }
    let known = |name: &str| schema.fields().iter().any(|field| field.name() == name);
    if let Some(stranger) = batch.schema().fields().iter().find(|field| !known(field.name())) {
        return Err(mismatch(format!("column {:?} is not one of the table's", stranger.name())));
    }
    let mut columns = Vec::with_capacity(schema.fields().len());
    let mut fields = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let (column, field) = match batch.schema().column_with_name(field.name()) {
            Some((index, stored)) => (batch.column(index).clone(), Arc::new(stored.clone())),
            None => (blank(field, batch.num_rows()).map_err(|error| mismatch(error.to_string()))?, field.clone()),
        };
        columns.push(column);
        fields.push(field);
    }
    let wide = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns);
    conform(topic, wide.map_err(|error| mismatch(error.to_string()))?)
}

pub(crate) fn blank(field: &Field, rows: usize) -> Result<ArrayRef, ArrowError> {
    if field.is_nullable() {
        return Ok(new_null_array(field.data_type(), rows));
    }
    match field.data_type() {
        DataType::Utf8 => Ok(Arc::new(StringArray::from(vec![""; rows]))),
        DataType::List(item) => {
            let nothing = new_empty_array(item.data_type());
            Ok(Arc::new(ListArray::try_new(item.clone(), OffsetBuffer::new_zeroed(rows), nothing, None)?))
        }
        number => arrow::compute::cast(&Int64Array::from(vec![0; rows]), number),
    }
}

/// The batch with the topic's schema, metadata included.
/// Errors: a column is missing, superfluous, of another type, or holds NULL where the topic allows none.
pub fn conform(topic: Topic, batch: RecordBatch) -> Result<RecordBatch, SchemaMismatch> {
    let schema = topic.schema();
    if Arc::ptr_eq(&batch.schema(), &schema) {
        return Ok(batch);
    }
    let mismatch = |detail| SchemaMismatch { table: topic.name(), detail };
    let (got, wanted) = (batch.schema(), schema.fields());
    if got.fields().len() != wanted.len() {
        return Err(mismatch(format!("{} columns, {} wanted", got.fields().len(), wanted.len())));
    }
    for (position, (got, wanted)) in got.fields().iter().zip(wanted).enumerate() {
        if got.name() != wanted.name() {
            let (got, wanted) = (got.name(), wanted.name());
            return Err(mismatch(format!("column {position} is named {got:?}, {wanted:?} wanted")));
        }
        if !got.data_type().equals_datatype(wanted.data_type()) {
            let (name, got, wanted) = (got.name(), got.data_type(), wanted.data_type());
            return Err(mismatch(format!("column {name:?} is {got}, {wanted} wanted")));
        }
    }
    let columns = batch
        .columns()
        .iter()
        .zip(wanted)
        .map(|(column, field)| {
            if column.data_type() == field.data_type() {
                Ok(column.clone())
            } else {
                arrow::compute::cast(column, field.data_type())
            }
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| mismatch(error.to_string()))?;
    RecordBatch::try_new(schema.clone(), columns).map_err(|error| mismatch(error.to_string()))
}
