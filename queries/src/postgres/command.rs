//! What a session says: questions for the engine, and words about the session itself, which change nothing but it.
//!
//! Drivers send these whether they need them or not (`SET extra_float_digits = 3`, `BEGIN`, `DISCARD ALL`), so they are understood
//! here and answered by the door. Whatever is none of them is a question, and the engine decides on it.
//! Cost: O(length of the text). Bound: [`COMMANDS_MAX`] in one message.

use datafusion::sql::sqlparser::{
    dialect::PostgreSqlDialect,
    tokenizer::{Location, Token, TokenWithSpan, Tokenizer},
};

use super::cursor;
use crate::SqlError;

pub use super::cursor::{Count, CursorForm, Declared, Direction, Hold, Scroll, Step};
pub use super::fixed::SETTINGS;

/// Most statements of one message.
pub const COMMANDS_MAX: usize = 64;

/// Tag of the command that makes a session new.
pub const DISCARD: &str = "DISCARD ALL";

/// One statement of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// For the engine.
    Ask(String),
    /// `SET name = value`; names are in lower case.
    Set {
        name: String,
        value: String,
    },
    /// `RESET name`, or of all.
    Reset {
        name: Option<String>,
    },
    /// `SHOW name`.
    Show {
        name: String,
    },
    /// `SHOW ALL`.
    ShowAll,
    Begin,
    Commit,
    Rollback,
    /// `ROLLBACK TO SAVEPOINT name`: the transaction goes on.
    RollbackTo,
    /// `DEALLOCATE name`, or of all.
    Deallocate {
        name: Option<String>,
    },
    /// `COPY (query) TO STDOUT`.
    CopyOut {
        query: String,
        form: CopyForm,
    },
    /// `DECLARE name CURSOR FOR query`.
    Declare {
        declared: Declared,
        query: String,
    },
    /// `FETCH direction FROM name`.
    Fetch {
        name: String,
        direction: Direction,
    },
    /// `MOVE direction FROM name`.
    Move {
        name: String,
        direction: Direction,
    },
    /// `CLOSE name`, or all.
    Close {
        name: Option<String>,
    },
    /// Understood, and nothing to do: the command's tag.
    Nothing(&'static str),
}

/// How rows are copied out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyForm {
    Text,
    Csv { header: Header },
    Binary,
}

/// Whether the first line has the columns' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    Yes,
    No,
}

/// The statements of a message, in order. None for a message of blanks and comments.
///
/// Errors: [`SqlError::Parse`] for text that has no tokens, [`SqlError::Refused`] for too many statements.
pub fn commands(sql: &str) -> Result<Vec<Command>, SqlError> {
    let dialect = PostgreSqlDialect {};
    let tokens = Tokenizer::new(&dialect, sql).with_unescape(false).tokenize_with_location();
    let tokens = tokens.map_err(|error| SqlError::Parse(error.to_string()))?;
    let mut commands = Vec::new();
    for statement in tokens.split(|token| token.token == Token::SemiColon) {
        let words: Vec<&TokenWithSpan> =
            statement.iter().filter(|token| !matches!(token.token, Token::Whitespace(_) | Token::EOF)).collect();
        let (Some(first), Some(last)) = (words.first(), words.last()) else { continue };
        if commands.len() == COMMANDS_MAX {
            return Err(SqlError::Refused(format!("more than {COMMANDS_MAX} statements in one message")));
        }
        let text = slice(sql, first.span.start, last.span.end);
        commands.push(command(text, &words));
    }
    Ok(commands)
}

/// The part of the text between two places of the tokenizer, which counts lines and characters from 1.
fn slice(sql: &str, from: Location, to: Location) -> &str {
    let at = |place: Location| {
        let line: usize = sql.split_inclusive('\n').take(place.line.saturating_sub(1) as usize).map(str::len).sum();
        let column = sql[line..].char_indices().nth(place.column.saturating_sub(1) as usize);
        column.map_or(sql.len(), |(bytes, _)| line + bytes)
    };
    sql.get(at(from)..at(to)).unwrap_or(sql)
}

/// A statement's words in lower case; quotes of names and texts are gone.
fn word(token: &TokenWithSpan) -> String {
    match &token.token {
        Token::Word(word) if word.quote_style.is_some() => word.value.clone(),
        Token::Word(word) => word.value.to_lowercase(),
        Token::SingleQuotedString(text) => text.replace("''", "'"),
        other => other.to_string(),
    }
}

fn command(text: &str, tokens: &[&TokenWithSpan]) -> Command {
    let words: Vec<String> = tokens.iter().take(32).map(|token| word(token)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["set", "transaction", ..] => Command::Nothing("SET"),
        ["set", "session", "characteristics", ..] => Command::Nothing("SET"),
        ["set", "session" | "local", rest @ ..] | ["set", rest @ ..] => set(rest, text),
        ["reset", "all"] => Command::Reset { name: None },
        ["reset", name @ ..] => Command::Reset { name: Some(name.concat()) },
        ["show", "all"] => Command::ShowAll,
        ["show", "transaction", "isolation", "level"] => Command::Show { name: "transaction_isolation".into() },
        ["show", "time", "zone"] => Command::Show { name: "timezone".into() },
        ["show", name @ ..] if is_setting(&name.concat()) => Command::Show { name: name.concat() },
        ["begin", ..] | ["start", "transaction", ..] => Command::Begin,
        ["commit" | "end", ..] => Command::Commit,
        ["rollback", "to", ..] | ["rollback", "work" | "transaction", "to", ..] => Command::RollbackTo,
        ["rollback" | "abort", ..] => Command::Rollback,
        ["savepoint", ..] => Command::Nothing("SAVEPOINT"),
        ["release", ..] => Command::Nothing("RELEASE"),
        ["discard", ..] => Command::Nothing(DISCARD),
        ["unlisten", ..] => Command::Nothing("UNLISTEN"),
        ["close", "all"] => Command::Close { name: None },
        ["close", name] => Command::Close { name: Some(name.to_string()) },
        ["declare", rest @ ..] => declare(text, tokens, rest).unwrap_or_else(|| Command::Ask(text.to_string())),
        ["fetch", rest @ ..] => match cursor::fetch(rest) {
            Some((direction, name)) => Command::Fetch { name, direction },
            None => Command::Ask(text.to_string()),
        },
        ["move", rest @ ..] => match cursor::fetch(rest) {
            Some((direction, name)) => Command::Move { name, direction },
            None => Command::Ask(text.to_string()),
        },
        ["deallocate", "prepare", rest @ ..] | ["deallocate", rest @ ..] => match rest {
            ["all"] => Command::Deallocate { name: None },
            name => Command::Deallocate { name: Some(name.concat()) },
        },
        ["copy", "(", ..] => copy_out(text, tokens).unwrap_or_else(|| Command::Ask(text.to_string())),
        ["copy", table @ .., "to", "stdout"] if table.len() <= 3 => {
            Command::CopyOut { query: format!("SELECT * FROM {}", table.concat()), form: CopyForm::Text }
        }
        _ => Command::Ask(text.to_string()),
    }
}

/// Names that `SHOW` answers from the session: PostgreSQL's, and whatever was set before with a dot in its name.
fn is_setting(name: &str) -> bool {
    name.contains('.') && !name.starts_with("datafusion.") || SETTINGS.iter().any(|(known, _)| *known == name)
}

/// `name = value`, `name TO value`, `TIME ZONE value`, `NAMES value`; several values stay one text.
fn set(words: &[&str], text: &str) -> Command {
    let (name, value) = match words {
        ["time", "zone", value @ ..] => ("timezone".to_string(), value),
        ["names", value @ ..] => ("client_encoding".to_string(), value),
        _ => match words.iter().position(|word| matches!(*word, "=" | "to")) {
            // DataFusion's own are not the session's to change.
            Some(at) if !words[0].starts_with("datafusion") => (words[..at].concat(), &words[at + 1..]),
            _ => return Command::Ask(text.to_string()),
        },
    };
    Command::Set { name, value: value.join(" ").replace(" ,", ",") }
}

/// The part of a statement's text between two places of the message.
fn within<'a>(text: &'a str, tokens: &[&TokenWithSpan], (from, to): (Location, Location)) -> Option<&'a str> {
    let start = tokens.first()?.span.start;
    let relative = |place: Location| {
        let line = place.line - start.line + 1;
        Location { line, column: if line == 1 { place.column - start.column + 1 } else { place.column } }
    };
    Some(slice(text, relative(from), relative(to)).trim())
}

/// `DECLARE name CURSOR FOR query`. `None`: something else.
fn declare(text: &str, tokens: &[&TokenWithSpan], words: &[&str]) -> Option<Command> {
    let (declared, taken) = cursor::declare(words)?;
    let places = (tokens.get(1 + taken)?.span.start, tokens.last()?.span.end);
    Some(Command::Declare { declared, query: within(text, tokens, places)?.to_string() })
}

/// `COPY (query) TO STDOUT` with its options. `None`: something else.
fn copy_out(text: &str, tokens: &[&TokenWithSpan]) -> Option<Command> {
    let mut depth = 0;
    let close = tokens.iter().position(|token| {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        depth == 0 && token.token == Token::RParen
    })?;
    let rest: Vec<String> = tokens[close + 1..].iter().map(|token| word(token)).collect();
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let ["to", "stdout", options @ ..] = rest.as_slice() else { return None };
    let known =
        ["with", "(", ")", ",", "format", "csv", "text", "binary", "header", "true", "on", "false", "off", "1", "0"];
    if !options.iter().all(|option| known.contains(option)) {
        return None;
    }
    let places = (tokens.get(2)?.span.start, tokens[close].span.start);
    let query = within(text, tokens, places)?.to_string();
    let after = |name: &str| options.iter().position(|option| *option == name).and_then(|at| options.get(at + 1));
    let header = match after("header") {
        Some(&("false" | "off" | "0")) => Header::No,
        _ if options.contains(&"header") => Header::Yes,
        _ => Header::No,
    };
    let form = if options.contains(&"csv") {
        CopyForm::Csv { header }
    } else if options.contains(&"binary") {
        CopyForm::Binary
    } else {
        CopyForm::Text
    };
    Some(Command::CopyOut { query, form })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: what drivers send. Guarantees: it is understood, and questions stay as they were written.
    #[test]
    fn sessions_are_understood() {
        let one = |sql: &str| {
            let mut all = commands(sql).unwrap();
            assert_eq!(all.len(), 1, "{sql}");
            all.remove(0)
        };
        let set = |name: &str, value: &str| Command::Set { name: name.into(), value: value.into() };
        assert_eq!(one("SET extra_float_digits = 3"), set("extra_float_digits", "3"));
        assert_eq!(one("SET SESSION application_name TO 'it''s'"), set("application_name", "it's"));
        assert_eq!(one("set time zone 'Europe/Berlin';"), set("timezone", "Europe/Berlin"));
        assert_eq!(one("SET evenkeel.as_of = '2026-01-01'"), set("evenkeel.as_of", "2026-01-01"));
        assert_eq!(one("show server_version"), Command::Show { name: "server_version".into() });
        assert_eq!(one("SHOW TABLES"), Command::Ask("SHOW TABLES".into()));
        assert_eq!(one("BEGIN READ ONLY"), Command::Begin);
        assert_eq!(one("ROLLBACK TO SAVEPOINT \"a\""), Command::RollbackTo);
        assert_eq!(one("rollback transaction"), Command::Rollback);
        assert_eq!(one("/* ping */ select 1 -- so"), Command::Ask("select 1".into()));
        assert_eq!(one("DEALLOCATE \"A b\""), Command::Deallocate { name: Some("A b".into()) });
        assert_eq!(one("DROP TABLE requests"), Command::Ask("DROP TABLE requests".into()));
        let csv = CopyForm::Csv { header: Header::Yes };
        let copy = Command::CopyOut { query: "select (1),\n ';' as a".into(), form: csv };
        assert_eq!(one("copy (\nselect (1),\n ';' as a) to stdout with (format csv, header)"), copy);
        let declared = Declared { name: "C x".into(), scroll: Scroll::No, hold: Hold::No, form: CursorForm::Text };
        let declare = Command::Declare { declared, query: "select 1\n for".into() };
        assert_eq!(one("/* x */ DECLARE \"C x\" NO SCROLL CURSOR FOR\nselect 1\n for ;"), declare);
        let fetch = Command::Fetch { name: "c".into(), direction: Direction::Forward(Count::Rows(100)) };
        assert_eq!(one("FETCH FORWARD 100 FROM c"), fetch);
        assert_eq!(one("CLOSE c"), Command::Close { name: Some("c".into()) });
        assert_eq!(one("DECLARE c"), Command::Ask("DECLARE c".into()));
        assert_eq!(one("COPY (select 1) FROM STDIN"), Command::Ask("COPY (select 1) FROM STDIN".into()));
    }

    /// Scenario: several statements in a message, some of them blank. Guarantees: they come apart at their ends alone.
    #[test]
    fn messages_come_apart() {
        let ask = |sql: &str| Command::Ask(sql.into());
        assert_eq!(commands(" ; -- nothing\n").unwrap(), []);
        assert_eq!(commands("select 'ä;' ;; select\n 2;").unwrap(), [ask("select 'ä;'"), ask("select\n 2")]);
        assert!(matches!(commands("select 'open"), Err(SqlError::Parse(_))));
        assert!(matches!(commands(&"select 1;".repeat(65)), Err(SqlError::Refused(_))));
    }
}
