//! What a snapshot says of itself (SPEC E3).
//!
//! Invariants: `rows` of a table is the sum over its parts; parts are in rising order of rows and do not overlap; the last
//! one's `end_row` is the number of the first row that came after the snapshot. A part whose `end_row - first_row` is more
//! than its `rows` lacks rows that the log had lost.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::schema::Topic;

/// Name of the file that says a snapshot is complete.
pub const MANIFEST: &str = "manifest.json";

/// Form of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    Arrow,
    Parquet,
}

impl Format {
    /// What a file's name ends with.
    pub fn ending(self) -> &'static str {
        match self {
            Format::Arrow => "arrow",
            Format::Parquet => "parquet",
        }
    }
}

/// Who wrote a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer {
    /// Program and version.
    pub program: String,
    /// One run of the program. Row numbers of two runs may differ, so chains stay within one.
    pub run: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub name: String,
    /// Moment of the tables, microseconds since the epoch, UTC.
    pub as_of: i64,
    /// Version of all schemas together.
    pub version: u32,
    pub producer: Producer,
    /// The snapshot that this one goes on from; `None`: it is whole.
    pub base: Option<String>,
    /// Snapshots from the whole one up to this, itself counted.
    pub chain: u32,
    pub formats: Vec<Format>,
    pub tables: Vec<ManifestTable>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestTable {
    pub name: String,
    pub rows: u64,
    pub parts: Vec<Part>,
}

/// Rows of a table that one snapshot wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Name of the snapshot beside whose manifest the files lie.
    pub snapshot: String,
    pub first_row: u64,
    pub end_row: u64,
    pub rows: u64,
    /// Times of the rows, microseconds since the epoch; `None` without rows.
    pub times: Option<(i64, i64)>,
    pub files: Vec<PartFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFile {
    pub name: String,
    pub format: Format,
    pub bytes: u64,
    /// SHA-256 in hexadecimal digits, as `sha256sum` prints it.
    pub sha256: String,
}

impl Manifest {
    pub fn table(&self, topic: Topic) -> Option<&ManifestTable> {
        self.tables.iter().find(|table| table.name == topic.name())
    }

    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    /// Parts that this snapshot wrote itself.
    pub fn own_parts(&self) -> impl Iterator<Item = &Part> {
        self.tables.iter().flat_map(|table| &table.parts).filter(|part| part.snapshot == self.name)
    }

    /// Rows, files and bytes that it wrote itself.
    pub fn written(&self) -> (u64, u64, u64) {
        self.own_parts().fold((0, 0, 0), |(rows, files, bytes), part| {
            let own: u64 = part.files.iter().map(|file| file.bytes).sum();
            (rows + part.rows, files + part.files.len() as u64, bytes + own)
        })
    }

    /// Other snapshots whose files this one needs.
    pub fn needs(&self) -> BTreeSet<&str> {
        let parts = self.tables.iter().flat_map(|table| &table.parts).map(|part| part.snapshot.as_str());
        parts.filter(|snapshot| *snapshot != self.name).collect()
    }
}

/// Whether a folder's name is one of a snapshot: digits, which are its moment.
pub(crate) fn moment_of(name: &str) -> Option<i64> {
    name.bytes().all(|byte| byte.is_ascii_digit()).then(|| name.parse().ok()).flatten()
}
