//! The tools of the command line against a running server, and without one.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tests::server::{Server, binary};

use super::completion;

/// Runs it with this input; nothing of it is a terminal.
fn run(url: &str, arguments: &[&str], input: &str) -> Option<Output> {
    let home = tempfile::tempdir().expect("a folder");
    let mut child = Command::new(binary()?)
        .args(arguments)
        .env("EVENKEEL_URL", url)
        .env("EVENKEEL_HOME", home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    Some(child.wait_with_output().expect("it ends"))
}

fn said(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Scenario: `evenkeel sql` with a query, a piped script, a file, a wrong name; `top` without a terminal; a server that is away.
/// Guarantees: tables with NULL, statements in turn until the first error, the hint of the error, exit codes that scripts can use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_runs_queries_and_scripts() {
    let Some(server) = Server::start("").await else { return };
    assert_eq!(server.post("/v1/completions", &completion("hello", 4)).await.status(), 200);
    let ask = |arguments: &[&str], input: &str| said(&run(&server.url, arguments, input).unwrap());
    let (table, _) = ask(&["sql", "select 1 as one, cast(null as bigint) as nothing"], "");
    assert_eq!(
        table,
        "+-----+---------+\n| one | nothing |\n+-----+---------+\n| 1   | NULL    |\n+-----+---------+\n"
    );
    let (csv, errors) = ask(&["sql", "--format", "csv"], "select 1 as a; -- then\nselect ';' as b;\n\\d slo\n");
    assert!(csv.starts_with("a\n1\nb\n;\ncolumn,") && errors.is_empty(), "{csv}{errors}");
    let script = server.folder.join("report.sql");
    std::fs::write(
        &script,
        "select event from requests where event = 'arrived'; select nonsense from requests; select 3",
    )
    .unwrap();
    let output = run(&server.url, &["sql", "--format", "csv", "--file", script.to_str().unwrap()], "").unwrap();
    let (rows, error) = said(&output);
    assert_eq!((rows.as_str(), output.status.code()), ("event\narrived\n", Some(1)));
    assert!(error.contains("nonsense"), "{error}");
    let (_, error) = ask(&["top"], "");
    assert!(error.contains("top draws on a terminal"), "{error}");
    let (_, error) = said(&run("http://127.0.0.1:1", &["sql", "select 1"], "").unwrap());
    assert!(error.contains("no server answers at http://127.0.0.1:1"), "{error}");
}

/// Scenario: `evenkeel doctor` for a server that runs, and with settings that do not hold.
/// Guarantees: every check is there; the server's ports are its own; a wrong setting fails by its name with exit code 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_knows_a_running_server() {
    let Some(server) = Server::start("").await else { return };
    let model = server.folder.join("tiny.gguf");
    let listen = &server.address;
    let settings = format!("[server]\nlisten = \"{listen}\"\n[model]\nname = \"{}\"\n", model.display());
    let config = server.folder.join("doctor.toml");
    std::fs::write(&config, settings).unwrap();
    let arguments = ["doctor", "--json", "--config", config.to_str().unwrap()];
    let (report, errors) = said(&run(&server.url, &arguments, "").unwrap());
    let findings: Vec<Value> =
        serde_json::from_str(&report).unwrap_or_else(|error| panic!("{error}: {report}{errors}"));
    let of =
        |check: &str| findings.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("no {check}"));
    for check in [
        "settings",
        "model",
        "port",
        "memory",
        "cpu",
        "disk room",
        "disk speed",
        "open files",
        "clock",
        "gpu",
        "server",
    ] {
        assert!(of(check)["found"].as_str().is_some_and(|found| !found.is_empty()), "{check}");
    }
    assert_eq!(
        (of("settings")["status"].as_str(), of("server")["status"].as_str()),
        (Some("ok"), Some("ok")),
        "{report}"
    );
    let port = of("port")["found"].as_str().unwrap();
    assert!(port.contains("an evenkeel serves there"), "{port}");

    std::fs::write(&config, "[sql]\nrows_mox = 3\n").unwrap();
    let output = run(&server.url, &["doctor", "--config", config.to_str().unwrap()], "").unwrap();
    let (report, _) = said(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(report.contains("fail  settings") && report.contains("did you mean `sql.rows_max`?"), "{report}");
}
