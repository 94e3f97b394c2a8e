//! Snapshots as files (SPEC E3).

use std::{fs::File, path::Path};

use arrow::{array::RecordBatch, compute::concat_batches, ipc::reader::FileReader};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use queries::{
    LiveTables, Topic,
    snapshot::{MANIFEST, Manifest, SnapshotError, write_snapshot},
};

use crate::fixtures::{fixed, fixed_tables};

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

/// Scenario: the fixed rows of every topic are written and read back.
/// Guarantees: both files of every table hold the same rows and the schema with comments and units; the manifest lists
/// them; nothing else lies in or beside the folder.
#[test]
fn written_and_read_back() {
    let parent = tempfile::tempdir().unwrap();
    let target = parent.path().join("today");
    let manifest = write_snapshot(&target, &fixed_tables().snapshot(), 1_767_614_400_000_000).unwrap();
    let on_disk: Manifest = serde_json::from_reader(File::open(target.join(MANIFEST)).unwrap()).unwrap();
    assert_eq!(manifest, on_disk);
    assert_eq!(manifest.as_of, 1_767_614_400_000_000);
    for topic in Topic::ALL {
        let rows = fixed(topic);
        let listed = manifest.tables.iter().find(|table| table.name == topic.name()).unwrap();
        assert_eq!(listed.rows, rows.num_rows() as u64);
        let (arrow, parquet) =
            (arrow_rows(&target.join(&listed.files[0])), parquet_rows(&target.join(&listed.files[1])));
        assert_eq!(arrow.schema(), topic.schema());
        assert_eq!(parquet.schema(), topic.schema());
        assert_eq!((&arrow, &parquet), (&rows, &rows));
    }
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 2 * Topic::ALL.len() + 1);
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1);
}

/// Scenario: a snapshot of empty tables into an existing empty folder.
/// Guarantees: every table is written with its schema and no rows.
#[test]
fn empty_tables_are_written_too() {
    let target = tempfile::tempdir().unwrap();
    let manifest = write_snapshot(target.path(), &LiveTables::new(10).snapshot(), 0).unwrap();
    assert!(manifest.tables.iter().all(|table| table.rows == 0));
    for topic in Topic::ALL {
        let arrow = arrow_rows(&target.path().join(format!("{}.arrow", topic.name())));
        assert_eq!((arrow.num_rows(), arrow.schema()), (0, topic.schema()));
        let parquet = parquet_rows(&target.path().join(format!("{}.parquet", topic.name())));
        assert_eq!((parquet.num_rows(), parquet.schema()), (0, topic.schema()));
    }
}

/// Scenario: a target with a file in it, one below a file, one without a name.
/// Guarantees: each is refused in words; the file that was there stays; nothing is left beside it.
#[test]
fn bad_targets_are_refused() {
    let parent = tempfile::tempdir().unwrap();
    let snapshot = LiveTables::new(10).snapshot();
    let occupied = parent.path().join("occupied");
    std::fs::create_dir(&occupied).unwrap();
    std::fs::write(occupied.join("mine"), "precious").unwrap();
    let error = write_snapshot(&occupied, &snapshot, 0).unwrap_err();
    assert!(matches!(error, SnapshotError::TargetNotEmpty(_)), "{error}");
    assert!(error.to_string().contains("not empty; give a folder that does not exist"), "{error}");
    assert_eq!(std::fs::read_to_string(occupied.join("mine")).unwrap(), "precious");
    let below = occupied.join("mine").join("x");
    let error = write_snapshot(&below, &snapshot, 0).unwrap_err();
    assert!(matches!(error, SnapshotError::Io { .. }), "{error}");
    let error = write_snapshot(Path::new("/"), &snapshot, 0).unwrap_err();
    assert!(matches!(error, SnapshotError::TargetNotEmpty(_) | SnapshotError::TargetNameless(_)), "{error}");
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1);
}
