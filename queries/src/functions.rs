//! Table functions of the fleet in `FROM`: `mrc('tier', 'High')`, `funnel(15)`, `explain('req-…')` (SPEC E2, C5, X3, X4).
//!
//! Each is a file `sql/functions/<name>.sql` with parameters. A call is replaced by the file's statement, with the arguments as
//! literals, before the statement is checked and planned: so a function is bound by every guard, and DataFusion optimises
//! through it. Arguments go by place or by name (`minutes => 15`); those not given have their defaults.
//! Bound: [`CALLS_MAX`] calls in a statement.

use std::ops::ControlFlow;

use datafusion::sql::{
    parser::{DFParser, Statement},
    sqlparser::ast::{
        self, Expr, FunctionArg, FunctionArgExpr, FunctionArgOperator, Ident, TableAlias, TableFactor, UnaryOperator,
        Value, VisitMut, VisitorMut,
    },
};

use crate::{
    saved::{self, SavedQuery, Values},
    sql_error::SqlError,
};

/// Most calls of table functions in a statement.
const CALLS_MAX: usize = 8;

/// The statement with every call replaced by what it stands for.
pub(crate) fn expand(statement: Statement) -> Result<Statement, SqlError> {
    match statement {
        Statement::Explain(mut explain) => {
            explain.statement = Box::new(expand(*explain.statement)?);
            Ok(Statement::Explain(explain))
        }
        Statement::Statement(mut inner) => {
            let mut calls = Calls { left: CALLS_MAX };
            match VisitMut::visit(inner.as_mut(), &mut calls) {
                ControlFlow::Break(error) => Err(error),
                ControlFlow::Continue(()) => Ok(Statement::Statement(inner)),
            }
        }
        other => Ok(other),
    }
}

struct Calls {
    left: usize,
}

impl VisitorMut for Calls {
    type Break = SqlError;

    // After the children: what a call is replaced by holds no calls.
    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<SqlError> {
        match self.replacement(factor) {
            Ok(Some(replacement)) => *factor = replacement,
            Ok(None) => {}
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

impl Calls {
    fn replacement(&mut self, factor: &TableFactor) -> Result<Option<TableFactor>, SqlError> {
        let TableFactor::Table { name, alias, args: Some(args), .. } = factor else { return Ok(None) };
        let called = name.to_string().to_lowercase();
        let Some(function) = saved::functions().iter().find(|function| function.name == called) else {
            return Ok(None);
        };
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| SqlError::Refused(format!("the statement calls more than {CALLS_MAX} table functions")))?;
        let text = function.render(&values(function, &args.args)?)?;
        let named = || TableAlias { explicit: true, name: Ident::new(called.as_str()), columns: Vec::new(), at: None };
        Ok(Some(TableFactor::Derived {
            lateral: false,
            subquery: Box::new(query(&text)?),
            alias: Some(alias.clone().unwrap_or_else(named)),
            sample: None,
        }))
    }
}

/// The file's statement as a query.
fn query(text: &str) -> Result<ast::Query, SqlError> {
    let mut statements = DFParser::parse_sql(text).map_err(|error| SqlError::Plan(error.to_string()))?;
    match statements.pop_front() {
        Some(Statement::Statement(inner)) => match *inner {
            ast::Statement::Query(query) => Ok(*query),
            _ => Err(SqlError::Plan("a table function stands for a query".to_string())),
        },
        _ => Err(SqlError::Plan("a table function stands for a query".to_string())),
    }
}

/// The arguments of a call under the names of the parameters.
fn values(function: &SavedQuery, args: &[FunctionArg]) -> Result<Values, SqlError> {
    let usage = || {
        let list: Vec<_> = function
            .parameters
            .iter()
            .map(|p| format!("{} => {}", p.name, p.default.as_deref().unwrap_or("NULL")))
            .collect();
        format!("{}({})", function.name, list.join(", "))
    };
    let mut values = Values::new();
    for (at, arg) in args.iter().enumerate() {
        let (name, value) = match arg {
            FunctionArg::Unnamed(value) => {
                let parameter = function.parameters.get(at).ok_or_else(|| {
                    let most = function.parameters.len();
                    SqlError::Plan(format!("{} takes at most {most} arguments: {}", function.name, usage()))
                })?;
                (parameter.name.clone(), value)
            }
            FunctionArg::Named { name, arg, operator: FunctionArgOperator::RightArrow } => {
                (name.value.to_lowercase(), arg)
            }
            FunctionArg::ExprNamed { name: Expr::Identifier(name), arg, operator: FunctionArgOperator::RightArrow } => {
                (name.value.to_lowercase(), arg)
            }
            other => return Err(SqlError::Plan(format!("{other}: expected arguments as in {}", usage()))),
        };
        match literal(value) {
            Some(Some(text)) => {
                values.insert(name, text);
            }
            // NULL is the default.
            Some(None) => {}
            None => {
                return Err(SqlError::Plan(format!(
                    "{value}: arguments of {} are literals, as in {}",
                    function.name,
                    usage()
                )));
            }
        }
    }
    Ok(values)
}

/// A literal's text; `Some(None)` for NULL, `None` for anything that is no literal.
fn literal(arg: &FunctionArgExpr) -> Option<Option<String>> {
    let FunctionArgExpr::Expr(expr) = arg else { return None };
    match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(Some(text.clone())),
            Value::Number(digits, _) => Some(Some(digits.to_string())),
            Value::Null => Some(None),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
            match literal(&FunctionArgExpr::Expr(expr.as_ref().clone())) {
                Some(Some(digits)) => Some(Some(format!("-{digits}"))),
                _ => None,
            }
        }
        _ => None,
    }
}
