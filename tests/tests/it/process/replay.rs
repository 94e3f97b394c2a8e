//! A live run with faults, and the replay of its log (SPEC X2).

use std::{collections::HashMap, fs, path::Path, process::Command, sync::Arc};

use pipeline::{
    bus::{Archive, Bus, LogWriter},
    config,
    replay::{Difference, Level, Report, replay, what_if},
    rows::{
        BucketRow, DecisionRow, EngineStepRow, EpochRow, InstanceRow, KvEventRow, PolicyInputRow, RequestRow, Row,
        ServiceTimeRow, SettingsRow, ShadowDecisionRow,
    },
};
use queries::LiveTables;
use serde_json::json;
use tests::server::{Server, binary, client};
use tokio::sync::Notify;

use super::{completion, loss::kill_serving_worker, stream};

/// Little room, so that requests wait; views that are often older than they may be, so that the safe policy decides now and
/// then; short epochs.
const SETTINGS: &str = "[workers]\nrestart_backoff = \"50ms\"\n\
    [policy.route]\nlease_tokens_max = 700\n\
    [policy.throttle]\ndwell = \"100ms\"\n\
    [dataflow]\nepoch = \"50ms\"\nstale_after = \"50ms\"\n\
    [[shadow.policies]]\nname = \"same\"\n\
    [[shadow.policies]]\nname = \"even\"\npolicy = { route = { policy = \"round_robin\" } }\n";

/// Scenario: requests with shared prefixes, so many at once that some wait; a worker is killed in the middle of a stream; a
/// client hangs up; a malformed request; views that go stale. Then the log is replayed, by the library and by the command.
/// Guarantees: every decision comes out bit for bit from its recorded inputs, and every view, every look at the cache index
/// and every published row of service times (so the shape of every instance) from the recorded rows. A changed byte, a changed decision, a changed input and a changed step are each named; a log
/// without inputs says so. Another policy gives a table with both choices. A shadow with the acting policy's settings decides the
/// same always, and one with others what a replay by them decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_run_decides_again() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start_in(folder.path(), SETTINGS).await else { return };
    live_run(&server).await;
    server.stop();
    let data = folder.path().join("data");
    let report = replay(&Archive::open(&data).unwrap(), Level::All);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.replayed + report.without_policy, report.decisions, "{report}");
    assert!(report.without_policy == 1 && report.replayed >= 20, "{report}");
    assert!(report.views >= 20 && report.prefixes >= 5 && report.published >= 1 && report.forecasts >= 3, "{report}");
    check_kinds(&data);
    check_command(&data);
    check_changed_rows(&data, folder.path());
    check_what_if(&data, folder.path());
    check_shadows(&data);
    check_old_log(&data, folder.path());
    check_changed_byte(&data);
}

async fn live_run(server: &Server) {
    let prompt = |number: usize| format!("{} request {number}", "a prefix that all of them share ".repeat(6));
    for number in 0..3 {
        assert_eq!(server.post("/v1/completions", &completion(&prompt(number), 8)).await.status(), 200);
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    }
    assert_eq!(server.post("/v1/completions", &json!({"model": "tiny"})).await.status(), 400);
    let middle = Notify::new();
    let at_middle = |text: &str| {
        if text.len() > 20 {
            middle.notify_one();
        }
    };
    let kill = async {
        middle.notified().await;
        kill_serving_worker(server, 0).await;
    };
    tokio::join!(stream(server, completion(&prompt(9), 3800), at_middle), kill);
    let mut body = completion("a story nobody waits for", 480);
    body["stream"] = json!(true);
    let mut response = client().post(format!("{}/v1/completions", server.url)).json(&body).send().await.unwrap();
    response.chunk().await.unwrap().expect("a first piece");
    drop(response);
    server.until("select 1 as one from requests where event = 'cancelled'", |rows| rows.len() == 1).await;
    let crowd = (0..16).map(|number| {
        let body = completion(&prompt(100 + number % 4), 800 + 10 * number as u32);
        async move { server.post("/v1/completions", &body).await.status() }
    });
    // On a slow machine the throttle refuses some of them, which is a decision, too.
    let statuses = futures::future::join_all(crowd).await;
    assert!(statuses.iter().all(|status| [200, 429, 503].contains(&status.as_u16())), "{statuses:?}: {}", server.log());
    let served = statuses.iter().filter(|status| status.is_success()).count();
    server.until("select 1 as one from requests where event = 'finished'", |rows| rows.len() == 4 + served).await;
    // A view is as old as an epoch just before the next one closes: requests meet it on either side of the bound.
    let kinds = "select cast(count(*) filter (where view_mode = 'stale' and reason like '%safe policy%') as int) as stale, \
                 cast(count(*) filter (where view_mode = 'exact' and predicted_hit_tokens > 0) as int) as exact \
                 from decisions where outcome = 'admit'";
    for attempt in 0.. {
        assert_eq!(server.post("/v1/completions", &completion(&prompt(0), 2)).await.status(), 200);
        let met = server.sql(kinds).await.remove(0);
        if met["stale"].as_i64() >= Some(1) && met["exact"].as_i64() >= Some(5) {
            return;
        }
        assert!(attempt < 400, "views were always fresh, or never");
    }
}

fn all<R: Row>(data: &Path) -> Vec<R> {
    Archive::open(data).unwrap().rows::<R>().flat_map(|read| read.unwrap().1).collect()
}

/// The run had what it was meant to have.
fn check_kinds(data: &Path) {
    let decisions = all::<DecisionRow>(data);
    let has = |what: &str, is: &dyn Fn(&DecisionRow) -> bool| {
        assert!(decisions.iter().any(is), "no decision that {what}");
    };
    has("queues", &|row| row.outcome == "queue");
    has("admits after a wait", &|row| row.reason.starts_with("waited"));
    has("moves", &|row| row.reason.starts_with("moved"));
    has("falls back on the safe policy", &|row| row.view_mode == "stale" && row.reason.contains("safe policy"));
    has("reads the views", &|row| row.view_mode == "exact" && row.predicted_hit_tokens > 0);
}

fn check_command(data: &Path) {
    let run = Command::new(binary().unwrap()).args(["replay", "--log"]).arg(data).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && text.contains("differences: 0"), "{text}{}", String::from_utf8_lossy(&run.stderr));
}

/// Writes the log anew, with a change.
struct Rewritten {
    decisions: Vec<DecisionRow>,
    inputs: Vec<PolicyInputRow>,
    steps: Vec<EngineStepRow>,
}

fn rewrite(data: &Path, target: &Path, change: impl FnOnce(&mut Rewritten)) -> Report {
    let mut rows = Rewritten { decisions: all(data), inputs: all(data), steps: all(data) };
    change(&mut rows);
    let config = config::load(None, config::Overrides::default()).unwrap();
    let log = LogWriter::open(target, &config.log).unwrap();
    let (bus, guard) = Bus::start(&config.bus, Some(log), Arc::new(LiveTables::new(1000)), Arc::new(|| 0)).unwrap();
    put(&bus, rows.decisions);
    put(&bus, rows.inputs);
    put(&bus, rows.steps);
    put(&bus, all::<RequestRow>(data));
    put(&bus, all::<KvEventRow>(data));
    put(&bus, all::<InstanceRow>(data));
    put(&bus, all::<BucketRow>(data));
    put(&bus, all::<EpochRow>(data));
    put(&bus, all::<ServiceTimeRow>(data));
    put(&bus, all::<SettingsRow>(data));
    guard.stop();
    let report = replay(&Archive::open(target).unwrap(), Level::All);
    println!("{report}");
    report
}

fn put<R: Row>(bus: &Bus, rows: Vec<R>) {
    std::thread::scope(|scope| {
        scope.spawn(|| rows.into_iter().for_each(|row| bus.blocking_publish(row).unwrap()));
    });
}

fn check_changed_rows(data: &Path, folder: &Path) {
    let same = rewrite(data, &folder.join("same"), |_| {});
    assert!(same.is_clean() && same.views > 0, "{same}");
    let changed = rewrite(data, &folder.join("decision"), |rows| {
        let row = rows.decisions.iter_mut().find(|row| row.predicted_seconds.is_some()).unwrap();
        row.predicted_seconds = row.predicted_seconds.map(f64::next_up);
    });
    assert_eq!(changed.different, 1, "{changed}");
    assert_eq!(changed.differences[0].field, "predicted_seconds");
    let changed = rewrite(data, &folder.join("input"), |rows| {
        let last = rows.inputs.iter_mut().rev().find(|row| row.reading == "placement" && row.view_mode == "exact");
        last.unwrap().hits.clear();
    });
    assert!(changed.differences.iter().any(|difference| difference.field == "hits"), "{changed}");
    let changed =
        rewrite(data, &folder.join("step"), |rows| rows.steps.iter_mut().for_each(|step| step.step_us += 1000));
    assert!(changed.different > 0, "{changed}");
    let is_of_steps = |of: &Difference| {
        of.field.starts_with("figures of w") || of.field == "services" || of.of.starts_with("service times of ")
    };
    assert!(changed.differences.iter().all(is_of_steps), "{changed}");
}

fn check_what_if(data: &Path, folder: &Path) {
    let (policy, out) = (folder.join("other.toml"), folder.join("other.json"));
    let run = |settings: &str| {
        fs::write(&policy, settings).unwrap();
        let mut command = Command::new(binary().unwrap());
        command.args(["replay", "--log"]).arg(data).arg("--policy").arg(&policy).arg("--out").arg(&out);
        let run = command.output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        serde_json::from_slice::<Vec<serde_json::Value>>(&fs::read(&out).unwrap()).unwrap()
    };
    let same = run("");
    let told: Vec<_> = same.iter().filter(|row| row["is_changed"] == true).collect();
    assert!(same.len() >= 20 && told.is_empty(), "the same policy decides the same: {told:?}");
    let other = run("[policy.route]\nlease_tokens_max = 100000\n[policy.tiers]\nhigh_tokens_max = 1\n");
    assert_eq!(other.len(), same.len());
    assert!(other.iter().any(|row| row["recorded_outcome"] == "queue" && row["other_outcome"] == "admit"), "{other:?}");
    assert!(other.iter().any(|row| row["recorded_tier"] == "High" && row["other_tier"] == "Medium"), "{other:?}");
    assert!(other.iter().any(|row| row["recorded_seconds"].is_number()), "{other:?}");
}

/// What the shadows said while it ran.
fn check_shadows(data: &Path) {
    let archive = Archive::open(data).unwrap();
    let said = all::<ShadowDecisionRow>(data);
    for (name, changes) in [("same", json!({})), ("even", json!({"route": {"policy": "round_robin"}}))] {
        let other = |text: &str| {
            let recorded = config::Recorded::parse(text).map_err(|error| error.to_string())?;
            recorded.with_changes(changes.as_object().unwrap()).map_err(|error| error.to_string())
        };
        let mut replayed = Vec::new();
        let Ok(problems) = what_if(&archive, &other, |row| {
            replayed.push(row);
            Ok::<_, std::convert::Infallible>(())
        });
        assert!(problems.said.is_empty(), "{problems:?}");
        let rows: HashMap<&str, &ShadowDecisionRow> =
            said.iter().filter(|row| row.shadow == name).map(|row| (row.decision_id.as_str(), row)).collect();
        assert_eq!(rows.len(), replayed.len(), "{name}: every decision was shown");
        for row in &replayed {
            let live = rows[row.decision_id.as_str()];
            let placed = (live.shadow_instance, live.shadow_outcome.as_str(), live.shadow_seconds);
            assert_eq!(placed, (row.other_instance, row.other_outcome.as_str(), row.other_seconds), "{live:?}");
            assert!(name == "even" || !live.is_changed, "{live:?}");
        }
    }
    assert!(said.iter().any(|row| row.shadow == "even" && row.shadow_reason.contains("round_robin")));
}

fn copy(from: &Path, to: &Path, is_wanted: impl Fn(&Path) -> bool + Copy) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true if is_wanted(&path) => copy(&path, &target, is_wanted),
            true => {}
            false => drop(fs::copy(&path, &target).unwrap()),
        }
    }
}

/// A log as earlier versions wrote it: without the topics a replay needs.
fn check_old_log(data: &Path, folder: &Path) {
    let old = folder.join("old");
    copy(&data.join("log"), &old.join("log"), |path| {
        !["policy_inputs", "epochs", "settings"].contains(&path.file_name().unwrap().to_str().unwrap())
    });
    let report = replay(&Archive::open(&old).unwrap(), Level::All);
    assert!(report.is_clean() && report.replayed == 0, "{report}");
    assert!(report.to_string().contains("no row of policy_inputs: written by an earlier version"), "{report}");
}

/// One byte of a batch of decisions.
fn check_changed_byte(data: &Path) {
    let segment = fs::read_dir(data.join("log/decisions")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "arrows")).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let at = bytes.len() * 3 / 4;
    bytes[at] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let run = Command::new(binary().unwrap()).args(["replay", "--log"]).arg(data).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(!run.status.success() && text.contains("damaged: ") && text.contains("checksum"), "{text}");
}
