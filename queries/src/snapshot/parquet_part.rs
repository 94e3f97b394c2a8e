//! One Parquet file of a snapshot, read row group by row group (SPEC E3).
//!
//! Invariant: the file is checked against its checksum before anything else of it is read. Row groups whose times cannot be
//! wanted are not fetched, nor are columns that are not asked for. Memory: the columns asked for of one row group, compressed,
//! and a batch of [`BATCH_ROWS`]. Decoding happens where the stream is polled.

use std::{ops::Range, sync::Arc};

use arrow::array::RecordBatch;
use bytes::{Buf, Bytes};
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{
            ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
        },
    },
    errors::ParquetError,
    file::{
        FOOTER_SIZE,
        metadata::{FooterTail, ParquetMetaDataReader, RowGroupMetaData},
        reader::{ChunkReader, Length},
        statistics::Statistics,
    },
};
use tokio::sync::OnceCell;

use super::{Part, PartFile, Place, SnapshotError, stored::verify_file};
use crate::ring::TimeRange;

/// Rows of a batch read.
const BATCH_ROWS: usize = 8192;

/// A file, and its metadata once it was needed.
#[derive(Debug)]
pub(super) struct ParquetPart {
    place: Place,
    file: PartFile,
    pub(super) times: Option<TimeRange>,
    metadata: OnceCell<ArrowReaderMetadata>,
}

impl ParquetPart {
    pub(super) fn new(place: Place, file: PartFile, part: &Part) -> ParquetPart {
        let times = part.times.map(|(min, max)| TimeRange { min, max });
        ParquetPart { place, file, times, metadata: OnceCell::new() }
    }

    /// The file's metadata; the first call checks the file.
    pub(super) async fn metadata(&self) -> Result<&ArrowReaderMetadata, SnapshotError> {
        self.metadata
            .get_or_try_init(|| async {
                verify_file(&self.place, &self.file).await?;
                let footer = self.footer().await?;
                let metadata = ParquetMetaDataReader::decode_metadata(&footer).map_err(self.wrong())?;
                ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new()).map_err(self.wrong())
            })
            .await
    }

    async fn footer(&self) -> Result<Bytes, SnapshotError> {
        let size = self.file.bytes;
        let tail_at = size.saturating_sub(FOOTER_SIZE as u64);
        let tail = self.range(tail_at..size).await?;
        let tail: [u8; FOOTER_SIZE] = tail
            .as_ref()
            .try_into()
            .map_err(|_| self.wrong()(ParquetError::General("the file is shorter than its footer".to_string())))?;
        let length = FooterTail::try_new(&tail).map_err(self.wrong())?.metadata_length() as u64;
        self.range(tail_at.saturating_sub(length)..tail_at).await
    }

    async fn range(&self, range: Range<u64>) -> Result<Bytes, SnapshotError> {
        let read = self.place.store().get_range(&self.place.path(&self.file.name), range).await;
        read.map_err(self.place.failed(&self.file.name))
    }

    fn wrong(&self) -> impl Fn(ParquetError) -> SnapshotError + use<> {
        let path = format!("{}/{}", self.place.shown(), self.file.name);
        move |source| SnapshotError::Parquet { path: path.clone(), source }
    }

    /// Row groups that may hold rows of `times`, with their rows.
    pub(super) async fn groups(&self, times: TimeRange) -> Result<Vec<(usize, u64)>, SnapshotError> {
        let metadata = self.metadata().await?;
        let groups = metadata.metadata().row_groups().iter().enumerate();
        let wanted = groups.filter(|(_, group)| group.num_rows() > 0 && times_of(group).overlaps(times));
        Ok(wanted.map(|(at, group)| (at, group.num_rows().unsigned_abs())).collect())
    }

    /// Rows of one group; `columns`: positions in the file, `None` for all.
    pub(super) async fn read(
        &self,
        group: usize,
        columns: Option<&[usize]>,
    ) -> Result<ParquetRecordBatchReader, SnapshotError> {
        let metadata = self.metadata().await?.clone();
        let mask = match columns {
            Some(columns) => ProjectionMask::roots(metadata.parquet_schema(), columns.iter().copied()),
            None => ProjectionMask::all(),
        };
        let chunks = metadata.metadata().row_group(group).columns().iter().enumerate();
        let ranges: Vec<Range<u64>> = chunks
            .filter(|(leaf, _)| mask.leaf_included(*leaf))
            .map(|(_, chunk)| {
                let (start, length) = chunk.byte_range();
                start..start + length
            })
            .collect();
        let bytes = match ranges.is_empty() {
            true => Vec::new(),
            false => {
                let path = self.place.path(&self.file.name);
                let read = self.place.store().get_ranges(&path, &ranges).await;
                read.map_err(self.place.failed(&self.file.name))?
            }
        };
        let fetched = Fetched { size: self.file.bytes, chunks: ranges.into_iter().zip(bytes).collect() };
        ParquetRecordBatchReaderBuilder::new_with_metadata(fetched, metadata)
            .with_row_groups(vec![group])
            .with_projection(mask)
            .with_batch_size(BATCH_ROWS)
            .build()
            .map_err(self.wrong())
    }

    pub(super) fn damaged(&self, detail: String) -> SnapshotError {
        SnapshotError::Damaged { path: format!("{}/{}", self.place.shown(), self.file.name), detail }
    }
}

/// Range of the first column's times, by the file's own statistics; everything if it has none.
fn times_of(group: &RowGroupMetaData) -> TimeRange {
    match group.columns().first().and_then(|column| column.statistics()) {
        Some(Statistics::Int64(times)) => match (times.min_opt(), times.max_opt()) {
            (Some(min), Some(max)) => TimeRange { min: *min, max: *max },
            _ => TimeRange::ALL,
        },
        _ => TimeRange::ALL,
    }
}

/// Column chunks of one row group, in memory.
struct Fetched {
    size: u64,
    chunks: Vec<(Range<u64>, Bytes)>,
}

impl Fetched {
    fn from(&self, start: u64) -> parquet::errors::Result<Bytes> {
        let found = self.chunks.iter().find(|(range, _)| range.contains(&start));
        let (range, bytes) = found.ok_or_else(|| ParquetError::General(format!("byte {start} was not fetched")))?;
        Ok(bytes.slice((start - range.start) as usize..))
    }
}

impl Length for Fetched {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Fetched {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let bytes = self.from(start)?;
        match bytes.len() >= length {
            true => Ok(bytes.slice(..length)),
            false => Err(ParquetError::General(format!("{length} bytes at {start} were not fetched whole"))),
        }
    }
}

/// The next batch of a reader.
pub(super) fn next_batch(
    part: &ParquetPart,
    reader: &mut ParquetRecordBatchReader,
) -> Result<Option<RecordBatch>, SnapshotError> {
    reader.next().transpose().map_err(|error| part.damaged(error.to_string()))
}
