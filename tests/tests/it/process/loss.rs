//! A worker dies while it serves.

use std::process::Command;

use serde_json::json;
use tests::server::Server;
use tokio::sync::Notify;

use super::{completion, stream};

/// Scenario: a greedy, a seeded and a constrained stream, each with a neighbour on the other worker; the worker of the stream is killed with
/// SIGKILL in the middle.
/// Guarantees: the stream and its neighbour end as they do undisturbed, no token lost or repeated; the dead worker comes back
/// as a new incarnation; the loss is a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_is_not_noticed_by_its_clients() {
    let Some(server) = Server::start("[workers]\nrestart_backoff = \"50ms\"\n").await else { return };
    let greedy = completion("the quick brown fox", 2000);
    let mut seeded = completion("jumps over the lazy dog", 2000);
    seeded["temperature"] = json!(0.9);
    seeded["seed"] = json!(11);
    seeded["presence_penalty"] = json!(0.5);
    let mut constrained = completion("letters alone", 2000);
    constrained["guided_regex"] = json!("[a-z]{1990}");
    let neighbour = completion("another request", 2000);
    let calm = stream(&server, neighbour.clone(), |_| {}).await;
    for (round, body) in [greedy, seeded, constrained].into_iter().enumerate() {
        let undisturbed = stream(&server, body.clone(), |_| {}).await;
        let middle = Notify::new();
        let at_middle = |text: &str| {
            if text.len() > 20 {
                middle.notify_one();
            }
        };
        let kill = async {
            middle.notified().await;
            kill_serving_worker(&server, round).await;
        };
        let beside = stream(&server, neighbour.clone(), |_| {});
        let (disturbed, beside, ()) = tokio::join!(stream(&server, body, at_middle), beside, kill);
        assert_eq!(disturbed, undisturbed, "{}", server.log());
        assert_eq!(beside, calm, "{}", server.log());
        let dead = format!("select instance from instances where state = 'dead' offset {round}");
        server.until(&dead, |rows| !rows.is_empty()).await;
        let ready = "select 1 as one from instances where state = 'ready'";
        server.until(ready, |rows| rows.len() == 3 + round).await;
    }
    let moved = "select request_id from requests where event = 'dispatched' group by request_id having count(*) > 1";
    assert!(!server.sql(moved).await.is_empty(), "a request was dispatched again");
}

/// Kills the process of one of the instances that run something now.
pub(super) async fn kill_serving_worker(server: &Server, round: usize) {
    let running = "select distinct instance from requests where event = 'grew' and request_id not in \
                   (select request_id from requests where event = 'finished') order by instance";
    let rows = server.until(running, |rows| !rows.is_empty()).await;
    let instance = rows[round % rows.len()]["instance"].clone();
    let process =
        format!("select pid from instances where state = 'ready' and instance = {instance} order by at desc limit 1");
    let pid = server.sql(&process).await[0]["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());
}
