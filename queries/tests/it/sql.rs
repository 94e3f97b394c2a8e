//! Limits of the SQL engine: each is reached and says so (SPEC E2).

use std::{sync::Arc, time::Duration};

use queries::{
    Caller, LimitOf, LiveTables, Question, SqlAnswers, SqlEngine, SqlError, SqlLimits, Topic, query_runtime,
};

use crate::fixtures::{counts, faults, sql_tables};

/// Limits that no ordinary test reaches.
pub fn limits() -> SqlLimits {
    SqlLimits {
        timeout: Duration::from_secs(60),
        memory_bytes: 256 << 20,
        rows_max: 100_000,
        statement_bytes_max: 16 << 10,
        concurrent_max: 4,
    }
}

struct Fixture {
    engine: Arc<SqlEngine>,
    tables: Arc<LiveTables>,
    runtime: tokio::runtime::Runtime,
}

impl Fixture {
    fn new(limits: SqlLimits) -> Fixture {
        let runtime = query_runtime(2).unwrap();
        let tables = sql_tables();
        let engine = Arc::new(SqlEngine::new(limits, tables.clone(), runtime.handle().clone()));
        Fixture { engine, tables, runtime }
    }

    fn ask(&self, sql: &str) -> Result<queries::QueryResult, SqlError> {
        self.runtime.block_on(self.engine.query(sql))
    }

    fn error(&self, sql: &str) -> SqlError {
        self.ask(sql).expect_err(sql)
    }
}

/// Scenario: answers of exactly the limit's rows, and of one more.
/// Guarantees: the first comes whole, the second is an error that says how to fix it.
#[test]
fn too_many_rows_is_an_error_that_helps() {
    let f = Fixture::new(SqlLimits { rows_max: 50, ..limits() });
    f.tables.append(Topic::Faults, faults(0..100)).unwrap();
    assert_eq!(f.ask("SELECT * FROM faults LIMIT 50").unwrap().rows(), 50);
    let error = f.error("SELECT * FROM faults LIMIT 51");
    assert!(matches!(error, SqlError::TooManyRows { limit: 50, of: LimitOf::Server }), "{error:?}");
    assert!(error.to_string().contains("more than 50 rows; add LIMIT, aggregate"), "{error}");
}

/// Scenario: a self-join over a table that another thread appends to.
/// Guarantees: both sides of the join see the same rows in every query.
#[test]
fn a_self_join_sees_one_snapshot() {
    let f = Fixture::new(limits());
    let tables = f.tables.clone();
    let writer = std::thread::spawn(move || {
        for row in 100..4000 {
            tables.append(Topic::Faults, faults(row..row + 1)).unwrap();
        }
    });
    let sql = "SELECT count(*) AS n, count(a.count) AS a, count(b.count) AS b \
               FROM (SELECT * FROM faults WHERE kind = 'test') a \
               FULL JOIN (SELECT * FROM faults WHERE kind = 'test') b ON a.count = b.count";
    for _ in 0..25 {
        let answer = f.ask(sql).unwrap();
        let json = queries::encode::json(&answer.schema, &answer.batches).unwrap();
        let rows: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!((&rows[0]["n"], &rows[0]["n"]), (&rows[0]["a"], &rows[0]["b"]), "{rows}");
    }
    writer.join().unwrap();
}

/// Scenario: statements that are too long, too deep or name too many tables.
/// Guarantees: each is refused before planning, with the number and the limit; a long list is no reason to refuse.
#[test]
fn oversized_statements_are_refused() {
    let f = Fixture::new(limits());
    let long = format!("SELECT '{}'", "x".repeat(17 << 10));
    let error = f.error(&long).to_string();
    assert!(error.contains("has 17417 bytes, at most 16384 are allowed (sql.statement_bytes_max)"), "{error}");
    let deep = format!("SELECT 1{}", " + 1".repeat(2000));
    let error = f.error(&deep).to_string();
    assert!(error.contains("2001 operators and clauses, at most 500"), "{error}");
    let ors = format!("SELECT * FROM faults WHERE {}", vec!["count=1"; 1500].join(" or "));
    assert!(matches!(f.error(&ors), SqlError::Refused(_)));
    let tables = format!("SELECT 1 FROM {}", vec!["faults"; 40].join(","));
    let error = f.error(&tables).to_string();
    assert!(error.contains("names 40 tables, at most 32"), "{error}");
    let list = (0..3000).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(f.ask(&format!("SELECT * FROM faults WHERE count IN ({list})")).unwrap().rows(), 3);
}

/// Scenario: a query that would run for a very long time, with a short time limit.
/// Guarantees: the answer is `TimedOut`, and the engine answers the next query.
#[test]
fn a_slow_query_is_timed_out() {
    let f = Fixture::new(SqlLimits { timeout: Duration::from_millis(300), ..limits() });
    let slow = "SELECT count(DISTINCT value % 7) FROM generate_series(1, 100000000000)";
    let error = f.error(slow);
    assert!(matches!(error, SqlError::TimedOut { .. }), "{error:?}");
    assert!(error.is_transient());
    // Queries right after may still share the machine with the one being stopped.
    let answered = (0..50).any(|_| f.ask("SELECT 1").is_ok());
    assert!(answered, "the engine does not answer after a timeout");
}

/// Scenario: one place, a query that holds it, and more queries than may wait.
/// Guarantees: those beyond the bound get `Busy` at once; those that waited are answered.
#[test]
fn concurrency_is_bounded() {
    let f = Fixture::new(SqlLimits { concurrent_max: 1, timeout: Duration::from_secs(5), ..limits() });
    f.runtime.block_on(async {
        let holder = {
            let engine = f.engine.clone();
            tokio::spawn(async move { engine.query("SELECT sum(value) FROM generate_series(1, 100000000000)").await })
        };
        while f.engine.running() == 0 {
            tokio::task::yield_now().await;
        }
        let asked: Vec<_> = (0..queries::sql::WAITING_PER_SLOT + 3)
            .map(|_| {
                let engine = f.engine.clone();
                tokio::spawn(async move { engine.query("SELECT 1").await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        holder.abort();
        let (mut busy, mut answered) = (0, 0);
        for query in asked {
            match query.await.unwrap() {
                Ok(_) => answered += 1,
                Err(SqlError::Busy { running: 1, .. }) => busy += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!((busy, answered), (3, queries::sql::WAITING_PER_SLOT));
    });
}

/// Scenario: an aggregate whose state is larger than a query's share of memory.
/// Guarantees: `OutOfMemory` with the share; the engine goes on.
#[test]
fn memory_is_bounded() {
    let f = Fixture::new(SqlLimits { memory_bytes: 8 << 20, ..limits() });
    let error = f.error("SELECT value % 2999999 AS v, count(*) FROM generate_series(1, 3000000) GROUP BY v");
    assert!(matches!(error, SqlError::OutOfMemory { limit_bytes: 2097152, .. }), "{error:?}");
    assert_eq!(f.ask("SELECT count FROM faults").unwrap().rows(), 3);
}

/// Scenario: a query over a source of one partition, whose rows several tasks could take in turns.
/// Guarantees: they do not. Where one of them got no time, its batches would pile up until the query had no memory left.
#[test]
fn batches_do_not_pile_up_for_a_task_without_time() {
    let f = Fixture::new(limits());
    let plan = f.ask("explain select count(distinct value % 5003) from generate_series(1, 100000000)").unwrap();
    let text = arrow::util::pretty::pretty_format_batches(&plan.batches).unwrap().to_string();
    assert!(text.contains("AggregateExec") && !text.contains("RoundRobin"), "{text}");
}

/// Scenario: two statements in one, none, and one that does not end.
/// Guarantees: each is a parse error, none panics.
#[test]
fn malformed_statements_are_parse_errors() {
    let f = Fixture::new(limits());
    for sql in ["SELECT 1; SELECT 2", "", "   ", "SELECT 'open", "SELECT (((", "--", "\u{0}", "SELECT 1 FROM"] {
        let error = f.error(sql);
        assert!(matches!(error, SqlError::Parse(_)), "{sql:?}: {error:?}");
    }
}

/// Scenario: the statements that tools send to look around.
/// Guarantees: they are answered.
#[test]
fn tools_can_look_around() {
    let f = Fixture::new(limits());
    for sql in ["SHOW TABLES", "DESCRIBE requests", "EXPLAIN SELECT * FROM requests", "SHOW COLUMNS FROM faults"] {
        assert!(f.ask(sql).unwrap_or_else(|error| panic!("{sql}: {error}")).rows() > 0, "{sql}");
    }
}

/// Scenario: `count(*)` over a table in memory.
/// Guarantees: it comes from exact statistics: the plan scans nothing.
#[test]
fn count_comes_from_statistics() {
    let f = Fixture::new(limits());
    let answer = f.ask("EXPLAIN SELECT count(*) FROM requests").unwrap();
    let text = String::from_utf8(queries::encode::csv(&answer.schema, &answer.batches).unwrap()).unwrap();
    assert!(text.contains("PlaceholderRowExec"), "{text}");
    let answer = f.ask("SELECT CAST(count(*) AS BIGINT UNSIGNED) AS count FROM requests").unwrap();
    assert_eq!(counts(&answer.batches), [33]);
}

/// Scenario: callers with a limit narrower than the engine's, for time, memory, rows and statements at once; another caller meanwhile.
/// Guarantees: each limit is reached and its refusal names the key's field; the other caller has the engine's own limits.
#[test]
fn limits_of_a_caller_are_narrower() {
    let f = Fixture::new(limits());
    let ask = |caller: Caller, sql: &str| f.runtime.block_on(f.engine.answer(Question::new(sql, caller)));
    let forever = "SELECT sum(value) FROM generate_series(1, 100000000000)";
    let three = "SELECT * FROM faults";
    let groups = "SELECT value % 2999999 AS v, count(*) FROM generate_series(1, 3000000) GROUP BY v";
    let own = |change: fn(&mut Caller)| {
        let mut caller = Caller::new("acme");
        change(&mut caller);
        caller
    };
    let cases: [(Caller, &str, &str); 4] = [
        (own(|caller| caller.timeout = Some(Duration::from_millis(100))), forever, "server.keys.sql.timeout"),
        (own(|caller| caller.memory_bytes = Some(1 << 20)), groups, "server.keys.sql.memory_max"),
        (own(|caller| caller.rows_max = Some(2)), three, "server.keys.sql.rows_max"),
        (own(|caller| caller.concurrent_max = Some(0)), three, "server.keys.sql.concurrent_max"),
    ];
    for (caller, sql, field) in cases {
        let error = ask(caller, sql).expect_err(sql).to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
    assert_eq!(ask(Caller::new("other"), three).unwrap().rows(), 3);
}

/// Scenario: a caller that may have one statement at once asks for a second while the first runs; the first is then given up by its
/// caller, who asks again.
/// Guarantees: the second is refused at once, and no other caller is; what was given up gives its place back once it has stopped, and is
/// told as left until then.
#[test]
fn a_place_is_given_back_when_its_query_has_stopped() {
    let f = Fixture::new(limits());
    f.runtime.block_on(async {
        let one = Caller { concurrent_max: Some(1), ..Caller::new("acme") };
        let first = {
            let (engine, one) = (f.engine.clone(), one.clone());
            let forever = "SELECT sum(value) FROM generate_series(1, 100000000000)";
            tokio::spawn(async move { engine.answer(Question::new(forever, one)).await })
        };
        while f.engine.running() == 0 {
            tokio::task::yield_now().await;
        }
        let second = f.engine.answer(Question::new("SELECT 1", one.clone())).await;
        assert_eq!(second.unwrap_err(), SqlError::CallerBusy { caller: "acme".into(), limit: 1 });
        f.engine.answer(Question::new("SELECT 1", Caller::new("other"))).await.unwrap();
        assert_eq!(f.engine.left(), Vec::<u64>::new());
        first.abort();
        let _ = first.await;
        while f.engine.running() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(f.engine.left(), Vec::<u64>::new());
        f.engine.answer(Question::new("SELECT 1", one)).await.unwrap();
    });
}

/// Scenario: a join without an equality over more pairs than can be compared in any time, past its own.
/// Guarantees: the answer is `TimedOut`; the query is told as left, and keeps its place, since it has not stopped.
#[test]
fn what_does_not_stop_is_told() {
    let f = Fixture::new(SqlLimits { timeout: Duration::from_millis(300), ..limits() });
    let join =
        "SELECT count(*) FROM generate_series(1, 300000) a JOIN generate_series(1, 300000) b ON a.value + b.value = 7";
    // Who asks has a clock of its own: threads that compute do not look at theirs.
    let asker = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let error = asker.block_on(f.engine.query(join)).expect_err(join);
    assert!(matches!(error, SqlError::TimedOut { .. }), "{error:?}");
    assert_eq!((f.engine.running(), f.engine.left().len()), (1, 1));
    // It would run on for long after this test.
    f.runtime.shutdown_background();
}

/// Scenario: an engine with threads of their own for heavy queries: a light and a heavy query, a heavy one that is given up, and both
/// kinds where those threads are gone.
/// Guarantees: each answers; what is given up leaves nothing running there; only heavy ones go there.
#[test]
fn heavy_queries_run_on_threads_of_their_own() {
    let (light, heavy) = (query_runtime(1).unwrap(), query_runtime(1).unwrap());
    let engine = SqlEngine::new(limits(), sql_tables(), light.handle().clone()).with_heavy_on(heavy.handle().clone());
    let engine = Arc::new(engine);
    let ask = |sql: &str| light.block_on(engine.query(sql));
    let much = "SELECT sum(value) FROM generate_series(1, 1000000)";
    assert_eq!(ask("SELECT count FROM faults").unwrap().rows(), 3);
    assert_eq!(ask(much).unwrap().rows(), 1);
    light.block_on(async {
        let engine = engine.clone();
        let forever = tokio::spawn(async move {
            engine.query("SELECT count(DISTINCT value % 5003) FROM generate_series(1, 100000000000)").await
        });
        while heavy.handle().metrics().num_alive_tasks() == 0 {
            tokio::task::yield_now().await;
        }
        forever.abort();
        while heavy.handle().metrics().num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    });
    heavy.shutdown_background();
    assert_eq!(ask("SELECT count FROM faults").unwrap().rows(), 3);
    let error = ask(much).expect_err(much);
    assert!(matches!(&error, SqlError::Execution(words) if words.contains("ended early")), "{error:?}");
}
