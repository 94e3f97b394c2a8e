//! The trait that every door asks through: parameters, descriptions, limits of a caller (SPEC E2).

use std::{sync::Arc, time::Duration};

use arrow::datatypes::{DataType, TimeUnit};
use queries::{Caller, Question, ScalarValue, SqlAnswers, SqlEngine, SqlError, query_runtime};

use crate::{fixtures::sql_tables, sql::limits};

fn with_engine<T>(test: impl AsyncFnOnce(&dyn SqlAnswers) -> T) -> T {
    let runtime = query_runtime(2).unwrap();
    let engine = SqlEngine::new(limits(), sql_tables(), runtime.handle().clone());
    let answers: Arc<dyn SqlAnswers> = Arc::new(engine);
    runtime.block_on(test(answers.as_ref()))
}

fn question(sql: &str, parameters: Vec<ScalarValue>) -> Question {
    Question { parameters, ..Question::new(sql, Caller::new("tests")) }
}

/// Scenario: parameters of several types, one used twice, one that holds a quote; too few of them.
/// Guarantees: they are values, never text of the statement, and a missing one is an error.
#[test]
fn parameters_are_values() {
    with_engine(async |engine| {
        let text = |text: &str| ScalarValue::Utf8(Some(text.into()));
        let sql = "SELECT count(*) AS n, $2 AS quoted FROM faults WHERE component = $1 OR kind = $1 OR component = $2";
        let injected = "x' OR '1'='1";
        let answer = engine.answer(question(sql, vec![text("nobody"), text(injected)])).await.unwrap();
        let shown = arrow::util::pretty::pretty_format_batches(&answer.batches).unwrap().to_string();
        assert!(shown.contains("| 0 | x' OR '1'='1 |"), "{shown}");
        let limit = vec![ScalarValue::Int64(Some(2))];
        assert_eq!(engine.answer(question("SELECT * FROM faults LIMIT $1", limit)).await.unwrap().rows(), 2);
        let error = engine.answer(question(sql, vec![text("one")])).await.unwrap_err();
        assert!(error.to_string().contains("$2"), "{error}");
        let many = vec![ScalarValue::Int64(Some(1)); queries::PARAMETERS_MAX + 1];
        assert!(matches!(engine.answer(question("SELECT 1", many)).await, Err(SqlError::Refused(_))));
    });
}

/// Scenario: a statement is described before it has values, and with a type for a parameter that nothing tells.
/// Guarantees: parameters have the types of what they are compared with; a refused statement is refused here, too.
#[test]
fn statements_are_described() {
    with_engine(async |engine| {
        let sql = "SELECT at, $2 AS mine FROM requests WHERE at > $1";
        let described = engine.describe(question(sql, Vec::new())).await.unwrap();
        let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        assert_eq!(described.parameters, [Some(time.clone()), None]);
        assert_eq!(described.schema.field(0).data_type(), &time);
        let values = vec![ScalarValue::TimestampMicrosecond(None, Some("UTC".into())), ScalarValue::Int32(None)];
        let described = engine.describe(question(sql, values)).await.unwrap();
        assert_eq!(described.schema.field(1).data_type(), &DataType::Int32);
        let described = engine.describe(question("SELECT $1::bigint, $2::text[]", Vec::new())).await.unwrap();
        assert_eq!(described.parameters[0], Some(DataType::Int64));
        assert!(matches!(described.parameters[1], Some(DataType::List(_))), "{:?}", described.parameters);
        let error = engine.describe(question("DROP TABLE requests", Vec::new())).await.unwrap_err();
        assert!(matches!(error, SqlError::ReadOnly), "{error:?}");
    });
}

/// Scenario: an unknown column and an unknown table. Guarantees: the error is typed, names the nearest and says where.
#[test]
fn unknown_names_have_hints() {
    with_engine(async |engine| {
        let error = engine.answer(question("SELECT componant FROM faults", Vec::new())).await.unwrap_err();
        let SqlError::UnknownColumn { name, hint, at } = &error else { panic!("{error:?}") };
        assert_eq!((name.as_str(), *at), ("componant", Some((1, 8))));
        assert!(hint.starts_with("Did you mean \"component\"?"), "{hint}");
        let error = engine.answer(question("SELECT * FROM fault", Vec::new())).await.unwrap_err();
        assert!(matches!(&error, SqlError::UnknownTable { name, .. } if name == "fault"), "{error:?}");
    });
}

/// Scenario: a table seen as of a moment between its rows, of the last row, and before all.
/// Guarantees: rows up to the moment are there, those after it are not, and `now()` is the moment.
#[test]
fn tables_are_seen_as_of_a_moment() {
    with_engine(async |engine| {
        let first = engine.answer(question("SELECT min(at), max(at) FROM faults", Vec::new())).await.unwrap();
        let at = |column: usize| {
            let times = first.batches[0].column(column).clone();
            arrow::array::AsArray::as_primitive::<arrow::datatypes::TimestampMicrosecondType>(&times).value(0)
        };
        let seen = async |as_of: i64| {
            let ask =
                Question { as_of: Some(as_of), ..question("SELECT count(*) AS n, now() AS t FROM faults", Vec::new()) };
            let answer = engine.answer(ask).await.unwrap();
            arrow::util::pretty::pretty_format_batches(&answer.batches).unwrap().to_string()
        };
        assert!(at(0) < at(1), "the rows differ in time");
        assert!(seen(at(0) - 1).await.contains("| 0 |"));
        assert!(!seen(at(1) - 1).await.contains("| 3 |"));
        assert!(seen(at(1)).await.contains("| 3 |"));
        assert!(seen(0).await.contains("1970-01-01T00:00:00"), "{}", seen(0).await);
    });
}

/// Scenario: a caller with narrower limits than the engine, and one with wider ones.
/// Guarantees: the narrower of the two counts, for rows, time and memory.
#[test]
fn callers_have_limits() {
    with_engine(async |engine| {
        let mut ask = Question::new("SELECT * FROM faults", Caller::new("tests"));
        ask.caller.rows_max = Some(1);
        assert!(matches!(engine.answer(ask.clone()).await, Err(SqlError::TooManyRows { limit: 1, .. })));
        ask.caller.rows_max = Some(usize::MAX);
        assert_eq!(engine.answer(ask.clone()).await.unwrap().rows(), 3);
        ask.sql = "SELECT sum(value) FROM generate_series(1, 100000000000)".into();
        ask.caller.timeout = Some(Duration::from_millis(20));
        assert!(matches!(engine.answer(ask.clone()).await, Err(SqlError::TimedOut { .. })));
        ask.sql = "SELECT array_agg(a.value) FROM generate_series(1, 1000000) a".into();
        ask.caller.timeout = None;
        ask.caller.memory_bytes = Some(1 << 20);
        let error = engine.answer(ask).await.unwrap_err();
        assert!(matches!(error, SqlError::OutOfMemory { limit_bytes: 1048576, .. }), "{error:?}");
    });
}
