//! Rows that left memory answer together with those in memory (SPEC E2).

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use arrow::array::RecordBatch;
use queries::{
    History, HistoryBatches, HistoryError, LiveTables, NumberedBatches, Older, SqlEngine, SqlError, TimeRange, Topic,
    query_runtime,
};

use crate::{
    fixtures::{counts, faults},
    sql::limits,
};

/// Keeps every batch of `faults`, as the log does, and counts how many are read back.
#[derive(Debug, Clone)]
struct Kept(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    batches: Vec<(u64, RecordBatch)>,
    read: AtomicUsize,
    broken: bool,
}

impl History for Kept {
    fn rows_before(&self, topic: Topic, before: u64) -> u64 {
        if topic == Topic::Faults { before } else { 0 }
    }

    fn older(&self, wanted: Older) -> HistoryBatches {
        assert_eq!(wanted.topic, Topic::Faults);
        let kept = self.0.clone();
        Box::new((0..kept.batches.len()).filter_map(move |at| {
            let (first, batch) = &kept.batches[at];
            let rows = wanted.before.saturating_sub(*first).min(batch.num_rows() as u64) as usize;
            if rows == 0 || !queries::TimeRange::of(batch).overlaps(wanted.times) {
                return None;
            }
            kept.read.fetch_add(1, Ordering::Relaxed);
            match kept.broken {
                true => Some(Err(HistoryError { table: "faults", detail: "disk on fire".to_string() })),
                false => Some(Ok(batch.slice(0, rows))),
            }
        }))
    }

    fn numbered(&self, topic: Topic, rows: Range<u64>) -> NumberedBatches {
        let start = rows.start;
        let older = self.older(Older { topic, before: rows.end, times: TimeRange::ALL });
        let mut next = 0;
        Box::new(older.filter_map(move |read| match read {
            Err(error) => Some(Err(error)),
            Ok(batch) => {
                let first = next;
                next += batch.num_rows() as u64;
                let passed = start.saturating_sub(first).min(batch.num_rows() as u64);
                let rest = batch.slice(passed as usize, batch.num_rows() - passed as usize);
                (rest.num_rows() > 0).then_some(Ok((first + passed, rest)))
            }
        }))
    }
}

const ROWS: u64 = 1000;
const LIVE: usize = 300;

/// Tables as they are in the server, and where outside SQL is asked of them.
const FORMS: [fn(usize) -> LiveTables; 2] = [LiveTables::new, LiveTables::for_sql];

fn engine(form: fn(usize) -> LiveTables, broken: bool) -> (SqlEngine, Arc<Inner>, tokio::runtime::Runtime) {
    let tables = form(LIVE);
    let batches: Vec<_> = (0..ROWS).step_by(7).map(|row| (row, faults(row..(row + 7).min(ROWS)))).collect();
    for (_, batch) in &batches {
        tables.append(Topic::Faults, batch.clone()).unwrap();
    }
    let kept = Arc::new(Inner { batches, read: AtomicUsize::new(0), broken });
    assert!(tables.set_history(Arc::new(Kept(kept.clone()))));
    let runtime = query_runtime(2).unwrap();
    let engine = SqlEngine::new(limits(), Arc::new(tables), runtime.handle().clone());
    (engine, kept, runtime)
}

/// Scenario: a ring of 300 rows, 1000 rows published, questions over all of them.
/// Guarantees: each row answers exactly once, whichever side of the border it lies on, also in joins and aggregates.
#[test]
fn older_and_live_rows_answer_together() {
    for form in FORMS {
        let (engine, kept, runtime) = engine(form, false);
        let ask = |sql: &str| counts(&runtime.block_on(engine.query(sql)).unwrap().batches);
        assert_eq!(ask("SELECT count FROM faults ORDER BY count"), (0..ROWS).collect::<Vec<_>>());
        assert!(kept.read.load(Ordering::Relaxed) > 0);
        assert_eq!(ask("SELECT CAST(count(*) AS BIGINT UNSIGNED) AS count FROM faults"), [ROWS]);
        let joined =
            "SELECT a.count FROM faults a JOIN faults b ON a.count = b.count WHERE a.count % 100 = 0 ORDER BY 1";
        assert_eq!(ask(joined), (0..ROWS).step_by(100).collect::<Vec<_>>());
        assert_eq!(ask("SELECT count FROM faults ORDER BY at DESC LIMIT 3"), [999, 998, 997]);
    }
}

/// Scenario: questions over older and live rows that filter, group, join and order by text.
/// Guarantees: each row answers exactly once, whichever side of the border it lies on; columns that are wanted come in any order.
#[test]
fn text_of_older_and_live_rows_is_one() {
    for form in FORMS {
        let (engine, kept, runtime) = engine(form, false);
        let ask = |sql: &str| counts(&runtime.block_on(engine.query(sql)).unwrap().batches);
        let listed =
            "SELECT count FROM faults WHERE component || '-' || count IN ('bus-5', 'bus-995') AND detail = 'a row'";
        assert_eq!(ask(&format!("{listed} ORDER BY count")), [5, 995]);
        let groups =
            "SELECT kind, CAST(count(*) AS BIGINT UNSIGNED) AS count FROM faults WHERE detail LIKE 'a%' GROUP BY kind";
        assert_eq!(ask(groups), [ROWS]);
        let joined = "SELECT b.kind, a.count FROM faults a JOIN faults b ON a.kind || a.count = b.kind || b.count \
                      WHERE a.count % 100 = 0 ORDER BY a.detail, a.count";
        assert_eq!(ask(joined), (0..ROWS).step_by(100).collect::<Vec<_>>());
        assert_eq!(ask("SELECT detail, count, component FROM faults ORDER BY component, at DESC LIMIT 2"), [999, 998]);
        assert_eq!(ask("SELECT count, detail FROM faults WHERE detail <> 'a row'"), [0u64; 0]);
        assert!(kept.read.load(Ordering::Relaxed) > 0);
    }
}

/// Scenario: questions bounded by time, in the forms people write them.
/// Guarantees: the answer is that of the unbounded question, filtered; batches outside the bounds are not read.
#[test]
fn time_bounds_prune_and_do_not_change_answers() {
    let (engine, kept, runtime) = engine(LiveTables::for_sql, false);
    let second = |n: u64| format!("TIMESTAMP '1970-01-01T00:{:02}:{:02}Z'", n / 60, n % 60);
    let cases = [
        (format!("at >= {}", second(990)), 990..ROWS, 0),
        (format!("at > {} AND at < {}", second(20), second(30)), 21..30, 3),
        (format!("{} <= at AND {} > at", second(20), second(30)), 20..30, 3),
        (format!("at BETWEEN {} AND {}", second(695), second(710)), 695..711, 4),
        (format!("at = {}", second(5)), 5..6, 1),
        ("at < '1970-01-01T00:00:03Z'".to_string(), 0..3, 1),
        ("date_trunc('minute', at) = '1970-01-01T00:01:00Z'".to_string(), 60..120, usize::MAX),
        (format!("NOT (at < {})", second(998)), 998..ROWS, 0),
    ];
    for (condition, rows, reads_max) in cases {
        let before = kept.read.load(Ordering::Relaxed);
        let sql = format!("SELECT count FROM faults WHERE {condition} ORDER BY count");
        let answer = counts(&runtime.block_on(engine.query(&sql)).unwrap().batches);
        assert_eq!(answer, rows.collect::<Vec<_>>(), "{condition}");
        let read = kept.read.load(Ordering::Relaxed) - before;
        assert!(read <= reads_max, "{condition}: {read} batches read, at most {reads_max} expected");
    }
}

/// Scenario: older rows cannot be read.
/// Guarantees: a question that needs them fails and says why; one that does not need them is answered.
#[test]
fn unreadable_history_fails_only_what_needs_it() {
    let (engine, _, runtime) = engine(LiveTables::for_sql, true);
    match runtime.block_on(engine.query("SELECT sum(count) FROM faults")).unwrap_err() {
        SqlError::Execution(words) => assert!(words.contains("faults: disk on fire"), "{words}"),
        other => panic!("{other:?}"),
    }
    let live = "SELECT count FROM faults WHERE at >= TIMESTAMP '1970-01-01T00:16:38Z' ORDER BY count";
    assert_eq!(counts(&runtime.block_on(engine.query(live)).unwrap().batches), [998, 999]);
}
