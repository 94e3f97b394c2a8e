//! Rows that tests share: small generated batches, and the fixed rows under `tests/data/slt/rows`.

use std::{fs::File, io::BufReader, path::PathBuf, sync::Arc};

use arrow::{
    array::{ArrayRef, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array},
    json::ReaderBuilder,
};
use queries::{LiveTables, Topic};

/// Rows `from..to` of `faults`: row `n` happened at `n` seconds and has count `n`.
pub fn faults(rows: std::ops::Range<u64>) -> RecordBatch {
    let numbers: Vec<u64> = rows.collect();
    let text = |word: &str| -> ArrayRef { Arc::new(StringArray::from(vec![word; numbers.len()])) };
    let times = TimestampMicrosecondArray::from_iter_values(numbers.iter().map(|n| *n as i64 * 1_000_000));
    RecordBatch::try_new(
        Topic::Faults.schema(),
        vec![
            Arc::new(times.with_timezone("UTC")),
            text("bus"),
            text("test"),
            text("a row"),
            Arc::new(UInt64Array::from(numbers.clone())),
        ],
    )
    .unwrap()
}

/// The `count` column of batches of `faults`, in order.
pub fn counts(batches: &[RecordBatch]) -> Vec<u64> {
    let column = |batch: &RecordBatch| {
        let column = batch.column_by_name("count").unwrap().clone();
        column.as_any().downcast_ref::<UInt64Array>().unwrap().values().to_vec()
    };
    batches.iter().flat_map(column).collect()
}

pub fn slt_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/slt")
}

/// The fixed rows of one topic.
pub fn fixed(topic: Topic) -> RecordBatch {
    let path = slt_folder().join("rows").join(format!("{}.jsonl", topic.name()));
    let file = BufReader::new(File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    let reader = ReaderBuilder::new(topic.schema()).with_strict_mode(true).build(file).unwrap();
    let batches: Vec<_> = reader.map(|batch| batch.unwrap_or_else(|e| panic!("{}: {e}", path.display()))).collect();
    arrow::compute::concat_batches(&topic.schema(), &batches).unwrap()
}

/// Tables that hold the fixed rows of every topic.
pub fn fixed_tables() -> Arc<LiveTables> {
    filled(LiveTables::new(10_000))
}

/// The same in tables that outside SQL is asked of.
pub fn sql_tables() -> Arc<LiveTables> {
    filled(LiveTables::for_sql(10_000))
}

fn filled(tables: LiveTables) -> Arc<LiveTables> {
    for topic in Topic::ALL {
        tables.append(topic, fixed(topic)).unwrap();
    }
    Arc::new(tables)
}
