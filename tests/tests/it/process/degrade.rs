//! Each part that can fail is made to: what is lost has its stated branch, shows in `modes`, `/metrics` and the response, and ends by
//! itself (SPEC X5). A dead dataflow process is in `cluster`, streams of a dead worker in `loss`.

use std::{process::Command, time::Duration};

use serde_json::{Value, json};
use tests::server::{Server, client};
use tokio::sync::Notify;

use super::{cluster::children, completion, stream};

fn signal(name: &str, pid: &str) {
    assert!(Command::new("kill").args([name, pid]).status().expect("kill").success());
}

/// The newest mode of a part, and what is done in it.
async fn until_mode(server: &Server, (component, subject): (&str, &str), mode: &str) -> String {
    let newest = format!(
        "select mode, branch from modes where component = '{component}' and subject = '{subject}' order by at desc limit 1"
    );
    let rows = server.until(&newest, |rows| rows.first().is_some_and(|row| row["mode"] == mode)).await;
    rows[0]["branch"].as_str().unwrap().to_string()
}

async fn metrics(server: &Server) -> String {
    server.get("/metrics").await.unwrap().text().await.unwrap()
}

/// A short request: its status and the mode of the views that decided it.
async fn ask(server: &Server, max_tokens: u32) -> (u16, String) {
    let body = completion("what goes on", max_tokens);
    let response = client().post(format!("{}/v1/completions", server.url)).json(&body).send().await.unwrap();
    (response.status().as_u16(), response.headers()["x-evenkeel-views"].to_str().unwrap().to_string())
}

/// Scenario: a dataflow process is stopped, so that the views go stale; requests come all the time, until the views are back.
/// Guarantees: nobody is turned away; while the views are stale the safe policy decides, and response, decision and `modes` say
/// so; when they are back all of them say that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_views_are_said_and_survived() {
    let settings = "[dataflow]\nepoch = \"50ms\"\nstale_after = \"500ms\"\nprocesses = 2\n";
    let Some(server) = Server::start(settings).await else { return };
    until_mode(&server, ("views", ""), "exact").await;
    until_views(&server, "exact").await;
    let process = children(server.pid(), "dataflow-process")[1].to_string();
    signal("-STOP", &process);
    until_views(&server, "stale").await;
    let safe = "select 1 as one from decisions where view_mode = 'stale' and route_policy = 'least_outstanding_tokens'";
    server.until(safe, |rows| !rows.is_empty()).await;
    let told = "select branch from modes where component = 'views' and mode = 'stale'";
    let rows = server.until(told, |rows| !rows.is_empty()).await;
    assert!(rows[0]["branch"].as_str().unwrap().contains("fewest leased tokens"), "{rows:?}");
    // It was given up already, or goes on now.
    let _ = Command::new("kill").args(["-CONT", &process]).status();
    until_views(&server, "exact").await;
    until_mode(&server, ("views", ""), "exact").await;
    server.stop();
}

/// Asks until a request was decided by views in this mode; each is answered.
async fn until_views(server: &Server, mode: &str) {
    for attempt in 0.. {
        let (status, views) = ask(server, 2).await;
        assert_eq!(status, 200, "{}", server.log());
        if views == mode {
            return;
        }
        assert!(attempt < 2000, "the views never were {mode}: {}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Scenario: the one worker that runs a stream stands still and tells nothing, then goes on; later it is killed and does not come
/// back, while the other one serves.
/// Guarantees: while it is silent, and while it is dead, `modes` and `/metrics` say so and requests are served elsewhere; the
/// stream ends as it would have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_and_a_dead_worker_are_said_and_survived() {
    let settings = "[workers]\nhealth_timeout = \"60s\"\nrestart_backoff = \"60s\"\nrestart_backoff_max = \"60s\"\n\
                    [dataflow]\nsilent_after = \"1s\"\n";
    let Some(server) = Server::start(settings).await else { return };
    let workers = "select name, pid from instances where state = 'ready' order by instance";
    let workers = server.until(workers, |rows| rows.len() == 2).await;
    let body = completion("a long story", 3000);
    let calm = stream(&server, body.clone(), |_| {}).await;
    let middle = Notify::new();
    let at_middle = |text: &str| {
        if text.len() > 20 {
            middle.notify_one();
        }
    };
    let silence = async {
        middle.notified().await;
        let running = "select distinct instance from requests where event = 'grew' and request_id not in \
                       (select request_id from requests where event = 'finished')";
        let instance = server.until(running, |rows| rows.len() == 1).await[0]["instance"].as_u64().unwrap() as usize;
        let pid = workers[instance]["pid"].to_string();
        let name = workers[instance]["name"].as_str().unwrap().to_string();
        signal("-STOP", &pid);
        let branch = until_mode(&server, ("telemetry", &name), "silent").await;
        let shown = metrics(&server).await;
        let served = ask(&server, 2).await;
        signal("-CONT", &pid);
        assert!(branch.contains("leases stand for its load"), "{branch}");
        let line = format!(r#"evenkeel_mode_degraded{{component="telemetry",subject="{name}",mode="silent"}} 1"#);
        assert!(shown.contains(&line), "{line} in {shown}");
        assert_eq!(served.0, 200);
        until_mode(&server, ("telemetry", &name), "reporting").await;
    };
    let (disturbed, ()) = tokio::join!(stream(&server, body, at_middle), silence);
    assert_eq!(disturbed, calm, "{}", server.log());

    let name = workers[0]["name"].as_str().unwrap();
    signal("-9", &workers[0]["pid"].to_string());
    let branch = until_mode(&server, ("worker", name), "dead").await;
    assert!(branch.contains("go on at other instances"), "{branch}");
    let line = format!(r#"evenkeel_mode_degraded{{component="worker",subject="{name}",mode="dead"}} 1"#);
    let shown = metrics(&server).await;
    assert!(shown.contains(&line), "{line} in {shown}");
    assert_eq!(ask(&server, 2).await.0, 200);
    server.stop();
}

/// Scenario: the server may write no more to any file, as on a full disk; requests go on; then it may again.
/// Guarantees: requests and SQL are answered meanwhile; `modes`, `faults` and `/metrics` say that the log is not written, and then that it
/// is; the rows of that time are in the tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_said_and_survived() {
    let folder = tempfile::tempdir().unwrap();
    // A limit on file sizes fails each write with an error instead of a signal, as a full disk does.
    let wrapper = ["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""];
    let Some(server) = Server::start_wrapped(folder.path(), "", &wrapper).await else { return };
    let limit = |bytes: &str| {
        let (pid, size) = (server.pid().to_string(), format!("--fsize={bytes}"));
        Command::new("prlimit").args(["--pid", &pid, &size]).status().is_ok_and(|status| status.success())
    };
    if !limit("1:unlimited") {
        println!("SKIPPED (prlimit cannot limit the size of files here)");
        return;
    }
    assert_eq!(ask(&server, 4).await.0, 200);
    let branch = until_mode(&server, ("log", ""), "faulted").await;
    assert!(branch.contains("rows wait in memory"), "{branch}");
    let shown = metrics(&server).await;
    assert!(shown.contains(r#"evenkeel_mode_degraded{component="log",subject="",mode="faulted"} 1"#), "{shown}");
    assert!(shown.contains("evenkeel_log_healthy 0"), "{shown}");
    assert_eq!(ask(&server, 4).await.0, 200);
    assert!(limit("unlimited:unlimited"), "the limit is lifted");
    until_mode(&server, ("log", ""), "written").await;
    let kinds = server.until("select distinct kind from faults where component = 'log'", |rows| rows.len() >= 2).await;
    let kinds: Vec<&Value> = kinds.iter().map(|row| &row["kind"]).collect();
    assert!(kinds.contains(&&json!("log_faulted")) && kinds.contains(&&json!("log_recovered")), "{kinds:?}");
    server.until("select 1 as one from requests where event = 'finished'", |rows| rows.len() == 2).await;
    server.stop();
}
