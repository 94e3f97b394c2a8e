//! The tables of one snapshot under their names, and `column_comments`, which says what every column means (SPEC E2).
//!
//! Cost: a few microseconds a query; the comments are built once a process.

use std::sync::{Arc, LazyLock};

use arrow::{
    array::{RecordBatch, StringArray},
    datatypes::{DataType, Field, Schema},
};
use datafusion::{
    catalog::{
        CatalogProvider, CatalogProviderList, MemTable, MemoryCatalogProvider, MemoryCatalogProviderList,
        MemorySchemaProvider, SchemaProvider, TableProvider,
    },
    error::Result,
};

use crate::{
    live_table::TablesSnapshot,
    postgres::{self, PgCatalog},
    provider::SnapshotTable,
    schema::Topic,
};

/// Name of the table of comments.
pub(crate) const COLUMN_COMMENTS: &str = "column_comments";

/// Every table of the snapshot and the comments, each with its name.
pub(crate) fn providers(snapshot: &TablesSnapshot, as_of: Option<i64>) -> Vec<(&'static str, Arc<dyn TableProvider>)> {
    let tables = snapshot.tables().map(|table| {
        let provider: Arc<dyn TableProvider> = Arc::new(SnapshotTable { table: table.clone(), as_of });
        (table.topic().name(), provider)
    });
    tables.chain([(COLUMN_COMMENTS, comments_table())]).collect()
}

/// Names of all tables, in order.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    Topic::ALL.into_iter().map(Topic::name).chain([COLUMN_COMMENTS])
}

/// A catalog `catalog.schema` that holds the snapshot's tables, and `pg_catalog`, which tells of them.
pub(crate) fn catalog_list(
    (snapshot, as_of): (&TablesSnapshot, Option<i64>),
    catalog: &str,
    schema: &str,
) -> Result<Arc<dyn CatalogProviderList>> {
    let tables = Arc::new(MemorySchemaProvider::new());
    let mut shapes = Vec::new();
    for (name, table) in providers(snapshot, as_of) {
        shapes.push((name, table.schema()));
        tables.register_table(name.to_string(), table)?;
    }
    let schemas = Arc::new(MemoryCatalogProvider::new());
    schemas.register_schema(schema, tables)?;
    schemas.register_schema(postgres::SCHEMA, Arc::new(PgCatalog { tables: shapes }))?;
    let list = Arc::new(MemoryCatalogProviderList::new());
    list.register_catalog(catalog.to_string(), schemas);
    Ok(list)
}

fn comments_table() -> Arc<dyn TableProvider> {
    static TABLE: LazyLock<Arc<MemTable>> = LazyLock::new(|| {
        let batch = comments();
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]]);
        Arc::new(table.expect("invariant: the batch has its own schema"))
    });
    TABLE.clone()
}

/// `(table_name, column_name, data_type, unit, comment)`, a row per column of every topic; `unit` is NULL where a column
/// has none.
fn comments() -> RecordBatch {
    let (mut tables, mut columns, mut types, mut units, mut words) = (vec![], vec![], vec![], vec![], vec![]);
    for topic in Topic::ALL {
        for field in topic.schema().fields() {
            tables.push(topic.name());
            columns.push(field.name().clone());
            types.push(type_name(field.data_type()));
            units.push(field.metadata().get("unit").cloned());
            words.push(field.metadata().get("comment").cloned().unwrap_or_default());
        }
    }
    let field = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
    let schema = Schema::new(vec![
        field("table_name", false),
        field("column_name", false),
        field("data_type", false),
        field("unit", true),
        field("comment", false),
    ]);
    RecordBatch::try_new(
        Arc::new(schema),
        vec![
            Arc::new(StringArray::from(tables)),
            Arc::new(StringArray::from(columns)),
            Arc::new(StringArray::from(types)),
            Arc::new(StringArray::from(units)),
            Arc::new(StringArray::from(words)),
        ],
    )
    .expect("invariant: five columns of one length, as declared")
}

/// Arrow's name of a type, without the metadata of nested fields.
fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::List(item) => format!("List({})", type_name(item.data_type())),
        DataType::Struct(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|field| format!("{} {}", field.name(), type_name(field.data_type()))).collect();
            format!("Struct({})", fields.join(", "))
        }
        DataType::Timestamp(_, Some(zone)) => format!("Timestamp(us, {zone})"),
        other => other.to_string(),
    }
}
