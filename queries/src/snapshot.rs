//! All tables of one moment as files for offline work (SPEC E3).
//!
//! Layout of a snapshot: `<table>.arrow` (Arrow IPC file, zstd) and `<table>.parquet` (zstd) for every table, empty ones
//! too, and `manifest.json`. Invariant: a folder with a manifest is complete. Everything is written into a hidden folder
//! beside the target, synced, and renamed as a whole, the manifest last; a failure leaves no target.
//! Cost: one pass over the rows; memory: a batch at a time (Parquet: one row group of 1 Mi rows at most).

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use arrow::{array::RecordBatch, error::ArrowError, ipc::writer::FileWriter};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    errors::ParquetError,
    file::properties::WriterProperties,
};
use serde::{Deserialize, Serialize};

use crate::{
    encode::zstd_options,
    live_table::{HistoryError, TableSnapshot, TablesSnapshot},
    schema::SCHEMA_VERSION,
};

/// Name of the file that says a snapshot is complete.
pub const MANIFEST: &str = "manifest.json";

/// What a snapshot holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Moment of the tables, microseconds since the epoch, UTC.
    pub as_of: i64,
    /// [`SCHEMA_VERSION`] of the tables.
    pub version: u32,
    pub tables: Vec<ManifestTable>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestTable {
    pub name: String,
    pub rows: u64,
    pub files: Vec<String>,
}

/// A snapshot was not written; the target is as it was.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("snapshot folder {0:?} exists and is not empty; give a folder that does not exist or is empty")]
    TargetNotEmpty(PathBuf),
    #[error("snapshot folder {0:?} has no name or no parent folder; give a path like \"snapshots/today\"")]
    TargetNameless(PathBuf),
    #[error("cannot write {path:?}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot write {path:?} as Arrow: {source}")]
    Arrow { path: PathBuf, source: ArrowError },
    #[error("cannot write {path:?} as Parquet: {source}")]
    Parquet { path: PathBuf, source: ParquetError },
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// Writes every table of `snapshot`, rows that left memory included, to the folder `target`, which must not exist or be
/// empty. `as_of` is the moment of the snapshot in microseconds since the epoch.
pub fn write_snapshot(target: &Path, snapshot: &TablesSnapshot, as_of: i64) -> Result<Manifest, SnapshotError> {
    refuse_occupied(target)?;
    let work = work_folder(target)?;
    fs::create_dir_all(&work).map_err(|source| SnapshotError::Io { path: work.clone(), source })?;
    let written = write_all(&work, snapshot, as_of).and_then(|manifest| {
        publish(&work, target)?;
        Ok(manifest)
    });
    if written.is_err() {
        // Best effort: what is left is hidden and has no place in a listing of snapshots.
        let _ = fs::remove_dir_all(&work);
    }
    written
}

fn refuse_occupied(target: &Path) -> Result<(), SnapshotError> {
    match fs::read_dir(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(SnapshotError::Io { path: target.to_path_buf(), source }),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(SnapshotError::TargetNotEmpty(target.to_path_buf())),
        },
    }
}

/// A hidden folder beside the target, so that the rename stays on one file system.
fn work_folder(target: &Path) -> Result<PathBuf, SnapshotError> {
    let name = target.file_name().ok_or_else(|| SnapshotError::TargetNameless(target.to_path_buf()))?;
    let unfinished = format!(".{}.unfinished-{}", name.to_string_lossy(), std::process::id());
    Ok(target.with_file_name(unfinished))
}

fn write_all(work: &Path, snapshot: &TablesSnapshot, as_of: i64) -> Result<Manifest, SnapshotError> {
    let tables = snapshot.tables().map(|table| write_table(work, table)).collect::<Result<Vec<_>, _>>()?;
    let manifest = Manifest { as_of, version: SCHEMA_VERSION, tables };
    let path = work.join(MANIFEST);
    let io = |source| SnapshotError::Io { path: path.clone(), source };
    let mut file = File::create(&path).map_err(io)?;
    serde_json::to_writer_pretty(&mut file, &manifest).map_err(|error| io(error.into()))?;
    file.write_all(b"\n").and_then(|()| file.sync_all()).map_err(io)?;
    Ok(manifest)
}

fn write_table(work: &Path, table: &TableSnapshot) -> Result<ManifestTable, SnapshotError> {
    let name = table.topic().name();
    let files = [format!("{name}.arrow"), format!("{name}.parquet")];
    let mut arrow = ArrowFile::create(work.join(&files[0]), table)?;
    let mut parquet = ParquetFile::create(work.join(&files[1]), table)?;
    let mut rows = 0;
    for batch in table.batches() {
        let batch = batch?;
        rows += batch.num_rows() as u64;
        arrow.write(&batch)?;
        parquet.write(&batch)?;
    }
    arrow.finish()?;
    parquet.finish()?;
    Ok(ManifestTable { name: name.to_string(), rows, files: files.to_vec() })
}

struct ArrowFile {
    path: PathBuf,
    writer: FileWriter<BufWriter<File>>,
}

impl ArrowFile {
    fn create(path: PathBuf, table: &TableSnapshot) -> Result<ArrowFile, SnapshotError> {
        let file = File::create(&path).map_err(|source| SnapshotError::Io { path: path.clone(), source })?;
        let writer =
            zstd_options().and_then(|o| FileWriter::try_new_with_options(BufWriter::new(file), &table.schema(), o));
        match writer {
            Ok(writer) => Ok(ArrowFile { path, writer }),
            Err(source) => Err(SnapshotError::Arrow { path, source }),
        }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), SnapshotError> {
        self.writer.write(batch).map_err(|source| SnapshotError::Arrow { path: self.path.clone(), source })
    }

    fn finish(mut self) -> Result<(), SnapshotError> {
        let path = self.path;
        let file = self.writer.finish().and_then(|()| self.writer.into_inner());
        let file = file.map_err(|source| SnapshotError::Arrow { path: path.clone(), source })?;
        let synced = file.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all());
        synced.map_err(|source| SnapshotError::Io { path, source })
    }
}

struct ParquetFile {
    path: PathBuf,
    writer: ArrowWriter<File>,
}

impl ParquetFile {
    fn create(path: PathBuf, table: &TableSnapshot) -> Result<ParquetFile, SnapshotError> {
        let file = File::create(&path).map_err(|source| SnapshotError::Io { path: path.clone(), source })?;
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
        match ArrowWriter::try_new(file, table.schema(), Some(properties)) {
            Ok(writer) => Ok(ParquetFile { path, writer }),
            Err(source) => Err(SnapshotError::Parquet { path, source }),
        }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), SnapshotError> {
        self.writer.write(batch).map_err(|source| SnapshotError::Parquet { path: self.path.clone(), source })
    }

    fn finish(self) -> Result<(), SnapshotError> {
        let path = self.path;
        let file = self.writer.into_inner().map_err(|source| SnapshotError::Parquet { path: path.clone(), source })?;
        file.sync_all().map_err(|source| SnapshotError::Io { path, source })
    }
}

/// Makes the finished folder the target. Both folders are on one file system, and the target is empty or absent.
fn publish(work: &Path, target: &Path) -> Result<(), SnapshotError> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| SnapshotError::Io { path, source }
    };
    File::open(work).and_then(|folder| folder.sync_all()).map_err(io(work))?;
    fs::rename(work, target).map_err(|source| match refuse_occupied(target) {
        Err(occupied) => occupied,
        Ok(()) => SnapshotError::Io { path: target.to_path_buf(), source },
    })?;
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent).and_then(|folder| folder.sync_all()).map_err(io(parent))
}
