//! One file of a snapshot: rows go in, encoded bytes are summed and uploaded while it grows (SPEC E3).
//!
//! Invariant: nothing is visible under the file's name until [`FileUpload::finish`] has answered. Memory: one row group of at most
//! [`GROUP_BYTES`] (Parquet) or one batch (Arrow), and what `upload` holds.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

use arrow::{array::RecordBatch, datatypes::SchemaRef, ipc::writer::FileWriter};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::{metadata::KeyValue, properties::WriterProperties},
};
use sha2::{Digest, Sha256};

use super::{Format, PartFile, Place, SnapshotError, upload::Upload};
use crate::encode::zstd_options;

/// Most rows of a row group: small enough to be passed over by time.
pub const GROUP_ROWS: usize = 1 << 17;
/// Most bytes of a row group, for wide rows.
const GROUP_BYTES: usize = 64 << 20;

/// Encoded bytes between a writer and the upload.
#[derive(Debug, Clone, Default)]
struct Spool(Arc<Mutex<Vec<u8>>>);

impl Spool {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Encoder {
    Arrow(Box<FileWriter<Spool>>),
    Parquet(Box<ArrowWriter<Spool>>),
}

/// A file on its way.
pub(super) struct FileUpload {
    place: Place,
    name: String,
    encoder: Encoder,
    spool: Spool,
    upload: Upload,
    sum: Sha256,
    bytes: u64,
}

impl FileUpload {
    /// Begins it; the store hears of it with the first part, or when it is whole.
    pub(super) fn start(
        place: &Place,
        table: &str,
        format: Format,
        schema: &SchemaRef,
    ) -> Result<FileUpload, SnapshotError> {
        let name = format!("{table}.{}", format.ending());
        let path = format!("{}/{name}", place.shown());
        let spool = Spool::default();
        let encoder = match format {
            Format::Arrow => zstd_options()
                .and_then(|options| FileWriter::try_new_with_options(spool.clone(), schema, options))
                .map(|writer| Encoder::Arrow(Box::new(writer)))
                .map_err(|source| SnapshotError::Arrow { path, source })?,
            Format::Parquet => ArrowWriter::try_new(spool.clone(), schema.clone(), Some(properties(schema)))
                .map(|writer| Encoder::Parquet(Box::new(writer)))
                .map_err(|source| SnapshotError::Parquet { path, source })?,
        };
        let upload = Upload::new(place, &name);
        Ok(FileUpload { place: place.clone(), name, encoder, spool, upload, sum: Sha256::new(), bytes: 0 })
    }

    pub(super) async fn write(&mut self, batch: &RecordBatch) -> Result<(), SnapshotError> {
        let path = || format!("{}/{}", self.place.shown(), self.name);
        match &mut self.encoder {
            Encoder::Arrow(writer) => {
                writer.write(batch).map_err(|source| SnapshotError::Arrow { path: path(), source })?;
            }
            Encoder::Parquet(writer) => {
                writer.write(batch).map_err(|source| SnapshotError::Parquet { path: path(), source })?;
            }
        }
        self.send().await
    }

    /// Hands what was encoded to the store; waits while enough is on its way.
    async fn send(&mut self) -> Result<(), SnapshotError> {
        let encoded = self.spool.take();
        if encoded.is_empty() {
            return Ok(());
        }
        self.sum.update(&encoded);
        self.bytes += encoded.len() as u64;
        self.upload.write(&encoded).await
    }

    /// Makes the file whole and there. After an error nothing of it is left.
    pub(super) async fn finish(mut self) -> Result<PartFile, SnapshotError> {
        let path = format!("{}/{}", self.place.shown(), self.name);
        let (encoded, format) = match &mut self.encoder {
            Encoder::Arrow(writer) => {
                (writer.finish().map_err(|source| SnapshotError::Arrow { path, source }), Format::Arrow)
            }
            Encoder::Parquet(writer) => {
                let encoded = writer.finish().map(|_| ()).map_err(|source| SnapshotError::Parquet { path, source });
                (encoded, Format::Parquet)
            }
        };
        let sent = match encoded {
            Ok(()) => self.send().await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            self.upload.abort().await;
            return Err(error);
        }
        self.upload.finish().await?;
        self.place.settle(&self.name)?;
        Ok(PartFile { name: self.name, format, bytes: self.bytes, sha256: hexadecimal(&self.sum.finalize()) })
    }

    /// Gives the upload up; what the store has of it goes.
    pub(super) async fn abort(self) {
        self.upload.abort().await;
    }
}

/// Parquet's settings: zstd, row groups that time can pass over, and the table's metadata for tools that do not read Arrow's.
fn properties(schema: &SchemaRef) -> WriterProperties {
    let columns: serde_json::Map<String, serde_json::Value> =
        schema.fields().iter().map(|field| (field.name().clone(), serde_json::json!(field.metadata()))).collect();
    let mut pairs: Vec<KeyValue> =
        schema.metadata().iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
    pairs.sort_by(|a, b| a.key.cmp(&b.key));
    pairs.push(KeyValue::new("columns".to_string(), serde_json::Value::Object(columns).to_string()));
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_max_row_group_bytes(Some(GROUP_BYTES))
        .set_key_value_metadata(Some(pairs))
        .build()
}

/// Bytes as lower-case hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
