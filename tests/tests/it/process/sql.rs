//! SQL from outside against a running server: statements that no limit inside a process stops, a process that is killed, callers that
//! hang up, limits of keys (SPEC E2).

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use arrow::ipc::reader::StreamReader;
use queries::Topic;
use serde_json::{Value, json};
use tests::server::{PATIENCE, Server, client};
use tokio::time::Instant;

use super::completion;

/// Short times, little memory, and a process that is soon given up.
const TIGHT: &str = "[sql]\ntimeout = \"3s\"\nstop_grace = \"300ms\"\nmemory_max = \"256MiB\"\nworker_memory = \"2GiB\"\n\
                     statement_bytes_max = \"128KiB\"\n";

/// The process that answers SQL for a server: its child with that subcommand.
fn sql_process(server: &Server) -> Option<u32> {
    let parent = format!(" {} ", server.pid());
    fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, after_name) = stat.rsplit_once(')')?;
        let is_it = line.split(|byte| *byte == 0).any(|word| word == b"query-worker");
        // State, then the parent.
        (is_it && after_name.get(2..)?.starts_with(&parent)).then_some(pid)
    })
}

/// The same, after a wait for one.
async fn running(server: &Server) -> u32 {
    let started = Instant::now();
    loop {
        if let Some(pid) = sql_process(server) {
            return pid;
        }
        assert!(started.elapsed() < PATIENCE, "there is no process for SQL: {}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// Status, code and header of an answer.
struct Answer {
    status: u16,
    code: String,
    message: String,
    retry_after: Option<String>,
}

async fn ask(server: &Server, query: &str) -> Answer {
    let response = server.post("/sql", &json!({"query": query})).await;
    let status = response.status().as_u16();
    let retry_after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_string());
    let body: Value = response.json().await.expect("a body of JSON");
    let word = |name: &str| body["error"][name].as_str().unwrap_or_default().to_string();
    Answer { status, code: word("code"), message: word("message"), retry_after }
}

/// Asks until the engine is back.
async fn back(server: &Server) {
    let started = Instant::now();
    loop {
        let answer = ask(server, "select 1 as one").await;
        if answer.status == 200 {
            return;
        }
        assert!(["sql_engine_restarted", "timed_out"].contains(&answer.code.as_str()), "{}", answer.message);
        assert!(answer.retry_after.is_some(), "{}", answer.message);
        assert!(started.elapsed() < PATIENCE, "it does not come back: {}", server.log());
    }
}

/// Chat, health and small queries, one after the other, until told; the server must answer all of them, and the SQL engine those it can.
async fn others(server: &Server, over: &AtomicBool) -> usize {
    let mut answered = 0;
    while !over.load(Ordering::Relaxed) || answered == 0 {
        let response = server.post("/v1/completions", &completion("go on", 3)).await;
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        assert_eq!(server.get("/health").await.unwrap().status(), 200);
        let small = ask(server, "select event, count(*) from requests group by event").await;
        let is_typed =
            small.status == 200 || ["sql_engine_restarted", "timed_out", "busy"].contains(&small.code.as_str());
        assert!(is_typed, "{} {}", small.code, small.message);
        answered += 1;
    }
    answered
}

/// Scenario: every statement that limits inside a process are known not to stop: a join without an equality that runs on after its
/// abort, values of gigabytes made while planning, an aggregate over a cross join, a join on a key with few values; requests and small
/// queries go on meanwhile.
/// Guarantees: each statement ends with a typed error that says what to do; those that do not stop end their process and it comes back;
/// everybody else is answered; the server's own process stays, and does not grow by what the statements took.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_stopped_ends_its_process_alone() {
    let Some(server) = Server::start(TIGHT).await else { return };
    back(&server).await;
    let before = resident(server.pid());
    let statements = [
        (
            "select count(*) from generate_series(1, 200000) a join generate_series(1, 200000) b on a.value + b.value = 7",
            true,
        ),
        ("select repeat('x', 1000000000)", false),
        ("select lpad('x', 2000000000, 'y')", true),
        ("select length(repeat('x', 1000000000) || lpad('x', 1000000000, 'y'))", true),
        ("select array_agg(a.value) from generate_series(1, 100000) a cross join generate_series(1, 100000) b", false),
        (
            "select count(*) from generate_series(1, 200000) a join generate_series(1, 200000) b on a.value % 10 = b.value % 10 \
             where a.value + b.value < 0",
            false,
        ),
    ];
    for (statement, must_end) in statements {
        let process = running(&server).await;
        let over = AtomicBool::new(false);
        let run = async {
            let answer = ask(&server, statement).await;
            back(&server).await;
            over.store(true, Ordering::Relaxed);
            answer
        };
        let (answer, _) = tokio::join!(run, others(&server, &over));
        let expected = ["timed_out", "sql_engine_restarted", "out_of_memory"];
        assert!(expected.contains(&answer.code.as_str()), "{statement}: {} {}", answer.code, answer.message);
        assert!(answer.retry_after.is_some(), "{statement}: {}", answer.message);
        if must_end {
            let started = Instant::now();
            while sql_process(&server).is_none_or(|now| now == process) {
                assert!(started.elapsed() < PATIENCE, "{statement} does not end its process: {}", server.log());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            back(&server).await;
        }
    }
    let ends = "select detail from faults where component = 'sql' and kind = 'engine_restarted'";
    let started = Instant::now();
    let told = loop {
        // The last statement's process may yet have to be ended.
        let response = server.post("/sql", &json!({"query": ends})).await;
        let (status, told) = (response.status(), response.text().await.unwrap());
        assert!(status == 200 || told.contains("sql_engine_restarted"), "{told}");
        if status == 200 && told.matches("detail").count() >= 3 {
            break told;
        }
        assert!(started.elapsed() < PATIENCE, "{told}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(told.contains("sql.stop_grace") && told.contains("sql.worker_memory"), "{told}");
    let grown = resident(server.pid()).saturating_sub(before);
    assert!(grown < 200 << 20, "the server grew by {grown} bytes");
}

/// Scenario: chains of `1 + 1 + …` of 8 KiB and 64 KiB, which overflow a stack while they are planned.
/// Guarantees: they are refused by their number of terms, before planning, and the process stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_chains_are_refused() {
    let Some(server) = Server::start(TIGHT).await else { return };
    back(&server).await;
    let process = sql_process(&server);
    for bytes in [8 << 10, 64 << 10] {
        let answer = ask(&server, &format!("select 1{}", " + 1".repeat(bytes / 4))).await;
        assert_eq!((answer.status, answer.code.as_str()), (400, "refused"), "{}", answer.message);
        assert!(answer.message.contains("operators and clauses, at most 500"), "{}", answer.message);
    }
    assert_eq!(sql_process(&server), process);
}

/// Scenario: more rows than memory keeps; the process for SQL is killed with SIGKILL while a long query runs, and again while none does.
/// Guarantees: the query's caller is told so, with `Retry-After`; the next answers know all rows, those in the log among them; the end is
/// a row and a metric.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_comes_back_with_all_rows() {
    let Some(server) = Server::start("[bus]\nlive_rows = 4\n").await else { return };
    for _ in 0..6 {
        assert_eq!(server.post("/v1/completions", &completion("hello", 4)).await.status(), 200);
    }
    let finished = "select count(*) as n from requests where event = 'finished'";
    server.until(finished, |rows| rows[0]["n"] == 6).await;
    let kill = || {
        let pid = sql_process(&server).expect("a process for SQL").to_string();
        assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    };
    let long = ask(&server, "select sum(value) from generate_series(1, 100000000000)");
    let killed = async {
        // The query runs, or it would not hold a place.
        tokio::time::sleep(Duration::from_millis(300)).await;
        kill();
    };
    let (answer, ()) = tokio::join!(long, killed);
    assert_eq!((answer.status, answer.code.as_str()), (503, "sql_engine_restarted"), "{}", answer.message);
    assert_eq!(answer.retry_after.as_deref(), Some("1"));
    assert_eq!(server.sql(finished).await[0]["n"], 6);
    kill();
    back(&server).await;
    server.until("select detail from faults where component = 'sql'", |rows| rows.len() == 2).await;
    assert_eq!(server.sql(finished).await[0]["n"], 6);
    let metrics = server.get("/metrics").await.unwrap().text().await.unwrap();
    for line in ["evenkeel_sql_engine_restarts_total 2", "evenkeel_sql_engine_up 1"] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
}

/// Scenario: one place, a query of a minute in it, whose caller hangs up; another caller asks.
/// Guarantees: the place is free for it at once, in the same process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_up_frees_the_place() {
    let Some(server) = Server::start("[sql]\ntimeout = \"60s\"\nconcurrent_max = 1\n").await else { return };
    back(&server).await;
    let process = sql_process(&server);
    let body = json!({"query": "select sum(value) from generate_series(1, 100000000000)"});
    let long = client().post(format!("{}/sql", server.url)).json(&body).send();
    assert!(tokio::time::timeout(Duration::from_millis(300), long).await.is_err(), "it runs on");
    let next = tokio::time::timeout(Duration::from_secs(30), server.sql("select 1 as one")).await;
    assert_eq!(next.expect("the place is free")[0]["one"], 1);
    assert_eq!(sql_process(&server), process);
}

/// Scenario: a key with limits of its own for SQL, and one without.
/// Guarantees: each limit is refused with the field of the key; the other key has the server's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_key_name_their_field() {
    let settings = "[sql]\ntimeout = \"20s\"\n\
        [[server.keys]]\nkey = \"k1\"\ntenant = \"acme\"\nclass = \"High\"\n\
        sql = { timeout = \"300ms\", memory_max = \"1MiB\", rows_max = 2, concurrent_max = 1 }\n\
        [[server.keys]]\nkey = \"k2\"\ntenant = \"free\"\nclass = \"High\"\n";
    let Some(server) = Server::start(settings).await else { return };
    let ask = async |key: &str, query: &str| {
        let request = client().post(format!("{}/sql", server.url)).bearer_auth(key).json(&json!({"query": query}));
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    let three = "select * from generate_series(1, 3)";
    let groups = "select value % 2999999 as v, count(*) from generate_series(1, 3000000) group by v";
    let forever = "select sum(value) from generate_series(1, 100000000000)";
    for (query, status, field) in [
        (three, 413, "server.keys.sql.rows_max"),
        (groups, 413, "server.keys.sql.memory_max"),
        (forever, 408, "server.keys.sql.timeout"),
    ] {
        let (got, body) = ask("k1", query).await;
        assert!(got == status && body.contains(field), "{query}: {got} {body}");
    }
    assert_eq!(ask("k2", three).await.0, 200);
    let long = async {
        let mut refused = None;
        while refused.is_none() {
            let two = tokio::join!(ask("k1", forever), ask("k1", forever));
            refused = [two.0, two.1].into_iter().find(|(_, body)| body.contains("server.keys.sql.concurrent_max"));
        }
        refused.unwrap()
    };
    let (status, body) = tokio::time::timeout(PATIENCE, long).await.expect("one of two at once is refused");
    assert!(status == 429 && body.contains("caller_busy"), "{body}");
}

/// Scenario: rows of a running server, and text that functions make of them, as Arrow over HTTP.
/// Guarantees: columns have the table's own types, text is no view, though the process for SQL holds views.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrow_answers_have_the_tables_types() {
    let Some(server) = Server::start("").await else { return };
    assert_eq!(server.post("/v1/completions", &completion("hello", 3)).await.status(), 200);
    server.until("select event from requests where event = 'finished'", |rows| rows.len() == 1).await;
    let types = async |query: &str| {
        let request = client().post(format!("{}/sql", server.url)).json(&json!({"query": query}));
        let answer = request.header("accept", "application/vnd.apache.arrow.stream").send().await.unwrap();
        let bytes = answer.error_for_status().unwrap().bytes().await.unwrap();
        let batches: Vec<_> = StreamReader::try_new(bytes.as_ref(), None).unwrap().map(Result::unwrap).collect();
        assert!(!batches.is_empty(), "{query}");
        batches[0].schema().fields().iter().map(|field| field.data_type().clone()).collect::<Vec<_>>()
    };
    let own = |topic: Topic| topic.schema().fields().iter().map(|field| field.data_type().clone()).collect::<Vec<_>>();
    assert_eq!(types("select * from requests where event like 'f%'").await, own(Topic::Requests));
    assert_eq!(types("select * from decisions").await, own(Topic::Decisions));
    let made = types("select upper(tier), array_agg(tenant), seq::varchar from requests group by 1, 3").await;
    assert!(!format!("{made:?}").contains("View"), "{made:?}");
}
