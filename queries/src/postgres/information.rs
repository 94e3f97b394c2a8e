//! `information_schema`: DataFusion's, but that `columns` says what the standard has it say (PostgreSQL's names of types, places from
//! one on), and that the tables of what we do not have, such as keys, are there and empty.
//!
//! Cost: `columns` O(columns of all tables) for each query that names it.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, RecordBatch, new_null_array},
    datatypes::{DataType, SchemaRef},
    error::ArrowError,
};
use async_trait::async_trait;
use datafusion::{
    catalog::{
        CatalogProviderList, MemTable, SchemaProvider, TableProvider,
        information_schema::{INFORMATION_SCHEMA_TABLES, InformationSchemaProvider},
    },
    error::Result,
};

use super::{
    OWNER,
    relations::{Same, int4, text},
    types,
};

/// Name of the schema.
pub(crate) const SCHEMA: &str = "information_schema";

/// Tables that never have rows, and their columns, texts all of them.
const EMPTY: [(&str, &[&str]); 12] = [
    (
        "table_constraints",
        &[
            "constraint_catalog",
            "constraint_schema",
            "constraint_name",
            "table_catalog",
            "table_schema",
            "table_name",
            "constraint_type",
            "is_deferrable",
            "initially_deferred",
        ],
    ),
    (
        "key_column_usage",
        &[
            "constraint_catalog",
            "constraint_schema",
            "constraint_name",
            "table_catalog",
            "table_schema",
            "table_name",
            "column_name",
            "ordinal_position",
            "position_in_unique_constraint",
        ],
    ),
    (
        "referential_constraints",
        &[
            "constraint_catalog",
            "constraint_schema",
            "constraint_name",
            "unique_constraint_catalog",
            "unique_constraint_schema",
            "unique_constraint_name",
            "match_option",
            "update_rule",
            "delete_rule",
        ],
    ),
    (
        "constraint_column_usage",
        &[
            "table_catalog",
            "table_schema",
            "table_name",
            "column_name",
            "constraint_catalog",
            "constraint_schema",
            "constraint_name",
        ],
    ),
    ("check_constraints", &["constraint_catalog", "constraint_schema", "constraint_name", "check_clause"]),
    (
        "triggers",
        &["trigger_schema", "trigger_name", "event_manipulation", "event_object_schema", "event_object_table"],
    ),
    ("sequences", &["sequence_catalog", "sequence_schema", "sequence_name", "data_type"]),
    ("domains", &["domain_catalog", "domain_schema", "domain_name", "data_type"]),
    ("element_types", &["object_catalog", "object_schema", "object_name", "object_type", "data_type"]),
    ("table_privileges", &["grantor", "grantee", "table_catalog", "table_schema", "table_name", "privilege_type"]),
    ("role_table_grants", &["grantor", "grantee", "table_catalog", "table_schema", "table_name", "privilege_type"]),
    ("foreign_tables", &["foreign_table_catalog", "foreign_table_schema", "foreign_table_name"]),
];

/// Whether a table of the schema never has rows.
pub(super) fn is_empty(name: &str) -> bool {
    EMPTY.iter().any(|(known, _)| *known == name)
}

/// The schema over the tables given; `others` are the catalogues without it.
#[derive(Debug)]
pub(crate) struct InformationSchema {
    others: InformationSchemaProvider,
    tables: Vec<(&'static str, SchemaRef)>,
}

impl InformationSchema {
    pub(crate) fn new(
        others: Arc<dyn CatalogProviderList>,
        tables: Vec<(&'static str, SchemaRef)>,
    ) -> InformationSchema {
        InformationSchema { others: InformationSchemaProvider::new(others), tables }
    }
}

#[async_trait]
impl SchemaProvider for InformationSchema {
    fn table_names(&self) -> Vec<String> {
        INFORMATION_SCHEMA_TABLES.iter().copied().chain(EMPTY.iter().map(|(name, _)| *name)).map(String::from).collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let batch = match EMPTY.iter().find(|(known, _)| *known == name) {
            Some((_, columns)) => RecordBatch::try_from_iter(columns.iter().map(|column| (*column, text([]))))?,
            None if name == "columns" => columns(&self.tables)?,
            None => return self.others.table(name).await,
        };
        Ok(Some(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?)))
    }

    fn table_exist(&self, name: &str) -> bool {
        is_empty(name) || self.others.table_exist(name)
    }
}

/// Bits of a number, or bytes of nothing else: what `numeric_precision` says.
fn precision(oid: i64) -> Option<i32> {
    match oid {
        types::INT2 => Some(16),
        types::INT4 => Some(32),
        types::INT8 => Some(64),
        types::FLOAT4 => Some(24),
        types::FLOAT8 => Some(53),
        _ => None,
    }
}

fn numbers(values: impl Iterator<Item = Option<i32>>) -> ArrayRef {
    Arc::new(values.collect::<arrow::array::Int32Array>())
}

fn columns(tables: &[(&'static str, SchemaRef)]) -> std::result::Result<RecordBatch, ArrowError> {
    let (mut of, mut names, mut places, mut nullable, mut kinds) = (vec![], vec![], vec![], vec![], vec![]);
    for (table, schema) in tables {
        for (at, field) in schema.fields().iter().enumerate() {
            of.push(*table);
            names.push(field.name().as_str());
            places.push(at as i32 + 1);
            nullable.push(if field.is_nullable() { "YES" } else { "NO" });
            kinds.push(types::by_oid(types::of_arrow(field.data_type())).copied().unwrap_or(types::ALL[0]));
        }
    }
    let same = Same(names.len());
    let no_number = || new_null_array(&DataType::Int32, same.0);
    let is_array = |kind: &types::PgType| kind.element != 0;
    let is_time = |oid: i64| matches!(oid, types::TIMESTAMP | types::TIMESTAMPTZ | types::TIME | types::INTERVAL);
    let exact = |oid: i64| matches!(oid, types::INT2 | types::INT4 | types::INT8).then_some(0);
    RecordBatch::try_from_iter([
        ("table_catalog", same.text(OWNER)),
        ("table_schema", same.text("public")),
        ("table_name", text(of)),
        ("column_name", text(names)),
        ("ordinal_position", int4(places.iter().copied())),
        ("column_default", same.none()),
        ("is_nullable", text(nullable)),
        ("data_type", text(kinds.iter().map(|kind| if is_array(kind) { "ARRAY" } else { kind.sql }))),
        ("character_maximum_length", no_number()),
        ("character_octet_length", no_number()),
        ("numeric_precision", numbers(kinds.iter().map(|kind| precision(kind.oid)))),
        ("numeric_precision_radix", numbers(kinds.iter().map(|kind| precision(kind.oid).map(|_| 2)))),
        ("numeric_scale", numbers(kinds.iter().map(|kind| exact(kind.oid)))),
        ("datetime_precision", numbers(kinds.iter().map(|kind| is_time(kind.oid).then_some(6)))),
        ("interval_type", same.none()),
        ("interval_precision", no_number()),
        ("character_set_name", same.none()),
        ("collation_name", same.none()),
        ("domain_catalog", same.none()),
        ("domain_schema", same.none()),
        ("domain_name", same.none()),
        ("udt_catalog", same.text(OWNER)),
        ("udt_schema", same.text("pg_catalog")),
        ("udt_name", text(kinds.iter().map(|kind| kind.name))),
        ("dtd_identifier", text(places.iter().map(i32::to_string).collect::<Vec<_>>().iter().map(String::as_str))),
        ("is_self_referencing", same.text("NO")),
        ("is_identity", same.text("NO")),
        ("identity_generation", same.none()),
        ("is_generated", same.text("NEVER")),
        ("generation_expression", same.none()),
        ("is_updatable", same.text("NO")),
    ])
}
