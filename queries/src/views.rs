//! Text as views in the tables that outside SQL is asked of, and plain again in what leaves the engine.
//!
//! A filter, a join or a sort copies 16 bytes a text instead of the text, and GROUP BY compares short ones without looking further. Only
//! columns of text are views, texts inside of lists stay as they are. Invariants: rows that are held own their memory once they are a chunk, so
//! the messages they came in are not kept for them (smaller batches, which are joined to chunks, keep theirs until then); the long texts of a batch that is held lie in one buffer (a further one each 2 GiB), whatever it was joined
//! from; nobody outside the engine sees a view: answers, descriptions and catalogues have [`DataType::Utf8`], at any depth.
//! Memory: 16 bytes a text, NULL included, and its bytes if it has more than 12; plain text has 4 and its bytes. Time: linear in the bytes.
//! No state.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayData, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringViewArray},
    compute::{cast, concat_batches},
    datatypes::{DataType, Field, FieldRef, Schema, SchemaRef},
    error::ArrowError,
};

/// The schema with columns of text as views.
pub(crate) fn view_schema(plain: &Schema) -> SchemaRef {
    let view = |field: &FieldRef| match field.data_type() {
        DataType::Utf8 => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8View)),
        _ => field.clone(),
    };
    Arc::new(Schema::new_with_metadata(plain.fields().iter().map(view).collect::<Vec<_>>(), plain.metadata().clone()))
}

/// The schema without views, at any depth.
pub(crate) fn plain_schema(schema: &SchemaRef) -> SchemaRef {
    if !schema.fields().iter().any(|field| has_views(field.data_type())) {
        return schema.clone();
    }
    let fields: Vec<FieldRef> = schema.fields().iter().map(plain_field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// The type without views, at any depth.
pub(crate) fn plain_type(kind: &DataType) -> DataType {
    match kind {
        DataType::Utf8View => DataType::Utf8,
        DataType::List(item) => DataType::List(plain_field(item)),
        DataType::LargeList(item) => DataType::LargeList(plain_field(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(plain_field(item), *length),
        DataType::Map(entries, is_sorted) => DataType::Map(plain_field(entries), *is_sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain_field).collect()),
        other => other.clone(),
    }
}

fn plain_field(field: &FieldRef) -> FieldRef {
    if !has_views(field.data_type()) {
        return field.clone();
    }
    Arc::new(Field::clone(field).with_data_type(plain_type(field.data_type())))
}

fn has_views(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8View => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_views(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_views(field.data_type())),
        _ => false,
    }
}

/// The batch without views, at any depth.
pub(crate) fn plain(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let schema = plain_schema(batch.schema_ref());
    recast(batch, &schema)
}

/// Bytes of text that [`plain`] would write for the batch's views, which may share it.
pub(crate) fn text_bytes(batch: &RecordBatch) -> usize {
    fn of(data: &ArrayData) -> usize {
        let own = match data.data_type() {
            DataType::Utf8View => StringViewArray::from(data.clone()).lengths().map(|length| length as usize).sum(),
            _ => 0,
        };
        data.child_data().iter().map(of).fold(own, usize::saturating_add)
    }
    let viewed = batch.columns().iter().filter(|column| has_views(column.data_type()));
    viewed.map(|column| of(&column.to_data())).fold(0, usize::saturating_add)
}

/// The batch with the types of `schema`, which differ from its own by views. Views may point into the batch's own text.
pub(crate) fn recast(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    if Arc::ptr_eq(batch.schema_ref(), schema) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        match column.data_type() == field.data_type() {
            true => Ok(column.clone()),
            false => cast(column, field.data_type()),
        }
    });
    with_columns(&batch, schema, columns.collect::<Result<_, _>>()?)
}

/// The batch with the types of `schema`, which differ from its own by views, in memory of its own.
pub(crate) fn owned(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    // Joining copies, even with no rows; one batch alone would be shared.
    let copy = concat_batches(batch.schema_ref(), [batch, &batch.slice(0, 0)])?;
    Ok(compact(recast(copy, schema)?))
}

/// The batch with the long texts of each column of views in one buffer, and nothing else in it.
pub(crate) fn compact(batch: RecordBatch) -> RecordBatch {
    let compact = |column: &ArrayRef| match column.as_string_view_opt() {
        Some(views) => Arc::new(StringViewArray::gc(views)) as ArrayRef,
        None => column.clone(),
    };
    let columns = batch.columns().iter().map(compact).collect();
    with_columns(&batch, batch.schema_ref(), columns).expect("invariant: types and lengths are as they were")
}

fn with_columns(batch: &RecordBatch, schema: &SchemaRef, columns: Vec<ArrayRef>) -> Result<RecordBatch, ArrowError> {
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns, &rows)
}
