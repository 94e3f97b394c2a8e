//! Text into statements and backslash commands. Pure; cost: one pass over the text. No state.
//!
//! A `;` ends a statement unless it is within quotes or a comment. A line that begins with `\` outside a statement is a
//! command.

use std::time::Duration;

use anyhow::{Context, bail};

/// What `\?` prints.
pub const HELP: &str = "\
  statement;      runs it; it may go over several lines
  \\d              tables and how many columns they have
  \\d TABLE        columns of a table, with units and meanings
  \\watch SECONDS  the last statement again and again, until Ctrl-C (2 seconds if left out)
  \\?              this help
  \\q              leaves (Ctrl-D, too)
  Tab completes tables, columns, functions and keywords; Ctrl-R searches the history; Ctrl-C ends a running query.";

/// A piece of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Without its end.
    Statement(String),
    /// With its backslash.
    Command(String),
}

/// What a backslash command wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Ask(String),
    Watch(Duration),
    Help,
    Quit,
}

/// All complete pieces, and what follows the last of them.
pub fn split(text: &str) -> (Vec<Item>, &str) {
    let (mut items, mut start) = (Vec::new(), 0);
    loop {
        let rest = &text[start..];
        let blank = rest.len() - rest.trim_start().len();
        if rest[blank..].starts_with('\\') {
            let line = rest[blank..].lines().next().unwrap_or_default();
            items.push(Item::Command(line.trim().trim_end_matches(';').trim_end().to_string()));
            start += blank + line.len();
            continue;
        }
        let Some(end) = statement_end(rest) else { return (items, rest) };
        let statement = rest[..end].trim();
        if !is_blank(statement) {
            items.push(Item::Statement(statement.to_string()));
        }
        start += end + 1;
    }
}

/// Where the `;` of the first statement is.
fn statement_end(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let found = at + text[at..].find([';', '\'', '"', '-', '/'])?;
        let rest = &text[found..];
        let skipped = match rest.as_bytes()[0] {
            b';' => return Some(found),
            // A doubled quote ends one text and begins the next: the same in the end.
            quote @ (b'\'' | b'"') => 1 + rest[1..].find(quote as char)? + 1,
            b'-' if rest.starts_with("--") => rest.find('\n')?,
            b'/' if rest.starts_with("/*") => 2 + rest[2..].find("*/")? + 2,
            _ => 1,
        };
        at = found + skipped;
    }
}

/// Nothing but white space and comments.
pub fn is_blank(mut text: &str) -> bool {
    loop {
        text = text.trim_start();
        let rest = match (text.strip_prefix("--"), text.strip_prefix("/*")) {
            (Some(rest), _) => rest.split_once('\n').map_or("", |(_, rest)| rest),
            (_, Some(rest)) => match rest.split_once("*/") {
                Some((_, rest)) => rest,
                None => return false,
            },
            (None, None) => return text.is_empty(),
        };
        text = rest;
    }
}

/// Whether Enter runs it: nothing is open.
pub fn is_complete(text: &str) -> bool {
    text.trim_start().starts_with('\\') || is_blank(split(text).1)
}

/// Reads a command.
pub fn command(line: &str) -> anyhow::Result<Command> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    Ok(match word {
        "\\q" | "\\quit" => Command::Quit,
        "\\?" | "\\h" | "\\help" => Command::Help,
        "\\d" | "\\dt" if rest.is_empty() => Command::Ask(
            "select table_name as \"table\", count(*) as columns from column_comments group by table_name order by table_name"
                .into(),
        ),
        "\\d" => Command::Ask(format!(
            "select column_name as \"column\", data_type as type, unit, comment from column_comments where table_name = '{}'",
            rest.trim_matches('"').replace('\'', "''")
        )),
        "\\watch" => Command::Watch(match rest {
            "" => Duration::from_secs(2),
            _ => pause(rest).with_context(|| format!("\\watch {rest}: expected seconds, as in \\watch 5"))?,
        }),
        _ => bail!("{word} is no command; \\? lists them"),
    })
}

fn pause(text: &str) -> Option<Duration> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.or_else(|| humantime::parse_duration(text).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn statements(text: &str) -> (Vec<String>, String) {
        let (items, rest) = split(text);
        let shown = items.into_iter().map(|item| match item {
            Item::Statement(text) => text,
            Item::Command(text) => format!("command {text}"),
        });
        (shown.collect(), rest.trim().to_string())
    }

    /// Scenario: ends within texts, names and comments; commands between statements; what is not finished.
    /// Guarantees: only a real end ends a statement.
    #[test]
    fn only_a_real_end_ends_a_statement() {
        for (text, items, rest) in [
            ("select 1; select 2;", vec!["select 1", "select 2"], ""),
            ("select ';' ; x", vec!["select ';'"], "x"),
            ("select 'it''s; so' from t;", vec!["select 'it''s; so' from t"], ""),
            (r#"select "a;b";"#, vec![r#"select "a;b""#], ""),
            ("select 1 -- no; end\n;", vec!["select 1 -- no; end"], ""),
            ("select /* ; */ 1;", vec!["select /* ; */ 1"], ""),
            ("select 3 - 1 / 1;", vec!["select 3 - 1 / 1"], ""),
            ("\\d requests\nselect 1;\\q", vec!["command \\d requests", "select 1", "command \\q"], ""),
            ("select 'open; ", vec![], "select 'open;"),
            (";;", vec![], ""),
            ("select 'ü;ß'; é", vec!["select 'ü;ß'"], "é"),
        ] {
            let items: Vec<String> = items.into_iter().map(String::from).collect();
            assert_eq!(statements(text), (items, rest.to_string()), "{text}");
        }
    }

    /// Scenario: what is in the editor when Enter is pressed. Guarantees: it runs only when nothing is open.
    #[test]
    fn enter_runs_what_is_complete() {
        for (text, complete) in [
            ("select 1;", true),
            ("select 1", false),
            ("", true),
            ("\\d", true),
            ("select 1; -- done", true),
            ("select 'a;", false),
        ] {
            assert_eq!(is_complete(text), complete, "{text}");
        }
    }

    /// Scenario: commands, right and wrong. Guarantees: a wrong one says what would be right; a quote cannot leave its text.
    #[test]
    fn commands_are_read() {
        assert_eq!(command("\\q").unwrap(), Command::Quit);
        assert_eq!(command("\\watch").unwrap(), Command::Watch(Duration::from_secs(2)));
        assert_eq!(command("\\watch 0.5").unwrap(), Command::Watch(Duration::from_millis(500)));
        assert_eq!(command("\\watch 3s").unwrap(), Command::Watch(Duration::from_secs(3)));
        let Command::Ask(query) = command("\\d it's").unwrap() else { panic!("a query") };
        assert!(query.ends_with("where table_name = 'it''s'"));
        for bad in ["\\watch soon", "\\watch -1", "\\watch nan", "\\x", "\\"] {
            let error = command(bad).unwrap_err().to_string();
            assert!(error.contains("expected seconds") || error.contains("\\? lists them"), "{bad}: {error}");
        }
    }

    proptest! {
        /// Scenario: any text. Guarantees: splitting neither fails nor loses an end, and what is left over has none.
        #[test]
        fn any_text_is_split(text in r#"[a-z;'"\-/*\\ \nü]{0,40}"#) {
            let (_, rest) = split(&text);
            prop_assert!(text.ends_with(rest));
            prop_assert_eq!(statement_end(rest), None);
        }
    }
}
