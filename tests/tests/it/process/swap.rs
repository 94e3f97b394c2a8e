//! More sequences than pages: their KV waits in host memory (SPEC B8, C3).

use futures::future::join_all;
use serde_json::Value;
use tests::server::Server;

use super::{completion, stream};

const SETTINGS: &str = r#"
[workers]
count = 1
kv_bytes_max = "256KiB"
l2_bytes = "2MiB"
"#;

const ROUNDS_MAX: usize = 40;

/// Scenario: eight sequences that need more than three times the pages there are, first one after the other, then at once.
/// Guarantees: sequences give way and their KV goes to L2 and comes back; every text is what it was alone; all of L2 is free
/// in the end; the instance says how large L2 is and what was measured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_sequences_go_on_from_host_memory() {
    let Some(server) = Server::start(SETTINGS).await else { return };
    let bodies: Vec<Value> =
        (0..8).map(|n| completion(&format!("{n} sequences share a small pool of pages"), 400)).collect();
    let mut alone = Vec::new();
    for body in &bodies {
        alone.push(stream(&server, body.clone(), |_| {}).await);
    }
    let moved = "select cast(coalesce(sum(swapped), 0) as int) as gone, cast(coalesce(sum(swapped_in_blocks), 0) as int) as back from engine_steps";
    assert_eq!(server.sql(moved).await[0]["gone"].as_i64(), Some(0), "alone nobody gives way");
    // A fast machine may be done with one sequence before the next one comes: then they come again.
    for _round in 0..ROUNDS_MAX {
        let together = join_all(bodies.iter().map(|body| stream(&server, body.clone(), |_| {}))).await;
        assert_eq!(together, alone, "{}", server.log());
        if server.sql(moved).await[0]["gone"].as_i64() > Some(0) {
            break;
        }
    }
    let count = |rows: &[Value], name: &str| rows[0][name].as_i64().unwrap_or(0);
    let rows = server.until(moved, |rows| count(rows, "gone") > 0 && count(rows, "back") > 0).await;
    assert!(count(&rows, "back") >= count(&rows, "gone"), "{rows:?}");
    let used = "select l2_blocks_used from engine_steps order by at desc, step desc limit 1";
    server.until(used, |rows| rows[0]["l2_blocks_used"] == 0).await;
    let ready = server.sql("select detail from instances where state = 'ready'").await;
    let detail = ready[0]["detail"].as_str().unwrap();
    assert!(detail.contains("64 KV blocks, 512 in L2 (to copy a block "), "{detail}");
    server.stop();
}
