//! Answers as PostgreSQL's rows. Types are arrow-pg's; what PostgreSQL has no type for (structs, lists of them) is JSON, as in the
//! HTTP answer. Cost: a cell at a time, as rows are sent; nested columns are written as text first.

use std::{collections::HashMap, sync::Arc};

use arrow::{
    array::{ArrayRef, RecordBatch, RecordBatchOptions},
    compute::cast,
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use arrow_pg::{datatypes::field_into_pg_type, encode_recordbatch};
use futures::stream;
use pgwire::{
    api::{
        Type,
        portal::Format,
        results::{FieldInfo, QueryResponse},
    },
    error::{PgWireError, PgWireResult},
};
use queries::{
    QueryResult, encode,
    postgres::{column_names, shown_name},
};

/// Marks a column of texts that is JSON.
const JSON: (&str, &str) = ("evenkeel.json", "yes");

fn is_nested(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            is_nested(item.data_type()) || matches!(item.data_type(), DataType::List(_))
        }
        DataType::Struct(_) | DataType::Map(..) => true,
        _ => false,
    }
}

/// The schema that rows of `schema` are sent with.
pub(super) fn flat(schema: &Schema) -> SchemaRef {
    let field = |field: &Arc<Field>| {
        let plain = Field::new(field.name(), field.data_type().clone(), true);
        if is_nested(field.data_type()) {
            let mark = HashMap::from([(JSON.0.to_string(), JSON.1.to_string())]);
            return plain.with_data_type(DataType::Utf8).with_metadata(mark);
        }
        match field_into_pg_type(field) {
            Ok(_) => plain,
            // A type that PostgreSQL does not have is sent as text.
            Err(_) => plain.with_data_type(DataType::Utf8),
        }
    };
    Arc::new(Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>()))
}

/// The schema that rows of a statement's answer are sent with, under the names that PostgreSQL would give them.
pub(super) fn of_statement(schema: &Schema, sql: &str) -> SchemaRef {
    let plain = flat(schema);
    let names = column_names(sql, plain.fields().len());
    let named = |(at, field): (usize, &Arc<Field>)| match names.get(at).cloned().flatten() {
        Some(name) => Arc::new(field.as_ref().clone().with_name(name)),
        None => field.clone(),
    };
    Arc::new(Schema::new(plain.fields().iter().enumerate().map(named).collect::<Vec<_>>()))
}

/// A batch with the columns of a flat schema.
fn flatten(schema: &SchemaRef, batch: &RecordBatch) -> PgWireResult<RecordBatch> {
    let wrong = |error: arrow::error::ArrowError| PgWireError::ApiError(Box::new(error));
    let given = batch.schema();
    let column = |(at, field): (usize, &Arc<Field>)| -> PgWireResult<ArrayRef> {
        let array = batch.column(at);
        if field.data_type() == array.data_type() {
            return Ok(array.clone());
        }
        if is_nested(array.data_type()) {
            return Ok(Arc::new(encode::json_cells(given.field(at).name(), array).map_err(wrong)?));
        }
        cast(array, field.data_type()).map_err(wrong)
    };
    let columns = schema.fields().iter().enumerate().map(column).collect::<PgWireResult<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(wrong)
}

/// PostgreSQL's description of the columns of a flat schema.
pub(super) fn fields(schema: &Schema, format: &Format) -> PgWireResult<Vec<FieldInfo>> {
    if let Format::Individual(codes) = format
        && codes.len() != schema.fields().len()
    {
        let (codes, columns) = (codes.len(), schema.fields().len());
        let words = format!("bind message has {codes} result formats but query has {columns} columns");
        return Err(super::errors::user("ERROR", "08P01", &words));
    }
    let info = |(at, field): (usize, &Arc<Field>)| {
        let kind = match field.metadata().contains_key(JSON.0) {
            true => Type::JSON,
            false if field.data_type() == &DataType::Null => Type::TEXT,
            false => field_into_pg_type(field)?,
        };
        let name = shown_name(field.name(), schema.fields().iter().map(|field| field.name().as_str()));
        Ok(FieldInfo::new(name.to_string(), None, None, kind, format.format_for(at)))
    };
    schema.fields().iter().enumerate().map(info).collect()
}

/// Batches of an answer with the columns of a flat schema.
pub(super) fn batches(answer: &QueryResult, schema: &SchemaRef) -> PgWireResult<Vec<RecordBatch>> {
    answer.batches.iter().map(|batch| flatten(schema, batch)).collect()
}

/// Rows of an answer, sent as they are taken.
pub(super) fn rows(answer: &QueryResult, schema: &SchemaRef, format: &Format) -> PgWireResult<QueryResponse> {
    let fields = Arc::new(fields(schema, format)?);
    let described = fields.clone();
    let rows = batches(answer, schema)?.into_iter().flat_map(move |batch| encode_recordbatch(fields.clone(), batch));
    Ok(QueryResponse::new(described, stream::iter(rows)))
}

/// Rows of texts, for what the session answers itself.
pub(super) fn texts<const N: usize>(names: [&str; N], rows: Vec<[String; N]>) -> PgWireResult<QueryResponse> {
    use arrow::array::StringArray;
    let schema = Arc::new(Schema::new(names.map(|name| Field::new(name, DataType::Utf8, true)).to_vec()));
    let column = |at: usize| -> ArrayRef { Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row[at]))) };
    let batch = RecordBatch::try_new(schema.clone(), (0..N).map(column).collect());
    let batch = batch.map_err(|error| PgWireError::ApiError(Box::new(error)))?;
    let answer = QueryResult { schema: schema.clone(), batches: vec![batch] };
    self::rows(&answer, &schema, &Format::UnifiedText)
}
