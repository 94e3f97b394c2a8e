//! Damage on disk: torn tails at every byte, flipped bytes, missing files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use queries::Topic;

use super::super::{
    fs::DiskFs,
    history::{LogIndex, LogReader},
    intake::Intake,
    log::Fault,
    recovery::{Recovered, recover},
    rows_of,
    segment::{Entry, Header, OpenSegment, entries, index_path},
};
use super::row;
use crate::rows::InstanceRow;

const ROWS_PER_BATCH: u32 = 5;

/// A folder with one segment of three batches, not sealed, as a crash leaves it.
struct Damaged {
    folder: tempfile::TempDir,
    stream: Vec<u8>,
    index: Vec<u8>,
    entries: Vec<Entry>,
    path: PathBuf,
}

impl Damaged {
    fn new() -> Damaged {
        let folder = tempfile::tempdir().unwrap();
        let mut segment = OpenSegment::create(&DiskFs, folder.path(), Topic::Instances, 0).unwrap();
        for batch in 0..3 {
            let intake = Intake::new(1024, 1024);
            for number in 0..ROWS_PER_BATCH {
                intake.try_put(&row(batch * ROWS_PER_BATCH + number)).unwrap();
            }
            let (_, rows) = intake.take(Topic::Instances).unwrap();
            segment.append(u64::from(batch * ROWS_PER_BATCH), &rows.unwrap()).unwrap();
        }
        let path = segment.meta.path.clone();
        let (stream, index) = (fs::read(&path).unwrap(), fs::read(index_path(&path)).unwrap());
        let entries = entries(&index).into_iter().flatten().collect();
        Damaged { folder, stream, index, entries, path }
    }

    /// Recovers the folder with these bytes in its files; returns the rows found and the faults.
    fn recover(&self, stream: &[u8], index: &[u8]) -> (Vec<u32>, Vec<Fault>) {
        fs::write(&self.path, stream).unwrap();
        fs::write(index_path(&self.path), index).unwrap();
        let Recovered { segments, faults } = recover(self.folder.path()).unwrap();
        let mut all = vec![Vec::new(); Topic::ALL.len()];
        all[Topic::Instances.index()] = segments;
        let reader = LogReader::new(std::sync::Arc::new(LogIndex::new(all)));
        let rows = reader.read(Topic::Instances, 0..u64::MAX).flat_map(|batch| {
            let (_, batch) = batch.expect("what recovery kept is readable");
            rows_of::<InstanceRow>(&batch).unwrap()
        });
        (rows.map(|row| row.pid.unwrap()).collect(), faults)
    }
}

fn kinds(faults: &[Fault]) -> Vec<&'static str> {
    faults.iter().map(|fault| fault.kind).collect()
}

fn rows(batches: &[u32]) -> Vec<u32> {
    batches.iter().flat_map(|batch| batch * ROWS_PER_BATCH..(batch + 1) * ROWS_PER_BATCH).collect()
}

fn no_tail_left(path: &Path, kept: &[Entry]) {
    let end = kept.last().unwrap();
    assert_eq!(fs::metadata(path).unwrap().len(), end.offset + end.bytes);
    assert_eq!(fs::metadata(index_path(path)).unwrap().len(), (Header::BYTES + kept.len() * Entry::BYTES) as u64);
}

/// Scenario: the stream ends at every byte of its last batch, with its entry written and without.
/// Guarantees: the rows before are all there and readable, the tail is cut from both files and reported, a second
/// recovery finds nothing to report.
#[test]
fn a_torn_stream_is_cut_at_every_byte() {
    let d = Damaged::new();
    let last = d.entries[2];
    let without_entry = &d.index[..d.index.len() - Entry::BYTES];
    for end in last.offset..last.offset + last.bytes {
        let torn = &d.stream[..end as usize];
        let (found, faults) = d.recover(torn, &d.index);
        assert_eq!((found, kinds(&faults)), (rows(&[0, 1]), vec!["torn_tail"]), "byte {end}");
        assert_eq!(faults[0].count, u64::from(ROWS_PER_BATCH), "byte {end}");
        no_tail_left(&d.path, &d.entries[..2]);
        let (found, faults) = d.recover(torn, without_entry);
        let reported = if end == last.offset { vec![] } else { vec!["torn_tail"] };
        assert_eq!((found, kinds(&faults)), (rows(&[0, 1]), reported), "byte {end}, no entry");
        no_tail_left(&d.path, &d.entries[..2]);
        assert!(recover(d.folder.path()).unwrap().faults.is_empty(), "byte {end}: reported twice");
    }
    let (found, faults) = d.recover(&d.stream, &d.index);
    assert_eq!((found, kinds(&faults)), (rows(&[0, 1, 2]), vec![]));
}

/// Scenario: the index ends at every byte of its last entry; and at every byte of its header.
/// Guarantees: the first loses the last batch only, and says so; the second goes if it has no row, else it is set aside.
#[test]
fn a_torn_index_is_cut_at_every_byte() {
    let d = Damaged::new();
    let entry_start = d.index.len() - Entry::BYTES;
    for end in entry_start..d.index.len() {
        let (found, faults) = d.recover(&d.stream, &d.index[..end]);
        assert_eq!((found, kinds(&faults)), (rows(&[0, 1]), vec!["torn_tail"]), "byte {end}");
        no_tail_left(&d.path, &d.entries[..2]);
    }
    for end in 0..Header::BYTES {
        let schema_only = &d.stream[..d.entries[0].offset as usize];
        let (found, faults) = d.recover(schema_only, &d.index[..end]);
        assert_eq!((found, kinds(&faults)), (vec![], vec![]), "header byte {end}");
        assert!(!d.path.exists() && !index_path(&d.path).exists());
        let (found, faults) = d.recover(&d.stream, &d.index[..end]);
        assert_eq!((found, kinds(&faults)), (vec![], vec!["segment_set_aside"]), "header byte {end}, with rows");
    }
}

/// Scenario: one byte is flipped, at every place of every batch.
/// Guarantees: exactly that batch is missing and reported; in the last batch it counts as a torn tail.
#[test]
fn a_flipped_byte_in_a_batch_is_found() {
    let d = Damaged::new();
    for (at, entry) in d.entries.iter().enumerate() {
        for byte in (entry.offset..entry.offset + entry.bytes).step_by(3) {
            let mut stream = d.stream.clone();
            stream[byte as usize] ^= 0x10;
            let (found, faults) = d.recover(&stream, &d.index);
            let others: Vec<u32> = (0..3).filter(|batch| *batch != at as u32).collect();
            let kind = if at == 2 { "torn_tail" } else { "damaged_batch" };
            assert_eq!((found, kinds(&faults)), (rows(&others), vec![kind]), "byte {byte}");
            assert_eq!(faults[0].count, u64::from(ROWS_PER_BATCH));
        }
    }
}

/// Scenario: one byte of the index or of the schema is flipped, at every place.
/// Guarantees: a damaged entry costs its batch; a damaged header or schema sets the segment aside, both files kept under
/// another name; each is reported.
#[test]
fn a_flipped_byte_elsewhere_is_found() {
    let d = Damaged::new();
    for byte in 0..d.index.len() {
        let mut index = d.index.clone();
        index[byte] ^= 0x01;
        let (found, faults) = d.recover(&d.stream, &index);
        if byte < Header::BYTES {
            assert_eq!((found, kinds(&faults)), (vec![], vec!["segment_set_aside"]), "byte {byte}");
            assert!(d.path.with_extension("arrows.bad").exists() && d.path.with_extension("idx.bad").exists());
            continue;
        }
        let batch = ((byte - Header::BYTES) / Entry::BYTES) as u32;
        let others: Vec<u32> = (0..3).filter(|other| *other != batch).collect();
        let kind = if batch == 2 { "torn_tail" } else { "damaged_entry" };
        assert_eq!((found, kinds(&faults)), (rows(&others), vec![kind]), "byte {byte}");
    }
    for byte in (0..d.entries[0].offset as usize).step_by(7) {
        let mut stream = d.stream.clone();
        stream[byte] ^= 0x80;
        let (found, faults) = d.recover(&stream, &d.index);
        assert_eq!((found, kinds(&faults)), (vec![], vec!["segment_set_aside"]), "byte {byte}");
    }
}

/// Scenario: a byte flips after start-up, under the reader.
/// Guarantees: reading that batch is an error that names the file and the byte; the batches before it were read.
#[test]
fn damage_after_start_is_an_error() {
    let d = Damaged::new();
    let Recovered { segments, .. } = recover(d.folder.path()).unwrap();
    let mut all = vec![Vec::new(); Topic::ALL.len()];
    all[Topic::Instances.index()] = segments;
    let reader = LogReader::new(std::sync::Arc::new(LogIndex::new(all)));
    let mut stream = d.stream.clone();
    stream[d.entries[1].offset as usize + 100] ^= 1;
    fs::write(&d.path, &stream).unwrap();
    let read: Vec<_> = reader.read(Topic::Instances, 0..u64::MAX).collect();
    assert!(read[0].is_ok() && read[2].is_ok());
    let error = read[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("cannot read older rows of table instances") && error.contains("(checksum)"), "{error}");
    assert!(error.contains(&format!("byte {}", d.entries[1].offset)), "{error}");
}
