//! A server whose dataflow runs over several processes, and the loss of one of them (DESIGN §4; SPEC X5).

use std::{
    fs,
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use pipeline::{
    bus::Archive,
    replay::{Level, replay},
    rows::PolicyInputRow,
};
use serde_json::Value;
use tests::server::{Server, binary, free_port};

use super::completion;

/// Processes whose parent is `parent` and whose command line has the word, oldest first.
pub(super) fn children(parent: u32, word: &str) -> Vec<u32> {
    let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(") ").next().unwrap_or_default().to_string();
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        after_name.split(' ').nth(1) == Some(&parent.to_string())
            && String::from_utf8_lossy(&line).split('\0').any(|argument| argument == word)
    };
    let mut found: Vec<u32> = numbers.filter(is_child).collect();
    found.sort_unstable();
    found
}

fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill").success());
}

fn prompt(ending: &str) -> Value {
    completion(&format!("{}{ending}", "one two three four five six seven eight nine ten ".repeat(4)), 4)
}

/// Asks until a decision read usable views that know the prefix.
async fn until_views_decide(server: &Server, since: usize) {
    for attempt in 0.. {
        assert_eq!(server.post("/v1/completions", &prompt("")).await.status(), 200);
        let known = "select at from decisions where view_mode = 'exact' and predicted_hit_tokens > 50";
        if server.sql(known).await.len() > since {
            return;
        }
        assert!(attempt < 600, "the views never came: {}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn decided_by_views(server: &Server) -> usize {
    server.sql("select at from decisions where view_mode = 'exact' and predicted_hit_tokens > 50").await.len()
}

/// Kills, sees that serving goes on and the loss is a row, and waits until the views are back.
async fn lose_and_recover(server: &Server, pid: u32, losses: usize) {
    let before = decided_by_views(server).await;
    signal(pid, "-KILL");
    for number in 0..5 {
        let answer = server.post("/v1/completions", &prompt(&format!(" {number}"))).await;
        assert_eq!(answer.status(), 200, "{}", server.log());
    }
    let fault = |kind: &str| format!("select detail from faults where component = 'dataflow' and kind = '{kind}'");
    server.until(&fault("dataflow_process_lost"), |rows| rows.len() >= losses).await;
    server.until(&fault("dataflow_recovered"), |rows| rows.len() >= losses).await;
    until_views_decide(server, before + 2).await;
}

/// Stops processes, and asks until the loss is a row and a request was decided by the safe policy. Gives the loss in words: the first since
/// they were stopped, as a start of the time before may have been in vain.
async fn stand_still(server: &Server, pids: &[u32]) -> String {
    let newest = server.sql("select cast(max(at) as bigint) as at from decisions").await.remove(0)["at"].clone();
    let safe = format!("select at from decisions where view_mode = 'stale' and cast(at as bigint) > {newest}");
    let lost = "select detail from faults where component = 'dataflow' and kind = 'dataflow_process_lost' order by at";
    let before = server.sql(lost).await.len();
    pids.iter().for_each(|pid| signal(*pid, "-STOP"));
    for attempt in 0.. {
        let answer = server.post("/v1/completions", &prompt(&format!(" {attempt}"))).await;
        assert_eq!(answer.status(), 200, "{}", server.log());
        let told = server.sql(lost).await;
        if told.len() > before && !server.sql(&safe).await.is_empty() {
            return told[before]["detail"].as_str().unwrap().to_string();
        }
        assert!(attempt < 2000, "no loss or no safe policy: {told:?} {}", server.log());
    }
    unreachable!("the loop ends above")
}

/// The recorded views are those of an undisturbed run on one worker.
fn replays(data: &Path) {
    let archive = Archive::open(data).unwrap();
    let report = replay(&archive, Level::All);
    println!("{report}");
    assert!(report.is_clean() && report.views >= 5, "{report}");
    let inputs: Vec<_> = archive.rows::<PolicyInputRow>().flat_map(|read| read.unwrap().1).collect();
    assert!(inputs.iter().filter(|row| row.view_mode == "exact" && !row.hits.is_empty()).count() > 2);
}

const SETTINGS: &str = "[dataflow]\nepoch = \"50ms\"\n";

/// Scenario: a dataflow of three processes that the server starts; process 1 is killed with SIGKILL, later process 0.
/// Guarantees: the loss is a row, requests are answered all the time, the views come back by themselves with what was there
/// before, and a replay on one worker finds every view and decision equal, before and after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_dataflow_process_comes_back_from_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start_in(folder.path(), &format!("{SETTINGS}processes = 3\n")).await else { return };
    until_views_decide(&server, 0).await;
    for (losses, process) in [(1, 1), (2, 0)] {
        let processes = children(server.pid(), "dataflow-process");
        assert_eq!(processes.len(), 3, "{processes:?}");
        lose_and_recover(&server, processes[process], losses).await;
    }
    server.stop();
    replays(&folder.path().join("data"));
}

/// Scenario: the same three processes; process 1 is stopped with SIGSTOP, so that no connection ends, and later process 0. Views are
/// stale after half a second.
/// Guarantees: each is given up because it is not heard, requests are answered all the time and by the safe policy, the stopped process is
/// ended, the views come back from the log, and a replay finds everything equal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dataflow_process_that_stands_still_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let settings = format!("{SETTINGS}stale_after = \"500ms\"\nprocesses = 3\n");
    let Some(server) = Server::start_in(folder.path(), &settings).await else { return };
    until_views_decide(&server, 0).await;
    for (losses, process) in [(1, 1), (2, 0)] {
        let pid = children(server.pid(), "dataflow-process")[process];
        let before = decided_by_views(&server).await;
        let loss = stand_still(&server, &[pid]).await;
        assert!(loss.contains("was not heard for"), "{loss}");
        let recovered = "select 1 as one from faults where kind = 'dataflow_recovered'";
        server.until(recovered, |rows| rows.len() >= losses).await;
        until_views_decide(&server, before + 2).await;
        assert!(!children(server.pid(), "dataflow-process").contains(&pid), "{pid} still stands there");
    }
    server.stop();
    replays(&folder.path().join("data"));
}

/// Scenario: epochs of 5 ms, within which no process gets started.
/// Guarantees: the dataflow comes up all the same, and as its first generation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_may_take_longer_than_an_epoch() {
    let settings = "[dataflow]\nepoch = \"5ms\"\nheartbeat_timeout = \"30s\"\nprocesses = 2\n";
    let Some(server) = Server::start(settings).await else { return };
    until_views_decide(&server, 0).await;
    let again = server.sql("select detail from faults where kind = 'dataflow_recovered'").await;
    assert!(again.is_empty(), "{again:?}");
}

struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Scenario: a dataflow over two hosts (two loopback addresses): the server has the first process, `evenkeel dataflow` keeps the
/// second, which is killed, then stopped, then stopped together with the command, as a host that freezes; a wrong process number.
/// Guarantees: as above; a stopped process is ended by the command, a frozen host is noticed by the first process and is back when it
/// goes on; the wrong number is refused in words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_host_keeps_its_process() {
    let (folder, Some(program)) = (tempfile::tempdir().unwrap(), binary()) else { return };
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, format!("key a-word\n127.0.0.1:{}\n127.0.0.2:{}\n", free_port(), free_port())).unwrap();
    let keeper = |number: &str| {
        let mut command = Command::new(&program);
        command.args(["dataflow", "--process", number, "--hosts"]).arg(&hosts);
        command
    };
    let wrong = keeper("0").output().unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("started by `evenkeel serve`"), "{wrong:?}");
    let kept = Kept(keeper("1").spawn().unwrap());
    let settings = format!("{SETTINGS}stale_after = \"500ms\"\nhosts_file = \"{}\"\n", hosts.display());
    let server = Server::start_in(folder.path(), &settings).await.unwrap();
    until_views_decide(&server, 0).await;
    let process = || {
        // It may be between an end and a start.
        for _ in 0..1000 {
            if let [process] = children(kept.0.id(), "dataflow-process")[..] {
                return process;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("the keeper has no process");
    };
    lose_and_recover(&server, process(), 1).await;
    let before = decided_by_views(&server).await;
    let stopped = process();
    stand_still(&server, &[stopped]).await;
    until_views_decide(&server, before + 2).await;
    assert_ne!(process(), stopped);
    let (before, frozen) = (decided_by_views(&server).await, [kept.0.id(), process()]);
    let loss = stand_still(&server, &frozen).await;
    assert!(loss.contains("process 1 was not heard for"), "{loss}");
    frozen.iter().for_each(|pid| signal(*pid, "-CONT"));
    until_views_decide(&server, before + 2).await;
    server.stop();
    replays(&folder.path().join("data"));
}
