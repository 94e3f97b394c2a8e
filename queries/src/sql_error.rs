//! Why a query was not answered, typed, with the way out in words (SPEC E2; DESIGN §7 rule 6).

use datafusion::{common::SchemaError, error::DataFusionError};
use serde::{Deserialize, Serialize};

/// Whose limit was reached: the server's, or the narrower one of the caller's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitOf {
    Server,
    Key,
}

impl LimitOf {
    /// Where the limit stands in the configuration.
    fn field(self, name: &str) -> String {
        match self {
            LimitOf::Server => format!("sql.{name}"),
            LimitOf::Key => format!("server.keys.sql.{name}"),
        }
    }

    fn memory_field(self) -> String {
        match self {
            LimitOf::Server => "sql.memory_max / sql.concurrent_max".into(),
            LimitOf::Key => self.field("memory_max"),
        }
    }
}

/// Why a query was not answered. `code()` is stable and goes into responses and metrics.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum SqlError {
    /// The statement is no question.
    #[error("refused: this endpoint is read-only: SELECT, EXPLAIN, DESCRIBE and SHOW are allowed")]
    ReadOnly,
    /// The statement is one that this endpoint never runs.
    #[error("refused: {0}")]
    Refused(String),
    /// The text is not SQL.
    #[error("not valid SQL: {0}")]
    Parse(String),
    /// Tables, columns, functions or types do not fit.
    #[error("cannot plan the query: {0}")]
    Plan(String),
    /// The hint names the nearest table, and all of them.
    #[error("cannot plan the query: there is no table {name:?}; {hint}")]
    UnknownTable { name: String, hint: String },
    /// The hint names the nearest column, and all of them. `at`: line and column of the text, from 1.
    #[error("cannot plan the query: No field named {name}. {hint}")]
    UnknownColumn { name: String, hint: String, at: Option<(u64, u64)> },
    #[error(
        "the query ran longer than {limit:?} and was stopped; narrow it by time (WHERE at > now() - INTERVAL '5 minutes') \
         or raise {}", .of.field("timeout")
    )]
    TimedOut { limit: std::time::Duration, of: LimitOf },
    #[error(
        "the answer has more than {limit} rows; add LIMIT, aggregate, or narrow it by time (the limit is {}); \
         whole tables are exported as snapshots", .of.field("rows_max")
    )]
    TooManyRows { limit: usize, of: LimitOf },
    #[error("the query needs more memory than its share of {limit_bytes} bytes ({}): {detail}", .of.memory_field())]
    OutOfMemory { limit_bytes: usize, of: LimitOf, detail: String },
    #[error("{running} queries are running and {waiting} wait; try again shortly")]
    Busy { running: usize, waiting: usize },
    #[error(
        "{caller} has {limit} queries running or waiting, as many as its key allows (server.keys.sql.concurrent_max); try \
         again when one has ended"
    )]
    CallerBusy { caller: String, limit: usize },
    /// The process that answers SQL has ended, whoever's fault that was, or is not ready again yet.
    #[error("the SQL engine is being started again: {0}; try again in a second")]
    EngineRestarted(String),
    /// The query failed while running, for instance on a division by zero.
    #[error("the query failed: {0}")]
    Execution(String),
}

impl SqlError {
    /// One word for responses and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            SqlError::ReadOnly | SqlError::Refused(_) => "refused",
            SqlError::Parse(_) => "parse",
            SqlError::Plan(_) | SqlError::UnknownTable { .. } | SqlError::UnknownColumn { .. } => "plan",
            SqlError::TimedOut { .. } => "timed_out",
            SqlError::TooManyRows { .. } => "too_many_rows",
            SqlError::OutOfMemory { .. } => "out_of_memory",
            SqlError::Busy { .. } => "busy",
            SqlError::CallerBusy { .. } => "caller_busy",
            SqlError::EngineRestarted(_) => "sql_engine_restarted",
            SqlError::Execution(_) => "execution",
        }
    }

    /// Whether the same statement may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            SqlError::Busy { .. }
            | SqlError::CallerBusy { .. }
            | SqlError::EngineRestarted(_)
            | SqlError::TimedOut { .. }
            | SqlError::OutOfMemory { .. } => true,
            SqlError::ReadOnly
            | SqlError::Refused(_)
            | SqlError::Parse(_)
            | SqlError::Plan(_)
            | SqlError::UnknownTable { .. }
            | SqlError::UnknownColumn { .. }
            | SqlError::TooManyRows { .. }
            | SqlError::Execution(_) => false,
        }
    }
}

/// Sorts DataFusion's errors. `memory` is the pool that the query had.
pub(crate) fn classify(error: DataFusionError, (limit_bytes, of): (usize, LimitOf)) -> SqlError {
    let at = error.diagnostic().and_then(|diagnostic| diagnostic.span).map(|span| (span.start.line, span.start.column));
    let root = error.find_root();
    // Text has one name outside of the engine; see `views`.
    let words = root.message().trim().replace("Utf8View", "Utf8");
    match root {
        DataFusionError::SQL(..) => SqlError::Parse(words),
        DataFusionError::SchemaError(schema, _) => match schema.as_ref() {
            SchemaError::FieldNotFound { field, valid_fields } => {
                let known: Vec<&str> = valid_fields.iter().map(|field| field.name.as_str()).collect();
                unknown_column(&field.name, &known, at)
            }
            _ => SqlError::Plan(words),
        },
        DataFusionError::Plan(_) | DataFusionError::NotImplemented(_) => SqlError::Plan(words),
        DataFusionError::ResourcesExhausted(_) => SqlError::OutOfMemory { limit_bytes, of, detail: words },
        _ => SqlError::Execution(words),
    }
}

/// The name most like the one given, if one is like it.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = |known: &str| strsim::jaro_winkler(name, known);
    known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b))).filter(|known| likeness(known) > 0.8)
}

/// Words for a table that is not there: the nearest name, and all names.
pub(crate) fn unknown_table(name: &str, known: &[&str]) -> SqlError {
    let guess = nearest(name, known).map(|nearest| format!("did you mean {nearest:?}? ")).unwrap_or_default();
    SqlError::UnknownTable { name: name.to_string(), hint: format!("{guess}Tables: {}", known.join(", ")) }
}

fn unknown_column(name: &str, known: &[&str], at: Option<(u64, u64)>) -> SqlError {
    let guess = nearest(name, known).map(|nearest| format!("Did you mean {nearest:?}? ")).unwrap_or_default();
    let all = if known.is_empty() {
        "There are no columns here".into()
    } else {
        format!("Valid fields are {}", known.join(", "))
    };
    SqlError::UnknownColumn { name: name.to_string(), hint: format!("{guess}{all}"), at }
}
