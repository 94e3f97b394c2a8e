//! What is refused: before parsing (size, number of terms), after parsing (kinds of statement, number of tables), after
//! planning (joins that cannot be stopped), and functions that are taken away (SPEC E2; DESIGN §6).
//!
//! Why: a running operator is stopped only at its next pause, so a nested-loop join over large tables would hold its
//! thread for minutes; planning is quadratic in the number of terms, and deep chains overflow stacks; scalar functions
//! build strings and lists outside the memory pool. This bounds one statement's harm; what remains (nested `concat` over
//! sub-selects, skewed hash joins) is bounded by the query's own process or, in `serve`, by who may ask.
//! Cost: O(length of the statement) and O(nodes of the plan).

use std::{collections::HashSet, ops::ControlFlow, sync::Arc};

use datafusion::{
    common::stats::Precision,
    physical_plan::{
        ExecutionPlan,
        statistics::{StatisticsArgs, StatisticsContext},
    },
    prelude::SessionContext,
    sql::{
        parser::Statement,
        sqlparser::{
            ast::{self, visit_relations},
            dialect::GenericDialect,
            keywords::Keyword,
            tokenizer::{Token, Tokenizer},
        },
    },
};

use crate::sql_error::SqlError;

/// Most operators and clauses of a statement. Planning 500 takes tens of milliseconds, 4000 took 18 s.
const TERMS_MAX: usize = 500;
/// Most tables named in a statement.
const TABLES_MAX: usize = 32;
/// Most pairs of rows that a join without an equality may look at.
const PAIRS_MAX: usize = 10_000_000;

/// Functions whose result grows without bound from short arguments, outside the memory pool.
const FUNCTIONS_REMOVED: [&str; 9] =
    ["repeat", "lpad", "rpad", "replace", "regexp_replace", "array_repeat", "array_resize", "range", "generate_series"];

/// Takes the functions away that could fill memory.
pub(crate) fn remove_functions(context: &SessionContext) {
    for name in FUNCTIONS_REMOVED {
        context.deregister_udf(name);
    }
}

/// Refuses a statement by its text.
pub(crate) fn check_text(sql: &str, bytes_max: usize) -> Result<(), SqlError> {
    if sql.len() > bytes_max {
        let bytes = sql.len();
        return Err(SqlError::Refused(format!(
            "the statement has {bytes} bytes, at most {bytes_max} are allowed (sql.statement_bytes_max)"
        )));
    }
    let tokens =
        Tokenizer::new(&GenericDialect {}, sql).tokenize().map_err(|error| SqlError::Parse(error.to_string()))?;
    let terms = tokens.iter().filter(|token| is_term(token)).count();
    if terms > TERMS_MAX {
        return Err(SqlError::Refused(format!(
            "the statement has {terms} operators and clauses, at most {TERMS_MAX} are allowed; use IN (…) for lists"
        )));
    }
    Ok(())
}

/// Tokens that make a plan larger or deeper. Lists of literals are not among them.
fn is_term(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::AND
                | Keyword::OR
                | Keyword::NOT
                | Keyword::UNION
                | Keyword::INTERSECT
                | Keyword::EXCEPT
                | Keyword::JOIN
                | Keyword::CASE
                | Keyword::WHEN
                | Keyword::SELECT
                | Keyword::IS
                | Keyword::LIKE
                | Keyword::BETWEEN
        ),
        Token::EOF
        | Token::Comma
        | Token::Period
        | Token::SemiColon
        | Token::LParen
        | Token::RParen
        | Token::Whitespace(_)
        | Token::Number(..)
        | Token::SingleQuotedString(_)
        | Token::DoubleQuotedString(_) => false,
        _ => true,
    }
}

/// Refuses everything but questions, and questions over too many tables. The plan is checked again for hidden writes.
pub(crate) fn check_statement(statement: &Statement) -> Result<(), SqlError> {
    match statement {
        Statement::Explain(explain) => check_statement(&explain.statement),
        Statement::Statement(inner) => match inner.as_ref() {
            ast::Statement::Query(_)
            | ast::Statement::Explain { .. }
            | ast::Statement::ExplainTable { .. }
            | ast::Statement::ShowTables { .. }
            | ast::Statement::ShowColumns { .. }
            | ast::Statement::ShowFunctions { .. }
            | ast::Statement::ShowVariable { .. } => check_tables(inner),
            _ => Err(read_only()),
        },
        _ => Err(read_only()),
    }
}

pub(crate) fn read_only() -> SqlError {
    SqlError::Refused("this endpoint is read-only: SELECT, EXPLAIN, DESCRIBE and SHOW are allowed".to_string())
}

fn check_tables(statement: &ast::Statement) -> Result<(), SqlError> {
    let mut tables = 0;
    let _ = visit_relations(statement, |_| {
        tables += 1;
        ControlFlow::<()>::Continue(())
    });
    if tables > TABLES_MAX {
        return Err(SqlError::Refused(format!(
            "the statement names {tables} tables, at most {TABLES_MAX} are allowed"
        )));
    }
    Ok(())
}

/// Tables that a statement names without a definition of its own, lower case, without catalog and schema.
/// Tables of `information_schema` are left out.
pub(crate) fn tables_named(statement: &Statement) -> Vec<String> {
    let Statement::Statement(statement) = statement else { return Vec::new() };
    let mut defined = HashSet::new();
    collect_definitions(statement, &mut defined);
    let mut named = Vec::new();
    let _ = visit_relations(statement.as_ref(), |name| {
        let parts: Vec<String> = name.0.iter().map(|part| part.to_string().trim_matches('"').to_lowercase()).collect();
        let hidden = parts.len() > 1 && parts[parts.len() - 2] == "information_schema";
        if let Some(last) = parts.last().filter(|last| !hidden && !defined.contains(*last)) {
            named.push(last.clone());
        }
        ControlFlow::<()>::Continue(())
    });
    named
}

/// Names of the statement's common table expressions, at any depth.
fn collect_definitions(statement: &ast::Statement, defined: &mut HashSet<String>) {
    struct Definitions<'a>(&'a mut HashSet<String>);
    impl ast::Visitor for Definitions<'_> {
        type Break = ();
        fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<()> {
            for table in query.with.iter().flat_map(|with| &with.cte_tables) {
                self.0.insert(table.alias.name.value.to_lowercase());
            }
            ControlFlow::Continue(())
        }
    }
    let _ = ast::Visit::visit(statement, &mut Definitions(defined));
}

/// Refuses joins without an equality unless both sides are known to be small: aborting does not stop them.
pub(crate) fn check_joins(plan: &Arc<dyn ExecutionPlan>) -> Result<(), SqlError> {
    let quadratic = matches!(plan.name(), "NestedLoopJoinExec" | "CrossJoinExec" | "PiecewiseMergeJoinExec");
    if quadratic {
        let pairs =
            plan.children().iter().try_fold(1usize, |pairs, side| Some(pairs.saturating_mul(rows_at_most(side)?)));
        if pairs.is_none_or(|pairs| pairs > PAIRS_MAX) {
            return Err(SqlError::Refused(format!(
                "a join without an equality compares every row with every row, and here that may be more than {PAIRS_MAX} \
                 pairs; join ON an equality, or aggregate both sides first"
            )));
        }
    }
    plan.children().into_iter().try_for_each(check_joins)
}

/// Upper bound of a plan's rows if one is known. Only operators are followed that never have more rows than their input.
fn rows_at_most(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    match (plan.name(), statistics.num_rows) {
        (_, Precision::Exact(rows)) => Some(rows),
        ("DataSourceExec" | "UnionExec" | "GlobalLimitExec" | "LocalLimitExec", rows) => rows.get_value().copied(),
        (
            "FilterExec"
            | "AggregateExec"
            | "SortExec"
            | "ProjectionExec"
            | "CoalescePartitionsExec"
            | "CoalesceBatchesExec"
            | "CooperativeExec"
            | "RepartitionExec"
            | "SortPreservingMergeExec"
            | "BoundedWindowAggExec"
            | "WindowAggExec",
            _,
        ) => {
            // An aggregate over no rows still gives one.
            plan.children().into_iter().next().and_then(rows_at_most).map(|rows| rows.max(1))
        }
        _ => None,
    }
}
