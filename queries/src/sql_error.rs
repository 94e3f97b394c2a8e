//! Why a query was not answered, typed, with the way out in words (SPEC E2; DESIGN §7 rule 6).

use datafusion::error::DataFusionError;

/// Why a query was not answered. `code()` is stable and goes into responses and metrics.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SqlError {
    /// The statement is one that this endpoint never runs.
    #[error("refused: {0}")]
    Refused(String),
    /// The text is not SQL.
    #[error("not valid SQL: {0}")]
    Parse(String),
    /// Tables, columns, functions or types do not fit.
    #[error("cannot plan the query: {0}")]
    Plan(String),
    #[error(
        "the query ran longer than {limit:?} and was stopped; narrow it by time (WHERE at > now() - INTERVAL '5 minutes') \
         or raise sql.timeout"
    )]
    TimedOut { limit: std::time::Duration },
    #[error(
        "the answer has more than {limit} rows; add LIMIT, aggregate, or narrow it by time (the limit is sql.rows_max); \
         whole tables are exported as snapshots"
    )]
    TooManyRows { limit: usize },
    #[error(
        "the query needs more memory than its share of {limit_bytes} bytes (sql.memory_max / sql.concurrent_max): {detail}"
    )]
    OutOfMemory { limit_bytes: usize, detail: String },
    #[error("{running} queries are running and {waiting} wait; try again shortly")]
    Busy { running: usize, waiting: usize },
    /// The query failed while running, for instance on a division by zero.
    #[error("the query failed: {0}")]
    Execution(String),
}

impl SqlError {
    /// One word for responses and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            SqlError::Refused(_) => "refused",
            SqlError::Parse(_) => "parse",
            SqlError::Plan(_) => "plan",
            SqlError::TimedOut { .. } => "timed_out",
            SqlError::TooManyRows { .. } => "too_many_rows",
            SqlError::OutOfMemory { .. } => "out_of_memory",
            SqlError::Busy { .. } => "busy",
            SqlError::Execution(_) => "execution",
        }
    }

    /// Whether the same statement may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, SqlError::Busy { .. } | SqlError::TimedOut { .. } | SqlError::OutOfMemory { .. })
    }
}

/// Sorts DataFusion's errors. `memory_bytes` is the pool that the query had.
pub(crate) fn classify(error: DataFusionError, memory_bytes: usize) -> SqlError {
    let root = error.find_root();
    let words = root.message().trim().to_string();
    match root {
        DataFusionError::SQL(..) => SqlError::Parse(words),
        DataFusionError::Plan(_) | DataFusionError::SchemaError(..) | DataFusionError::NotImplemented(_) => {
            SqlError::Plan(words)
        }
        DataFusionError::ResourcesExhausted(_) => SqlError::OutOfMemory { limit_bytes: memory_bytes, detail: words },
        _ => SqlError::Execution(words),
    }
}

/// Words for a table that is not there: the nearest name, and all names.
pub(crate) fn unknown_table(name: &str, known: &[&str]) -> SqlError {
    let nearest = known.iter().max_by(|a, b| strsim::jaro_winkler(name, a).total_cmp(&strsim::jaro_winkler(name, b)));
    let hint = match nearest.filter(|known| strsim::jaro_winkler(name, known) > 0.8) {
        Some(nearest) => format!("; did you mean {nearest:?}?"),
        None => String::new(),
    };
    SqlError::Plan(format!("there is no table {name:?}{hint} Tables: {}", known.join(", ")))
}
