//! Read-only SQL over one snapshot of all tables, with limits (SPEC E2).
//!
//! Invariants: a query sees one moment of all tables; nothing it does changes anything; its answer has at most `rows_max`
//! rows and text that is no view, whatever the plan makes (see `views`); it uses at most `memory_bytes / concurrent_max` bytes of operator state, so it never fails because of another.
//! Every query runs as its own task on the runtime given, which should serve nothing else (see [`query_runtime`]): an
//! operator that computes for long then holds up neither HTTP nor this module's time limit. One that has much to look at moves to a
//! second runtime once it is planned, if there is one ([`SqlEngine::with_heavy_on`]). A query that is past its time
//! keeps its place in `concurrent_max` until it has really stopped, so runaways cannot pile up.
//! At the bounds: more than `concurrent_max` queries wait, at most [`WAITING_PER_SLOT`] a slot and no longer than
//! `timeout`; beyond that [`SqlError::Busy`].
//! Cost: planning 0.5 to 2 ms a query, a copy of the session's function tables included.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arrow::{
    array::RecordBatch,
    datatypes::{DataType, SchemaRef},
    temporal_conversions::timestamp_us_to_datetime,
};
use async_trait::async_trait;
use datafusion::{
    common::{
        DataFusionError, ScalarValue,
        tree_node::{TreeNode, TreeNodeRecursion},
    },
    execution::{
        SessionState, SessionStateBuilder,
        context::{SQLOptions, SessionConfig, SessionContext},
        disk_manager::{DiskManagerBuilder, DiskManagerMode},
        runtime_env::RuntimeEnvBuilder,
    },
    logical_expr::{DescribeTable, Expr, ExprSchemable, LogicalPlan},
    physical_plan::{ExecutionPlan, execute_stream},
};
use futures::StreamExt;
use tokio::{runtime::Handle, task::JoinSet};

use crate::{
    answers::{Caller, Described, PARAMETERS_MAX, Question, SqlAnswers},
    catalog::{self, Moment, TableSource},
    effort::Effort,
    functions, guards,
    places::{Leave, Place, PlacedPool, Places},
    postgres, sql_error,
    sql_error::{LimitOf, SqlError},
    views,
};

pub use crate::places::WAITING_PER_SLOT;

/// Stack of a query thread. Deep expressions recurse while they are planned; see `guards`.
pub const STACK_BYTES: usize = 64 << 20;
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

impl SqlLimits {
    /// The longest that a caller's statement may run, and wait for each thing that it waits for.
    pub fn patience(&self, caller: &Caller) -> Duration {
        narrower(self.timeout, caller.timeout).0
    }

    /// Refuses a statement that is too long to be looked at.
    pub fn check_length(&self, sql: &str) -> Result<(), SqlError> {
        guards::check_length(sql, self.statement_bytes_max)
    }
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
    query_runtime_whose(threads, || ())
}

/// The same; each of its threads begins with `start`.
pub fn query_runtime_whose(
    threads: usize,
    start: impl Fn() + Send + Sync + 'static,
) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.max(1))
        .thread_name("sql")
        .on_thread_start(start)
        .thread_stack_size(STACK_BYTES)
        .enable_time()
        .build()
}

/// Answers SQL. Shared by reference; every query is independent.
pub struct SqlEngine {
    limits: SqlLimits,
    tables: TableSource,
    /// Functions and rules, without tables: a query adds those of its snapshot.
    base: SessionState,
    runtime: Handle,
    /// Where a query goes on that has much to look at.
    heavy: Handle,
    places: Places,
}

impl std::fmt::Debug for SqlEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlEngine").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl SqlEngine {
    /// An engine over `tables`, live or stored, whose queries run on `runtime`.
    pub fn new(limits: SqlLimits, tables: impl Into<TableSource>, runtime: Handle) -> SqlEngine {
        let mut config = SessionConfig::new()
            .with_target_partitions(2)
            // Dealing batches out in turns holds them back only when both takers have some: where one gets no time, its batches pile up
            // until the query has no memory left. Tables come in partitions of their own.
            .with_round_robin_repartition(false)
            // A query's catalogue brings its own.
            .with_information_schema(false)
            // A union of tables has another schema metadata before than after it is planned; columns are what counts.
            .set_bool("datafusion.execution.skip_physical_aggregate_schema_check", true)
            // Else `timestamptz` and `now()` would have no zone, unlike the times of our tables.
            .set_str("datafusion.execution.time_zone", "UTC")
            .with_default_catalog_and_schema(CATALOG, SCHEMA)
            .with_create_default_catalog_and_schema(false);
        config.options_mut().sql_parser.collect_spans = true;
        let context = SessionContext::new_with_config(config);
        postgres::functions().into_iter().for_each(|function| context.register_udf(function));
        let places = Places::new(limits.concurrent_max);
        SqlEngine { limits, tables: tables.into(), base: context.state(), heavy: runtime.clone(), runtime, places }
    }

    /// The engine with threads of their own for queries that have much to look at (`effort`), so that they can give way to those that
    /// do not.
    #[must_use]
    pub fn with_heavy_on(self, heavy: Handle) -> SqlEngine {
        SqlEngine { heavy, ..self }
    }

    pub fn limits(&self) -> &SqlLimits {
        &self.limits
    }

    /// Queries running now, those past their time that have not stopped included.
    pub fn running(&self) -> usize {
        self.places.running()
    }

    /// Numbers of the queries that nobody waits for any more and that have not stopped. A number is never used again.
    pub fn left(&self) -> Vec<u64> {
        self.places.left()
    }

    /// Answers one statement of nobody in particular; see [`SqlAnswers::answer`].
    pub async fn query(&self, sql: &str) -> Result<QueryResult, SqlError> {
        self.answer(Question::new(sql, Caller::new("local"))).await
    }

    /// Runs `work` for the question on the query runtime, within its time and among the places.
    async fn run<T, F>(
        &self,
        question: Question,
        work: impl FnOnce(Query, SessionState, Moment) -> F + Send,
    ) -> Result<T, SqlError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, SqlError>> + Send + 'static,
    {
        self.limits.check_length(&question.sql)?;
        if question.parameters.len() > PARAMETERS_MAX {
            let many = question.parameters.len();
            return Err(SqlError::Refused(format!("{many} parameters, at most {PARAMETERS_MAX} are allowed")));
        }
        let (caller, limits) = (question.caller, self.limits);
        let place = Arc::new(self.places.take(&caller, limits.timeout).await?);
        let share = limits.memory_bytes / limits.concurrent_max.max(1);
        let (timeout, of) = narrower(limits.timeout, caller.timeout);
        let leave = place.leave();
        let query = Query {
            sql: question.sql,
            caller: caller.name,
            parameters: question.parameters,
            rows_max: narrower(limits.rows_max, caller.rows_max),
            memory: narrower(share, caller.memory_bytes),
            place,
            heavy: self.heavy.clone(),
        };
        let moment = self.tables.moment(question.as_of)?;
        let task = self.runtime.spawn(work(query, self.base.clone(), moment));
        let stop = StopOnDrop(task.abort_handle(), leave);
        let answer = tokio::time::timeout(timeout, task).await;
        drop(stop);
        match answer {
            Err(_) => Err(SqlError::TimedOut { limit: timeout, of }),
            Ok(Err(ended)) => Err(SqlError::Execution(format!("the query's task ended early: {ended}"))),
            Ok(Ok(answer)) => answer,
        }
    }
}

/// The narrower of the engine's and the caller's own limit, and whose it is.
fn narrower<T: PartialOrd>(engine: T, own: Option<T>) -> (T, LimitOf) {
    match own {
        Some(own) if own < engine => (own, LimitOf::Key),
        _ => (engine, LimitOf::Server),
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

/// A client that goes away drops the caller's future, as does the end of its time; this ends the query too.
struct StopOnDrop(tokio::task::AbortHandle, Leave);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.1.now();
        self.0.abort();
    }
}

struct Query {
    sql: String,
    caller: String,
    parameters: Vec<ScalarValue>,
    rows_max: (usize, LimitOf),
    memory: (usize, LimitOf),
    place: Arc<Place>,
    heavy: Handle,
}

impl Query {
    /// The statement's plan, checked, its parameters still open.
    async fn plan(&self, state: &SessionState, moment: &Moment) -> Result<LogicalPlan, SqlError> {
        guards::check_text(&self.sql)?;
        let dialect = state.config().options().sql_parser.dialect;
        let statement = state.sql_to_statement(&self.sql, &dialect).map_err(parse_error)?;
        let mut statement = functions::expand(statement)?;
        guards::check_statement(&statement)?;
        postgres::rewrite(&mut statement, &self.caller);
        let named = guards::tables_named(&statement);
        let plan = state
            .statement_to_plan(statement)
            .await
            .map_err(|error| explain_unknown(self.classify(error), &named, moment))?;
        let questions_only = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        questions_only.verify_plan(&plan).map_err(|_| SqlError::ReadOnly)?;
        Ok(match plan {
            LogicalPlan::DescribeTable(DescribeTable { schema, output_schema }) => {
                LogicalPlan::DescribeTable(DescribeTable { schema: views::plain_schema(&schema), output_schema })
            }
            other => other,
        })
    }

    async fn describe(self, base: SessionState, moment: Moment) -> Result<Described, SqlError> {
        let state = self.session(base, &moment).map_err(|error| self.classify(error))?;
        let plan = self.plan(&state, &moment).await?;
        let types = parameter_types(&plan).map_err(|error| self.classify(error))?;
        let numbers = types.keys().filter_map(|name| name.strip_prefix('$')?.parse::<usize>().ok());
        let last = numbers.max().unwrap_or(0).min(PARAMETERS_MAX);
        let parameters =
            (1..=last).map(|number| types.get(&format!("${number}"))?.as_ref().map(views::plain_type)).collect();
        let plan = match self.parameters.is_empty() {
            true => plan,
            false => plan.with_param_values(self.parameters.clone()).map_err(|error| self.classify(error))?,
        };
        // With all values there, this is the plan that an answer has. Else types are made to fit each other as far as they are known.
        if plan.get_parameter_names().map_err(|error| self.classify(error))?.is_empty() {
            let plan = state.create_physical_plan(&plan).await.map_err(|error| self.classify(error))?;
            return Ok(Described { schema: views::plain_schema(&plan.schema()), parameters });
        }
        let fitted = state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {});
        let schema = fitted.as_ref().unwrap_or(&plan).schema().as_arrow().clone();
        Ok(Described { schema: views::plain_schema(&Arc::new(schema)), parameters })
    }

    async fn answer(self, base: SessionState, moment: Moment) -> Result<QueryResult, SqlError> {
        let classify = |error| self.classify(error);
        let state = self.session(base, &moment).map_err(classify)?;
        let plan = self.plan(&state, &moment).await?;
        let plan = plan.with_param_values(self.parameters.clone()).map_err(classify)?;
        let plan = state.create_physical_plan(&plan).await.map_err(classify)?;
        if Effort::of(&plan) == Effort::Light {
            return self.rows(plan, &state).await;
        }
        // Whoever drops this future drops the set, which ends the task.
        let mut elsewhere = JoinSet::new();
        let heavy = self.heavy.clone();
        elsewhere.spawn_on(async move { self.rows(plan, &state).await }, &heavy);
        match elsewhere.join_next().await {
            Some(Ok(answer)) => answer,
            Some(Err(ended)) => Err(SqlError::Execution(format!("the query's task ended early: {ended}"))),
            None => Err(SqlError::Execution("the query's task was not begun".into())),
        }
    }

    /// The plan's rows, within the limits.
    async fn rows(&self, plan: Arc<dyn ExecutionPlan>, state: &SessionState) -> Result<QueryResult, SqlError> {
        let classify = |error| self.classify(error);
        let schema = views::plain_schema(&plan.schema());
        let mut stream = execute_stream(plan, state.task_ctx()).map_err(classify)?;
        let ((rows_max, rows_of), (bytes_max, bytes_of)) = (self.rows_max, self.memory);
        let (mut batches, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while let Some(batch) = stream.next().await {
            let batch = batch.map_err(classify)?;
            rows += batch.num_rows();
            if rows > rows_max {
                return Err(SqlError::TooManyRows { limit: rows_max, of: rows_of });
            }
            let too_large = |bytes: usize| {
                let detail = format!("the answer alone has {bytes} bytes after {rows} rows");
                SqlError::OutOfMemory { limit_bytes: bytes_max, of: bytes_of, detail }
            };
            // Rows may share a long text until it is written out.
            let text_bytes = views::text_bytes(&batch);
            if text_bytes > bytes_max {
                return Err(too_large(text_bytes));
            }
            let batch = views::plain(batch).map_err(|error| classify(error.into()))?;
            bytes += batch.get_array_memory_size();
            // Slices of table chunks count whole chunks, so this bound is on the answer's own size in rows as well.
            if bytes > bytes_max && rows > 0 && own_bytes(&batches, &batch) > bytes_max {
                return Err(too_large(bytes));
            }
            if batch.num_rows() > 0 {
                batches.push(batch);
            }
        }
        Ok(QueryResult { schema, batches })
    }

    fn classify(&self, error: DataFusionError) -> SqlError {
        sql_error::classify(error, self.memory)
    }

    fn session(&self, base: SessionState, moment: &Moment) -> datafusion::error::Result<SessionState> {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(PlacedPool::new(self.memory.0, self.place.clone())))
            .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled))
            .build_arc()?;
        let state = SessionStateBuilder::new_from_existing(base)
            .with_runtime_env(runtime)
            .with_catalog_list(catalog::catalog_list(&moment.tables, CATALOG, SCHEMA)?)
            .build();
        // `state()` of a context also stamps the query's start, which `now()` answers.
        let mut state = SessionContext::new_with_state(state).state();
        if let Some(at) = moment.now.and_then(timestamp_us_to_datetime) {
            state.execution_props_mut().query_execution_start_time = Some(at.and_utc());
        }
        Ok(state)
    }
}

/// Bytes of the rows themselves, slices counted as their own rows only.
fn own_bytes(batches: &[RecordBatch], last: &RecordBatch) -> usize {
    let sliced = |batch: &RecordBatch| -> usize {
        batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum()
    };
    batches.iter().chain([last]).map(sliced).sum()
}

/// Types of `$1`, `$2` … by their names: those that the planner found, and those that a parameter is cast to.
fn parameter_types(plan: &LogicalPlan) -> datafusion::error::Result<HashMap<String, Option<DataType>>> {
    let mut types = plan.get_parameter_types()?;
    let mut casts = |expr: &Expr| {
        if let Expr::Cast(cast) = expr
            && let Expr::Placeholder(parameter) = cast.expr.as_ref()
            && let Some(unknown @ None) = types.get_mut(&parameter.id)
        {
            *unknown = Some(cast.field.data_type().clone());
        }
        Ok(TreeNodeRecursion::Continue)
    };
    plan.apply_with_subqueries(|plan| plan.apply_expressions(|expr| expr.apply(&mut casts)))?;
    plan.apply_with_subqueries(|plan| {
        told_by_place(plan, &mut types)?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(types)
}

/// Whatever fails before there is a statement is a matter of syntax.
fn parse_error(error: DataFusionError) -> SqlError {
    match sql_error::classify(error, (0, LimitOf::Server)) {
        SqlError::Plan(words) | SqlError::Execution(words) => SqlError::Parse(words),
        other => other,
    }
}

/// If planning failed and a table is named that does not exist, that is the reason worth telling.
fn explain_unknown(error: SqlError, named: &[String], moment: &Moment) -> SqlError {
    let known: Vec<&str> = moment.tables.iter().map(|(name, _)| *name).collect();
    match (&error, named.iter().find(|name| !known.contains(&name.as_str()))) {
        (SqlError::Plan(words), Some(missing)) if words.contains("not found") && words.contains(missing.as_str()) => {
            sql_error::unknown_table(missing, &known)
        }
        _ => error,
    }
}

/// Types of parameters that stand where only one type can: numbers of rows, and lists that a value is looked for in.
fn told_by_place(plan: &LogicalPlan, types: &mut HashMap<String, Option<DataType>>) -> datafusion::error::Result<()> {
    if let LogicalPlan::Limit(limit) = plan {
        for rows in [&limit.skip, &limit.fetch].into_iter().flatten() {
            if let Expr::Placeholder(parameter) = rows.as_ref() {
                types.insert(parameter.id.clone(), Some(DataType::Int64));
            }
        }
    }
    let mut lists = |expr: &Expr| {
        if let Expr::ScalarFunction(call) = expr
            && call.name() == "array_has"
            && let [Expr::Placeholder(parameter), value] = call.args.as_slice()
        {
            let kind = plan.inputs().first().and_then(|input| value.get_type(input.schema()).ok());
            if let Some(kind) = kind {
                types.insert(parameter.id.clone(), Some(DataType::new_list(kind, true)));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    };
    plan.apply_expressions(|expr| expr.apply(&mut lists))?;
    Ok(())
}
