//! Reads a log that another process wrote, or is writing, and changes nothing (SPEC X2).
//!
//! Invariant: rows come in rising number, each once; what cannot be read is named, never passed over in silence. Unlike a
//! server's start (`recovery`) it cuts nothing and takes no lock. Batches that were not yet indexed when it opened are not
//! part of it. Cost: every index is read at the start, batches when they are asked for. State: the list of segments.

use std::{
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::array::RecordBatch;
use queries::{HistoryError, Topic};

use super::{
    history::{LogIndex, LogReader},
    rows_of,
    segment::{SegmentMeta, SegmentReader, entries},
};
use crate::rows::Row;

/// There is no log where one was said to be.
#[derive(Debug, thiserror::Error)]
#[error("cannot read a log in {path:?}: {source}; give a server's data folder (server.data_dir), which holds `log`")]
pub struct ArchiveError {
    path: PathBuf,
    source: io::Error,
}

/// A log, for reading alone.
#[derive(Debug, Clone)]
pub struct Archive {
    reader: LogReader,
    damage: Vec<String>,
}

impl Archive {
    /// Opens the log of a data folder, or a folder `log` itself.
    ///
    /// # Errors
    /// The folder cannot be read, or holds no topic.
    pub fn open(folder: &Path) -> Result<Archive, ArchiveError> {
        let log = if folder.join("log").is_dir() { folder.join("log") } else { folder.to_path_buf() };
        let failed = |source| ArchiveError { path: folder.to_path_buf(), source };
        if !log.join(Topic::Decisions.name()).is_dir() {
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, "no folder of topic `decisions`")));
        }
        let (mut segments, mut damage) = (Vec::new(), Vec::new());
        for topic in Topic::ALL {
            segments.push(scan(&log.join(topic.name()), &mut damage).map_err(failed)?);
        }
        Ok(Archive { reader: LogReader::new(Arc::new(LogIndex::new(segments))), damage })
    }

    /// Files and entries that could not be read, in words.
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    /// The log's reader.
    pub fn reader(&self) -> &LogReader {
        &self.reader
    }

    /// All rows of a topic, batch by batch: the number of the first, and the rows.
    pub fn rows<R: Row>(&self) -> impl Iterator<Item = Result<(u64, Vec<R>), HistoryError>> + use<R> {
        self.reader.read(R::TOPIC, 0..u64::MAX).map(|read| read.and_then(|(first, batch)| Ok((first, typed(&batch)?))))
    }

    /// Rows of a topic by number.
    pub fn batches(
        &self,
        topic: Topic,
        rows: Range<u64>,
    ) -> impl Iterator<Item = Result<(u64, RecordBatch), HistoryError>> + use<> {
        self.reader.read(topic, rows)
    }
}

fn typed<R: Row>(batch: &RecordBatch) -> Result<Vec<R>, HistoryError> {
    rows_of(batch).map_err(|error| HistoryError { table: R::TOPIC.name(), detail: error.to_string() })
}

/// Segments of a topic's folder, oldest first.
fn scan(folder: &Path, damage: &mut Vec<String>) -> io::Result<Vec<SegmentMeta>> {
    Ok(listed(folder)?.into_iter().filter_map(|path| read_meta(&path, damage)).collect())
}

/// Paths of a topic's segments, oldest first. A topic that an earlier version did not have has no folder.
pub(super) fn listed(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = listed.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "arrows"));
    paths.sort();
    Ok(paths)
}

/// What a segment holds, by its index; `None` if that is nothing or cannot be read, which then is among the damage.
pub(super) fn read_meta(path: &Path, damage: &mut Vec<String>) -> Option<SegmentMeta> {
    let index = match SegmentReader::open(path) {
        Ok((_, index)) => index,
        Err(error) => {
            damage.push(format!("{error}; the segment's rows are left out"));
            return None;
        }
    };
    let found = entries(&index);
    let first = found.iter().flatten().next()?;
    let mut meta = SegmentMeta::new(path.to_path_buf(), first.first_row);
    for (at, entry) in found.iter().enumerate() {
        match entry {
            Some(entry) => meta.include(entry),
            None => damage.push(format!("{path:?}: entry {at} of its index is damaged; its batch is left out")),
        }
    }
    meta.entries = found.len();
    Some(meta)
}
