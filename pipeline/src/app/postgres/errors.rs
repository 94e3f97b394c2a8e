//! Refusals as PostgreSQL says them: SQLSTATE, hint, position in the statement.

use std::time::Duration;

use pgwire::error::{ErrorInfo, PgWireError};
use queries::SqlError;

/// An error with its words.
pub(super) fn user(severity: &str, code: &str, message: &str) -> PgWireError {
    PgWireError::UserError(Box::new(ErrorInfo::new(severity.into(), code.into(), message.into())))
}

/// Why a statement was not answered.
pub(super) fn sql(error: &SqlError, sql: &str) -> PgWireError {
    let (code, message, hint) = match error {
        SqlError::ReadOnly => ("25006", "this endpoint is read-only".to_string(), Some(error.to_string())),
        SqlError::Refused(words) => ("54001", words.clone(), None),
        SqlError::Parse(words) => ("42601", words.clone(), None),
        SqlError::Plan(words) => ("42000", words.clone(), None),
        SqlError::UnknownTable { name, hint } => {
            ("42P01", format!("relation {name:?} does not exist"), Some(hint.clone()))
        }
        SqlError::UnknownColumn { name, hint, .. } => {
            ("42703", format!("column {name:?} does not exist"), Some(hint.clone()))
        }
        SqlError::TimedOut { limit, .. } => {
            let hint = "Narrow it by time: WHERE at > now() - INTERVAL '5 minutes'.";
            ("57014", format!("canceling statement due to statement timeout ({limit:?})"), Some(hint.to_string()))
        }
        SqlError::TooManyRows { .. } => ("54000", error.to_string(), None),
        SqlError::OutOfMemory { .. } => ("53200", error.to_string(), None),
        SqlError::Busy { .. } | SqlError::CallerBusy { .. } => ("53000", error.to_string(), None),
        SqlError::EngineRestarted(_) => ("58000", error.to_string(), None),
        _ => ("22000", error.to_string(), None),
    };
    let mut info = ErrorInfo::new("ERROR".into(), code.into(), message);
    info.hint = hint;
    if let SqlError::UnknownColumn { at: Some(at), .. } = error {
        info.position = position(sql, *at).map(|at| at.to_string());
    }
    PgWireError::UserError(Box::new(info))
}

/// An error of a statement within a statement, whose places are not those of the whole.
pub(super) fn without_position(error: PgWireError) -> PgWireError {
    match error {
        PgWireError::UserError(mut info) => {
            info.position = None;
            PgWireError::UserError(info)
        }
        other => other,
    }
}

/// The character of a line and column, both counted from 1.
fn position(sql: &str, (line, column): (u64, u64)) -> Option<usize> {
    let lines = sql.split_inclusive('\n').take(usize::try_from(line).ok()?.checked_sub(1)?);
    Some(lines.map(|line| line.chars().count()).sum::<usize>() + usize::try_from(column).ok()?)
}

pub(super) fn idle(limit: Duration) -> ErrorInfo {
    ErrorInfo::new("FATAL".into(), "57P05".into(), format!("no message for {limit:?} (server.pg_idle_timeout)"))
}

pub(super) fn slow_login(limit: Duration) -> ErrorInfo {
    ErrorInfo::new("FATAL".into(), "08006".into(), format!("not logged in within {limit:?} (server.header_timeout)"))
}

pub(super) fn crowded() -> ErrorInfo {
    let words = "too many connections (server.pg_connections_max); close one, or try again later";
    ErrorInfo::new("FATAL".into(), "53300".into(), words.into())
}

#[cfg(test)]
mod tests {
    use super::position;

    /// Scenario: places in a statement of two lines, one with a letter of two bytes. Guarantees: characters are counted from 1.
    #[test]
    fn places_become_characters() {
        assert_eq!(position("select ä,\n ttft", (2, 2)), Some(12));
        assert_eq!(position("select x", (1, 8)), Some(8));
        assert_eq!(position("select x", (0, 8)), None);
    }
}
