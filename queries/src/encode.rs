//! Answers as JSON, CSV and Arrow (SPEC E2).
//!
//! Rules, the same for JSON and CSV: times are RFC 3339 with microseconds and `Z`; NULL is `null` in JSON and an empty
//! field in CSV; NaN and infinities are `null`, which JSON can say. Integers beyond 2^53 and every 64-bit column named
//! `…_hash` are strings in JSON, since JavaScript would round them. A column name that occurs twice gets `_2`, `_3` …
//! Nested columns are JSON text inside CSV. Arrow is the IPC stream format with zstd and has none of these changes.
//! Cost: O(cells) time; memory: the whole text (an answer is bounded by `SqlLimits`).

use std::collections::HashMap;

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, StringArray},
    datatypes::{DataType, Float16Type, Float32Type, Float64Type, Schema, SchemaRef, TimeUnit},
    error::ArrowError,
    ipc::{
        CompressionType,
        writer::{IpcWriteOptions, StreamWriter},
    },
    temporal_conversions as temporal,
    util::display::{ArrayFormatter, FormatOptions},
};
use serde_json::{Map, Number, Value};

/// Largest integer that every JSON reader keeps exactly.
const EXACT_MAX: u64 = 1 << 53;

/// An answer could not be written in the form asked for.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("cannot write the answer as Arrow: {0}")]
    Arrow(#[from] ArrowError),
    #[error("cannot write the answer as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot write the answer as CSV: {0}")]
    Csv(#[from] csv::Error),
}

/// A JSON array with an object per row, keys in column order.
pub fn json(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Vec<u8>, EncodeError> {
    let names = unique_names(schema);
    let keys = names.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    let mut out = vec![b'['];
    for batch in batches {
        for row in 0..batch.num_rows() {
            out.extend_from_slice(if out.len() > 1 { b",\n{" } else { b"{" });
            for (at, key) in keys.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(key.as_bytes());
                out.push(b':');
                serde_json::to_writer(&mut out, &cell(schema.field(at).name(), batch.column(at), row)?)?;
            }
            out.push(b'}');
        }
    }
    out.push(b']');
    Ok(out)
}

/// CSV with a header line, quoted where it has to be, lines end in `\n`.
pub fn csv(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Vec<u8>, EncodeError> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(unique_names(schema))?;
    for batch in batches {
        for row in 0..batch.num_rows() {
            for (at, field) in schema.fields().iter().enumerate() {
                match cell(field.name(), batch.column(at), row)? {
                    Value::Null => writer.write_field("")?,
                    Value::String(text) => writer.write_field(text)?,
                    other => writer.write_field(other.to_string())?,
                }
            }
            writer.write_record(None::<&[u8]>)?;
        }
    }
    writer.into_inner().map_err(|error| EncodeError::Csv(error.into_error().into()))
}

/// A column's cells as JSON text, for doors that have no nested types.
pub fn json_cells(name: &str, array: &ArrayRef) -> Result<StringArray, ArrowError> {
    let cell = |row| -> Result<Option<String>, ArrowError> {
        match cell(name, array, row)? {
            Value::Null => Ok(None),
            value => Ok(Some(value.to_string())),
        }
    };
    (0..array.len()).map(cell).collect()
}

/// Arrow IPC stream, buffers compressed with zstd.
pub fn arrow_stream(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Vec<u8>, EncodeError> {
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), schema, zstd_options()?)?;
    for batch in batches {
        writer.write(batch)?;
    }
    writer.finish()?;
    Ok(writer.into_inner()?)
}

/// How all IPC of this project is written: zstd buffers.
pub fn zstd_options() -> Result<IpcWriteOptions, ArrowError> {
    IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD))
}

/// Column names, made different where they are equal.
fn unique_names(schema: &Schema) -> Vec<String> {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let names = schema.fields().iter().map(|field| {
        let times = seen.entry(field.name()).and_modify(|times| *times += 1).or_insert(1);
        if *times == 1 { field.name().clone() } else { format!("{}_{times}", field.name()) }
    });
    names.collect()
}

/// One value as JSON. `name` is the column's or field's.
fn cell(name: &str, array: &ArrayRef, row: usize) -> Result<Value, ArrowError> {
    use arrow::datatypes as t;
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    Ok(match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => Value::Bool(array.as_boolean().value(row)),
        DataType::Int8 => signed(name, array.as_primitive::<t::Int8Type>().value(row).into()),
        DataType::Int16 => signed(name, array.as_primitive::<t::Int16Type>().value(row).into()),
        DataType::Int32 => signed(name, array.as_primitive::<t::Int32Type>().value(row).into()),
        DataType::Int64 => signed(name, array.as_primitive::<t::Int64Type>().value(row)),
        DataType::UInt8 => unsigned("", array.as_primitive::<t::UInt8Type>().value(row).into()),
        DataType::UInt16 => unsigned("", array.as_primitive::<t::UInt16Type>().value(row).into()),
        DataType::UInt32 => unsigned("", array.as_primitive::<t::UInt32Type>().value(row).into()),
        DataType::UInt64 => unsigned(name, array.as_primitive::<t::UInt64Type>().value(row)),
        DataType::Float16 => float(array.as_primitive::<Float16Type>().value(row).to_f64()),
        // Through text: 0.1 stays 0.1 and does not become 0.10000000149011612.
        DataType::Float32 => {
            let value = array.as_primitive::<Float32Type>().value(row);
            value.to_string().parse().map_or(Value::Null, float)
        }
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => Value::from(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Value::from(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Value::from(array.as_string_view().value(row)),
        DataType::Timestamp(unit, zone) => timestamp(*unit, zone.as_deref(), array, row),
        DataType::List(_) => list(name, array.as_list::<i32>().value(row))?,
        DataType::LargeList(_) => list(name, array.as_list::<i64>().value(row))?,
        DataType::FixedSizeList(..) => list(name, array.as_fixed_size_list().value(row))?,
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let pairs = fields
                .iter()
                .zip(columns)
                .map(|(field, column)| Ok::<_, ArrowError>((field.name().clone(), cell(field.name(), column, row)?)));
            Value::Object(pairs.collect::<Result<Map<_, _>, _>>()?)
        }
        DataType::Dictionary(_, values) => cell(name, &arrow::compute::cast(&array.slice(row, 1), values)?, 0)?,
        _ => text(array, row)?,
    })
}

fn list(name: &str, items: ArrayRef) -> Result<Value, ArrowError> {
    (0..items.len()).map(|row| cell(name, &items, row)).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

fn signed(name: &str, value: i64) -> Value {
    if name.ends_with("_hash") || value.unsigned_abs() > EXACT_MAX {
        Value::String(value.to_string())
    } else {
        Value::from(value)
    }
}

fn unsigned(name: &str, value: u64) -> Value {
    if name.ends_with("_hash") || value > EXACT_MAX { Value::String(value.to_string()) } else { Value::from(value) }
}

fn float(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// Everything without a JSON form of its own (decimals, dates, intervals, binary …): as Arrow displays it.
fn text(array: &ArrayRef, row: usize) -> Result<Value, ArrowError> {
    let formatter = ArrayFormatter::try_new(array.as_ref(), &FormatOptions::default())?;
    Ok(Value::String(formatter.value(row).try_to_string()?))
}

/// RFC 3339 in UTC. Without a zone there is no `Z`, as nobody knows which zone is meant.
fn timestamp(unit: TimeUnit, zone: Option<&str>, array: &ArrayRef, row: usize) -> Value {
    use arrow::datatypes as t;
    let ticks = match unit {
        TimeUnit::Second => array.as_primitive::<t::TimestampSecondType>().value(row),
        TimeUnit::Millisecond => array.as_primitive::<t::TimestampMillisecondType>().value(row),
        TimeUnit::Microsecond => array.as_primitive::<t::TimestampMicrosecondType>().value(row),
        TimeUnit::Nanosecond => array.as_primitive::<t::TimestampNanosecondType>().value(row),
    };
    let at = match unit {
        TimeUnit::Second => temporal::timestamp_s_to_datetime(ticks),
        TimeUnit::Millisecond => temporal::timestamp_ms_to_datetime(ticks),
        TimeUnit::Microsecond => temporal::timestamp_us_to_datetime(ticks),
        TimeUnit::Nanosecond => temporal::timestamp_ns_to_datetime(ticks),
    };
    match at {
        Some(at) if zone.is_some() => Value::String(at.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()),
        Some(at) => Value::String(at.format("%Y-%m-%dT%H:%M:%S%.6f").to_string()),
        // Beyond the calendar: the number of ticks is all there is.
        None => Value::String(ticks.to_string()),
    }
}
