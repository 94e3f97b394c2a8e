//! Our tables as PostgreSQL's catalogue tells of them: `pg_class`, `pg_attribute`, `pg_description` and what is derived from them.
//!
//! Invariant: numbers of tables and columns are the same in all of them within a query, and within a version of Evenkeel.

use std::sync::Arc;

use arrow::{
    array::{
        ArrayRef, BooleanArray, Float32Array, Int16Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
        new_null_array,
    },
    buffer::OffsetBuffer,
    datatypes::{DataType, Field, SchemaRef},
    error::ArrowError,
};

use super::{OWNER, OWNER_OID, PUBLIC_OID, types};

/// Tables of this file.
pub(super) const NAMES: [&str; 5] = ["pg_class", "pg_attribute", "pg_description", "pg_tables", "pg_type"];

type Tables<'a> = &'a [(&'static str, SchemaRef)];

fn oid(name: &str) -> i64 {
    super::table_oid(name).expect("invariant: a table that is seen is one of those there are")
}

/// Rows of one of [`NAMES`].
pub(super) fn table(name: &str, tables: Tables<'_>) -> Option<Result<RecordBatch, ArrowError>> {
    Some(match name {
        "pg_class" => classes(tables),
        "pg_attribute" => attributes(tables),
        "pg_description" => descriptions(tables),
        "pg_tables" => pg_tables(tables),
        "pg_type" => pg_types(),
        _ => return None,
    })
}

/// A comment on a column: what it means, and its unit.
pub(super) fn comment(field: &Field) -> Option<String> {
    let words = field.metadata().get("comment").filter(|words| !words.is_empty())?;
    Some(match field.metadata().get("unit") {
        Some(unit) => format!("{words} [{unit}]"),
        None => words.clone(),
    })
}

pub(super) fn int8(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

pub(super) fn int4(values: impl IntoIterator<Item = i32>) -> ArrayRef {
    Arc::new(Int32Array::from_iter_values(values))
}

pub(super) fn int2(values: impl IntoIterator<Item = i16>) -> ArrayRef {
    Arc::new(Int16Array::from_iter_values(values))
}

pub(super) fn flag(values: impl IntoIterator<Item = bool>) -> ArrayRef {
    Arc::new(BooleanArray::from(values.into_iter().collect::<Vec<_>>()))
}

pub(super) fn text<'a>(values: impl IntoIterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// A column of NULLs.
pub(super) fn nothing(rows: usize) -> ArrayRef {
    Arc::new(StringArray::new_null(rows))
}

/// A column of NULLs where lists would be: of rights, and of options.
pub(super) fn no_list(rows: usize) -> ArrayRef {
    new_null_array(&DataType::new_list(DataType::Utf8, true), rows)
}

/// What everybody may do with a table, and nothing else: read it.
fn read_only(rows: usize) -> ArrayRef {
    let rights = std::iter::repeat_n(Some(format!("{OWNER}=r/{OWNER}")), rows);
    let item = Arc::new(Field::new_list_field(DataType::Utf8, true));
    let offsets = OffsetBuffer::from_repeated_length(1, rows);
    Arc::new(ListArray::new(item, offsets, Arc::new(rights.collect::<StringArray>()), None))
}

/// Columns with the same value in every row.
pub(super) struct Same(pub(super) usize);

impl Same {
    pub(super) fn flag(&self, value: bool) -> ArrayRef {
        flag(std::iter::repeat_n(value, self.0))
    }
    pub(super) fn int8(&self, value: i64) -> ArrayRef {
        int8(std::iter::repeat_n(value, self.0))
    }
    pub(super) fn int4(&self, value: i32) -> ArrayRef {
        int4(std::iter::repeat_n(value, self.0))
    }
    pub(super) fn int2(&self, value: i16) -> ArrayRef {
        int2(std::iter::repeat_n(value, self.0))
    }
    pub(super) fn text(&self, value: &str) -> ArrayRef {
        text(std::iter::repeat_n(value, self.0))
    }
    pub(super) fn none(&self) -> ArrayRef {
        nothing(self.0)
    }
}

fn classes(tables: Tables<'_>) -> Result<RecordBatch, ArrowError> {
    let same = Same(tables.len());
    RecordBatch::try_from_iter([
        ("oid", int8(tables.iter().map(|(name, _)| oid(name)))),
        ("relname", text(tables.iter().map(|(name, _)| *name))),
        ("relnamespace", same.int8(PUBLIC_OID)),
        ("reltype", same.int8(0)),
        ("reloftype", same.int8(0)),
        ("relowner", same.int8(OWNER_OID)),
        ("relam", same.int8(2)),
        ("relfilenode", same.int8(0)),
        ("reltablespace", same.int8(0)),
        ("relpages", same.int4(0)),
        ("reltuples", Arc::new(Float32Array::from(vec![-1.0; tables.len()])) as ArrayRef),
        ("relallvisible", same.int4(0)),
        ("reltoastrelid", same.int8(0)),
        ("relhasindex", same.flag(false)),
        ("relisshared", same.flag(false)),
        ("relpersistence", same.text("p")),
        ("relkind", same.text("r")),
        ("relnatts", int2(tables.iter().map(|(_, schema)| schema.fields().len() as i16))),
        ("relchecks", same.int2(0)),
        ("relhasrules", same.flag(false)),
        ("relhastriggers", same.flag(false)),
        ("relhassubclass", same.flag(false)),
        ("relrowsecurity", same.flag(false)),
        ("relforcerowsecurity", same.flag(false)),
        ("relispopulated", same.flag(true)),
        ("relreplident", same.text("n")),
        ("relispartition", same.flag(false)),
        ("relrewrite", same.int8(0)),
        ("relfrozenxid", same.int8(0)),
        ("relminmxid", same.int8(0)),
        ("relacl", read_only(same.0)),
        ("reloptions", no_list(same.0)),
        ("relpartbound", same.none()),
    ])
}

fn attributes(tables: Tables<'_>) -> Result<RecordBatch, ArrowError> {
    let (mut relations, mut names, mut kinds, mut numbers, mut required) = (vec![], vec![], vec![], vec![], vec![]);
    for (table, schema) in tables {
        for (column, field) in schema.fields().iter().enumerate() {
            relations.push(oid(table));
            names.push(field.name().as_str());
            kinds.push(types::by_oid(types::of_arrow(field.data_type())).copied().unwrap_or(types::ALL[0]));
            numbers.push(column as i16 + 1);
            required.push(!field.is_nullable());
        }
    }
    let same = Same(names.len());
    RecordBatch::try_from_iter([
        ("attrelid", int8(relations)),
        ("attname", text(names)),
        ("atttypid", int8(kinds.iter().map(|kind| kind.oid))),
        ("attstattarget", same.int4(-1)),
        ("attlen", int2(kinds.iter().map(|kind| kind.length))),
        ("attnum", int2(numbers)),
        ("attndims", int4(kinds.iter().map(|kind| i32::from(kind.element != 0)))),
        ("attcacheoff", same.int4(-1)),
        ("atttypmod", same.int4(-1)),
        ("attbyval", flag(kinds.iter().map(|kind| kind.length > 0 && kind.length <= 8))),
        ("attalign", same.text("i")),
        ("attstorage", same.text("p")),
        ("attcompression", same.text("")),
        ("attnotnull", flag(required)),
        ("atthasdef", same.flag(false)),
        ("atthasmissing", same.flag(false)),
        ("attidentity", same.text("")),
        ("attgenerated", same.text("")),
        ("attisdropped", same.flag(false)),
        ("attislocal", same.flag(true)),
        ("attinhcount", same.int4(0)),
        ("attcollation", same.int8(0)),
        ("attacl", no_list(same.0)),
        ("attoptions", no_list(same.0)),
        ("attfdwoptions", no_list(same.0)),
        ("attmissingval", same.none()),
    ])
}

fn descriptions(tables: Tables<'_>) -> Result<RecordBatch, ArrowError> {
    let (mut relations, mut numbers, mut words) = (vec![], vec![], vec![]);
    for (table, schema) in tables {
        for (column, field) in schema.fields().iter().enumerate() {
            if let Some(comment) = comment(field) {
                relations.push(oid(table));
                numbers.push(column as i32 + 1);
                words.push(comment);
            }
        }
    }
    let same = Same(words.len());
    RecordBatch::try_from_iter([
        ("objoid", int8(relations)),
        // The number of pg_class itself: what is described is a relation.
        ("classoid", same.int8(1259)),
        ("objsubid", int4(numbers)),
        ("description", text(words.iter().map(String::as_str))),
    ])
}

fn pg_tables(tables: Tables<'_>) -> Result<RecordBatch, ArrowError> {
    let same = Same(tables.len());
    RecordBatch::try_from_iter([
        ("schemaname", same.text("public")),
        ("tablename", text(tables.iter().map(|(name, _)| *name))),
        ("tableowner", same.text(OWNER)),
        ("tablespace", same.none()),
        ("hasindexes", same.flag(false)),
        ("hasrules", same.flag(false)),
        ("hastriggers", same.flag(false)),
        ("rowsecurity", same.flag(false)),
    ])
}

fn pg_types() -> Result<RecordBatch, ArrowError> {
    let all = types::ALL;
    let same = Same(all.len());
    let is_array = |kind: &types::PgType| kind.element != 0;
    RecordBatch::try_from_iter([
        ("oid", int8(all.iter().map(|kind| kind.oid))),
        ("typname", text(all.iter().map(|kind| kind.name))),
        ("typnamespace", same.int8(super::PG_CATALOG_OID)),
        ("typowner", same.int8(OWNER_OID)),
        ("typlen", int2(all.iter().map(|kind| kind.length))),
        ("typbyval", flag(all.iter().map(|kind| kind.length > 0 && kind.length <= 8))),
        ("typtype", text(all.iter().map(|kind| if kind.category == "P" || kind.category == "X" { "p" } else { "b" }))),
        ("typcategory", text(all.iter().map(|kind| kind.category))),
        ("typispreferred", same.flag(false)),
        ("typisdefined", same.flag(true)),
        ("typdelim", same.text(",")),
        ("typrelid", same.int8(0)),
        ("typsubscript", text(all.iter().map(|kind| if is_array(kind) { "array_subscript_handler" } else { "-" }))),
        ("typelem", int8(all.iter().map(|kind| kind.element))),
        ("typarray", int8(all.iter().map(|kind| types::array_of(kind.oid)))),
        ("typinput", text(all.iter().map(|kind| if is_array(kind) { "array_in" } else { "-" }))),
        ("typoutput", text(all.iter().map(|kind| if is_array(kind) { "array_out" } else { "-" }))),
        ("typreceive", text(all.iter().map(|kind| if is_array(kind) { "array_recv" } else { "-" }))),
        ("typsend", text(all.iter().map(|kind| if is_array(kind) { "array_send" } else { "-" }))),
        ("typnotnull", same.flag(false)),
        ("typbasetype", same.int8(0)),
        ("typtypmod", same.int4(-1)),
        ("typndims", same.int4(0)),
        ("typcollation", same.int8(0)),
        ("typdefault", same.none()),
        ("typalign", same.text("i")),
        ("typstorage", same.text("p")),
        ("typacl", no_list(same.0)),
    ])
}
