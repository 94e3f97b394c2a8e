//! Saved queries: files `sql/<subject>/<name>.sql` of this crate, run by name (SPEC E2).
//!
//! A file opens with comment lines: the question, then `tables:`, `units:` and a line `parameter: NAME TYPE DEFAULT MEANING` for
//! each parameter, which the statement holds as `{NAME}`. Types: `whole` (a whole number from 0 to [`WHOLE_MAX`]), `number` and
//! `text`. A text becomes a quoted literal, so that no value changes what the statement does. The default `null` of a text is
//! NULL. Invariant: every embedded file can be read; a test holds it.
//! The files are embedded in the binary and read once a process.

use std::{collections::BTreeMap, sync::LazyLock};

use rust_embed::RustEmbed;
use serde::Serialize;

use crate::{SqlError, sql_error};

#[derive(RustEmbed)]
#[folder = "sql"]
struct Files;

/// Largest whole number of a parameter.
pub const WHOLE_MAX: u64 = 1_000_000_000;
/// Longest text of a parameter.
const TEXT_BYTES_MAX: usize = 1024;
/// The folder of table functions, which are no saved queries.
const FUNCTIONS: &str = "functions";

/// What a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Whole,
    Number,
    Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parameter {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: Kind,
    /// `None`: NULL.
    pub default: Option<String>,
    pub meaning: String,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SavedQuery {
    /// `<subject>/<name>`.
    pub name: String,
    pub question: String,
    pub tables: Vec<String>,
    pub units: String,
    pub parameters: Vec<Parameter>,
    /// The statement with `{NAME}` for its parameters.
    #[serde(skip)]
    pub template: String,
}

/// Values given for parameters, as text.
pub type Values = BTreeMap<String, String>;

/// All saved queries, by subject and name.
pub fn all() -> &'static [SavedQuery] {
    &QUERIES.0
}

/// The saved query of that name.
pub fn find(name: &str) -> Result<&'static SavedQuery, SqlError> {
    all().iter().find(|query| query.name == name).ok_or_else(|| {
        let names: Vec<&str> = all().iter().map(|query| query.name.as_str()).collect();
        // The name alone, without its subject, is what one remembers.
        let by_last = names.iter().copied().find(|known| known.rsplit('/').next() == Some(name));
        let near = by_last.or_else(|| sql_error::nearest(name, &names));
        let near = near.map(|near| format!(" did you mean {near:?}?")).unwrap_or_default();
        SqlError::Plan(format!(
            "there is no saved query {name:?};{near} GET /sql/saved and `evenkeel sql --saved` list them"
        ))
    })
}

/// What table functions expand to.
pub(crate) fn functions() -> &'static [SavedQuery] {
    &QUERIES.1
}

static QUERIES: LazyLock<(Vec<SavedQuery>, Vec<SavedQuery>)> = LazyLock::new(|| {
    let mut paths: Vec<_> = Files::iter().filter(|path| path.ends_with(".sql")).collect();
    paths.sort();
    let read = |path: &str| {
        let file = Files::get(path).expect("invariant: a path that was just listed");
        let text = String::from_utf8_lossy(&file.data).into_owned();
        parse(path.trim_end_matches(".sql"), &text).unwrap_or_else(|error| panic!("queries/sql/{path}: {error}"))
    };
    let prefix = format!("{FUNCTIONS}/");
    let (functions, queries): (Vec<_>, Vec<_>) =
        paths.iter().map(|path| read(path)).partition(|query| query.name.starts_with(&prefix));
    let bare = |query: SavedQuery| SavedQuery { name: query.name[prefix.len()..].to_string(), ..query };
    (queries, functions.into_iter().map(bare).collect())
});

/// Reads a file's text.
fn parse(name: &str, text: &str) -> Result<SavedQuery, String> {
    let comments = text.lines().take_while(|line| line.starts_with("--"));
    let (mut question, mut tables, mut units, mut parameters) = (Vec::new(), Vec::new(), None, Vec::new());
    let mut lines = 0;
    for comment in comments {
        lines += 1;
        let line = comment.trim_start_matches('-').trim();
        if let Some(list) = line.strip_prefix("tables:") {
            tables = list.split(',').map(|table| table.trim().to_string()).collect();
        } else if let Some(words) = line.strip_prefix("units:") {
            units = Some(words.trim().to_string());
        } else if let Some(words) = line.strip_prefix("parameter:") {
            parameters.push(parameter(words.trim())?);
        } else if tables.is_empty() && units.is_none() && parameters.is_empty() {
            question.push(line);
        } else {
            return Err(format!("{line:?}: expected tables:, units: or parameter:"));
        }
    }
    let template = text.lines().skip(lines).collect::<Vec<_>>().join("\n").trim().trim_end_matches(';').to_string();
    let question = question.join(" ");
    match (question.is_empty(), tables.is_empty(), units, template.is_empty()) {
        (false, false, Some(units), false) => {
            Ok(SavedQuery { name: name.to_string(), question, tables, units, parameters, template })
        }
        _ => Err("expected a question, tables:, units: and a statement".to_string()),
    }
}

/// `NAME TYPE DEFAULT MEANING`
fn parameter(words: &str) -> Result<Parameter, String> {
    let mut parts = words.splitn(4, ' ');
    let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or("expected NAME TYPE DEFAULT MEANING");
    let (name, kind, default, meaning) = (next()?, next()?, next()?, next()?);
    let kind = match kind {
        "whole" => Kind::Whole,
        "number" => Kind::Number,
        "text" => Kind::Text,
        other => return Err(format!("{other:?}: expected whole, number or text")),
    };
    let default = Some(default.to_string()).filter(|default| default != "null");
    Ok(Parameter { name: name.to_string(), kind, default, meaning: meaning.to_string() })
}

impl SavedQuery {
    /// The statement with `values`, defaults for the others. Refused: a name it does not have, a value of the wrong type.
    pub fn render(&self, values: &Values) -> Result<String, SqlError> {
        let names = || self.parameters.iter().map(|parameter| parameter.name.as_str());
        if let Some(name) = values.keys().find(|name| names().all(|known| known != name.as_str())) {
            let known: Vec<_> = names().collect();
            return Err(SqlError::Plan(format!(
                "{} has no parameter {name:?}; it has {}",
                self.name,
                if known.is_empty() { "none".to_string() } else { known.join(", ") }
            )));
        }
        let mut literals = BTreeMap::new();
        for parameter in &self.parameters {
            let value = values.get(&parameter.name).or(parameter.default.as_ref());
            let literal = parameter.literal(value.map(String::as_str)).map_err(|expected| {
                let value = value.map_or("null", String::as_str);
                SqlError::Plan(format!("{}: parameter {} = {value:?}: expected {expected}", self.name, parameter.name))
            })?;
            literals.insert(parameter.name.as_str(), literal);
        }
        Ok(fill(&self.template, &literals))
    }

    /// The statement with its question above and the defaults in it, to be edited.
    pub fn text(&self) -> String {
        let statement = self.render(&Values::new()).expect("invariant: defaults fit their types; a test holds it");
        format!("-- {}\n{statement}", self.question)
    }
}

impl Parameter {
    fn literal(&self, value: Option<&str>) -> Result<String, String> {
        let Some(value) = value else {
            return match self.kind {
                Kind::Text => Ok("NULL".to_string()),
                _ => Err("a number".to_string()),
            };
        };
        match self.kind {
            Kind::Whole => match value.parse::<u64>() {
                Ok(whole) if whole <= WHOLE_MAX => Ok(whole.to_string()),
                _ => Err(format!("a whole number from 0 to {WHOLE_MAX}")),
            },
            Kind::Number => match value.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(format!("{number:?}")),
                _ => Err("a number".to_string()),
            },
            Kind::Text if value.len() > TEXT_BYTES_MAX => Err(format!("a text of at most {TEXT_BYTES_MAX} bytes")),
            Kind::Text => Ok(format!("'{}'", value.replace('\'', "''"))),
        }
    }
}

/// The template with its places filled, in one pass: braces in a value stay what they are.
fn fill(template: &str, literals: &BTreeMap<&str, String>) -> String {
    let mut statement = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        statement.push_str(before);
        let found = from.find('}').and_then(|end| Some((literals.get(&from[1..end])?, end + 1)));
        let passed = match found {
            Some((literal, end)) => {
                statement.push_str(literal);
                end
            }
            None => {
                statement.push('{');
                1
            }
        };
        rest = &from[passed..];
    }
    statement + rest
}
