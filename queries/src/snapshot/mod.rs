//! All tables of one moment as files for offline work (SPEC E3), in a folder or any object store.
//!
//! Layout below a target: `<name>/manifest.json`, `<name>/<table>.arrow` (Arrow IPC file, zstd), `<name>/<table>.parquet`
//! (zstd). A name is the snapshot's moment in microseconds since the epoch.
//!
//! | file | idea |
//! |---|---|
//! | `manifest` | what a snapshot says of itself: its tables, their parts, files and checksums |
//! | `place` | a folder or an object store, and what lies where in it |
//! | `store` | how a URL becomes a store: settings, bounds, and what its refusals mean |
//! | `write` | one snapshot, whole or only what came since another |
//! | `file` | one file of it: encoded, summed and uploaded as it grows |
//! | `upload` | bytes on their way: in one piece, or in parts |
//! | `retain` | which snapshots go |
//! | `stored` | a snapshot opened: its parts followed, its files checked |
//! | `parquet_part`, `stored_table` | a table of it as DataFusion scans it, pruned by time |
//!
//! Invariants: the manifest is written last, so a name with a manifest is complete and one without is no snapshot. An
//! incremental snapshot holds only rows numbered after those of its base; its manifest lists all parts of the chain, so it is
//! read without the manifests before it. What another snapshot needs is never deleted. No clock, no environment: moments and
//! options are given.

mod file;
pub mod manifest;
mod parquet_part;
pub mod place;
pub mod retain;
pub mod store;
pub mod stored;
mod stored_table;
mod upload;
pub mod write;

use arrow::error::ArrowError;
use parquet::errors::ParquetError;

pub use manifest::{Format, MANIFEST, Manifest, ManifestTable, Part, PartFile, Producer};
pub use place::Place;
pub use retain::{Listed, Retention, delete_surplus};
pub use store::StoreSettings;
pub use stored::StoredSnapshot;
pub use write::{SnapshotOrder, continues, write_snapshot};

use crate::live_table::HistoryError;

/// A snapshot was not written, found or read. After a failed write nothing of it is visible.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(
        "snapshot target {location:?} is no folder and no URL: {detail}; give a path, or a URL such as \"s3://bucket/fleet\", \
         \"gs://bucket/fleet\", \"az://container/fleet\" or \"file:///srv/snapshots\""
    )]
    Target { location: String, detail: String },
    #[error("the store of {location:?} cannot be used: {detail}")]
    Settings { location: String, detail: String },
    #[error(
        "{location} holds no snapshot: there is no {MANIFEST} in it, nor in a folder of it that is named by a moment"
    )]
    NoSnapshot { location: String },
    #[error("{location} has files already")]
    Occupied { location: String },
    /// `words`: what the store said and where to look; they stand for the error itself, which may be pages of XML.
    #[error("{path}: {words}")]
    Store { path: String, words: String, error: Box<object_store::Error> },
    #[error("cannot write {path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("cannot write {path} as Arrow: {source}")]
    Arrow { path: String, source: ArrowError },
    #[error("{path} as Parquet: {source}")]
    Parquet { path: String, source: ParquetError },
    #[error("{path} is not a manifest of this version: {source}")]
    Manifest { path: String, source: serde_json::Error },
    #[error("{path} is damaged: {detail}; fetch or write the snapshot again")]
    Damaged { path: String, detail: String },
    #[error("snapshot {name} has no Parquet files, which SQL reads; write it with formats = [\"parquet\"]")]
    NoParquet { name: String },
    #[error("snapshot {name} is of schema version {version}, this program knows up to {known}; use a newer program")]
    Version { name: String, version: u32, known: u32 },
    #[error(transparent)]
    History(#[from] HistoryError),
}
