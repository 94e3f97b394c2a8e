//! The ring and the live tables against a naive list of rows (SPEC E2).

use std::sync::Arc;

use arrow::{
    array::{Array, AsArray, ListArray, RecordBatch, StructArray},
    datatypes::{DataType, Field, Fields},
};
use proptest::prelude::*;
use queries::{
    LiveTables, TimeRange, Topic,
    live_table::{conform, widen},
    ring::{CHUNK_ROWS, FAN_IN, Ring},
};

use crate::fixtures::{counts, faults, fixed};

fn ring_rows(ring: &Ring) -> Vec<u64> {
    let batches: Vec<RecordBatch> = ring.chunks().map(|chunk| chunk.batch.clone()).collect();
    counts(&batches)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Scenario: batches of random sizes go into a ring of random capacity.
    /// Guarantees: after every push the ring is the newest rows of a plain list, at least `rows_max` of them and less than
    /// one chunk more; numbers, times and row count agree.
    #[test]
    fn ring_is_the_newest_rows(rows_max in 1usize..600, sizes in prop::collection::vec(0u64..90, 1..60)) {
        let mut ring = Ring::new(rows_max);
        let mut next = 0;
        for size in sizes {
            prop_assert_eq!(ring.push(faults(next..next + size)), next);
            next += size;
            let held = ring_rows(&ring);
            let first = next - held.len() as u64;
            prop_assert_eq!(&held, &(first..next).collect::<Vec<_>>());
            prop_assert_eq!(ring.rows(), held.len());
            prop_assert_eq!(ring.first_row(), first);
            prop_assert!(held.len() >= rows_max.min(next as usize));
            let largest = ring.chunks().map(|chunk| chunk.batch.num_rows()).max().unwrap_or(0);
            prop_assert!(held.len() < rows_max + largest.max(1));
            let mut expected = first;
            for chunk in ring.chunks() {
                let rows = chunk.batch.num_rows() as u64;
                prop_assert_eq!(chunk.first_row, expected);
                let (from, to) = (expected as i64 * 1_000_000, (expected + rows - 1) as i64 * 1_000_000);
                prop_assert_eq!(chunk.times, TimeRange { min: from, max: to });
                expected += rows;
            }
        }
    }
}

/// Scenario: a hundred thousand rows come one by one.
/// Guarantees: they end up in few chunks, so a scan does not pay for how they came.
#[test]
fn single_rows_are_joined_into_chunks() {
    let mut ring = Ring::new(80_000);
    for row in 0..100_000 {
        ring.push(faults(row..row + 1));
    }
    let bound = 2 * 80_000 / CHUNK_ROWS + FAN_IN * CHUNK_ROWS.ilog(FAN_IN) as usize;
    assert!(ring.chunks().len() <= bound, "{} chunks, at most {bound} expected", ring.chunks().len());
    assert_eq!(ring.first_row() + ring.rows() as u64, 100_000);
}

/// Scenario: batches of one size, and of a small and a large one in turns.
/// Guarantees: whatever their size, they end up in few chunks.
#[test]
fn batches_of_any_size_are_joined_into_chunks() {
    for sizes in [[7, 7], [200, 200], [1_500, 1_500], [1, 600], [3_000, 1], [5_000, 90]] {
        let (mut ring, mut next) = (Ring::new(80_000), 0);
        for size in sizes.into_iter().cycle() {
            ring.push(faults(next..next + size));
            next += size;
            if next >= 100_000 {
                break;
            }
        }
        let bound = 2 * 80_000 / CHUNK_ROWS + FAN_IN * CHUNK_ROWS.ilog(FAN_IN) as usize;
        assert!(ring.chunks().len() <= bound, "{sizes:?}: {} chunks, at most {bound} expected", ring.chunks().len());
    }
}

/// Scenario: one thread appends to two tables in turn while others take snapshots.
/// Guarantees: in every snapshot both tables are of one moment: the second is never ahead of the first, nor more than one
/// batch behind; a snapshot that is held does not change.
#[test]
fn a_snapshot_is_one_moment_of_all_tables() {
    let tables = Arc::new(LiveTables::new(10_000));
    let writer = {
        let tables = tables.clone();
        std::thread::spawn(move || {
            for row in 0..2000 {
                tables.append(Topic::Faults, faults(row..row + 1)).unwrap();
                let instances = crate::fixtures::fixed(Topic::Instances).slice(0, 1);
                tables.append(Topic::Instances, instances).unwrap();
            }
        })
    };
    let mut seen = 0;
    while !writer.is_finished() || seen == 0 {
        let snapshot = tables.snapshot();
        let (first, second) = (snapshot.table(Topic::Faults), snapshot.table(Topic::Instances));
        let (a, b) = (first.rows_live(), second.rows_live());
        assert!(b <= a && a <= b + 1, "faults has {a} rows, instances {b}");
        let rows: usize = first.batches().map(|batch| batch.unwrap().num_rows()).sum();
        assert_eq!(rows, a);
        seen += 1;
    }
    writer.join().unwrap();
    assert_eq!(tables.snapshot().table(Topic::Faults).rows_live(), 2000);
}

/// Scenario: a batch of another topic, and one with a column of another name, are appended.
/// Guarantees: both are refused in words that name the column; the table is as it was.
#[test]
fn a_batch_of_another_topic_is_refused() {
    let tables = LiveTables::new(100);
    let error = tables.append(Topic::Requests, faults(0..3)).unwrap_err();
    assert_eq!(error.to_string(), "batch for table requests does not fit: 5 columns, 22 wanted");
    let renamed =
        faults(0..1).schema().fields().iter().map(|field| field.as_ref().clone().with_name("x")).collect::<Vec<_>>();
    let renamed =
        RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(renamed)), faults(0..1).columns().to_vec())
            .unwrap();
    let error = tables.append(Topic::Faults, renamed).unwrap_err();
    assert_eq!(error.to_string(), "batch for table faults does not fit: column 0 is named \"x\", \"at\" wanted");
    assert_eq!(tables.snapshot().table(Topic::Faults).rows_live(), 0);
}

/// Scenario: a batch comes without its topic's metadata, as it does from a remote producer.
/// Guarantees: the metadata is put on, the values stay.
#[test]
fn metadata_is_put_on() {
    let plain = faults(0..3);
    let fields: Vec<_> =
        plain.schema().fields().iter().map(|f| f.as_ref().clone().with_metadata(Default::default())).collect();
    let bare = RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), plain.columns().to_vec()).unwrap();
    assert_ne!(bare.schema(), Topic::Faults.schema());
    assert_eq!(conform(Topic::Faults, bare).unwrap(), plain);
}

/// Every list of structs without one of its fields; gives how many there are.
fn structs_are_widened() -> usize {
    let mut count = 0;
    for topic in Topic::ALL {
        let now = fixed(topic);
        for (at, field) in now.schema().fields().iter().enumerate() {
            let DataType::List(item) = field.data_type() else { continue };
            let DataType::Struct(parts) = item.data_type() else { continue };
            let list: &ListArray = now.column(at).as_list();
            let values: &StructArray = list.values().as_struct();
            for missing in 0..parts.len() {
                count += 1;
                let kept: Vec<usize> = (0..parts.len()).filter(|index| *index != missing).collect();
                let fields: Fields = kept.iter().map(|index| parts[*index].clone()).collect();
                let columns = kept.iter().map(|index| values.column(*index).clone()).collect();
                let narrow = StructArray::new(fields.clone(), columns, None);
                let item = Arc::new(Field::new("item", DataType::Struct(fields), false));
                let narrow = ListArray::new(item, list.offsets().clone(), Arc::new(narrow), list.nulls().cloned());
                let mut fields: Vec<_> = now.schema().fields().iter().map(|field| field.as_ref().clone()).collect();
                fields[at] = Field::new(field.name(), narrow.data_type().clone(), field.is_nullable());
                let mut columns = now.columns().to_vec();
                columns[at] = Arc::new(narrow);
                let old = RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), columns).unwrap();
                let wide = widen(topic, old).unwrap();
                let whole: &StructArray = wide.column(at).as_list::<i32>().values().as_struct();
                for index in kept {
                    assert_eq!(whole.column(index), values.column(index));
                }
                let nulls = if parts[missing].is_nullable() { values.len() } else { 0 };
                assert_eq!(whole.column(missing).null_count(), nulls, "{}.{}", topic.name(), parts[missing].name());
            }
        }
    }
    count
}

/// Scenario: every table's fixed rows as an earlier version would have written them, without one of the columns or one field of the
/// structs in a list, whichever it is;
/// and with a column that no version has.
/// Guarantees: the missing column is NULL, or zero or empty where the table allows no NULL; all others keep their values; the
/// stranger is refused by name.
#[test]
fn rows_of_earlier_versions_are_widened() {
    for topic in Topic::ALL {
        let now = fixed(topic);
        for missing in 0..now.num_columns() {
            let kept: Vec<usize> = (0..now.num_columns()).filter(|index| *index != missing).collect();
            let field = now.schema().field(missing).clone();
            let old = now.project(&kept).unwrap();
            let wide = match widen(topic, old) {
                Ok(wide) => wide,
                // Lists and structs have no zero; where they may be NULL there is no need of one.
                Err(_) if !field.is_nullable() && field.data_type().is_nested() => continue,
                Err(error) => panic!("{}.{}: {error}", topic.name(), field.name()),
            };
            assert_eq!(wide.project(&kept).unwrap(), now.project(&kept).unwrap());
            let nulls = if field.is_nullable() { now.num_rows() } else { 0 };
            assert_eq!(wide.column(missing).null_count(), nulls, "{}.{}", topic.name(), field.name());
        }
    }
    assert!(structs_are_widened() > 20);
    let old = faults(0..2).project(&[0, 1]).unwrap();
    let fields = [old.schema().field(0).clone(), old.schema().field(1).clone().with_name("colour")];
    let strange =
        RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields.to_vec())), old.columns().to_vec()).unwrap();
    assert!(widen(Topic::Faults, strange).unwrap_err().to_string().contains("\"colour\" is not one"));
}
