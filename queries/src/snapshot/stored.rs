//! A snapshot opened for reading: its chain of parts as one, its files checked (SPEC E3).
//!
//! Invariant: no row of a file is handed out before the whole file had the size and the checksum that the manifest names; a file
//! is checked once, when it is first read. Cost: opening reads one manifest; the check reads a file once as a stream.

use std::sync::Arc;

use datafusion::datasource::TableProvider;
use futures::StreamExt;
use sha2::{Digest, Sha256};

use super::{
    Manifest, Part, Place, SnapshotError,
    file::hexadecimal,
    manifest::{Format, ManifestTable, PartFile, moment_of},
    parquet_part::ParquetPart,
    stored_table::StoredTable,
};
use crate::schema::{SCHEMA_VERSION, Topic};

/// A snapshot that can be read.
#[derive(Debug)]
pub struct StoredSnapshot {
    manifest: Manifest,
    tables: Vec<(Topic, Arc<StoredTable>)>,
    files: Vec<(Place, PartFile)>,
}

impl StoredSnapshot {
    /// Opens the snapshot at `place`, or the newest one in a folder of it.
    pub async fn open(place: &Place) -> Result<StoredSnapshot, SnapshotError> {
        if let Some(manifest) = place.manifest().await? {
            return StoredSnapshot::of(place, manifest);
        }
        for name in place.moments().await?.iter().rev() {
            let inner = place.inside(name);
            if let Some(manifest) = inner.manifest().await? {
                return StoredSnapshot::of(&inner, manifest);
            }
        }
        Err(SnapshotError::NoSnapshot { location: place.shown().to_string() })
    }

    fn of(own: &Place, manifest: Manifest) -> Result<StoredSnapshot, SnapshotError> {
        if manifest.version > SCHEMA_VERSION {
            let (name, version) = (manifest.name, manifest.version);
            return Err(SnapshotError::Version { name, version, known: SCHEMA_VERSION });
        }
        let others = own.outside().map(|(place, _)| place);
        let mut files = Vec::new();
        let mut tables = Vec::new();
        for table in &manifest.tables {
            let mut parts = Vec::new();
            for part in &table.parts {
                let place = home(own, others.as_ref(), &manifest.name, part)?;
                files.extend(part.files.iter().map(|file| (place.clone(), file.clone())));
                if let Some(file) = part.files.iter().find(|file| file.format == Format::Parquet) {
                    parts.push(Arc::new(ParquetPart::new(place, file.clone(), part)));
                }
            }
            // A table that only a newer program knows cannot be asked for.
            if let Some(topic) = Topic::from_name(&table.name) {
                tables.push((topic, Arc::new(stored_table(topic, table, parts))));
            }
        }
        Ok(StoredSnapshot { manifest, tables, files })
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Errors if SQL cannot read this snapshot.
    pub fn check_readable(&self) -> Result<(), SnapshotError> {
        match self.manifest.formats.contains(&Format::Parquet) {
            true => Ok(()),
            false => Err(SnapshotError::NoParquet { name: self.manifest.name.clone() }),
        }
    }

    /// Reads every file of the chain, in every format, and compares size and checksum. Answers with the number of files.
    pub async fn verify(&self) -> Result<usize, SnapshotError> {
        for (place, file) in &self.files {
            verify_file(place, file).await?;
        }
        Ok(self.files.len())
    }

    pub(crate) fn providers(&self) -> Vec<(&'static str, Arc<dyn TableProvider>)> {
        let provider = |(topic, table): &(Topic, Arc<StoredTable>)| {
            let table: Arc<dyn TableProvider> = table.clone();
            (topic.name(), table)
        };
        self.tables.iter().map(provider).collect()
    }
}

fn stored_table(topic: Topic, table: &ManifestTable, parts: Vec<Arc<ParquetPart>>) -> StoredTable {
    StoredTable { topic, rows: table.rows, parts }
}

/// Where the files of a part lie: beside the manifest, or beside that of the snapshot that wrote it.
fn home(own: &Place, others: Option<&Place>, name: &str, part: &Part) -> Result<Place, SnapshotError> {
    let wrong = |detail: String| SnapshotError::Damaged { path: format!("{}/manifest.json", own.shown()), detail };
    if part.snapshot == name {
        return Ok(own.clone());
    }
    if moment_of(&part.snapshot).is_none() {
        return Err(wrong(format!("it names the snapshot {:?}, which is no moment", part.snapshot)));
    }
    match others {
        Some(others) => Ok(others.inside(&part.snapshot)),
        None => Err(wrong(format!("snapshot {} is needed and there is no place beside this one", part.snapshot))),
    }
}

/// Whether the file is the one that was written.
pub(super) async fn verify_file(place: &Place, file: &PartFile) -> Result<(), SnapshotError> {
    let path = || format!("{}/{}", place.shown(), file.name);
    let (size, bytes) = place.read(&file.name).await?;
    if size != file.bytes {
        let detail = format!("it has {size} bytes, the manifest says {}", file.bytes);
        return Err(SnapshotError::Damaged { path: path(), detail });
    }
    let (mut sum, mut bytes) = (Sha256::new(), std::pin::pin!(bytes));
    while let Some(piece) = bytes.next().await {
        sum.update(piece?);
    }
    let sum = hexadecimal(&sum.finalize());
    if sum != file.sha256 {
        let detail = format!("its SHA-256 is {sum}, the manifest says {}", file.sha256);
        return Err(SnapshotError::Damaged { path: path(), detail });
    }
    Ok(())
}
