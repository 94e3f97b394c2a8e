//! The tables of one moment under their names, and `column_comments`, which says what every column means (SPEC E2).
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
    live_table::{LiveTables, TablesSnapshot},
    postgres::{self, InformationSchema, PgCatalog},
    provider::SnapshotTable,
    schema::Topic,
    snapshot::StoredSnapshot,
    sql_error::SqlError,
};

/// Name of the table of comments.
pub(crate) const COLUMN_COMMENTS: &str = "column_comments";

/// Columns of the table of comments itself.
const OWN_COLUMNS: [(&str, &str); 5] = [
    ("table_name", "name of the table"),
    ("column_name", "name of the column"),
    ("data_type", "Arrow's name of its type"),
    ("unit", "unit of its values; NULL where it has none"),
    ("comment", "what it says, in words"),
];

/// Tables with their names.
pub(crate) type NamedTables = Vec<(&'static str, Arc<dyn TableProvider>)>;

/// Where an engine's tables come from.
#[derive(Debug, Clone)]
pub enum TableSource {
    /// The bus: each query sees its own moment.
    Live(Arc<LiveTables>),
    /// A snapshot on disk or in an object store: `now()` is its moment.
    Stored(Arc<StoredSnapshot>),
}

impl From<Arc<LiveTables>> for TableSource {
    fn from(tables: Arc<LiveTables>) -> TableSource {
        TableSource::Live(tables)
    }
}

impl From<Arc<StoredSnapshot>> for TableSource {
    fn from(snapshot: Arc<StoredSnapshot>) -> TableSource {
        TableSource::Stored(snapshot)
    }
}

/// The tables that one query sees, and what `now()` is in it; `None`: the clock's time.
#[derive(Debug)]
pub(crate) struct Moment {
    pub(crate) tables: NamedTables,
    pub(crate) now: Option<i64>,
}

impl TableSource {
    /// The tables as they are, or as of an earlier moment.
    pub(crate) fn moment(&self, as_of: Option<i64>) -> std::result::Result<Moment, SqlError> {
        match (self, as_of) {
            (TableSource::Live(tables), as_of) => {
                Ok(Moment { tables: providers(&tables.snapshot(), as_of), now: as_of })
            }
            (TableSource::Stored(snapshot), None) => {
                let mut tables = snapshot.providers();
                tables.push((COLUMN_COMMENTS, comments_table()));
                Ok(Moment { tables, now: Some(snapshot.manifest().as_of) })
            }
            (TableSource::Stored(_), Some(_)) => {
                let words = "a snapshot is asked as of its own moment; name an earlier snapshot instead";
                Err(SqlError::Refused(words.to_string()))
            }
        }
    }
}

/// Every table of the snapshot and the comments, each with its name.
pub(crate) fn providers(snapshot: &TablesSnapshot, as_of: Option<i64>) -> NamedTables {
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

/// A catalog `catalog.schema` that holds the tables, with `pg_catalog` and `information_schema`, which tell of them.
pub(crate) fn catalog_list(named: &NamedTables, catalog: &str, schema: &str) -> Result<Arc<dyn CatalogProviderList>> {
    let tables = Arc::new(MemorySchemaProvider::new());
    let mut shapes = Vec::new();
    for (name, table) in named {
        // As a table is told, not as it is held: see `views`.
        shapes.push((*name, Topic::from_name(name).map_or_else(|| table.schema(), Topic::schema)));
        tables.register_table(name.to_string(), table.clone())?;
    }
    let pg_catalog = Arc::new(PgCatalog { tables: shapes.clone() });
    let list = |others: [(&str, Arc<dyn SchemaProvider>); 2], last: Option<Arc<dyn SchemaProvider>>| -> Result<_> {
        let schemas = Arc::new(MemoryCatalogProvider::new());
        for (name, provider) in others.into_iter().chain(last.map(|last| (postgres::INFORMATION_SCHEMA, last))) {
            schemas.register_schema(name, provider)?;
        }
        let list = Arc::new(MemoryCatalogProviderList::new());
        list.register_catalog(catalog.to_string(), schemas);
        Ok(list)
    };
    let others: [(&str, Arc<dyn SchemaProvider>); 2] = [(schema, tables), (postgres::SCHEMA, pg_catalog)];
    // It tells of the others from a list of its own: in its own list it would keep itself alive.
    let information = Arc::new(InformationSchema::new(list(others.clone(), None)?, shapes));
    Ok(list(others, Some(information))?)
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
    for (column, comment) in OWN_COLUMNS {
        tables.push(COLUMN_COMMENTS);
        columns.push(column.to_string());
        types.push(type_name(&DataType::Utf8));
        units.push(None);
        words.push(comment.to_string());
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
