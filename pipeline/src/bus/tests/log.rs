//! The log: restart, older rows in SQL, rolling, retention, full disk, the folder's lock.

use std::{
    fs::{self, File},
    io::{self, BufReader, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow::ipc::reader::StreamReader;
use bytesize::ByteSize;
use queries::{History, Older, SqlEngine, SqlLimits, TimeRange, Topic};

use super::{Fixture, NOW, bus_config, log_config, row, topic_folder};
use crate::{
    bus::{
        LogError, LogFollower, LogState, LogWriter,
        fs::{DiskFs, SegmentFile, SegmentFs},
        log::PENDING_ROWS_MAX,
        rows_of,
    },
    config,
    rows::InstanceRow,
};

async fn publish(f: &Fixture, numbers: std::ops::Range<u32>) {
    for number in numbers {
        f.bus.publish(row(number)).await.unwrap();
    }
    f.bus.flush().await.unwrap();
}

fn segments(data_folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = fs::read_dir(topic_folder(data_folder, Topic::Instances))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "arrows"))
        .collect();
    found.sort();
    found
}

/// Scenario: rows are published in three runs of the bus over one data folder.
/// Guarantees: every run finds the rows of those before it, numbering goes on, and nothing is reported as damaged.
#[tokio::test]
async fn a_restart_finds_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    for run in 0..3u32 {
        let f = Fixture::with_log(folder.path());
        assert_eq!(f.numbers(), (0..run * 100).collect::<Vec<_>>());
        let mut subscription = f.bus.subscribe(&[Topic::Instances]);
        publish(&f, run * 100..run * 100 + 100).await;
        assert_eq!(subscription.recv().await.unwrap().first_row, u64::from(run) * 100);
        assert!(f.rows::<crate::rows::FaultRow>().is_empty());
        assert_eq!(f.bus.counters().log_state, LogState::Healthy);
        assert!(f.bus.counters().log_bytes > 0);
    }
}

/// Scenario: the process ends without closing anything (its threads are gone, its files as they were synced).
/// Guarantees: everything flushed is there after the restart.
#[tokio::test]
async fn an_unclean_end_keeps_what_was_flushed() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let f = Fixture::with_log(folder.path());
    publish(&f, 0..150).await;
    let from = topic_folder(folder.path(), Topic::Instances);
    let to = topic_folder(copy.path(), Topic::Instances);
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let f = Fixture::with_log(copy.path());
    assert_eq!(f.numbers(), (0..150).collect::<Vec<_>>());
}

/// Scenario: memory keeps 50 rows, 1000 are published, SQL asks for all of them; then again after a restart.
/// Guarantees: rows from memory and from the log answer together, each once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_reads_older_rows_from_the_log() {
    let folder = tempfile::tempdir().unwrap();
    for published in [0..1000, 1000..1010] {
        let all = u64::from(published.end);
        let log = LogWriter::open(folder.path(), &log_config()).unwrap();
        let f = Fixture::start(config::Bus { live_rows: 50, ..bus_config() }, Some(log));
        publish(&f, published).await;
        let live = f.tables.snapshot().table(Topic::Instances).rows_live();
        assert!(live < 200, "{live} rows are in memory, the log would not be needed");
        let limits = SqlLimits {
            timeout: Duration::from_secs(60),
            memory_bytes: 64 << 20,
            rows_max: 10,
            statement_bytes_max: 1000,
            concurrent_max: 1,
        };
        let runtime = queries::query_runtime(1).unwrap();
        let engine = SqlEngine::new(limits, f.tables.clone(), runtime.handle().clone());
        let sql = "SELECT count(*) AS n, count(DISTINCT pid) AS d, min(pid) AS a, max(pid) AS b FROM instances";
        let answer = engine.query(sql).await.unwrap();
        let text = queries::encode::json(&answer.schema, &answer.batches).unwrap();
        let expected = format!(r#"[{{"n":{all},"d":{all},"a":0,"b":{}}}]"#, all - 1);
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        tokio::task::spawn_blocking(move || drop((runtime, f.guard))).await.unwrap();
    }
}

/// Scenario: another reader follows the log while it is written, in small segments of which the oldest are deleted; it asks for all rows
/// before a number again and again, and before there is a log.
/// Guarantees: it reads what the writer's own reader does, each row once; a folder that is not there is no rows.
#[tokio::test]
async fn a_follower_reads_what_the_writer_has() {
    let folder = tempfile::tempdir().unwrap();
    let follower = LogFollower::new(folder.path());
    assert_eq!(follower.rows_before(Topic::Instances, 10), 0);
    let small = config::Log { segment_bytes: ByteSize::kib(8), retain_bytes: ByteSize::kib(64), ..log_config() };
    let log = LogWriter::open(folder.path(), &small).unwrap();
    let own = log.reader();
    let f = Fixture::start(config::Bus { live_rows: 1, ..bus_config() }, Some(log));
    let rows = |history: &dyn History, before: u64| -> Vec<u32> {
        let wanted = Older { topic: Topic::Instances, before, times: TimeRange::ALL };
        let batches = history.older(wanted).map(|batch| rows_of::<InstanceRow>(&batch.unwrap()).unwrap());
        batches.flatten().map(|row| row.pid.unwrap()).collect()
    };
    let mut deleted = false;
    for round in 0..40u32 {
        publish(&f, round * 100..round * 100 + 100).await;
        for before in [1, u64::from(round) * 100 + 50, u64::from(round + 1) * 100] {
            let theirs = rows(&own, before);
            assert_eq!(rows(&follower, before), theirs, "round {round}, before row {before}");
            assert!(follower.rows_before(Topic::Instances, before) >= theirs.len() as u64);
        }
        deleted |= rows(&own, u64::MAX).first() != Some(&0);
    }
    assert!(deleted && segments(folder.path()).len() > 1, "the scenario needs several segments, and deleted ones");
}

/// Scenario: a segment is opened with a plain Arrow stream reader, while it is written and after it is closed.
/// Guarantees: it needs nothing of ours to be read; schema and rows are those published.
#[tokio::test]
async fn a_segment_is_a_plain_arrow_stream() {
    let folder = tempfile::tempdir().unwrap();
    let read = || {
        let files = segments(folder.path());
        assert_eq!(files.len(), 1);
        let reader = StreamReader::try_new(BufReader::new(File::open(&files[0]).unwrap()), None).unwrap();
        assert_eq!(reader.schema(), Topic::Instances.schema());
        reader.flat_map(|batch| rows_of::<InstanceRow>(&batch.unwrap()).unwrap()).collect::<Vec<_>>()
    };
    let f = Fixture::with_log(folder.path());
    publish(&f, 0..70).await;
    publish(&f, 70..90).await;
    let rows: Vec<_> = (0..90).map(row).collect();
    assert_eq!(read(), rows);
    drop(f.guard);
    assert_eq!(read(), rows);
}

/// Scenario: small segments, a small total, rows flushed in many batches.
/// Guarantees: segments are rolled by size; the oldest are deleted, both files of each; the newest rows stay.
#[tokio::test]
async fn segments_roll_and_the_oldest_go() {
    let folder = tempfile::tempdir().unwrap();
    let config = config::Log { segment_bytes: ByteSize::kib(8), retain_bytes: ByteSize::kib(40), ..log_config() };
    let log = LogWriter::open(folder.path(), &config).unwrap();
    let f = Fixture::start(config::Bus { live_rows: 20, ..bus_config() }, Some(log));
    for start in (0..2000).step_by(20) {
        publish(&f, start..start + 20).await;
    }
    let files = segments(folder.path());
    assert!(files.len() > 2, "{files:?}");
    assert!(files.iter().all(|file| file.with_extension("idx").exists()));
    assert_eq!(fs::read_dir(topic_folder(folder.path(), Topic::Instances)).unwrap().count(), 2 * files.len());
    let counters = f.bus.counters();
    assert!(counters.log_bytes <= 50 << 10, "{} bytes kept", counters.log_bytes);
    assert!(counters.log_bytes_written > 100 << 10);
    let kept = f.numbers();
    let first = kept[0];
    assert!(first > 0 && first < 1980, "{first}");
    assert_eq!(kept, (first..2000).collect::<Vec<_>>());
}

/// Scenario: rows older than the retention age, in a closed segment, and younger ones.
/// Guarantees: the old segment goes at the next commit, the young one stays.
#[tokio::test]
async fn old_segments_go() {
    let folder = tempfile::tempdir().unwrap();
    let old = |number: u32| InstanceRow { at: NOW - 7200 * 1_000_000 + i64::from(number), ..row(number) };
    let f = Fixture::with_log(folder.path());
    for number in 0..10 {
        f.bus.publish(old(number)).await.unwrap();
    }
    f.bus.flush().await.unwrap();
    drop(f.guard);
    let f = Fixture::with_log(folder.path());
    assert_eq!(f.numbers().len(), 10);
    publish(&f, 10..20).await;
    drop(f.guard);
    let f = Fixture::with_log(folder.path());
    assert_eq!(f.numbers(), (10..20).collect::<Vec<_>>());
}

/// A file system with so many bytes left.
#[derive(Debug, Clone)]
struct SmallDisk(Arc<AtomicU64>);

#[derive(Debug)]
struct SmallFile(Box<dyn SegmentFile>, Arc<AtomicU64>);

impl SegmentFs for SmallDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(SmallFile(DiskFs.create(path)?, self.0.clone())))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        DiskFs.remove(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        DiskFs.sync_folder(path)
    }
}

impl Write for SmallFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.1.load(Ordering::SeqCst);
        let fits = bytes.len().min(left as usize);
        if fits == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.1.fetch_sub(fits as u64, Ordering::SeqCst);
        self.0.write_all(&bytes[..fits])?;
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl SegmentFile for SmallFile {
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.0.truncate(length)
    }
}

/// Scenario: the disk fills at some byte of a commit (many places are tried), more rows come, space is freed.
/// Guarantees: publishing never fails and the rows are in the tables; the fault is a row and a state; after space is
/// freed all rows are in the log, the recovery is a row, and a restart finds every row once.
#[tokio::test]
async fn a_full_disk_stops_nothing() {
    for space in [0, 10, 700, 2000, 2500, 3000, 3500, 4000, 4500, 5000] {
        let folder = tempfile::tempdir().unwrap();
        let disk = SmallDisk(Arc::new(AtomicU64::new(space)));
        let log = LogWriter::open_on(Arc::new(disk.clone()), folder.path(), &log_config()).unwrap();
        let f = Fixture::start(bus_config(), Some(log));
        for start in (0..300).step_by(30) {
            publish(&f, start..start + 30).await;
        }
        let counters = f.bus.counters();
        assert_eq!(counters.log_state, LogState::Faulted, "{space} bytes");
        assert!(counters.log_faults > 0);
        assert_eq!(f.numbers(), (0..300).collect::<Vec<_>>());
        f.bus.flush().await.unwrap();
        let faults = f.faults("log_faulted");
        assert_eq!((faults.len(), faults[0].component.as_str()), (1, "log"), "{faults:?}");
        assert!(faults[0].detail.contains("serving goes on"), "{faults:?}");
        disk.0.store(1 << 30, Ordering::SeqCst);
        publish(&f, 300..310).await;
        f.bus.flush().await.unwrap();
        assert_eq!(f.bus.counters().log_state, LogState::Healthy);
        assert_eq!(f.faults("log_recovered").len(), 1);
        assert_eq!(f.bus.counters().log_rows_lost, 0);
        drop(f.guard);
        let f = Fixture::with_log(folder.path());
        assert_eq!(f.numbers(), (0..310).collect::<Vec<_>>(), "{space} bytes");
    }
}

/// Scenario: the disk stays full for longer than rows are kept pending.
/// Guarantees: memory stays bounded; the rows given up are counted and named in the recovery row; newer rows are logged.
#[tokio::test]
async fn rows_given_up_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let disk = SmallDisk(Arc::new(AtomicU64::new(0)));
    let log = LogWriter::open_on(Arc::new(disk.clone()), folder.path(), &log_config()).unwrap();
    let f = Fixture::start(config::Bus { flush_rows: 1000, ..bus_config() }, Some(log));
    let rows = PENDING_ROWS_MAX as u32 + 5000;
    publish(&f, 0..rows).await;
    let lost = f.bus.counters().log_rows_lost;
    assert!((5000..7000).contains(&lost), "{lost}");
    disk.0.store(1 << 30, Ordering::SeqCst);
    f.bus.flush().await.unwrap();
    f.bus.flush().await.unwrap();
    let recovered = f.faults("log_recovered");
    assert_eq!((recovered.len(), recovered[0].count), (1, lost));
    assert!(recovered[0].detail.contains(&format!("{lost} of instances")), "{recovered:?}");
    drop(f.guard);
    let f = Fixture::with_log(folder.path());
    assert_eq!(f.numbers(), (lost as u32..rows).collect::<Vec<_>>());
}

/// Scenario: a second log over the same folder; a data folder that cannot be one.
/// Guarantees: typed errors that name the folder, and for the first the process that has it; after the first log is
/// closed the folder is free.
#[test]
fn the_data_folder_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let first = LogWriter::open(folder.path(), &log_config()).unwrap();
    let error = LogWriter::open(folder.path(), &log_config()).unwrap_err();
    assert!(matches!(error, LogError::Locked { .. }), "{error}");
    let holder = format!("in use by another process (process {})", std::process::id());
    assert!(error.to_string().contains(&holder), "{error}");
    drop(first);
    LogWriter::open(folder.path(), &log_config()).unwrap();
    let file = folder.path().join("file");
    File::create(&file).unwrap();
    let error = LogWriter::open(&file.join("data"), &log_config()).unwrap_err();
    assert!(matches!(error, LogError::DataFolder { .. }), "{error}");
    assert!(error.to_string().contains("file/data\" (server.data_dir)"), "{error}");
}
