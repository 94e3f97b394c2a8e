//! Documents and code say the same: tables and columns, queries, settings.

use std::{collections::BTreeSet, fs, sync::Arc, time::Duration};

use pipeline::config;
use queries::{LiveTables, SqlEngine, SqlError, SqlLimits, Topic};
use serde_json::Value;
use tests::repository::root;

/// Every document of the repository: its path and text.
fn documents() -> Vec<(String, String)> {
    let folder = fs::read_dir(root().join("docs")).expect("docs/");
    let guides = folder.map(|entry| format!("docs/{}", entry.expect("an entry").file_name().to_string_lossy()));
    let all = guides.chain(["README.md".into(), "ARCHITECTURE.md".into()]).filter(|path| path.ends_with(".md"));
    all.map(|path| (path.clone(), fs::read_to_string(root().join(&path)).expect("a text"))).collect()
}

/// What stands in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Scenario: the schema of every table, and the list of tables in `docs/sql.md`.
/// Guarantees: every column stands under its table's name there.
#[test]
fn every_column_is_documented() {
    let text = fs::read_to_string(root().join("docs/sql.md")).expect("docs/sql.md");
    let sections: Vec<(&str, &str)> =
        text.split("\n### ").skip(1).map(|part| part.split_once('\n').unwrap_or((part, ""))).collect();
    let mut missing = Vec::new();
    for topic in Topic::ALL {
        let name = topic.name();
        let Some((_, section)) = sections.iter().find(|(title, _)| title.split(", ").any(|table| table == name)) else {
            missing.push(format!("{name}: no section \"### {name}\""));
            continue;
        };
        let told: BTreeSet<&str> = quoted(section).collect();
        let schema = topic.schema();
        let columns = schema.fields().iter().map(|field| field.name().as_str());
        missing.extend(columns.filter(|column| !told.contains(column)).map(|column| format!("{name}.{column}")));
    }
    assert!(missing.is_empty(), "add to docs/sql.md: {missing:#?}");
}

/// The SQL statements of a document: those in blocks, arguments of `evenkeel sql`, and those in backticks that leave nothing out.
fn statements(text: &str) -> Vec<String> {
    let blocks = text.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    // Settings are those of a session.
    let is_setting = |statement: &&str| ["set ", "reset "].iter().any(|word| statement.starts_with(word));
    let single = blocks.flat_map(|block| block.split(";\n")).map(str::trim).filter(|statement| !statement.is_empty());
    let single = single.filter(|statement| !is_setting(statement)).map(str::to_owned);
    let arguments = text.split("evenkeel sql \"").skip(1).filter_map(|rest| {
        let quotes = rest.match_indices('"').map(|(place, _)| place);
        let end = quotes.into_iter().find(|place| !rest[..*place].ends_with('\\'))?;
        Some(rest[..end].replace("\\\"", "\""))
    });
    let told = quoted(text).filter(|word| word.starts_with("select ") && !word.contains('…')).map(str::to_owned);
    single.chain(arguments).chain(told).collect()
}

/// Scenario: every SQL statement in a document, asked of empty tables.
/// Guarantees: each is one that the engine plans and answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_queries_can_be_asked() {
    let limits = SqlLimits {
        timeout: Duration::from_secs(60),
        memory_bytes: 64 << 20,
        rows_max: 1000,
        statement_bytes_max: 1 << 14,
        concurrent_max: 2,
    };
    let engine = SqlEngine::new(limits, Arc::new(LiveTables::for_sql(16)), tokio::runtime::Handle::current());
    let (mut asked, mut wrong) = (0, Vec::new());
    for (path, text) in documents() {
        for statement in statements(&text) {
            asked += 1;
            let answer: Result<_, SqlError> = engine.query(&statement).await;
            wrong.extend(answer.err().map(|error| format!("{path}: {error}\n{statement}")));
        }
    }
    assert!(asked > 50, "only {asked} statements were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Every dotted key of a value.
fn keys(prefix: &str, value: &Value, found: &mut BTreeSet<String>) {
    for (name, inner) in value.as_object().into_iter().flatten() {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        keys(&key, inner, found);
        found.insert(key);
    }
}

/// Scenario: what documents name like a setting, `section.key`.
/// Guarantees: there is such a setting.
#[test]
fn documented_settings_exist() {
    let config = config::load(None, config::Overrides::default()).expect("the defaults");
    let mut known = BTreeSet::new();
    keys("", &serde_json::to_value(config).expect("settings are data"), &mut known);
    let sections: BTreeSet<String> = known.iter().filter(|key| !key.contains('.')).cloned().collect();
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || b"_0123456789".contains(&byte))
    };
    let (mut named, mut wrong) = (0, Vec::new());
    for (path, text) in documents() {
        for word in quoted(&text).filter(|word| word.contains('.') && word.split('.').all(is_name)) {
            if word.split('.').next().is_some_and(|section| sections.contains(section)) {
                named += 1;
                wrong.extend((!known.contains(word)).then(|| format!("{path}: `{word}`")));
            }
        }
    }
    assert!(named > 50, "only {named} settings were found");
    assert!(wrong.is_empty(), "no such settings: {wrong:#?}");
}
