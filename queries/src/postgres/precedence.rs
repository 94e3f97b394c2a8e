//! `a IS DISTINCT FROM b AND c`: the parser takes `b AND c` for what is compared with. PostgreSQL, and everybody who writes it, means
//! `(a IS DISTINCT FROM b) AND c`.
//!
//! Parentheses are nodes of their own, so that an operator found below a tighter one without them can only have come there in this
//! way, and is lifted. Cost: O(operators lifted).

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator};

use super::rewrite::take;

/// Lifts AND and OR out of an operand that they cannot be in. Operands come first.
pub(super) fn lift(expr: &mut Expr) {
    let Some((operand, holds)) = operand(expr) else { return };
    let Expr::BinaryOp { op, .. } = operand else { return };
    if !holds.iter().any(|loose| loose == op) {
        return;
    }
    let Expr::BinaryOp { left, op, right } = take(operand) else { return };
    *operand = *left;
    // What was on its left may be loose, too: (b AND c) OR d.
    lift(expr);
    *expr = Expr::BinaryOp { left: Box::new(take(expr)), op, right };
}

/// The right-hand operand, and the operators that are looser than the one it belongs to.
fn operand(expr: &mut Expr) -> Option<(&mut Expr, &'static [BinaryOperator])> {
    const BOTH: &[BinaryOperator] = &[BinaryOperator::And, BinaryOperator::Or];
    const OR: &[BinaryOperator] = &[BinaryOperator::Or];
    match expr {
        Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) => Some((right, BOTH)),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => Some((expr, BOTH)),
        Expr::BinaryOp { op: BinaryOperator::And, right, .. } => Some((right, OR)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use datafusion::sql::sqlparser::{
        ast::{Expr, visit_expressions_mut},
        dialect::PostgreSqlDialect,
        parser::Parser,
    };

    fn lifted(text: &str) -> Expr {
        let dialect = PostgreSqlDialect {};
        let mut expr = Parser::new(&dialect).try_with_sql(text).unwrap().parse_expr().unwrap();
        let _ = visit_expressions_mut(&mut expr, |expr| {
            super::lift(expr);
            ControlFlow::<()>::Continue(())
        });
        expr
    }

    /// Scenario: comparisons that tell NULLs apart, amid AND, OR and NOT. Guarantees: each is read as with these parentheses.
    #[test]
    fn distinct_is_tighter_than_and() {
        let cases = [
            ("a is distinct from b and c", "(a is distinct from b) and c"),
            ("p and a is not distinct from b or c and d", "(p and (a is not distinct from b)) or (c and d)"),
            ("not a is distinct from b and c", "(not (a is distinct from b)) and c"),
            (
                "a is distinct from b and c is distinct from d or e",
                "((a is distinct from b) and (c is distinct from d)) or e",
            ),
            ("a is distinct from (b and c)", "a is distinct from (b and c)"),
            ("a and b or c", "(a and b) or c"),
        ];
        let plain = |text| {
            let mut expr = lifted(text);
            let _ = visit_expressions_mut(&mut expr, |expr| {
                if let Expr::Nested(inner) = expr {
                    *expr = super::take(inner);
                }
                ControlFlow::<()>::Continue(())
            });
            expr
        };
        for (written, meant) in cases {
            assert_eq!(plain(written), plain(meant), "{written}");
        }
    }
}
