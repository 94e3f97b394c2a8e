//! Arrow and DataFusion: the tables of the metrics bus, SQL over them, and snapshots (SPEC E2, E3).
//!
//! Rows enter through [`LiveTables::append`]; [`SqlAnswers`], by [`SqlEngine`], answers SQL over one [`TablesSnapshot`], all tables
//! at one moment; `encode` turns an answer into JSON, CSV or Arrow; `snapshot` writes all tables to files.
//!
//! | file | idea |
//! |---|---|
//! | `schema` | topics and their schemas, declared once |
//! | `ring` | newest rows of one table, in chunks, bounded |
//! | `live_table` | all tables; a consistent snapshot of them; where older rows come from |
//! | `nested` | structs in lists that an earlier version wrote |
//! | `views` | text as views in tables that outside SQL is asked of, plain again in answers |
//! | `provider` | a table as DataFusion scans it, pruned by time |
//! | `catalog` | tables of one snapshot under their names, and `column_comments` |
//! | `answers` | what every door asks of SQL: a statement of a caller in, an answer out |
//! | `postgres` | what PostgreSQL's clients take for granted: `pg_catalog`, its functions, its syntax |
//! | `sql` | the read-only engine with its limits |
//! | `effort` | how much a plan will look at, so that much of it gives way |
//! | `places` | who runs, who waits, and who was left and has not stopped |
//! | `plain` | DataFusion called directly, which the engine is measured against |
//! | `guards` | what is refused before planning |
//! | `saved` | queries kept as files under `sql/`, run by name |
//! | `functions` | `mrc(…)`, `funnel(…)` and `explain(…)` in FROM |
//! | `sql_error` | typed refusals and faults, with the way out |
//! | `encode` | answers as JSON, CSV, Arrow IPC |
//! | `snapshot` | all tables as Arrow and Parquet files, written, kept and read again |
//!
//! Must not know: HTTP, the engine, timely, the wall clock, where the log's files lie. Nothing outside `queries` and
//! `pipeline` reaches DataFusion.

mod answers;
mod catalog;
mod effort;
pub mod encode;
mod functions;
mod guards;
pub mod live_table;
mod nested;
mod places;
pub mod plain;
pub mod postgres;
mod provider;
pub mod ring;
pub mod saved;
pub mod schema;
pub mod snapshot;
pub mod sql;
pub mod sql_error;
mod views;

pub use answers::{Caller, Described, PARAMETERS_MAX, Question, SqlAnswers};
pub use catalog::TableSource;
pub use datafusion::common::ScalarValue;
pub use live_table::{
    History, HistoryBatches, HistoryError, LiveTables, NumberedBatches, Older, TableSnapshot, TablesSnapshot,
};
pub use ring::TimeRange;
pub use schema::Topic;
pub use sql::{QueryResult, SqlEngine, SqlLimits, query_runtime, query_runtime_whose};
pub use sql_error::{LimitOf, SqlError};
