//! What could come next at the cursor: tables, columns, functions, keywords. Pure.
//!
//! After `from` and `join` only tables; after `table.` its columns; else the columns of the tables that the statement names, then
//! those of all tables, functions and keywords. Cost: one pass over the vocabulary a key. State: the vocabulary, some
//! thousand words.

use std::collections::{BTreeMap, BTreeSet};

const KEYWORDS: &[&str] = &[
    "and",
    "as",
    "asc",
    "between",
    "by",
    "case",
    "cast",
    "cross",
    "desc",
    "distinct",
    "else",
    "end",
    "except",
    "exists",
    "explain",
    "false",
    "filter",
    "from",
    "full",
    "group",
    "having",
    "in",
    "inner",
    "intersect",
    "interval",
    "is",
    "join",
    "left",
    "like",
    "limit",
    "not",
    "null",
    "offset",
    "on",
    "or",
    "order",
    "outer",
    "over",
    "partition",
    "right",
    "select",
    "then",
    "true",
    "union",
    "using",
    "when",
    "where",
    "with",
    "within group",
];

const FUNCTIONS: &[&str] = &[
    "abs(",
    "approx_percentile_cont(",
    "array_agg(",
    "avg(",
    "coalesce(",
    "count(",
    "date_bin(",
    "date_trunc(",
    "first_value(",
    "greatest(",
    "lag(",
    "last_value(",
    "lead(",
    "least(",
    "length(",
    "lower(",
    "max(",
    "median(",
    "min(",
    "now()",
    "nullif(",
    "percentile_cont(",
    "rank(",
    "regexp_like(",
    "round(",
    "row_number(",
    "split_part(",
    "stddev(",
    "strpos(",
    "sum(",
    "to_timestamp(",
    "unnest(",
    "upper(",
];

const COMMANDS: &[&str] = &["\\?", "\\d", "\\dt", "\\q", "\\watch"];

/// Tables and their columns.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    tables: BTreeMap<String, Vec<String>>,
    columns: BTreeSet<String>,
}

/// Words that fit, and the bytes of the line that one of them replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fits {
    pub start: usize,
    pub words: Vec<String>,
}

impl Vocabulary {
    /// `pairs`: table and column.
    pub fn new(pairs: Vec<(String, String)>) -> Self {
        let mut made = Self::default();
        for (table, column) in pairs {
            made.columns.insert(column.clone());
            made.tables.entry(table).or_default().push(column);
        }
        // Read from the server, and a table of it all the same.
        if !made.tables.is_empty() {
            made.tables.entry("column_comments".into()).or_default();
        }
        made
    }

    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// What fits the word that ends at `cursor`, a byte of `text` at a border of characters.
    pub fn fits(&self, text: &str, cursor: usize) -> Fits {
        let before = text.get(..cursor).unwrap_or(text);
        let line = before.rsplit('\n').next().unwrap_or_default().trim_start();
        if line.starts_with('\\') {
            return self.command(before, line);
        }
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let start =
            before.rfind(|c| !is_word(c)).map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
        let (ahead, word) = before.split_at(start);
        let statement = ahead.rsplit(';').next().unwrap_or_default();
        if let Some(owner) = ahead.strip_suffix('.') {
            let owner = owner.rsplit(|c| !is_word(c)).next().unwrap_or_default();
            let table = self.alias(text, owner);
            let columns = table.and_then(|table| self.tables.get(&table)).map(Vec::as_slice).unwrap_or_default();
            return Fits { start, words: matching(columns.iter().map(String::as_str), word) };
        }
        let previous = statement.split_whitespace().last().unwrap_or_default().to_lowercase();
        let wants_table = ["from", "join"].contains(&previous.as_str());
        let tables = self.tables.keys().map(String::as_str);
        if wants_table {
            return Fits { start, words: matching(tables, word) };
        }
        // An empty word fits everything, which helps nobody.
        if word.is_empty() {
            return Fits { start, words: Vec::new() };
        }
        let named = self.named(text);
        let near = named.iter().filter_map(|table| self.tables.get(table)).flatten().map(String::as_str);
        let all = self.columns.iter().map(String::as_str).filter(|_| named.is_empty());
        let mut words = matching(near.chain(all), word);
        let rest = matching(KEYWORDS.iter().copied().chain(FUNCTIONS.iter().copied()).chain(tables), word);
        words.extend(rest.into_iter().filter(|known| !words.contains(known)).collect::<Vec<_>>());
        Fits { start, words }
    }

    fn command(&self, before: &str, line: &str) -> Fits {
        match line.split_once(char::is_whitespace) {
            None => Fits { start: before.len() - line.len(), words: matching(COMMANDS.iter().copied(), line) },
            Some((_, rest)) => {
                let word = rest.trim_start();
                let start = before.len() - word.len();
                Fits { start, words: matching(self.tables.keys().map(String::as_str), word) }
            }
        }
    }

    /// Tables that the text names anywhere.
    fn named(&self, text: &str) -> Vec<String> {
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let named: BTreeSet<&str> = words.filter(|word| self.tables.contains_key(*word)).collect();
        named.into_iter().map(String::from).collect()
    }

    /// The table that a name stands for: itself, or `from table name`, `from table as name`.
    fn alias(&self, text: &str, name: &str) -> Option<String> {
        if self.tables.contains_key(name) {
            return Some(name.into());
        }
        let words: Vec<&str> =
            text.split(|c: char| c.is_whitespace() || ",()".contains(c)).filter(|w| !w.is_empty()).collect();
        let place = |(place, _): (usize, &&str)| {
            let before = words[..place].iter().rev().find(|word| !word.eq_ignore_ascii_case("as"))?;
            self.tables.contains_key(*before).then(|| before.to_string())
        };
        words.iter().enumerate().filter(|(_, word)| **word == name).find_map(place)
    }
}

fn matching<'a>(words: impl Iterator<Item = &'a str>, start: &str) -> Vec<String> {
    let start = start.to_lowercase();
    let mut found: Vec<String> = Vec::new();
    for word in words.filter(|word| word.starts_with(&start)) {
        if !found.iter().any(|known| known == word) {
            found.push(word.into());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        let pair = |(table, column): (&str, &str)| (table.to_string(), column.to_string());
        let pairs =
            [("requests", "request_id"), ("requests", "tier"), ("slo", "tier"), ("slo", "is_met"), ("mrc", "level")];
        Vocabulary::new(pairs.into_iter().map(pair).collect())
    }

    fn fits(text: &str) -> Vec<String> {
        // `|` is the cursor.
        let cursor = text.find('|').expect("a cursor");
        vocabulary().fits(&text.replace('|', ""), cursor).words
    }

    /// Scenario: the cursor after `from`, after an alias and a dot, in a column, in a command, nowhere.
    /// Guarantees: what fits there comes first, and nothing that does not.
    #[test]
    fn what_fits_depends_on_the_place() {
        assert_eq!(fits("select * from |"), ["column_comments", "mrc", "requests", "slo"]);
        assert_eq!(fits("select * from re|"), ["requests"]);
        assert_eq!(fits("select s.| from slo as s"), ["tier", "is_met"]);
        assert_eq!(fits("select slo.is| from slo"), ["is_met"]);
        assert_eq!(fits("select re| from requests")[0], "request_id");
        assert_eq!(fits("select is| from slo"), ["is_met", "is"]);
        assert_eq!(fits("SEL|"), ["select"]);
        assert_eq!(fits("\\d s|"), ["slo"]);
        assert_eq!(fits("\\w|"), ["\\watch"]);
        assert!(fits("select |").is_empty());
        assert!(fits("select x.| from nothing").is_empty());
    }

    /// Scenario: a cursor behind letters of several bytes, or off the text.
    /// Guarantees: no panic; the span begins at a border of characters.
    #[test]
    fn letters_of_several_bytes_do_no_harm() {
        let text = "select 'ü' as tié from slo";
        for cursor in 0..=text.len() + 2 {
            let fits = vocabulary().fits(text, cursor);
            assert!(text.is_char_boundary(fits.start.min(text.len())), "{cursor}");
        }
    }
}
