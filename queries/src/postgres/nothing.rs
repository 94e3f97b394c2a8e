//! SELECTs over tables that never have rows, and what can be said of a query without planning it.
//!
//! A SELECT over nothing becomes one without rows before its expressions are planned, so that what they call need not exist.
//! Invariant: whatever is told "over nothing" has no row, and would give none. Cost: O(nodes of the statement).

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, GroupByExpr, Ident, JoinOperator, Query, Select, SelectItem, SetExpr, TableFactor, TableWithJoins, Visit,
    Visitor,
};

use super::{
    SCHEMA, fixed, information, is_table, names,
    rewrite::{flag, null, part},
};

/// Whether a query is one SELECT over a table that never has rows.
pub(super) fn never_has_rows(query: &Query) -> bool {
    match query.body.as_ref() {
        SetExpr::Select(select) => query.with.is_none() && is_over_nothing(select),
        _ => false,
    }
}

/// Whether a query reads from nothing but the search path, as Grafana does to find the schemas in it.
pub(super) fn is_search_path(query: &Query) -> bool {
    let SetExpr::Select(select) = query.body.as_ref() else { return false };
    let is_call = |factor: &TableFactor| match factor {
        TableFactor::Table { args, .. } => args.is_some(),
        TableFactor::Function { .. } | TableFactor::UNNEST { .. } => true,
        _ => false,
    };
    !select.from.is_empty()
        && select.from.iter().all(|from| is_call(&from.relation) && from.joins.is_empty())
        && query.to_string().contains("current_setting('search_path')")
}

/// The value that a sub-query looks up in the catalogue: a plain SELECT of one expression from its tables, which gives a row at most.
/// DataFusion wants to see that, as an aggregate.
pub(super) fn looked_up(query: &mut Query) -> Option<&mut Expr> {
    let is_plain = query.with.is_none()
        && query.limit_clause.is_none()
        && query.fetch.is_none()
        && query.order_by.is_none()
        && !never_has_rows(query);
    let SetExpr::Select(select) = query.body.as_mut() else { return None };
    let is_plain = is_plain && select.distinct.is_none() && select.having.is_none() && !is_grouped(select);
    let of_catalogue = |from: &TableWithJoins| {
        std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation)).all(is_catalogue)
    };
    if !is_plain || select.from.is_empty() || !select.from.iter().all(of_catalogue) {
        return None;
    }
    match select.projection.as_mut_slice() {
        [item] if is_aggregate(item) => None,
        [SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }] => Some(expr),
        _ => None,
    }
}

/// Whether a SELECT joins a table that never has rows in such a way that there can be no row, and would give none for none.
pub(super) fn is_over_nothing(select: &Select) -> bool {
    let plain = |item: &SelectItem| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
    select.from.iter().any(gives_nothing)
        && select.projection.iter().all(plain)
        && (is_grouped(select) || !select.projection.iter().any(is_aggregate))
        && select.having.is_none()
}

fn is_grouped(select: &Select) -> bool {
    match &select.group_by {
        GroupByExpr::Expressions(by, _) => !by.is_empty(),
        GroupByExpr::All(_) => true,
    }
}

fn gives_nothing(from: &TableWithJoins) -> bool {
    let keeps_left = |operator: &JoinOperator| {
        !matches!(
            operator,
            JoinOperator::Right(_)
                | JoinOperator::RightOuter(_)
                | JoinOperator::FullOuter(_)
                | JoinOperator::RightAnti(_)
        )
    };
    let needs_right = |operator: &JoinOperator| {
        matches!(operator, JoinOperator::Join(_) | JoinOperator::Inner(_) | JoinOperator::CrossJoin(_))
    };
    from.joins.iter().all(|join| keeps_left(&join.join_operator))
        && (is_empty_table(&from.relation)
            || from.joins.iter().any(|join| needs_right(&join.join_operator) && is_empty_table(&join.relation)))
}

/// The schema and the name of a table, unless it is a call of a function.
fn table_name(factor: &TableFactor) -> Option<(String, String)> {
    let TableFactor::Table { name, args: None, .. } = factor else { return None };
    let mut parts: Vec<String> = name.0.iter().map(part).collect();
    let name = parts.pop()?;
    let schema = parts.pop().unwrap_or_else(|| SCHEMA.to_string());
    Some((schema, name))
}

fn is_empty_table(factor: &TableFactor) -> bool {
    match factor {
        TableFactor::Derived { subquery, .. } => never_has_rows(subquery),
        _ => table_name(factor).is_some_and(|(schema, name)| match schema.as_str() {
            SCHEMA => fixed::is_empty(&name),
            information::SCHEMA => information::is_empty(&name),
            _ => false,
        }),
    }
}

fn is_catalogue(factor: &TableFactor) -> bool {
    table_name(factor).is_some_and(|(schema, name)| schema == SCHEMA && is_table(&name))
}

/// Whether an expression of the list may be an aggregate, which gives a row also for no rows. Those of its sub-queries do not count.
fn is_aggregate(item: &SelectItem) -> bool {
    const AGGREGATES: [&str; 12] = [
        "count",
        "sum",
        "min",
        "max",
        "avg",
        "array_agg",
        "string_agg",
        "bool_or",
        "bool_and",
        "every",
        "json_agg",
        "mode",
    ];
    struct Aggregates {
        depth: usize,
    }
    impl Visitor for Aggregates {
        type Break = ();
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.depth += 1;
            ControlFlow::Continue(())
        }
        fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.depth -= 1;
            ControlFlow::Continue(())
        }
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::Function(function)
                    if self.depth == 0
                        && function.name.0.last().is_some_and(|name| AGGREGATES.contains(&part(name).as_str())) =>
                {
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    Visit::visit(item, &mut Aggregates { depth: 0 }).is_break()
}

/// Makes a SELECT one of NULLs under its columns' names, without rows.
pub(super) fn empty(select: &mut Select) {
    for item in &mut select.projection {
        let name = match item {
            SelectItem::ExprWithAlias { alias, .. } => names::ident(alias),
            SelectItem::UnnamedExpr(expr) => names::name_of(expr),
            _ => continue,
        };
        *item = SelectItem::ExprWithAlias { expr: null(), alias: Ident::with_quote('"', name) };
    }
    names::number(select);
    select.from.clear();
    select.distinct = None;
    select.selection = Some(flag(false));
    select.group_by = GroupByExpr::Expressions(Vec::new(), Vec::new());
}
