//! Older rows for another process than the log's writer, while it writes (SPEC E2): the history behind `evenkeel query-worker`.
//!
//! Invariants: nothing is written and no lock taken; rows come in rising number, each once. A topic's folder is looked at again when
//! rows are asked for that its known segments do not reach; segments that have been closed are read once, one that was deleted
//! meanwhile reads as no rows (`history`). What cannot be read is left out here: the writer has said so.
//! Cost: for a look, one listing of a folder and the index of each segment that is new or was the last. State: the list of segments.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use queries::{History, HistoryBatches, NumberedBatches, Older, Topic};

use super::{
    archive::{listed, read_meta},
    history::{LogIndex, LogReader},
    segment::SegmentMeta,
};

/// The log of a data folder that another process writes.
#[derive(Debug)]
pub struct LogFollower {
    folder: PathBuf,
    index: Arc<LogIndex>,
    reader: LogReader,
}

impl LogFollower {
    /// Follows the log of a data folder; there may be none yet.
    pub fn new(data_folder: &Path) -> LogFollower {
        let index = Arc::new(LogIndex::new(vec![Vec::new(); Topic::ALL.len()]));
        LogFollower { folder: data_folder.join("log"), reader: LogReader::new(index.clone()), index }
    }

    /// Looks at a topic's folder again unless all rows before `before` are known of.
    fn look(&self, topic: Topic, before: u64) {
        let reaches = |known: &[SegmentMeta]| known.last().is_some_and(|last| last.rows.end >= before);
        if before == 0 || self.index.with(topic, reaches) {
            return;
        }
        let known = self.index.with(topic, <[SegmentMeta]>::to_vec);
        match segments(&self.folder.join(topic.name()), known) {
            // Another look may have come between, and seen more.
            Ok(found) => self.index.change(topic, |segments| {
                let end = |list: &[SegmentMeta]| list.last().map_or(0, |last| last.rows.end);
                if end(&found) >= end(segments) {
                    *segments = found;
                }
            }),
            Err(error) => tracing::warn!(topic = topic.name(), %error, "the log's folder cannot be listed"),
        }
    }
}

/// Segments of a folder, oldest first. Of the known ones only the newest may have grown.
fn segments(folder: &Path, mut known: Vec<SegmentMeta>) -> io::Result<Vec<SegmentMeta>> {
    known.pop();
    let paths = listed(folder)?;
    let meta = |path: PathBuf| match known.iter().find(|meta| meta.path == path) {
        Some(meta) => Some(meta.clone()),
        None => read_meta(&path, &mut Vec::new()),
    };
    Ok(paths.into_iter().filter_map(meta).collect())
}

impl History for LogFollower {
    fn rows_before(&self, topic: Topic, before: u64) -> u64 {
        self.look(topic, before);
        self.reader.rows_before(topic, before)
    }

    fn older(&self, wanted: Older) -> HistoryBatches {
        self.look(wanted.topic, wanted.before);
        self.reader.older(wanted)
    }

    fn numbered(&self, topic: Topic, rows: Range<u64>) -> NumberedBatches {
        self.look(topic, rows.end);
        self.reader.numbered(topic, rows)
    }
}
