//! What every door asks of SQL, and who asks (SPEC E2): one statement with its parameters in, one answer out.
//!
//! The doors (HTTP, PostgreSQL wire, Arrow Flight SQL, the page) know [`SqlAnswers`] alone, so that the engine may run in this
//! process or in one of its own. Parameters are values in the plan, never text in the statement.
//! Bounds: the statement's and the answer's are [`crate::SqlLimits`], narrowed by the caller's own; [`PARAMETERS_MAX`].

use std::{fmt::Debug, time::Duration};

use arrow::datatypes::{DataType, SchemaRef};
use async_trait::async_trait;
use datafusion::common::ScalarValue;

use crate::{SqlError, sql::QueryResult};

/// Most parameters of a statement.
pub const PARAMETERS_MAX: usize = 256;

/// One statement of one caller.
#[derive(Debug, Clone)]
pub struct Question {
    pub sql: String,
    /// Values of `$1`, `$2` … in order.
    pub parameters: Vec<ScalarValue>,
    /// The moment as which the tables are seen, in microseconds since the epoch: later rows are not there, and it is `now()`.
    /// `None`: as they are.
    pub as_of: Option<i64>,
    pub caller: Caller,
}

impl Question {
    /// A statement without parameters.
    pub fn new(sql: impl Into<String>, caller: Caller) -> Question {
        Question { sql: sql.into(), parameters: Vec::new(), as_of: None, caller }
    }
}

/// Who asks, and what they may use. `None` stands for the engine's own limit, which no caller exceeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The tenant of the key.
    pub name: String,
    /// Longest run of one statement.
    pub timeout: Option<Duration>,
    /// Operator state of one statement.
    pub memory_bytes: Option<usize>,
    /// Rows of one answer.
    pub rows_max: Option<usize>,
    /// Statements at once, running and waiting together.
    pub concurrent_max: Option<usize>,
}

impl Caller {
    /// A caller with the engine's limits.
    pub fn new(name: impl Into<String>) -> Caller {
        Caller { name: name.into(), timeout: None, memory_bytes: None, rows_max: None, concurrent_max: None }
    }
}

/// What a statement would answer.
#[derive(Debug, Clone)]
pub struct Described {
    pub schema: SchemaRef,
    /// Types of `$1`, `$2` … in order; `None` where the statement does not tell.
    pub parameters: Vec<Option<DataType>>,
}

/// Answers SQL.
#[async_trait]
pub trait SqlAnswers: Send + Sync + Debug {
    /// Answers one statement. Dropping the future stops the query.
    async fn answer(&self, question: Question) -> Result<QueryResult, SqlError>;

    /// What the statement would answer, without running it. Parameters may be left out; the types of those given count.
    async fn describe(&self, question: Question) -> Result<Described, SqlError>;
}
