//! Meaning of SQL over fixed rows: every `.slt` file under `tests/data/slt` (SPEC E2, D4).

use queries::{QueryResult, SqlEngine, SqlError, encode, query_runtime};
use serde_json::Value;
use sqllogictest::{DBOutput, DefaultColumnType, Runner};

use crate::{fixtures, sql::limits};

/// An engine that answers, and one over tables that hold the same rows in another form.
struct Database {
    engine: SqlEngine,
    twin: SqlEngine,
    runtime: tokio::runtime::Runtime,
}

impl sqllogictest::DB for Database {
    type Error = SqlError;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, SqlError> {
        let told = |answer: &Result<QueryResult, SqlError>| match answer {
            Ok(answer) => Ok(answer.schema.clone()),
            Err(error) => Err(error.to_string()),
        };
        let answer = self.runtime.block_on(self.engine.query(sql));
        let others = self.runtime.block_on(self.twin.query(sql));
        assert_eq!(told(&answer), told(&others), "{sql}");
        let answer = answer?;
        let json = encode::json(&answer.schema, &answer.batches).expect("answers can be written");
        let rows: Vec<serde_json::Map<String, Value>> = serde_json::from_slice(&json).expect("JSON is valid");
        // JSON objects lose their order when parsed, so columns are taken by name, in the schema's order.
        let names: Vec<_> = csv_header(&answer);
        let rows = rows.iter().map(|row| names.iter().map(|name| text(&row[name])).collect()).collect();
        Ok(DBOutput::Rows { types: vec![DefaultColumnType::Any; names.len()], rows })
    }
}

fn csv_header(answer: &queries::QueryResult) -> Vec<String> {
    let text = encode::csv(&answer.schema, &[]).expect("a header can be written");
    let mut reader = csv::Reader::from_reader(text.as_slice());
    reader.headers().expect("a header").iter().map(str::to_string).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_string(),
        Value::String(text) if text.is_empty() => "(empty)".to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Scenario: the statements of every `.slt` file run over the fixed rows of all topics, with text plain and as views.
/// Guarantees: answers and refusals are word for word what the files say, and their types the same in both forms; there is a file for
/// every topic's subject.
#[test]
fn every_slt_file() {
    let mut files: Vec<_> = std::fs::read_dir(fixtures::slt_folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "slt"))
        .collect();
    files.sort();
    assert!(files.len() >= 7, "expected at least 7 .slt files, found {files:?}");
    let mut failures = Vec::new();
    let forms = [fixtures::fixed_tables(), fixtures::sql_tables()];
    for (file, first) in files.iter().flat_map(|file| [(file, 0), (file, 1)]) {
        let mut runner = Runner::new(|| async {
            let runtime = query_runtime(2).expect("a runtime starts");
            let [engine, twin] =
                [first, 1 - first].map(|form| SqlEngine::new(limits(), forms[form].clone(), runtime.handle().clone()));
            Ok(Database { engine, twin, runtime })
        });
        if let Err(error) = runner.run_file(file) {
            failures.push(format!("{}", error.display(false)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
