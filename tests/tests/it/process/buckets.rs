//! Instances by length of request, with real workers (SPEC B2, B3, B5, X2).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pipeline::{
    bus::Archive,
    replay::{Level, replay},
};
use tests::server::Server;

use super::{completion, stream};

const SETTINGS: &str = "[workers]\ncount = 4\n\
    [policy.buckets]\nperiod = \"1s\"\ndwell = \"1s\"\naverage = \"1s\"\n";

/// Streams one request after the other until `is_over`; no two share a prefix.
async fn keep_busy(server: &Server, length: usize, (is_over, count): (&AtomicBool, &AtomicU32)) {
    while !is_over.load(Ordering::Relaxed) {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let prompt = format!("{number} ").repeat(length).chars().take(length).collect::<String>();
        stream(server, completion(&prompt, 300), |_| {}).await;
    }
}

/// Scenario: four workers, many short and two long requests at a time, until the axis is cut; then the log is replayed.
/// Guarantees: the plan's rows cover the axis and name every worker once; the load of its buckets is a view; decisions
/// have the fit of each candidate; all decisions and views come out again from the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_cut_by_length() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start_in(folder.path(), SETTINGS).await else { return };
    let (is_over, count) = (AtomicBool::new(false), AtomicU32::new(0));
    let check = async {
        let plan = "select bucket, from_tokens, to_tokens, instances, load, imbalance, capacity from buckets where state = 'cut' and \
                    plan = (select max(plan) from buckets where buckets >= 2) order by bucket";
        let rows = server.until(plan, |rows| rows.len() >= 2).await;
        let ids =
            rows.iter().flat_map(|row| row["instances"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()));
        let mut ids: Vec<u64> = ids.collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3], "{rows:?}");
        assert!(rows[0]["from_tokens"] == 0 && rows[rows.len() - 1]["to_tokens"].is_null(), "{rows:?}");
        assert!(rows.windows(2).all(|pair| pair[0]["to_tokens"] == pair[1]["from_tokens"]), "{rows:?}");
        assert!(rows.iter().all(|row| row["load"].as_f64() > Some(0.0) && row["capacity"] == "default"), "{rows:?}");
        let load =
            "select 1 as one from load_totals where grouped_by = 'bucket' and bucket = 1 and uncached_tokens > 500";
        server.until(load, |rows| !rows.is_empty()).await;
        let fits = "select 1 as one from decisions where outcome = 'admit' and array_length(bucket_fits) = 4";
        server.until(fits, |rows| rows.len() >= 8).await;
        let seats = "select 1 as one from policy_inputs where array_length(bucket_seats) = 4";
        server.until(seats, |rows| rows.len() >= 8).await;
        is_over.store(true, Ordering::Relaxed);
    };
    let busy = |length| keep_busy(&server, length, (&is_over, &count));
    let short = futures::future::join_all((0..10).map(|_| busy(20)));
    tokio::join!(check, short, busy(1800), busy(2300));
    server.stop();
    let report = replay(&Archive::open(&folder.path().join("data")).unwrap(), Level::All);
    println!("{report}");
    assert!(report.is_clean() && report.replayed >= 16 && report.views >= 16, "{report}");
}

/// Scenario: the default fleet of two. Guarantees: it is not cut and says so; decisions know no buckets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_are_not_cut() {
    let Some(server) = Server::start("").await else { return };
    let told = "select state, bucket, buckets, from_tokens, to_tokens, array_length(instances) as workers from buckets \
                where array_length(instances) = 2";
    let rows = server.until(told, |rows| !rows.is_empty()).await;
    assert!(rows[0]["state"] == "small_fleet" && rows[0]["buckets"] == 1, "{rows:?}");
    assert_eq!(server.post("/v1/completions", &completion("hello", 4)).await.status(), 200);
    let decided = "select bucket_fits from decisions where outcome = 'admit'";
    assert!(server.until(decided, |rows| !rows.is_empty()).await[0]["bucket_fits"].is_null());
}
