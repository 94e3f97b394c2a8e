//! Publishing, subscribing, watching, stopping.

use queries::Topic;

use super::{Fixture, bus_config, row};
use crate::{
    bus::{LogState, Origin, PublishError, rows_of},
    config,
    ids::{InstanceId, ProcessEpoch},
    rows::{FaultRow, InstanceRow},
};

fn origin(epoch: u64, seq: u64) -> Origin {
    Origin { producer: InstanceId(7), epoch: ProcessEpoch(epoch), seq }
}

fn batch(numbers: std::ops::Range<u32>) -> arrow::array::RecordBatch {
    let rows: Vec<_> = numbers.map(row).collect();
    let fields = Topic::Instances.schema().fields().to_vec();
    serde_arrow::to_record_batch(&fields, &rows).unwrap()
}

/// Scenario: a subscriber with room for two batches reads slowly while 1000 rows are published.
/// Guarantees: it gets every row once, in order, numbered without gaps, and only of its topic; the bus waited and said so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_subscriber_loses_nothing() {
    let f = Fixture::start(config::Bus { subscriber_batches: 2, flush_rows: 16, ..bus_config() }, None);
    let mut subscription = f.bus.subscribe(&[Topic::Instances]);
    let bus = f.bus.clone();
    let publisher = tokio::spawn(async move {
        for number in 0..1000 {
            bus.publish(row(number)).await.unwrap();
        }
    });
    let mut seen = Vec::new();
    while seen.len() < 1000 {
        while f.bus.counters().subscriber_waits == 0 {
            tokio::task::yield_now().await;
        }
        let published = subscription.recv().await.unwrap();
        assert_eq!((published.topic, published.first_row), (Topic::Instances, seen.len() as u64));
        seen.extend(rows_of::<InstanceRow>(&published.batch).unwrap());
    }
    publisher.await.unwrap();
    assert_eq!(seen, (0..1000).map(row).collect::<Vec<_>>());
    assert_eq!(f.numbers(), (0..1000).collect::<Vec<_>>());
    assert!(f.bus.counters().subscriber_waits > 0);
    tokio::task::spawn_blocking(|| f.guard.stop()).await.unwrap();
    assert!(subscription.recv().await.is_none());
}

/// Scenario: a watcher reads nothing while more batches pass than it has room for.
/// Guarantees: the bus does not wait; the watcher then gets the newest batches and knows how many it skipped.
#[tokio::test]
async fn a_slow_watcher_skips_and_counts() {
    let f = Fixture::start(config::Bus { subscriber_batches: 4, flush_rows: 1, ..bus_config() }, None);
    let mut watcher = f.bus.watch();
    for number in 0..20 {
        f.bus.publish(row(number)).await.unwrap();
    }
    f.bus.flush().await.unwrap();
    let first = watcher.recv().await.unwrap();
    assert_eq!((first.first_row, watcher.lagged()), (16, 16));
    let counters = f.bus.counters();
    assert_eq!((counters.watcher_lag, counters.subscriber_waits, counters.batches), (16, 0, 20));
    drop(f.guard);
    for expected in 17..20 {
        assert_eq!(watcher.recv().await.unwrap().first_row, expected);
    }
    assert!(watcher.recv().await.is_none());
}

/// Scenario: a remote producer sends, resends, leaves batches out, restarts; its earlier incarnation comes late.
/// Guarantees: each row is there once; counters and `faults` rows say what happened.
#[tokio::test]
async fn remote_duplicates_gaps_and_restarts() {
    let f = Fixture::start(bus_config(), None);
    let sent = [((1, 1), 0..3), ((1, 2), 3..5), ((1, 2), 3..5), ((1, 5), 5..6), ((2, 1), 6..8), ((1, 6), 8..9)];
    for ((epoch, seq), numbers) in sent {
        f.bus.publish_remote(Topic::Instances, origin(epoch, seq), batch(numbers)).await.unwrap();
    }
    f.bus.flush().await.unwrap();
    assert_eq!(f.numbers(), (0..8).collect::<Vec<_>>());
    let counters = f.bus.counters();
    assert_eq!((counters.duplicates, counters.stale, counters.gap_batches, counters.restarts), (1, 1, 2, 1));
    assert_eq!(counters.log_state, LogState::Off);
    let (gaps, restarts) = (f.faults("gap"), f.faults("restart"));
    assert_eq!((gaps.len(), gaps[0].count, restarts.len()), (1, 2, 1));
    assert!(gaps[0].detail.contains("instance w7 epoch 1 topic instances: 2 batches before batch 5"), "{gaps:?}");
}

/// Scenario: a remote batch of another topic, and one with too many rows.
/// Guarantees: its sender is told why; nothing reaches the tables.
#[tokio::test]
async fn remote_batches_are_checked() {
    let f = Fixture::start(bus_config(), None);
    let error = f.bus.publish_remote(Topic::Faults, origin(1, 1), batch(0..2)).await.unwrap_err();
    assert_eq!(error.to_string(), "batch for table faults does not fit: 11 columns, 5 wanted");
    let many = batch(0..super::super::REMOTE_ROWS_MAX as u32 + 1);
    let error = f.bus.publish_remote(Topic::Instances, origin(1, 1), many).await.unwrap_err();
    assert!(matches!(error, PublishError::TooManyRows { rows: 65_537 }), "{error}");
    f.bus.flush().await.unwrap();
    assert!(f.numbers().is_empty() && f.rows::<FaultRow>().is_empty());
}

/// Scenario: rows are accepted, the bus stops at once, more rows come.
/// Guarantees: what was accepted is in the tables; what came after is refused.
#[tokio::test]
async fn stopping_publishes_what_was_accepted() {
    let f = Fixture::start(config::Bus { flush_interval: std::time::Duration::from_secs(3600), ..bus_config() }, None);
    for number in 0..100 {
        f.bus.publish(row(number)).await.unwrap();
    }
    let Fixture { bus, guard, tables } = f;
    tokio::task::spawn_blocking(move || guard.stop()).await.unwrap();
    assert_eq!(tables.snapshot().table(Topic::Instances).rows_live(), 100);
    assert!(matches!(bus.publish(row(0)).await, Err(PublishError::Closed)));
    assert!(matches!(bus.try_publish(row(0)), Err(PublishError::Closed)));
    assert!(matches!(bus.flush().await, Err(PublishError::Closed)));
    assert!(bus.subscribe(&Topic::ALL).recv().await.is_none());
    assert!(bus.watch().recv().await.is_none());
}

/// Scenario: a subscriber never reads, the queue fills, a plain thread tries to publish.
/// Guarantees: `try_publish` says `Full` instead of waiting, and it is counted; when the subscriber goes, all is well again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_said() {
    let config = config::Bus { subscriber_batches: 1, flush_rows: 1, queue_rows: 4, ..bus_config() };
    let f = Fixture::start(config, None);
    let subscription = f.bus.subscribe(&[Topic::Instances]);
    let mut accepted = 0;
    // One batch fits the subscription, one waits in the bus with what was taken from the queue, four wait in the queue.
    while !matches!(f.bus.try_publish(row(accepted)), Err(PublishError::Full)) {
        accepted += 1;
        assert!(accepted < 100_000, "the queue never fills");
    }
    assert!(f.bus.counters().refused_full >= 1);
    drop(subscription);
    let bus = f.bus.clone();
    std::thread::spawn(move || bus.blocking_publish(row(accepted)).unwrap()).join().unwrap();
    f.bus.flush().await.unwrap();
    assert_eq!(f.numbers(), (0..=accepted).collect::<Vec<_>>());
}

/// Scenario: rows are offered to a bus that is not emptied until one comes back, which is then sent; then the bus stops and one
/// more is offered.
/// Guarantees: an offer never waits; what came back and was sent is there once, after those before it; the stopped bus says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_for_which_there_is_no_room_comes_back() {
    let config = config::Bus { subscriber_batches: 1, flush_rows: 1, queue_rows: 4, ..bus_config() };
    let f = Fixture::start(config, None);
    let subscription = f.bus.subscribe(&[Topic::Instances]);
    let mut number = 0;
    let unsent = loop {
        match f.bus.offer(row(number)) {
            Ok(()) => number += 1,
            Err(unsent) => break unsent,
        }
        assert!(number < 100_000, "the queue never fills");
    };
    let bus = f.bus.clone();
    let sending = tokio::spawn(async move { bus.publish(unsent).await });
    drop(subscription);
    sending.await.unwrap().unwrap();
    f.bus.flush().await.unwrap();
    assert_eq!(f.numbers(), (0..=number).collect::<Vec<_>>());
    let Fixture { bus, guard, .. } = f;
    tokio::task::spawn_blocking(move || guard.stop()).await.unwrap();
    let unsent = bus.offer(row(0)).expect_err("it has stopped");
    assert!(matches!(bus.publish(unsent).await, Err(PublishError::Closed)));
}

/// Scenario: four threads publish rows of two topics at once into a bus with little room, faster than it is emptied, until it stops.
/// Guarantees: every row that was accepted is there once, in its publisher's order; room is never leaked: at the end all of it is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_publishers_lose_nothing() {
    let f = Fixture::start(config::Bus { flush_rows: 8, queue_rows: 32, ..bus_config() }, None);
    let publish = |publisher: u32, bus: crate::bus::Bus| {
        let mut accepted = 0;
        for number in 0.. {
            let is_fault = number % 3 == 0;
            let fault = |number: u32| FaultRow {
                at: 0,
                component: publisher.to_string(),
                kind: "test".into(),
                detail: String::new(),
                count: number.into(),
            };
            let row = InstanceRow { instance: publisher, ..row(number) };
            let published = if is_fault { bus.blocking_publish(fault(number)) } else { bus.blocking_publish(row) };
            match published {
                Ok(()) => accepted += 1,
                Err(_) => break,
            }
        }
        accepted
    };
    let publishers: Vec<_> = (0..4)
        .map(|publisher| {
            let bus = f.bus.clone();
            std::thread::spawn(move || publish(publisher, bus))
        })
        .collect();
    while f.tables.snapshot().table(Topic::Faults).next_row() < 2000 {
        tokio::task::yield_now().await;
    }
    let Fixture { bus, guard, tables } = f;
    tokio::task::spawn_blocking(move || guard.stop()).await.unwrap();
    let accepted: Vec<u32> = publishers.into_iter().map(|publisher| publisher.join().unwrap()).collect();
    let f = |topic| tables.snapshot().table(topic).clone();
    let rows: Vec<InstanceRow> =
        f(Topic::Instances).batches().flat_map(|batch| rows_of(&batch.unwrap()).unwrap()).collect();
    let faults: Vec<FaultRow> =
        f(Topic::Faults).batches().flat_map(|batch| rows_of(&batch.unwrap()).unwrap()).collect();
    for (publisher, accepted) in (0..).zip(accepted) {
        let mine = rows.iter().filter(|row| row.instance == publisher).map(|row| row.pid.unwrap());
        let other = faults.iter().filter(|row| row.component == publisher.to_string()).map(|row| row.count as u32);
        let (wanted_rows, wanted_faults): (Vec<u32>, Vec<u32>) = (0..accepted).partition(|number| number % 3 > 0);
        assert_eq!((mine.collect::<Vec<_>>(), other.collect::<Vec<_>>()), (wanted_rows, wanted_faults));
    }
    assert_eq!(bus.counters().queue_depth, 0);
}

/// Scenario: batches of this process come between rows of the same topic, and one of another topic's columns.
/// Guarantees: all of their rows are numbered once and in the order of each publisher; the wrong batch is refused by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_this_process_are_rows_like_others() {
    let f = Fixture::start(bus_config(), None);
    for number in [0, 10, 20] {
        f.bus.publish(row(number)).await.unwrap();
        f.bus.publish_batch(Topic::Instances, batch(number + 1..number + 10)).await.unwrap();
    }
    let wrong = f.bus.publish_batch(Topic::Faults, batch(0..3)).await;
    assert!(matches!(&wrong, Err(PublishError::Schema(error)) if error.table == "faults"), "{wrong:?}");
    f.bus.flush().await.unwrap();
    let mut numbers = f.numbers();
    let of_batches: Vec<u32> = numbers.iter().copied().filter(|number| number % 10 > 0).collect();
    assert!(of_batches.is_sorted());
    numbers.sort_unstable();
    assert_eq!(numbers, (0..30).collect::<Vec<_>>());
}
