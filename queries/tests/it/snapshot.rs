//! Snapshots as files: written whole and on from another, read again, kept and deleted (SPEC E3). The stores are a folder and one in
//! memory; how clouds' stores are reached is in `snapshot_store`.

use std::{collections::BTreeSet, fs::File, path::Path, sync::Arc, time::Duration};

use arrow::{array::RecordBatch, compute::concat_batches, ipc::reader::FileReader};
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use queries::{
    LiveTables, SqlEngine, Topic, query_runtime,
    schema::SCHEMA_VERSION,
    snapshot::{
        Format, Listed, MANIFEST, Manifest, Place, Producer, Retention, SnapshotError, SnapshotOrder, StoreSettings,
        StoredSnapshot, continues, delete_surplus, retain::surplus, write_snapshot,
    },
};

use crate::{
    fixtures::{counts, faults, fixed, fixed_tables},
    sql::limits,
};

/// A moment after all fixed rows: 2026-01-05T12:00:40Z.
pub const AS_OF: i64 = 1_767_614_440_000_000;

pub fn order(place: &Place, as_of: i64) -> SnapshotOrder {
    SnapshotOrder {
        place: place.clone(),
        as_of,
        producer: Producer { program: "evenkeel test".to_string(), run: "run-1".to_string() },
        formats: vec![Format::Arrow, Format::Parquet],
        tables: Topic::ALL.to_vec(),
        base: None,
    }
}

pub fn in_memory() -> (Arc<InMemory>, Place) {
    let store = Arc::new(InMemory::new());
    let place = Place::of(store.clone(), "fleet", "memory:///fleet");
    (store, place)
}

fn arrow_rows(path: &Path) -> RecordBatch {
    let reader = FileReader::try_new(File::open(path).unwrap(), None).unwrap();
    let schema = reader.schema();
    concat_batches(&schema, &reader.collect::<Result<Vec<_>, _>>().unwrap()).unwrap()
}

fn parquet_rows(path: &Path) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let schema = reader.schema().clone();
    concat_batches(&schema, &reader.build().unwrap().collect::<Result<Vec<_>, _>>().unwrap()).unwrap()
}

/// Counts of `faults` that SQL sees in the snapshot at `place`, in order of time.
fn seen(place: &Place, condition: &str) -> Result<Vec<u64>, String> {
    let runtime = query_runtime(2).unwrap();
    let stored = runtime.block_on(StoredSnapshot::open(place)).map_err(|error| error.to_string())?;
    let engine = SqlEngine::new(limits(), Arc::new(stored), runtime.handle().clone());
    let query = format!("SELECT count FROM faults {condition} ORDER BY at");
    let answer = runtime.block_on(engine.query(&query)).map_err(|error| error.to_string())?;
    Ok(counts(&answer.batches))
}

/// Scenario: the fixed rows of every topic are written to a folder and read back.
/// Guarantees: both files of every table hold the same rows and the table's fields with comments and units; Arrow's schema and
/// Parquet's key-value metadata say of which snapshot, moment, program and schema version they are; the manifest lists files,
/// sizes and checksums, and they are right; nothing else lies in or beside the snapshot's folder.
#[tokio::test]
async fn written_and_read_back() {
    let target = tempfile::tempdir().unwrap();
    let place = Place::open(target.path().to_str().unwrap(), &StoreSettings::default()).unwrap();
    let manifest = write_snapshot(&order(&place, AS_OF), &fixed_tables().snapshot()).await.unwrap();
    let folder = target.path().join(AS_OF.to_string());
    let on_disk: Manifest = serde_json::from_reader(File::open(folder.join(MANIFEST)).unwrap()).unwrap();
    assert_eq!(manifest, on_disk);
    assert_eq!((manifest.as_of, manifest.version, manifest.base.as_deref()), (AS_OF, SCHEMA_VERSION, None));
    for topic in Topic::ALL {
        let rows = fixed(topic);
        let listed = manifest.table(topic).unwrap();
        assert_eq!(listed.rows, rows.num_rows() as u64);
        let [part] = listed.parts.as_slice() else { panic!("one part of {topic:?}") };
        assert_eq!((part.first_row, part.end_row), (0, listed.rows));
        let read = [arrow_rows(&folder.join(&part.files[0].name)), parquet_rows(&folder.join(&part.files[1].name))];
        for (read, file) in read.iter().zip(&part.files) {
            assert_eq!(read.schema().fields(), topic.schema().fields());
            assert_eq!(read.columns(), rows.columns());
            assert_eq!(std::fs::metadata(folder.join(&file.name)).unwrap().len(), file.bytes);
            let metadata = read.schema().metadata().clone();
            for (key, value) in
                [("snapshot", manifest.name.as_str()), ("producer", "evenkeel test"), ("table", topic.name())]
            {
                assert_eq!(metadata[key], value);
            }
            assert_eq!(metadata["as_of"], AS_OF.to_string());
            assert_eq!(metadata["version"], SCHEMA_VERSION.to_string());
        }
        let footer =
            ParquetRecordBatchReaderBuilder::try_new(File::open(folder.join(&part.files[1].name)).unwrap()).unwrap();
        let pairs = footer.metadata().file_metadata().key_value_metadata().unwrap().clone();
        let columns = pairs.iter().find(|pair| pair.key == "columns").and_then(|pair| pair.value.clone()).unwrap();
        let columns: serde_json::Value = serde_json::from_str(&columns).unwrap();
        let first = topic.schema().field(0).clone();
        assert_eq!(columns[first.name()]["comment"], first.metadata()["comment"]);
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2 * Topic::ALL.len() + 1);
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 1);
    let stored = StoredSnapshot::open(&place).await.unwrap();
    assert_eq!(stored.verify().await.unwrap(), 2 * Topic::ALL.len());
}

/// Scenario: empty tables, and a second snapshot of the same moment.
/// Guarantees: every table is written with its schema and no rows; the second is refused and the first stays as it was.
#[tokio::test]
async fn empty_tables_are_written_and_a_moment_is_taken_once() {
    let (_, place) = in_memory();
    let tables = LiveTables::new(10).snapshot();
    let manifest = write_snapshot(&order(&place, AS_OF), &tables).await.unwrap();
    assert!(manifest.tables.iter().all(|table| table.rows == 0 && table.parts[0].files.len() == 2));
    let error = write_snapshot(&order(&place, AS_OF), &tables).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Occupied { .. }), "{error}");
    assert_eq!(StoredSnapshot::open(&place).await.unwrap().verify().await.unwrap(), 2 * Topic::ALL.len());
}

/// Scenario: targets that are none: empty, an unknown scheme, a URL that is none.
/// Guarantees: each is refused in words that name what would be right.
#[test]
fn bad_targets_are_refused() {
    for location in ["", "floppy://a/b", "s3://", "http://[::1"] {
        let error = Place::open(location, &StoreSettings::default()).unwrap_err().to_string();
        assert!(error.contains("give a path, or a URL such as"), "{location:?}: {error}");
    }
}

/// Scenario: a folder whose name is taken by a file; an in-memory store that takes three files; one that takes all but the manifest.
/// Guarantees: an error that names the path; nothing of the snapshot is visible or left.
#[tokio::test]
async fn a_failed_write_leaves_nothing() {
    let parent = tempfile::tempdir().unwrap();
    std::fs::write(parent.path().join("mine"), "precious").unwrap();
    let below = Place::open(parent.path().join("mine/x").to_str().unwrap(), &StoreSettings::default()).unwrap();
    let error = write_snapshot(&order(&below, AS_OF), &LiveTables::new(10).snapshot()).await.unwrap_err();
    assert!(error.to_string().contains("mine/x"), "{error}");
    assert_eq!(std::fs::read_to_string(parent.path().join("mine")).unwrap(), "precious");

    let (store, place) = in_memory();
    for taken in [3, 2 * Topic::ALL.len()] {
        let failing = Place::of(Arc::new(Failing::after(store.clone(), taken)), "fleet", "memory:///fleet");
        let error = write_snapshot(&order(&failing, AS_OF), &fixed_tables().snapshot()).await.unwrap_err();
        assert!(error.to_string().contains("the store is full"), "{error}");
        assert!(place.snapshots().await.unwrap().is_empty());
        assert_eq!(left(&store).await, Vec::<String>::new());
    }
}

/// Scenario: faults 0..100, a whole snapshot, 100..250, one on from it, nothing new, one more, then the first parts' rows leave memory.
/// Guarantees: each incremental one writes only what came since and nothing of tables without news; each is read as one table with
/// every row once; a condition on time reads the parts it may be in; the manifest counts the chain.
#[test]
fn a_chain_reads_as_one() {
    let runtime = query_runtime(1).unwrap();
    let (store, place) = in_memory();
    let tables = LiveTables::new(10_000);
    tables.append(Topic::Faults, faults(0..100)).unwrap();
    let write = |at: i64, base: Option<Manifest>| {
        let order = SnapshotOrder { base, ..order(&place, at) };
        assert!(order.base.as_ref().is_none_or(|base| continues(&order, base)));
        runtime.block_on(write_snapshot(&order, &tables.snapshot())).unwrap()
    };
    let whole = write(1_000_000_000, None);
    tables.append(Topic::Faults, faults(100..250)).unwrap();
    let second = write(2_000_000_000, Some(whole.clone()));
    assert_eq!(second.base.as_deref(), Some("1000000000"));
    let own: Vec<_> = second.own_parts().collect();
    assert_eq!((own.len(), own[0].first_row, own[0].rows), (1, 100, 150));
    assert_eq!((second.table(Topic::Faults).unwrap().rows, second.chain), (250, 2));
    let third = write(3_000_000_000, Some(second));
    assert_eq!((third.own_parts().count(), third.rows()), (0, 250));
    tables.append(Topic::Faults, faults(250..260)).unwrap();
    let fourth = write(4_000_000_000, Some(third));
    assert_eq!(fourth.needs(), BTreeSet::from(["1000000000", "2000000000"]));
    assert_eq!((fourth.chain, fourth.table(Topic::Faults).unwrap().parts.len()), (4, 3));

    assert_eq!(seen(&place, "").unwrap(), (0..260).collect::<Vec<_>>());
    assert_eq!(seen(&place.inside("1000000000"), "").unwrap(), (0..100).collect::<Vec<_>>());
    assert_eq!(seen(&place.inside("2000000000"), "").unwrap(), (0..250).collect::<Vec<_>>());
    // Without the file of the first part, a question about later times alone is still answered: the file is not read.
    let first = object_store::path::Path::from("fleet/1000000000/faults.parquet");
    runtime.block_on(store.delete(&first)).unwrap();
    let late = seen(&place, "WHERE at >= to_timestamp_micros(150000000)").unwrap();
    assert_eq!(late, (150..260).collect::<Vec<_>>());
    let error = seen(&place, "").unwrap_err();
    assert!(error.contains("1000000000/faults.parquet"), "{error}");
}

/// Scenario: a base of another run, of fewer tables, of fewer formats, of a later moment.
/// Guarantees: none of them is gone on from.
#[tokio::test]
async fn chains_stay_within_a_run_and_its_tables() {
    let (_, place) = in_memory();
    let tables = LiveTables::new(10).snapshot();
    let next = order(&place, AS_OF + 1);
    let base = write_snapshot(&order(&place, AS_OF), &tables).await.unwrap();
    assert!(continues(&next, &base));
    let producer = Producer { run: "run-2".to_string(), ..base.producer.clone() };
    assert!(!continues(&next, &Manifest { producer, ..base.clone() }));
    assert!(!continues(&next, &Manifest { formats: vec![Format::Arrow], ..base.clone() }));
    assert!(!continues(&next, &Manifest { tables: base.tables[1..].to_vec(), ..base.clone() }));
    assert!(!continues(&next, &Manifest { as_of: AS_OF + 1, ..base.clone() }));
    assert!(!continues(&next, &Manifest { version: SCHEMA_VERSION + 1, ..base }));
}

/// Scenario: a file of a snapshot with a byte changed, one cut short, one gone, and a manifest that is none.
/// Guarantees: SQL over each is an error that names the file and what is wrong; other tables still answer.
#[test]
fn damage_is_seen() {
    let runtime = query_runtime(1).unwrap();
    let target = tempfile::tempdir().unwrap();
    let place = Place::open(target.path().to_str().unwrap(), &StoreSettings::default()).unwrap();
    runtime.block_on(write_snapshot(&order(&place, AS_OF), &fixed_tables().snapshot())).unwrap();
    let file = target.path().join(AS_OF.to_string()).join("faults.parquet");
    let whole = std::fs::read(&file).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    std::fs::write(&file, &changed).unwrap();
    let error = seen(&place, "").unwrap_err();
    assert!(error.contains("faults.parquet is damaged: its SHA-256 is"), "{error}");
    std::fs::write(&file, &whole[..10]).unwrap();
    let error = seen(&place, "").unwrap_err();
    assert!(error.contains("it has 10 bytes"), "{error}");
    std::fs::remove_file(&file).unwrap();
    assert!(seen(&place, "").unwrap_err().contains("faults.parquet"));
    let stored = Arc::new(runtime.block_on(StoredSnapshot::open(&place)).unwrap());
    let engine = SqlEngine::new(limits(), stored, runtime.handle().clone());
    assert_eq!(
        runtime.block_on(engine.query("SELECT * FROM requests")).unwrap().rows(),
        fixed(Topic::Requests).num_rows()
    );
    std::fs::write(target.path().join(AS_OF.to_string()).join(MANIFEST), "{").unwrap();
    assert!(seen(&place, "").unwrap_err().contains("not a manifest of this version"));
    let nothing = tempfile::tempdir().unwrap();
    let error =
        seen(&Place::open(nothing.path().to_str().unwrap(), &StoreSettings::default()).unwrap(), "").unwrap_err();
    assert!(error.contains("holds no snapshot"), "{error}");
}

/// Scenario: 300 000 rows with a time bound, columns in another order than the table's, a count, and a join on a stored table.
/// Guarantees: answers are those of the live tables, through the streaming scan and through the one in memory; `now()` is the
/// snapshot's moment; a column of a table that the snapshot does not have is an error that lists those it has.
#[test]
fn sql_answers_as_over_live_tables() {
    let runtime = query_runtime(2).unwrap();
    let (_, place) = in_memory();
    let tables = Arc::new(LiveTables::new(1_000_000));
    for from in (0..300_000).step_by(50_000) {
        tables.append(Topic::Faults, faults(from..from + 50_000)).unwrap();
    }
    let only = SnapshotOrder { tables: vec![Topic::Faults], ..order(&place, 400_000_000_000) };
    runtime.block_on(write_snapshot(&only, &tables.snapshot())).unwrap();
    let stored = Arc::new(runtime.block_on(StoredSnapshot::open(&place)).unwrap());
    let live = SqlEngine::new(limits(), tables, runtime.handle().clone());
    let offline = SqlEngine::new(limits(), stored, runtime.handle().clone());
    let queries = [
        "SELECT count(*), sum(count), min(at), max(at) FROM faults",
        "SELECT count, at, kind FROM faults WHERE at BETWEEN to_timestamp_micros(131000000000) AND to_timestamp_micros(131070000000) ORDER BY count",
        "SELECT a.count FROM faults a JOIN faults b ON a.count = b.count WHERE a.at < to_timestamp_micros(5000000) AND b.at > to_timestamp_micros(2000000) ORDER BY 1",
    ];
    for query in queries {
        let (a, b) = (runtime.block_on(live.query(query)).unwrap(), runtime.block_on(offline.query(query)).unwrap());
        let text = |answer: &queries::QueryResult| queries::encode::csv(&answer.schema, &answer.batches).unwrap();
        assert!(a.rows() > 0, "{query}");
        assert_eq!(String::from_utf8(text(&a)).unwrap(), String::from_utf8(text(&b)).unwrap(), "{query}");
    }
    let now =
        runtime.block_on(offline.query("SELECT arrow_cast(now(), 'Timestamp(Microsecond, None)') AS now")).unwrap();
    let now = String::from_utf8(queries::encode::csv(&now.schema, &now.batches).unwrap()).unwrap();
    assert_eq!(now, "now\n1970-01-05T15:06:40.000000\n");
    let error = runtime.block_on(offline.query("SELECT * FROM requests")).unwrap_err().to_string();
    assert!(error.contains("Tables: faults, column_comments"), "{error}");
}

fn listed(names: &[(&str, &[&str])]) -> Vec<Listed> {
    let one = |(name, needs): &(&str, &[&str])| Listed {
        name: name.to_string(),
        as_of: name.parse().unwrap(),
        needs: needs.iter().map(|needed| needed.to_string()).collect(),
    };
    names.iter().map(one).collect()
}

/// Scenario: whole snapshots and chains, by count, by age, by both.
/// Guarantees: the oldest go; the newest stays whatever its age; what a kept one needs stays; of a chain that goes, the base goes
/// last.
#[test]
fn retention_deletes_whole_chains() {
    let keep = |count, age: Option<u64>| Retention { count, age: age.map(Duration::from_micros) };
    let plain = listed(&[("10", &[]), ("20", &[]), ("30", &[])]);
    assert_eq!(surplus(&plain, keep(2, None), 100), ["10"]);
    assert_eq!(surplus(&plain, keep(0, None), 100), ["10", "20"]);
    assert_eq!(surplus(&plain, keep(9, Some(75)), 100), ["10", "20"]);
    assert_eq!(surplus(&plain, keep(9, Some(1)), 100), ["10", "20"]);
    assert_eq!(surplus(&[], keep(1, Some(1)), 100), Vec::<String>::new());
    let chain = listed(&[("10", &[]), ("20", &["10"]), ("30", &["10", "20"]), ("40", &[]), ("50", &["40"])]);
    assert_eq!(surplus(&chain, keep(3, None), 100), Vec::<String>::new());
    assert_eq!(surplus(&chain, keep(2, None), 100), ["30", "20", "10"]);
    assert_eq!(surplus(&chain, keep(1, None), 100), ["30", "20", "10"]);
    let forked = listed(&[("10", &[]), ("20", &["10"]), ("30", &["10"])]);
    assert_eq!(surplus(&forked, keep(1, None), 100), ["20"]);
}

/// Scenario: three snapshots, files of a writer that died two days ago, and of one that is at work now.
/// Guarantees: the oldest snapshot and the dead writer's files go; the others stay and are whole.
#[tokio::test]
async fn surplus_and_leftovers_are_deleted() {
    let target = tempfile::tempdir().unwrap();
    let place = Place::open(target.path().to_str().unwrap(), &StoreSettings::default()).unwrap();
    let tables = LiveTables::new(10).snapshot();
    for at in [AS_OF, AS_OF + 1, AS_OF + 2] {
        write_snapshot(&order(&place, at), &tables).await.unwrap();
    }
    let day = 24 * 3600 * 1_000_000;
    for at in [AS_OF - 2 * day, AS_OF + 3] {
        std::fs::create_dir(target.path().join(at.to_string())).unwrap();
        std::fs::write(target.path().join(at.to_string()).join("faults.arrow"), "half").unwrap();
    }
    std::fs::create_dir(target.path().join("mine")).unwrap();
    let deleted = delete_surplus(&place, Retention { count: 2, age: None }, AS_OF + 4).await.unwrap();
    assert_eq!(deleted, [AS_OF.to_string()]);
    let mut names: Vec<_> = std::fs::read_dir(target.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [(AS_OF + 1).to_string(), (AS_OF + 2).to_string(), (AS_OF + 3).to_string(), "mine".to_string()]);
    assert_eq!(StoredSnapshot::open(&place).await.unwrap().manifest().as_of, AS_OF + 2);
}

async fn left(store: &InMemory) -> Vec<String> {
    use futures::TryStreamExt;
    let objects: Vec<_> = store.list(None).try_collect().await.unwrap();
    objects.into_iter().map(|object| object.location.to_string()).collect()
}

/// A store that takes so many files and then is full.
#[derive(Debug)]
struct Failing {
    inner: Arc<InMemory>,
    left: std::sync::atomic::AtomicUsize,
}

impl Failing {
    fn after(inner: Arc<InMemory>, files: usize) -> Failing {
        Failing { inner, left: files.into() }
    }

    fn take_one(&self) -> object_store::Result<()> {
        use std::sync::atomic::Ordering;
        let taken = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match taken {
            Ok(_) => Ok(()),
            Err(_) => Err(object_store::Error::Generic { store: "Failing", source: "the store is full".into() }),
        }
    }
}

impl std::fmt::Display for Failing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Failing")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Failing {
    async fn put_opts(
        &self,
        location: &object_store::path::Path,
        payload: object_store::PutPayload,
        options: object_store::PutOptions,
    ) -> object_store::Result<object_store::PutResult> {
        self.take_one()?;
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &object_store::path::Path,
        options: object_store::PutMultipartOptions,
    ) -> object_store::Result<Box<dyn object_store::MultipartUpload>> {
        self.take_one()?;
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(
        &self,
        location: &object_store::path::Path,
        options: object_store::GetOptions,
    ) -> object_store::Result<object_store::GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: futures::stream::BoxStream<'static, object_store::Result<object_store::path::Path>>,
    ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::path::Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(
        &self,
        prefix: Option<&object_store::path::Path>,
    ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(
        &self,
        prefix: Option<&object_store::path::Path>,
    ) -> object_store::Result<object_store::ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &object_store::path::Path,
        to: &object_store::path::Path,
        options: object_store::CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
