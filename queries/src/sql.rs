//! Read-only SQL over one snapshot of all tables, with limits (SPEC E2).
//!
//! Invariants: a query sees one moment of all tables; nothing it does changes anything; its answer has at most `rows_max`
//! rows; it uses at most `memory_bytes / concurrent_max` bytes of operator state, so it never fails because of another.
//! Every query runs as its own task on the runtime given, which should serve nothing else (see [`query_runtime`]): an
//! operator that computes for long then holds up neither HTTP nor this module's time limit. A query that is past its time
//! keeps its place in `concurrent_max` until it has really stopped, so runaways cannot pile up.
//! At the bounds: more than `concurrent_max` queries wait, at most [`WAITING_PER_SLOT`] a slot and no longer than
//! `timeout`; beyond that [`SqlError::Busy`].
//! Cost: planning 0.5 to 2 ms a query, a copy of the session's function tables included.

use std::{sync::Arc, time::Duration};

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use async_trait::async_trait;
use datafusion::{
    common::{DataFusionError, ScalarValue},
    execution::{
        SessionState, SessionStateBuilder,
        context::{SQLOptions, SessionConfig, SessionContext},
        disk_manager::{DiskManagerBuilder, DiskManagerMode},
        memory_pool::GreedyMemoryPool,
        runtime_env::RuntimeEnvBuilder,
    },
    logical_expr::LogicalPlan,
    physical_plan::execute_stream,
};
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    answers::{Caller, Described, PARAMETERS_MAX, Question, SqlAnswers},
    catalog, guards,
    live_table::{LiveTables, TablesSnapshot},
    sql_error,
    sql_error::SqlError,
};

/// Queries that may wait for each one that may run.
pub const WAITING_PER_SLOT: usize = 8;
/// Stack of a query thread. Deep expressions recurse while they are planned; see `guards`.
const STACK_BYTES: usize = 64 << 20;
const CATALOG: &str = "evenkeel";
const SCHEMA: &str = "public";

/// Bounds of a [`SqlEngine`].
#[derive(Debug, Clone, Copy)]
pub struct SqlLimits {
    /// Longest wait for a place, and longest run.
    pub timeout: Duration,
    /// Operator state of all running queries together; each gets its share.
    pub memory_bytes: usize,
    /// Rows of one answer.
    pub rows_max: usize,
    /// Length of a statement.
    pub statement_bytes_max: usize,
    /// Queries that run at once; at least 1.
    pub concurrent_max: usize,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct QueryResult {
    pub schema: SchemaRef,
    pub batches: Vec<RecordBatch>,
}

impl QueryResult {
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }
}

/// A runtime for queries alone, with `threads` threads whose stacks stand deep plans.
pub fn query_runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.max(1))
        .thread_name("sql")
        .thread_stack_size(STACK_BYTES)
        .enable_time()
        .build()
}

/// Answers SQL. Shared by reference; every query is independent.
pub struct SqlEngine {
    limits: SqlLimits,
    tables: Arc<LiveTables>,
    /// Functions and rules, without tables: a query adds those of its snapshot.
    base: SessionState,
    runtime: tokio::runtime::Handle,
    running: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl std::fmt::Debug for SqlEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlEngine").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl SqlEngine {
    /// An engine over `tables` whose queries run on `runtime`.
    pub fn new(limits: SqlLimits, tables: Arc<LiveTables>, runtime: tokio::runtime::Handle) -> SqlEngine {
        let config = SessionConfig::new()
            .with_target_partitions(2)
            .with_information_schema(true)
            .with_default_catalog_and_schema(CATALOG, SCHEMA)
            .with_create_default_catalog_and_schema(false);
        let context = SessionContext::new_with_config(config);
        guards::remove_functions(&context);
        let concurrent = limits.concurrent_max.max(1);
        SqlEngine {
            limits,
            tables,
            base: context.state(),
            runtime,
            running: Arc::new(Semaphore::new(concurrent)),
            waiting: Arc::new(Semaphore::new(concurrent * WAITING_PER_SLOT)),
        }
    }

    pub fn limits(&self) -> &SqlLimits {
        &self.limits
    }

    /// Queries running now, those past their time that have not stopped included.
    pub fn running(&self) -> usize {
        self.limits.concurrent_max.max(1) - self.running.available_permits()
    }

    /// Answers one statement of nobody in particular; see [`SqlAnswers::answer`].
    pub async fn query(&self, sql: &str) -> Result<QueryResult, SqlError> {
        self.answer(Question::new(sql, Caller::new("local"))).await
    }

    /// Runs `work` for the question on the query runtime, within its time and among the places.
    async fn run<T, F>(
        &self,
        question: Question,
        work: impl FnOnce(Query, SessionState, TablesSnapshot) -> F + Send,
    ) -> Result<T, SqlError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, SqlError>> + Send + 'static,
    {
        if question.sql.len() > self.limits.statement_bytes_max {
            guards::check_text(&question.sql, self.limits.statement_bytes_max)?;
        }
        if question.parameters.len() > PARAMETERS_MAX {
            let many = question.parameters.len();
            return Err(SqlError::Refused(format!("{many} parameters, at most {PARAMETERS_MAX} are allowed")));
        }
        let place = self.place().await?;
        let share = self.limits.memory_bytes / self.limits.concurrent_max.max(1);
        let (caller, limits) = (question.caller, self.limits);
        let timeout = caller.timeout.map_or(limits.timeout, |own| own.min(limits.timeout));
        let query = Query {
            sql: question.sql,
            parameters: question.parameters,
            statement_bytes_max: limits.statement_bytes_max,
            rows_max: caller.rows_max.map_or(limits.rows_max, |own| own.min(limits.rows_max)),
            memory_bytes: caller.memory_bytes.map_or(share, |own| own.min(share)),
            place,
        };
        let task = self.runtime.spawn(work(query, self.base.clone(), self.tables.snapshot()));
        let abort = AbortOnDrop(task.abort_handle());
        let answer = tokio::time::timeout(timeout, task).await;
        drop(abort);
        match answer {
            Err(_) => Err(SqlError::TimedOut { limit: timeout }),
            Ok(Err(ended)) => Err(SqlError::Execution(format!("the query's task ended early: {ended}"))),
            Ok(Ok(answer)) => answer,
        }
    }

    /// A place among the running queries, after a bounded wait in a bounded queue.
    async fn place(&self) -> Result<OwnedSemaphorePermit, SqlError> {
        if let Ok(place) = self.running.clone().try_acquire_owned() {
            return Ok(place);
        }
        let most = self.limits.concurrent_max.max(1) * WAITING_PER_SLOT;
        let busy = || SqlError::Busy { running: self.running(), waiting: most - self.waiting.available_permits() };
        let _waiting = self.waiting.try_acquire().map_err(|_| busy())?;
        match tokio::time::timeout(self.limits.timeout, self.running.clone().acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => Err(busy()),
        }
    }
}

#[async_trait]
impl SqlAnswers for SqlEngine {
    /// Over the tables as they are when the question gets its place. Errors: every kind of [`SqlError`].
    async fn answer(&self, question: Question) -> Result<QueryResult, SqlError> {
        self.run(question, Query::answer).await
    }

    async fn describe(&self, question: Question) -> Result<Described, SqlError> {
        self.run(question, Query::describe).await
    }
}

/// A client that goes away drops the caller's future; this ends the query too.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Query {
    sql: String,
    parameters: Vec<ScalarValue>,
    statement_bytes_max: usize,
    rows_max: usize,
    memory_bytes: usize,
    /// Given back when the task is over, also after an abort.
    place: OwnedSemaphorePermit,
}

impl Query {
    /// The statement's plan, checked, its parameters still open.
    async fn plan(&self, state: &SessionState) -> Result<LogicalPlan, SqlError> {
        guards::check_text(&self.sql, self.statement_bytes_max)?;
        let dialect = state.config().options().sql_parser.dialect;
        let statement = state.sql_to_statement(&self.sql, &dialect).map_err(parse_error)?;
        guards::check_statement(&statement)?;
        let named = guards::tables_named(&statement);
        let plan =
            state.statement_to_plan(statement).await.map_err(|error| explain_unknown(self.classify(error), &named))?;
        let questions_only = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        questions_only.verify_plan(&plan).map_err(|_| guards::read_only())?;
        Ok(plan)
    }

    async fn describe(self, base: SessionState, snapshot: TablesSnapshot) -> Result<Described, SqlError> {
        let state = self.session(base, &snapshot).map_err(|error| self.classify(error))?;
        let plan = self.plan(&state).await?;
        let types = plan.get_parameter_types().map_err(|error| self.classify(error))?;
        let numbers = types.keys().filter_map(|name| name.strip_prefix('$')?.parse::<usize>().ok());
        let last = numbers.max().unwrap_or(0).min(PARAMETERS_MAX);
        let parameters = (1..=last).map(|number| types.get(&format!("${number}")).cloned().flatten()).collect();
        Ok(Described { schema: Arc::new(plan.schema().as_arrow().clone()), parameters })
    }

    async fn answer(self, base: SessionState, snapshot: TablesSnapshot) -> Result<QueryResult, SqlError> {
        let classify = |error| self.classify(error);
        let state = self.session(base, &snapshot).map_err(classify)?;
        let plan = self.plan(&state).await?;
        let plan = plan.with_param_values(self.parameters.clone()).map_err(classify)?;
        let plan = state.create_physical_plan(&plan).await.map_err(classify)?;
        guards::check_joins(&plan)?;
        let schema = plan.schema();
        let mut stream = execute_stream(plan, state.task_ctx()).map_err(classify)?;
        let (mut batches, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while let Some(batch) = stream.next().await {
            let batch = batch.map_err(classify)?;
            rows += batch.num_rows();
            bytes += batch.get_array_memory_size();
            if rows > self.rows_max {
                return Err(SqlError::TooManyRows { limit: self.rows_max });
            }
            // Slices of table chunks count whole chunks, so this bound is on the answer's own size in rows as well.
            if bytes > self.memory_bytes && rows > 0 && own_bytes(&batches, &batch) > self.memory_bytes {
                let detail = format!("the answer alone has {bytes} bytes after {rows} rows");
                return Err(SqlError::OutOfMemory { limit_bytes: self.memory_bytes, detail });
            }
            if batch.num_rows() > 0 {
                batches.push(batch);
            }
        }
        drop(self.place);
        Ok(QueryResult { schema, batches })
    }

    fn classify(&self, error: DataFusionError) -> SqlError {
        sql_error::classify(error, self.memory_bytes)
    }

    fn session(&self, base: SessionState, snapshot: &TablesSnapshot) -> datafusion::error::Result<SessionState> {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(GreedyMemoryPool::new(self.memory_bytes)))
            .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled))
            .build_arc()?;
        let state = SessionStateBuilder::new_from_existing(base)
            .with_runtime_env(runtime)
            .with_catalog_list(catalog::catalog_list(snapshot, CATALOG, SCHEMA)?)
            .build();
        // `state()` of a context also stamps the query's start, which `now()` answers.
        Ok(SessionContext::new_with_state(state).state())
    }
}

/// Bytes of the rows themselves, slices counted as their own rows only.
fn own_bytes(batches: &[RecordBatch], last: &RecordBatch) -> usize {
    let sliced = |batch: &RecordBatch| -> usize {
        batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum()
    };
    batches.iter().chain([last]).map(sliced).sum()
}

/// Whatever fails before there is a statement is a matter of syntax.
fn parse_error(error: DataFusionError) -> SqlError {
    match sql_error::classify(error, 0) {
        SqlError::Plan(words) | SqlError::Execution(words) => SqlError::Parse(words),
        other => other,
    }
}

/// If planning failed and a table is named that does not exist, that is the reason worth telling.
fn explain_unknown(error: SqlError, named: &[String]) -> SqlError {
    let known: Vec<&str> = catalog::names().collect();
    match (&error, named.iter().find(|name| !known.contains(&name.as_str()))) {
        (SqlError::Plan(words), Some(missing)) if words.contains("not found") && words.contains(missing.as_str()) => {
            sql_error::unknown_table(missing, &known)
        }
        _ => error,
    }
}
