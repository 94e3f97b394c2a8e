//! One segment of the log: rows of one topic on disk (DESIGN §3).
//!
//! `<first row, 20 digits>.arrows` is a plain Arrow IPC stream with zstd buffers, which any Arrow reader opens. Beside it
//! lies `.idx`: a header and one fixed-size entry a batch, which says where the batch lies, which rows it holds, their times
//! and a CRC-32 of its bytes; entries carry a CRC-32 of their own. Numbers are little-endian.
//! Invariant: an entry is written after its batch; what no valid entry covers is not part of the log.
//! Cost: a batch is encoded in memory and written at once; an entry has [`Entry::BYTES`] bytes.

use std::{
    fs::File,
    io::{self, Cursor, Read},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use arrow::{array::RecordBatch, error::ArrowError, ipc::reader::StreamReader, ipc::writer::StreamWriter};
use queries::{TimeRange, Topic, encode::zstd_options, schema::SCHEMA_VERSION};

use super::fs::{SegmentFile, SegmentFs};

/// Level of zstd: rows are written once, beside the requests they tell of, and mostly never read.
const ZSTD_LEVEL: i32 = 1;
const MAGIC: &[u8; 8] = b"EVKLIDX1";
/// Ends an Arrow stream: continuation marker and a message of length 0.
pub(super) const END_OF_STREAM: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Something in the log could not be written or read.
#[derive(Debug, thiserror::Error)]
pub(super) enum SegmentError {
    #[error("{path:?}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path:?}: {source}")]
    Arrow { path: PathBuf, source: ArrowError },
    #[error("{path:?}: {detail}")]
    Corrupt { path: PathBuf, detail: String },
}

impl SegmentError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> SegmentError + '_ {
        move |source| SegmentError::Io { path: path.to_path_buf(), source }
    }

    fn arrow(path: &Path) -> impl FnOnce(ArrowError) -> SegmentError + '_ {
        move |source| SegmentError::Arrow { path: path.to_path_buf(), source }
    }

    pub(super) fn corrupt(path: &Path, detail: impl ToString) -> SegmentError {
        SegmentError::Corrupt { path: path.to_path_buf(), detail: detail.to_string() }
    }
}

/// Start of an `.idx` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u32,
    /// Length and CRC-32 of the schema message with which the stream begins.
    pub(super) schema_bytes: u32,
    pub(super) schema_crc: u32,
}

impl Header {
    pub(super) const BYTES: usize = 24;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.schema_bytes.to_le_bytes());
        out.extend_from_slice(&self.schema_crc.to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..Header::BYTES)?;
        if !bytes.starts_with(MAGIC) || crc32fast::hash(&bytes[..20]) != number(bytes, 20) {
            return None;
        }
        Some(Header { version: number(bytes, 8), schema_bytes: number(bytes, 12), schema_crc: number(bytes, 16) })
    }
}

/// One batch of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) first_row: u64,
    pub(super) times: TimeRange,
    pub(super) rows: u32,
    pub(super) crc: u32,
}

impl Entry {
    pub(super) const BYTES: usize = 52;

    pub(super) fn end_row(&self) -> u64 {
        self.first_row + u64::from(self.rows)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Entry::BYTES);
        for number in [self.offset, self.bytes, self.first_row] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for time in [self.times.min, self.times.max] {
            out.extend_from_slice(&time.to_le_bytes());
        }
        out.extend_from_slice(&self.rows.to_le_bytes());
        out.extend_from_slice(&self.crc.to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        assert!(out.len() == Entry::BYTES, "an index entry has a fixed size");
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Entry> {
        let bytes = bytes.get(..Entry::BYTES)?;
        if crc32fast::hash(&bytes[..48]) != number(bytes, 48) {
            return None;
        }
        Some(Entry {
            offset: long(bytes, 0),
            bytes: long(bytes, 8),
            first_row: long(bytes, 16),
            times: TimeRange { min: long(bytes, 24) as i64, max: long(bytes, 32) as i64 },
            rows: number(bytes, 40),
            crc: number(bytes, 44),
        })
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("invariant: eight bytes"))
}

/// What is known of a segment without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentMeta {
    pub(super) path: PathBuf,
    pub(super) rows: Range<u64>,
    /// Times of its rows; empty (`min > max`) without rows.
    pub(super) times: TimeRange,
    /// Length of both files.
    pub(super) bytes: u64,
    /// Entries that count, damaged ones included.
    pub(super) entries: usize,
    /// Offsets of batches whose bytes are not what was written; they are passed over.
    pub(super) damaged: Vec<u64>,
}

impl SegmentMeta {
    pub(super) fn new(path: PathBuf, first_row: u64) -> SegmentMeta {
        let times = TimeRange { min: i64::MAX, max: i64::MIN };
        SegmentMeta { path, rows: first_row..first_row, times, bytes: 0, entries: 0, damaged: Vec::new() }
    }

    /// Counts an entry in.
    pub(super) fn include(&mut self, entry: &Entry) {
        self.rows.end = self.rows.end.max(entry.end_row());
        self.times = self.times.union(entry.times);
        self.entries += 1;
    }
}

/// Path of the segment whose first row is `first_row`.
pub(super) fn segment_path(folder: &Path, first_row: u64) -> PathBuf {
    folder.join(format!("{first_row:020}.arrows"))
}

/// Path of a segment's index.
pub(super) fn index_path(segment: &Path) -> PathBuf {
    segment.with_extension("idx")
}

/// A segment being written.
pub(super) struct OpenSegment {
    pub(super) meta: SegmentMeta,
    encoder: StreamWriter<Vec<u8>>,
    stream: Box<dyn SegmentFile>,
    index: Box<dyn SegmentFile>,
    stream_bytes: u64,
    index_bytes: u64,
    unsynced: bool,
}

impl std::fmt::Debug for OpenSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenSegment").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl OpenSegment {
    /// Creates both files and writes the schema and the index's header.
    pub(super) fn create(
        fs: &dyn SegmentFs,
        folder: &Path,
        topic: Topic,
        first_row: u64,
    ) -> Result<OpenSegment, SegmentError> {
        let path = segment_path(folder, first_row);
        let io = || SegmentError::io(&path);
        let encoder = zstd_options()
            .and_then(|options| options.try_with_compression_level(Some(ZSTD_LEVEL)))
            .and_then(|options| StreamWriter::try_new_with_options(Vec::new(), &topic.schema(), options))
            .map_err(SegmentError::arrow(&path))?;
        let mut segment = OpenSegment {
            encoder,
            stream: fs.create(&path).map_err(io())?,
            index: fs.create(&index_path(&path)).map_err(io())?,
            stream_bytes: 0,
            index_bytes: 0,
            unsynced: true,
            meta: SegmentMeta::new(path.clone(), first_row),
        };
        let schema = std::mem::take(segment.encoder.get_mut());
        let header =
            Header { version: SCHEMA_VERSION, schema_bytes: schema.len() as u32, schema_crc: crc32fast::hash(&schema) };
        segment.write(&schema, &header.encode()).map_err(io())?;
        fs.sync_folder(folder).map_err(io())?;
        Ok(segment)
    }

    /// Writes one batch whose first row has the number given. After an error the segment must be given up.
    pub(super) fn append(&mut self, first_row: u64, batch: &RecordBatch) -> Result<(), SegmentError> {
        let path = self.meta.path.clone();
        self.encoder.write(batch).map_err(SegmentError::arrow(&path))?;
        let bytes = std::mem::take(self.encoder.get_mut());
        let entry = Entry {
            offset: self.stream_bytes,
            bytes: bytes.len() as u64,
            first_row,
            times: TimeRange::of(batch),
            rows: batch.num_rows() as u32,
            crc: crc32fast::hash(&bytes),
        };
        self.write(&bytes, &entry.encode()).map_err(SegmentError::io(&path))?;
        self.meta.include(&entry);
        Ok(())
    }

    fn write(&mut self, stream: &[u8], index: &[u8]) -> io::Result<()> {
        self.unsynced = true;
        self.stream.write_all(stream)?;
        self.index.write_all(index)?;
        self.stream_bytes += stream.len() as u64;
        self.index_bytes += index.len() as u64;
        self.meta.bytes = self.stream_bytes + self.index_bytes;
        Ok(())
    }

    /// Returns when everything written is on the disk.
    pub(super) fn sync(&mut self) -> Result<(), SegmentError> {
        if self.unsynced {
            let synced = self.stream.sync().and_then(|()| self.index.sync());
            synced.map_err(SegmentError::io(&self.meta.path))?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Ends the stream and syncs. The segment is whole with or without it: readers accept both.
    pub(super) fn seal(mut self) -> Result<SegmentMeta, SegmentError> {
        self.write(&END_OF_STREAM, &[]).map_err(SegmentError::io(&self.meta.path))?;
        self.sync()?;
        Ok(self.meta)
    }

    /// After a failed write: cuts what is not covered by an entry, as far as the disk lets us. What cannot be cut now is
    /// cut at the next start.
    pub(super) fn give_up(mut self) -> SegmentMeta {
        let stream = self.stream.truncate(self.stream_bytes);
        let index = self.index.truncate(self.index_bytes);
        if let Err(error) = stream.and(index).and_then(|()| self.stream.sync()).and_then(|()| self.index.sync()) {
            tracing::warn!(path = %self.meta.path.display(), %error, "a broken segment could not be cut");
        }
        self.meta
    }
}

/// Reads batches of a segment.
#[derive(Debug)]
pub(super) struct SegmentReader {
    path: PathBuf,
    stream: File,
    schema: Vec<u8>,
}

impl SegmentReader {
    /// Opens a segment; reads and checks its header and schema.
    pub(super) fn open(path: &Path) -> Result<(SegmentReader, Vec<u8>), SegmentError> {
        let index_path = index_path(path);
        let index = std::fs::read(&index_path).map_err(SegmentError::io(&index_path))?;
        let header =
            Header::decode(&index).ok_or_else(|| SegmentError::corrupt(&index_path, "the index's header is broken"))?;
        if header.version != SCHEMA_VERSION {
            let detail = format!("schema version {}, this program reads {SCHEMA_VERSION}", header.version);
            return Err(SegmentError::corrupt(path, detail));
        }
        let stream = File::open(path).map_err(SegmentError::io(path))?;
        let mut schema = Vec::new();
        let wanted = u64::from(header.schema_bytes);
        (&stream).take(wanted).read_to_end(&mut schema).map_err(SegmentError::io(path))?;
        if schema.len() as u64 != wanted || crc32fast::hash(&schema) != header.schema_crc {
            return Err(SegmentError::corrupt(path, "the schema at its start is broken"));
        }
        Ok((SegmentReader { path: path.to_path_buf(), stream, schema }, index))
    }

    /// Length of the schema message, where the first batch begins.
    pub(super) fn start(&self) -> u64 {
        self.schema.len() as u64
    }

    pub(super) fn stream_bytes(&self) -> Result<u64, SegmentError> {
        Ok(self.stream.metadata().map_err(SegmentError::io(&self.path))?.len())
    }

    /// Bytes at a place of the stream; fewer at its end.
    pub(super) fn bytes_at(&self, range: Range<u64>) -> Result<Vec<u8>, SegmentError> {
        let end = range.end.min(self.stream_bytes()?);
        let mut bytes = vec![0; end.saturating_sub(range.start) as usize];
        self.stream.read_exact_at(&mut bytes, range.start).map_err(SegmentError::io(&self.path))?;
        Ok(bytes)
    }

    /// Whether the batch's bytes are what was written.
    pub(super) fn verify(&self, entry: &Entry) -> Result<bool, SegmentError> {
        let bytes = self.bytes_at(entry.offset..entry.offset.saturating_add(entry.bytes))?;
        Ok(bytes.len() as u64 == entry.bytes && crc32fast::hash(&bytes) == entry.crc)
    }

    /// The batch of an entry. Errors if its bytes are not what was written.
    pub(super) fn read(&self, entry: &Entry) -> Result<RecordBatch, SegmentError> {
        let bytes = self.bytes_at(entry.offset..entry.offset.saturating_add(entry.bytes))?;
        if bytes.len() as u64 != entry.bytes || crc32fast::hash(&bytes) != entry.crc {
            let detail = format!("the batch at byte {} is not what was written (checksum)", entry.offset);
            return Err(SegmentError::corrupt(&self.path, detail));
        }
        let stream = Cursor::new(self.schema.as_slice()).chain(Cursor::new(bytes));
        let mut reader = StreamReader::try_new(stream, None).map_err(SegmentError::arrow(&self.path))?;
        match reader.next() {
            Some(batch) => batch.map_err(SegmentError::arrow(&self.path)),
            None => Err(SegmentError::corrupt(&self.path, format!("no batch at byte {}", entry.offset))),
        }
    }
}

/// Entries of an index in order, `None` for a broken one. Half an entry at the end is left out.
pub(super) fn entries(index: &[u8]) -> Vec<Option<Entry>> {
    let body = index.get(Header::BYTES..).unwrap_or_default();
    body.chunks_exact(Entry::BYTES).map(Entry::decode).collect()
}
