//! What is refused: before parsing (size, number of terms), after parsing (kinds of statement, number of tables); writes once more in the
//! plan, by the engine (SPEC E2; DESIGN §6).
//!
//! Only what costs much to plan is refused by its size: planning is quadratic in the number of terms, and deep chains overflow stacks.
//! What may run for long or fill memory outside the memory pool (joins without an equality, `repeat`) is not: outside SQL runs in a
//! process of its own, with an address space of its own, that is ended when a query does not stop.
//! Cost: O(length of the statement).

use std::{collections::HashSet, ops::ControlFlow};

use datafusion::sql::{
    parser::Statement,
    sqlparser::{
        ast::{self, visit_relations},
        dialect::GenericDialect,
        keywords::Keyword,
        tokenizer::{Token, Tokenizer},
    },
};

use crate::sql_error::SqlError;

/// Most operators and clauses of a statement. Planning 500 takes tens of milliseconds, 4000 took 18 s.
const TERMS_MAX: usize = 500;
/// Most tables named in a statement.
const TABLES_MAX: usize = 32;

/// Refuses a statement that is too long to be looked at.
pub(crate) fn check_length(sql: &str, bytes_max: usize) -> Result<(), SqlError> {
    if sql.len() <= bytes_max {
        return Ok(());
    }
    let bytes = sql.len();
    Err(SqlError::Refused(format!(
        "the statement has {bytes} bytes, at most {bytes_max} are allowed (sql.statement_bytes_max)"
    )))
}

/// Refuses a statement by its text.
pub(crate) fn check_text(sql: &str) -> Result<(), SqlError> {
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
            _ => Err(SqlError::ReadOnly),
        },
        _ => Err(SqlError::ReadOnly),
    }
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
/// Tables of `information_schema` and `pg_catalog` are left out.
pub(crate) fn tables_named(statement: &Statement) -> Vec<String> {
    let statement = match statement {
        Statement::Explain(explain) => return tables_named(&explain.statement),
        Statement::Statement(statement) => statement,
        _ => return Vec::new(),
    };
    let mut defined = HashSet::new();
    collect_definitions(statement, &mut defined);
    let mut named = Vec::new();
    let _ = visit_relations(statement.as_ref(), |name| {
        let parts: Vec<String> = name.0.iter().map(|part| part.to_string().trim_matches('"').to_lowercase()).collect();
        let hidden = parts.len() > 1 && ["information_schema", "pg_catalog"].contains(&parts[parts.len() - 2].as_str());
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
