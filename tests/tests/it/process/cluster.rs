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
fn children(parent: u32, word: &str) -> Vec<u32> {
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

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill").success());
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
    kill(pid);
    for number in 0..5 {
        let answer = server.post("/v1/completions", &prompt(&format!(" {number}"))).await;
        assert_eq!(answer.status(), 200, "{}", server.log());
    }
    let fault = |kind: &str| format!("select detail from faults where component = 'dataflow' and kind = '{kind}'");
    server.until(&fault("dataflow_process_lost"), |rows| rows.len() >= losses).await;
    server.until(&fault("dataflow_recovered"), |rows| rows.len() >= losses).await;
    until_views_decide(server, before + 2).await;
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

struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Scenario: a dataflow over two hosts (two loopback addresses): the server has the first process, `evenkeel dataflow` keeps the
/// second, which is killed; a wrong process number.
/// Guarantees: as above; the wrong number is refused in words.
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
    let settings = format!("{SETTINGS}hosts_file = \"{}\"\n", hosts.display());
    let server = Server::start_in(folder.path(), &settings).await.unwrap();
    until_views_decide(&server, 0).await;
    let processes = children(kept.0.id(), "dataflow-process");
    assert_eq!(processes.len(), 1);
    lose_and_recover(&server, processes[0], 1).await;
    server.stop();
    replays(&folder.path().join("data"));
}
