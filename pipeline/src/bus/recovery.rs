//! Start-up of the log: which rows are there, and what had to be cut (DESIGN §3; issue: torn log, full disk).
//!
//! Invariant: after recovery every entry of every index is valid and its batch's checksum was checked; nothing is cut, set
//! aside or skipped without a [`Fault`]. A crash leaves a torn tail: a batch without its entry, half an entry, or an entry
//! whose batch is incomplete. The tail is cut from both files. A broken batch with sound ones after it is no torn tail: it
//! is left on disk, its entry is passed over, and its rows are missing. A segment that cannot be opened at all is renamed
//! to `….bad`. Cost: one read of the whole log (at most `log.retain_bytes`).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader},
    path::Path,
};

use arrow::ipc::reader::StreamReader;

use super::{
    log::Fault,
    segment::{END_OF_STREAM, Entry, Header, SegmentError, SegmentMeta, SegmentReader, entries, index_path},
};

/// What recovery found of one topic.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    /// Segments with rows, oldest first, rows rising.
    pub(super) segments: Vec<SegmentMeta>,
    pub(super) faults: Vec<Fault>,
}

/// Recovers the segments of one topic's folder.
pub(super) fn recover(folder: &Path) -> io::Result<Recovered> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "arrows") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut recovered = Recovered::default();
    for path in paths {
        match recover_segment(&path, &mut recovered.faults) {
            Ok(Some(meta)) => recovered.segments.push(meta),
            // Not one whole batch: nothing was ever promised of it.
            Ok(None) => remove(&path, &mut recovered.faults),
            Err(error) => set_aside(&path, &error, &mut recovered.faults),
        }
    }
    Ok(recovered)
}

fn recover_segment(path: &Path, faults: &mut Vec<Fault>) -> Result<Option<SegmentMeta>, SegmentError> {
    let (reader, index) = match SegmentReader::open(path) {
        Ok(opened) => opened,
        Err(error) if is_stillborn(path) => {
            tracing::info!(path = %path.display(), %error, "segment without rows removed");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let found = entries(&index);
    if found.is_empty() && index.len() == Header::BYTES {
        return Ok(None);
    }
    let judge = |entry: &Option<Entry>| entry.map_or(Ok(false), |entry| reader.verify(&entry));
    let sound = found.iter().map(judge).collect::<Result<Vec<_>, _>>()?;
    let kept = sound.iter().rposition(|sound| *sound).map_or(0, |last| last + 1);
    let last = found[..kept].last().copied().flatten();
    let stream_end = last.map_or(reader.start(), |last| last.offset + last.bytes);
    let index_end = (Header::BYTES + kept * Entry::BYTES) as u64;
    let tail = reader.stream_bytes()?.saturating_sub(stream_end);
    let index_tail = index.len() as u64 - index_end;
    let sealed = index_tail == 0
        && tail == END_OF_STREAM.len() as u64
        && reader.bytes_at(stream_end..stream_end + tail)? == END_OF_STREAM;
    if !sealed && tail + index_tail > 0 {
        cut(path, stream_end)?;
        cut(&index_path(path), index_end)?;
        let rows: u64 = found[kept..].iter().flatten().map(|entry| u64::from(entry.rows)).sum();
        let name = path.display();
        let detail = format!("{name}: cut {tail} bytes and {index_tail} bytes of its index; {rows} rows known lost");
        faults.push(Fault { kind: "torn_tail", detail, count: rows.max(1) });
    }
    let Some(first) = found[..kept].iter().flatten().next() else { return Ok(None) };
    let mut meta = SegmentMeta::new(path.to_path_buf(), first.first_row);
    for (entry, sound) in found[..kept].iter().zip(&sound) {
        if let Some(entry) = entry {
            meta.include(entry);
        }
        if !sound {
            meta.damaged.extend(entry.map(|entry| entry.offset));
            faults.push(damaged(path, entry.as_ref()));
        }
    }
    meta.entries = kept;
    meta.bytes = stream_end + index_end + if sealed { tail } else { 0 };
    Ok(Some(meta))
}

/// A segment whose creation was cut short: its index has no whole header, and its stream no batch.
fn is_stillborn(path: &Path) -> bool {
    let index = fs::metadata(index_path(path)).map_or(0, |index| index.len());
    let has_batch = || {
        let reader = File::open(path).ok().and_then(|file| StreamReader::try_new(BufReader::new(file), None).ok());
        reader.is_some_and(|mut reader| matches!(reader.next(), Some(Ok(_))))
    };
    index < Header::BYTES as u64 && !has_batch()
}

fn damaged(path: &Path, entry: Option<&Entry>) -> Fault {
    let name = path.display();
    match entry {
        Some(entry) => {
            let (at, rows) = (entry.offset, entry.rows);
            let detail = format!("{name}: the batch at byte {at} is damaged; its {rows} rows are left out");
            Fault { kind: "damaged_batch", detail, count: u64::from(rows) }
        }
        None => {
            let detail = format!("{name}: an entry of its index is damaged; the rows of that batch are left out");
            Fault { kind: "damaged_entry", detail, count: 1 }
        }
    }
}

fn cut(path: &Path, length: u64) -> Result<(), SegmentError> {
    let file = OpenOptions::new().write(true).open(path).map_err(SegmentError::io(path))?;
    file.set_len(length).and_then(|()| file.sync_all()).map_err(SegmentError::io(path))
}

fn remove(path: &Path, faults: &mut Vec<Fault>) {
    for path in [path.to_path_buf(), index_path(path)] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let detail = format!("{}: cannot remove an empty segment: {error}", path.display());
                faults.push(Fault { kind: "cannot_remove", detail, count: 1 });
            }
            _ => {}
        }
    }
}

fn set_aside(path: &Path, error: &SegmentError, faults: &mut Vec<Fault>) {
    let mut outcome = "set aside as .bad".to_string();
    for path in [path.to_path_buf(), index_path(path)] {
        let mut aside = path.clone().into_os_string();
        aside.push(".bad");
        if let Err(failed) = fs::rename(&path, aside)
            && failed.kind() != io::ErrorKind::NotFound
        {
            outcome = format!("and it cannot be renamed: {failed}");
        }
    }
    faults.push(Fault { kind: "segment_set_aside", detail: format!("{error}; {outcome}"), count: 1 });
}
