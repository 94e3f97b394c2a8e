//! Names of the columns of an answer.
//!
//! PostgreSQL lets a name come twice (`SELECT oid, * FROM pg_class`, which tools send), DataFusion does not: the second gets a number
//! here (`oid:2`), and PostgreSQL's door takes it off again ([`shown`]). Expressions without an alias have names of their own in
//! PostgreSQL (`count`, `?column?`), which its door gives them ([`of_statement`]).
//!
//! Without knowing what a wildcard stands for: a column of `t` beside `t.*` comes twice for certain.
//! Cost: O(columns of the list), squared for columns of the same name.

use datafusion::sql::sqlparser::{
    ast::{
        Expr, Ident, ObjectName, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Statement,
        TableWithJoins, Value,
    },
    dialect::PostgreSqlDialect,
    parser::Parser,
};

use super::{rewrite::part, types};

/// Between a name and which of its columns it is.
const MARK: char = ':';
/// What PostgreSQL calls a column that has no name.
const NAMELESS: &str = "?column?";

/// A name as PostgreSQL shows it, beside all names of the answer.
pub fn shown<'a>(name: &'a str, mut all: impl Iterator<Item = &'a str>) -> &'a str {
    match name.rsplit_once(MARK) {
        Some((plain, number)) if number.parse::<usize>().is_ok() && all.any(|other| other == plain) => plain,
        _ => name,
    }
}

/// PostgreSQL's names of the expressions of a statement that have no alias, `None` for what keeps its name; a wildcard stands for as many
/// columns as the answer has beyond the others. Nothing for what is no plain SELECT.
pub fn of_statement(sql: &str, columns: usize) -> Vec<Option<String>> {
    let parsed = Parser::parse_sql(&PostgreSqlDialect {}, sql).unwrap_or_default();
    let [Statement::Query(query)] = parsed.as_slice() else { return Vec::new() };
    let SetExpr::Select(select) = query.body.as_ref() else { return Vec::new() };
    let is_star = |item: &&SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
    let stars = select.projection.iter().filter(is_star).count();
    let Some(beyond) = (columns + stars).checked_sub(select.projection.len()) else { return Vec::new() };
    // Several wildcards share the columns in a way that is not known here.
    if stars > 1 || (stars == 0 && beyond > 0) {
        return Vec::new();
    }
    let mut names = Vec::with_capacity(columns);
    for item in &select.projection {
        match item {
            SelectItem::UnnamedExpr(Expr::Identifier(_) | Expr::CompoundIdentifier(_)) => names.push(None),
            SelectItem::UnnamedExpr(expr) => names.push(Some(name_of(expr))),
            SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => names.extend(vec![None; beyond]),
            _ => names.push(None),
        }
    }
    names
}

/// Gives the columns of a list that would have the same name a number each.
pub(super) fn number(select: &mut Select) {
    let stars = Stars::of(select);
    let mut taken: Vec<(String, String)> = Vec::new();
    for item in &mut select.projection {
        let (key, name) = match &*item {
            SelectItem::UnnamedExpr(expr) => (expr.to_string(), name_of(expr)),
            SelectItem::ExprWithAlias { alias, .. } => (ident(alias), ident(alias)),
            _ => continue,
        };
        let is_in_star = matches!(&*item, SelectItem::UnnamedExpr(expr) if stars.have(expr));
        let is_taken = taken.iter().any(|(known, _)| *known == key);
        if is_in_star || is_taken {
            let same = taken.iter().filter(|(_, known)| *known == name).count() + usize::from(is_in_star);
            let alias = Ident::with_quote('"', format!("{name}{MARK}{}", same + 1));
            let expr = match &mut *item {
                SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => super::rewrite::take(expr),
                _ => continue,
            };
            *item = SelectItem::ExprWithAlias { expr, alias };
        }
        taken.push((key, name));
    }
}

/// The wildcards of a list.
struct Stars {
    /// `*`, or the `t.*` of the only table there is.
    of_all: bool,
    of_tables: Vec<String>,
}

impl Stars {
    fn of(select: &Select) -> Stars {
        let mut of_all = false;
        let mut of_tables = Vec::new();
        for item in &select.projection {
            match item {
                SelectItem::Wildcard(_) => of_all = true,
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(table), _) => {
                    of_tables.push(last(table));
                }
                _ => {}
            }
        }
        let is_one_table = matches!(select.from.as_slice(), [TableWithJoins { joins, .. }] if joins.is_empty());
        Stars { of_all: of_all || (is_one_table && !of_tables.is_empty()), of_tables }
    }

    /// Whether a column is one of those that a wildcard stands for.
    fn have(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Identifier(_) => self.of_all,
            Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [.., table, _] => self.of_all || self.of_tables.contains(&ident(table)),
                _ => false,
            },
            _ => false,
        }
    }
}

fn last(name: &ObjectName) -> String {
    name.0.last().map(part).unwrap_or_default()
}

/// An identifier as it is looked up.
pub(super) fn ident(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_ascii_lowercase() }
}

/// The name that PostgreSQL gives a column.
pub(super) fn name_of(expr: &Expr) -> String {
    let own = match expr {
        Expr::Identifier(name) => return ident(name),
        Expr::CompoundIdentifier(names) => return names.last().map(ident).unwrap_or_default(),
        Expr::Function(function) => return last(&function.name),
        Expr::Cast { expr, data_type, .. } => match name_of(expr) {
            name if name == NAMELESS => {
                let sql = data_type.to_string().to_ascii_lowercase();
                let known = types::by_name(if sql == "int" { "int4" } else { &sql });
                return known.map_or(sql, |kind| kind.name.into());
            }
            name => return name,
        },
        Expr::Nested(expr) | Expr::Collate { expr, .. } => return name_of(expr),
        Expr::Subquery(query) => match query.body.as_ref() {
            SetExpr::Select(select) => match select.projection.as_slice() {
                [SelectItem::UnnamedExpr(expr)] => return name_of(expr),
                [SelectItem::ExprWithAlias { alias, .. }] => return ident(alias),
                _ => NAMELESS,
            },
            _ => NAMELESS,
        },
        Expr::Case { .. } => "case",
        Expr::Exists { .. } => "exists",
        Expr::Array(_) => "array",
        Expr::Extract { .. } => "extract",
        Expr::Ceil { .. } => "ceil",
        Expr::Floor { .. } => "floor",
        Expr::Position { .. } => "position",
        Expr::Substring { .. } => "substring",
        Expr::Trim { .. } => "btrim",
        Expr::AtTimeZone { .. } => "timezone",
        Expr::Interval(_) => "interval",
        Expr::Value(value) if matches!(value.value, Value::Boolean(_)) => "bool",
        _ => NAMELESS,
    };
    own.to_string()
}

#[cfg(test)]
mod tests {
    use super::{of_statement, shown};

    /// Scenario: expressions without alias, beside named ones and a wildcard. Guarantees: PostgreSQL's names, in the columns' places;
    /// none where places are not known.
    #[test]
    fn expressions_have_postgres_names() {
        let named = |sql: &str, columns: usize| {
            let names = of_statement(sql, columns).into_iter().map(|name| name.unwrap_or_else(|| "-".into()));
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            named("select count(*), 1, 'a' || 'b' as c, at, sum(x)::bigint from t", 5),
            "count ?column? - - sum"
        );
        assert_eq!(
            named("select 1::bigint, version(), *, (select max(a) from t), true from t", 6),
            "int8 version - - max bool"
        );
        assert_eq!(named("select *, a.*, 1 from a", 6), "");
        assert_eq!(named("select 1", 2), "");
        assert_eq!(named("select 1 union select 2", 1), "");
        assert_eq!(named("not sql", 1), "");
    }

    /// Scenario: names with and without a number. Guarantees: only that of a name which came twice is taken off.
    #[test]
    fn numbers_of_names_come_off() {
        let all = ["oid", "oid:2", "b:2", "oid:x"];
        let shown = all.map(|name| shown(name, all.into_iter()));
        assert_eq!(shown, ["oid", "oid", "b:2", "oid:x"]);
    }
}
