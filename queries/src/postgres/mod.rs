//! What PostgreSQL's clients take for granted (SPEC E2): the tables of `pg_catalog`, the functions their catalogue queries call, and
//! the syntax that DataFusion does not know.
//!
//! | file | idea |
//! |---|---|
//! | `types` | PostgreSQL's types: numbers, names, and which one a column has |
//! | `relations` | our tables as `pg_class`, `pg_attribute`, `pg_description` … |
//! | `fixed` | rows that never change, and tables that never have rows |
//! | `functions` | `format_type`, `obj_description`, `pg_table_is_visible` … |
//! | `information` | `information_schema` as the standard has it |
//! | `text` | names and literals, quoted and taken apart |
//! | `rewrite` | statements of PostgreSQL as DataFusion understands them |
//! | `names`, `nothing`, `precedence` | of these: columns of one name, tables without rows, IS DISTINCT FROM |
//! | `command` | what a session says besides questions: SET, SHOW, BEGIN, COPY … |
//! | `cursor` | of these: DECLARE, FETCH, MOVE |
//!
//! Invariant: every door sees the same; nothing here reads rows of the bus, only what tables are called and consist of.
//! Tables of `pg_catalog` are built when a query names them. Cost: O(columns of all tables) for each one named.

pub mod command;
mod cursor;
mod fixed;
mod functions;
mod information;
mod names;
mod nothing;
mod precedence;
mod relations;
mod rewrite;
mod text;
mod types;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::{
    catalog::{MemTable, SchemaProvider, TableProvider},
    error::Result,
};

pub(crate) use functions::functions;
pub(crate) use information::{InformationSchema, SCHEMA as INFORMATION_SCHEMA};
pub use names::{of_statement as column_names, shown as shown_name};
pub(crate) use rewrite::rewrite;
pub use types::of_arrow as type_of;

/// Name of the schema.
pub(crate) const SCHEMA: &str = "pg_catalog";
/// The version that we speak, as clients ask for it.
pub const SERVER_VERSION: &str = "15.0";
/// Who owns everything.
const OWNER: &str = "evenkeel";
/// Number of the owner, of the database, of the schemas.
const OWNER_OID: i64 = 10;
const DATABASE_OID: i64 = 5;
const PG_CATALOG_OID: i64 = 11;
const PUBLIC_OID: i64 = 2200;
const INFORMATION_SCHEMA_OID: i64 = 13000;
/// Number of the first of our tables; the others follow in order.
const FIRST_TABLE_OID: i64 = 16384;

/// Number of a table of ours: its place among all there are, whichever of them a query sees.
fn table_oid(name: &str) -> Option<i64> {
    crate::catalog::names().position(|known| known == name).map(|at| FIRST_TABLE_OID + at as i64)
}

/// `pg_catalog` over the tables given.
#[derive(Debug)]
pub(crate) struct PgCatalog {
    pub(crate) tables: Vec<(&'static str, SchemaRef)>,
}

#[async_trait]
impl SchemaProvider for PgCatalog {
    fn table_names(&self) -> Vec<String> {
        relations::NAMES.iter().copied().chain(fixed::names()).map(String::from).collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let batch = match relations::table(name, &self.tables) {
            Some(batch) => Some(batch?),
            None => fixed::table(name).transpose()?,
        };
        let Some(batch) = batch else { return Ok(None) };
        let table: Arc<dyn TableProvider> = Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?);
        Ok(Some(table))
    }

    fn table_exist(&self, name: &str) -> bool {
        is_table(name)
    }
}

/// Whether `pg_catalog` has a table of that name.
fn is_table(name: &str) -> bool {
    relations::NAMES.contains(&name) || fixed::names().any(|known| known == name)
}
