//! What drivers ask before they ask anything: catalogs, schemas, tables, types, and what the server can do.
//!
//! Tables are those of `information_schema`, so that whatever the engine knows is listed. Cost: a query a call.

use std::{collections::BTreeSet, sync::LazyLock};

use arrow::{
    array::{Array, AsArray, RecordBatch},
    compute::cast,
    datatypes::{DataType, SchemaRef},
};
use arrow_flight::{
    error::Result,
    sql::{
        CommandGetCatalogs, CommandGetDbSchemas, CommandGetTableTypes, CommandGetTables, Nullable, Searchable, SqlInfo,
        XdbcDataType,
        metadata::{SqlInfoData, SqlInfoDataBuilder, XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder},
    },
};
use queries::QueryResult;

/// Every table there is, with its kind.
pub(super) const TABLES: &str = "SELECT table_catalog, table_schema, table_name, table_type FROM information_schema.tables \
                                 ORDER BY table_catalog, table_schema, table_name";

/// Name of the only catalog.
const CATALOG: &str = "evenkeel";

/// A table as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) catalog: String,
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) kind: String,
}

impl Listed {
    /// Its name in a statement.
    pub(super) fn path(&self) -> String {
        let quote = |part: &str| format!("\"{}\"", part.replace('"', "\"\""));
        format!("{}.{}.{}", quote(&self.catalog), quote(&self.schema), quote(&self.name))
    }
}

/// The rows of [`TABLES`].
pub(super) fn listed(answer: &QueryResult) -> Vec<Listed> {
    answer.batches.iter().flat_map(rows).collect()
}

fn rows(batch: &RecordBatch) -> Vec<Listed> {
    let texts = batch.columns().iter().filter_map(|column| cast(column, &DataType::Utf8).ok()).collect::<Vec<_>>();
    let [catalog, schema, name, kind] = texts.as_slice() else { return Vec::new() };
    let at = |column: &dyn Array, row: usize| column.as_string::<i32>().value(row).to_string();
    let row = |row| Listed {
        catalog: at(catalog, row),
        schema: at(schema, row),
        name: at(name, row),
        kind: table_type(&at(kind, row)),
    };
    (0..batch.num_rows()).map(row).collect()
}

/// `information_schema` says `BASE TABLE` where drivers ask for `TABLE`.
fn table_type(kind: &str) -> String {
    if kind == "BASE TABLE" { "TABLE".into() } else { kind.into() }
}

pub(super) fn catalogs(query: CommandGetCatalogs) -> Result<RecordBatch> {
    let mut builder = query.into_builder();
    builder.append(CATALOG);
    builder.build()
}

pub(super) fn schemas(query: CommandGetDbSchemas, answer: &QueryResult) -> Result<RecordBatch> {
    let schemas: BTreeSet<_> = listed(answer).into_iter().map(|table| (table.catalog, table.schema)).collect();
    let mut builder = query.into_builder();
    schemas.iter().for_each(|(catalog, schema)| builder.append(catalog, schema));
    builder.build()
}

pub(super) fn tables(query: CommandGetTables, tables: &[(Listed, SchemaRef)]) -> Result<RecordBatch> {
    let mut builder = query.into_builder();
    for (table, schema) in tables {
        builder.append(&table.catalog, &table.schema, &table.name, &table.kind, schema)?;
    }
    builder.build()
}

pub(super) fn table_types(query: CommandGetTableTypes, answer: &QueryResult) -> Result<RecordBatch> {
    let kinds: BTreeSet<_> = listed(answer).into_iter().map(|table| table.kind).collect();
    let mut builder = query.into_builder();
    kinds.iter().for_each(|kind| builder.append(kind));
    builder.build()
}

/// What the server says of itself.
pub(super) fn server() -> &'static SqlInfoData {
    static SERVER: LazyLock<SqlInfoData> = LazyLock::new(|| {
        let mut builder = SqlInfoDataBuilder::new();
        builder.append(SqlInfo::FlightSqlServerName, "Evenkeel");
        builder.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
        builder.append(SqlInfo::FlightSqlServerArrowVersion, "59");
        builder.append(SqlInfo::FlightSqlServerReadOnly, true);
        builder.append(SqlInfo::FlightSqlServerSql, true);
        builder.append(SqlInfo::FlightSqlServerSubstrait, false);
        builder.append(SqlInfo::FlightSqlServerTransaction, 0i32);
        builder.append(SqlInfo::FlightSqlServerCancel, false);
        builder.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
        builder.build().expect("invariant: a constant list of facts builds")
    });
    &SERVER
}

/// Types of our columns, by their SQL names.
pub(super) fn types() -> &'static XdbcTypeInfoData {
    static TYPES: LazyLock<XdbcTypeInfoData> = LazyLock::new(|| {
        let known = [
            ("boolean", XdbcDataType::XdbcBit, None, None),
            ("bigint", XdbcDataType::XdbcBigint, Some(64), None),
            ("integer", XdbcDataType::XdbcInteger, Some(32), None),
            ("double precision", XdbcDataType::XdbcDouble, Some(53), None),
            ("text", XdbcDataType::XdbcVarchar, None, Some("'")),
            ("timestamp with time zone", XdbcDataType::XdbcTimestamp, Some(32), Some("'")),
        ];
        let mut builder = XdbcTypeInfoDataBuilder::new();
        for (name, kind, size, quote) in known {
            builder.append(XdbcTypeInfo {
                type_name: name.into(),
                data_type: kind,
                sql_data_type: kind,
                column_size: size,
                literal_prefix: quote.map(String::from),
                literal_suffix: quote.map(String::from),
                nullable: Nullable::NullabilityNullable,
                case_sensitive: quote.is_some(),
                searchable: Searchable::Full,
                unsigned_attribute: Some(false),
                num_prec_radix: size.and(Some(2)),
                ..XdbcTypeInfo::default()
            });
        }
        builder.build().expect("invariant: a constant list of types builds")
    });
    &TYPES
}
