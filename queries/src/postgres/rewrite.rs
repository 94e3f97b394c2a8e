//! Statements of PostgreSQL as DataFusion understands them.
//!
//! What is changed: names qualified with `pg_catalog`; types that only PostgreSQL has (`::regclass`, `::oid`, `::name`);
//! `OPERATOR(pg_catalog.~)` and `COLLATE`; `!~~`; lists written as texts (`'{a,b}'::text[]`); who asks (`current_user`); columns of one
//! name (`names`); AND and OR behind IS DISTINCT FROM (`precedence`); a look-up of one value in the catalogue by a sub-query; the
//! schemas of the search path; and a SELECT over a table that never has rows, which becomes one without rows and without what it would have computed for them.
//! Invariant: a statement that uses none of these is left as it is. Cost: O(nodes of the statement).

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Array, ArrayElemTypeDef, BinaryOperator, CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentList, FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, Select, SetExpr, TableFactor,
    UnaryOperator, Value, VisitMut, VisitorMut,
};

use super::{
    SCHEMA, fixed, is_table, names,
    nothing::{empty, is_over_nothing, is_search_path, looked_up, never_has_rows},
    precedence,
};

/// Changes the statement in place. `caller` is what `current_user` says.
pub(crate) fn rewrite(statement: &mut Statement, caller: &str) {
    match statement {
        Statement::Explain(explain) => rewrite(&mut explain.statement, caller),
        Statement::Statement(inner) => {
            let _ = VisitMut::visit(inner.as_mut(), &mut Postgres { caller });
        }
        _ => {}
    }
}

struct Postgres<'a> {
    caller: &'a str,
}

impl VisitorMut for Postgres<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        // What it was to be ordered by goes with its columns.
        if never_has_rows(query) {
            query.order_by = None;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        if is_over_nothing(select) {
            empty(select);
        } else {
            names::number(select);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &mut ObjectName) -> ControlFlow<()> {
        let parts: Vec<String> = relation.0.iter().map(part).collect();
        match parts.as_slice() {
            [name] if name.starts_with("pg_") && is_table(name) => {
                relation.0.insert(0, ObjectNamePart::Identifier(Ident::new(SCHEMA)));
            }
            // A table function, as in pg_catalog.generate_series(1, 3).
            [schema, name] if schema == SCHEMA && !is_table(name) => {
                relation.0.remove(0);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        // A function without arguments whose rows never change is a table.
        if let TableFactor::Table { name, args, .. } = factor
            && args.as_ref().is_some_and(|called| called.args.is_empty())
            && name.0.last().is_some_and(|name| part(name) == fixed::KEYWORDS)
        {
            *args = None;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Subquery(query) = expr
            && let Some(value) = looked_up(query)
        {
            *value = call("min", take(value));
        }
        let replaced = match expr {
            Expr::Subquery(query) if never_has_rows(query) => Some(null()),
            // ARRAY(SELECT …)
            Expr::Function(Function { args: FunctionArguments::Subquery(query), .. })
                if never_has_rows(query) || is_over_options(query) =>
            {
                Some(null_of(texts()))
            }
            Expr::Exists { subquery, negated } if never_has_rows(subquery) => Some(flag(*negated)),
            Expr::InSubquery { subquery, negated, .. } if never_has_rows(subquery) => Some(flag(*negated)),
            Expr::InSubquery { expr, subquery, negated } if is_search_path(subquery) => {
                Some(Expr::InList { expr: Box::new(take(expr)), list: vec![text("public")], negated: *negated })
            }
            _ => None,
        };
        if let Some(replaced) = replaced {
            *expr = replaced;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        precedence::lift(expr);
        match expr {
            Expr::Collate { expr: inner, .. } => *expr = take(inner),
            Expr::Cast { expr: inner, data_type, kind: CastKind::Cast | CastKind::DoubleColon, .. } => {
                if matches!(data_type, DataType::Array(_))
                    && let Some(list) = list(inner)
                {
                    **inner = list;
                }
                match target(data_type) {
                    Target::AsIs => {}
                    Target::Type(plain) => *data_type = plain,
                    Target::Call(name) => *expr = call(name, take(inner)),
                }
            }
            Expr::BinaryOp { left, op, right } => {
                if let BinaryOperator::PGCustomBinaryOperator(name) = op
                    && let Some(known) = operator(name)
                {
                    *op = known;
                }
                let negated = match op {
                    BinaryOperator::PGNotLikeMatch => BinaryOperator::PGLikeMatch,
                    BinaryOperator::PGNotILikeMatch => BinaryOperator::PGILikeMatch,
                    _ => return ControlFlow::Continue(()),
                };
                let like = Expr::BinaryOp { left: left.clone(), op: negated, right: right.clone() };
                *expr = Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(Expr::Nested(Box::new(like))) };
            }
            Expr::Function(function) => {
                let parts: Vec<String> = function.name.0.iter().map(part).collect();
                if let [schema, _] = parts.as_slice()
                    && schema == SCHEMA
                {
                    function.name.0.remove(0);
                }
                let is_word = matches!(function.args, FunctionArguments::None);
                if is_word && parts.last().is_some_and(|name| is_who(name)) {
                    *expr = text(self.caller);
                }
            }
            Expr::Identifier(name) if name.quote_style.is_none() => match name.value.to_ascii_lowercase().as_str() {
                "current_schema" => *expr = text("public"),
                word if is_who(word) => *expr = text(self.caller),
                _ => {}
            },
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn is_who(word: &str) -> bool {
    matches!(word, "current_user" | "session_user" | "user" | "current_role")
}

/// A part of a name as it is looked up.
pub(super) fn part(part: &ObjectNamePart) -> String {
    part.as_ident().map_or_else(|| part.to_string(), names::ident)
}

pub(super) fn take(expr: &mut Expr) -> Expr {
    std::mem::replace(expr, null())
}

pub(super) fn null() -> Expr {
    null_of(DataType::Varchar(None))
}

/// The type of lists of texts.
fn texts() -> DataType {
    DataType::Array(ArrayElemTypeDef::SquareBracket(Box::new(DataType::Varchar(None)), None))
}

fn null_of(data_type: DataType) -> Expr {
    let expr = Box::new(Expr::Value(Value::Null.into()));
    Expr::Cast { kind: CastKind::Cast, expr, data_type, array: false, format: None }
}

pub(super) fn flag(value: bool) -> Expr {
    Expr::Value(Value::Boolean(value).into())
}

fn text(value: &str) -> Expr {
    Expr::Value(Value::SingleQuotedString(value.to_string()).into())
}

fn call(name: &str, argument: Expr) -> Expr {
    let args = vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))];
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// A list that is written as a text, as in `'{a,"b c",NULL}'`. `None`: a text that is none, or an expression that is no text.
fn list(expr: &Expr) -> Option<Expr> {
    let Expr::Value(value) = expr else { return None };
    let Value::SingleQuotedString(written) = &value.value else { return None };
    let inner = written.trim().strip_prefix('{')?.strip_suffix('}')?;
    let (mut items, mut item, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut was_quoted = false;
    let mut end = |item: &mut String, was_quoted: &mut bool| {
        let word = std::mem::take(item);
        items.push(match std::mem::take(was_quoted) {
            true => text(&word),
            false if word.trim().eq_ignore_ascii_case("null") => null(),
            false => text(word.trim()),
        });
    };
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => item.extend(letters.next()),
            '"' => (is_quoted, was_quoted) = (!is_quoted, true),
            '{' if !is_quoted => return None,
            ',' if !is_quoted => end(&mut item, &mut was_quoted),
            letter => item.push(letter),
        }
    }
    if !inner.trim().is_empty() {
        end(&mut item, &mut was_quoted);
    }
    Some(Expr::Array(Array { elem: items, named: true }))
}

/// What a cast becomes.
enum Target {
    AsIs,
    Type(DataType),
    /// Numbers to names and names to numbers: a function of ours.
    Call(&'static str),
}

fn target(data_type: &DataType) -> Target {
    let name = match data_type {
        DataType::Regclass => return Target::Call("regclass"),
        DataType::JSON | DataType::JSONB => return Target::Type(DataType::Varchar(None)),
        DataType::Array(ArrayElemTypeDef::SquareBracket(item, size)) => {
            return match target(item) {
                Target::Type(plain) => {
                    Target::Type(DataType::Array(ArrayElemTypeDef::SquareBracket(Box::new(plain), *size)))
                }
                _ => Target::AsIs,
            };
        }
        DataType::Custom(name, _) => name,
        _ => return Target::AsIs,
    };
    let parts: Vec<String> = name.0.iter().map(part).collect();
    let name = match parts.as_slice() {
        [name] => name,
        [schema, name] if schema == SCHEMA || schema == "information_schema" => name,
        _ => return Target::AsIs,
    };
    match name.as_str() {
        "regclass" => Target::Call("regclass"),
        "regtype" => Target::Call("regtype"),
        "regnamespace" => Target::Call("regnamespace"),
        "regrole" => Target::Call("regrole"),
        "name" | "char" | "text" | "varchar" | "bpchar" | "cstring" | "regproc" | "regprocedure" | "json" | "jsonb"
        | "sql_identifier" | "character_data" | "yes_or_no" | "citext" | "xml" | "pg_node_tree" => {
            Target::Type(DataType::Varchar(None))
        }
        "oid" | "xid" | "cid" | "int8" | "cardinal_number" => Target::Type(DataType::BigInt(None)),
        "int4" => Target::Type(DataType::Integer(None)),
        "int2" => Target::Type(DataType::SmallInt(None)),
        "bool" => Target::Type(DataType::Boolean),
        "float8" => Target::Type(DataType::DoublePrecision),
        "float4" => Target::Type(DataType::Real),
        _ => Target::AsIs,
    }
}

/// `OPERATOR(pg_catalog.~)` and its like.
fn operator(name: &[String]) -> Option<BinaryOperator> {
    Some(match name.last()?.as_str() {
        "~" => BinaryOperator::PGRegexMatch,
        "~*" => BinaryOperator::PGRegexIMatch,
        "!~" => BinaryOperator::PGRegexNotMatch,
        "!~*" => BinaryOperator::PGRegexNotIMatch,
        "~~" => BinaryOperator::PGLikeMatch,
        "~~*" => BinaryOperator::PGILikeMatch,
        "!~~" => BinaryOperator::PGNotLikeMatch,
        "!~~*" => BinaryOperator::PGNotILikeMatch,
        "=" => BinaryOperator::Eq,
        "<>" => BinaryOperator::NotEq,
        "<" => BinaryOperator::Lt,
        "<=" => BinaryOperator::LtEq,
        ">" => BinaryOperator::Gt,
        ">=" => BinaryOperator::GtEq,
        "+" => BinaryOperator::Plus,
        "-" => BinaryOperator::Minus,
        "*" => BinaryOperator::Multiply,
        "/" => BinaryOperator::Divide,
        "||" => BinaryOperator::StringConcat,
        _ => return None,
    })
}

/// Whether a query reads from the options of a table, as in `unnest(c.reloptions)`: our tables have none.
fn is_over_options(query: &Query) -> bool {
    const OPTIONS: [&str; 4] = ["reloptions", "attoptions", "attfdwoptions", "srvoptions"];
    let SetExpr::Select(select) = query.body.as_ref() else { return false };
    let is_options = |expr: &Expr| {
        let name = match expr {
            Expr::Identifier(name) => Some(name),
            Expr::CompoundIdentifier(parts) => parts.last(),
            _ => None,
        };
        name.is_some_and(|name| OPTIONS.contains(&name.value.to_ascii_lowercase().as_str()))
    };
    let is_argument = |argument: &FunctionArg| matches!(argument, FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) if is_options(expr));
    select.from.iter().any(|from| match &from.relation {
        TableFactor::UNNEST { array_exprs, .. } => array_exprs.iter().any(is_options),
        TableFactor::Table { args: Some(called), .. } => called.args.iter().any(is_argument),
        TableFactor::Function { args, .. } => args.iter().any(is_argument),
        _ => false,
    })
}
