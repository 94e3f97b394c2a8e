//! Writes one snapshot: whole, or only what came since another (SPEC E3).
//!
//! Invariant: either the manifest is there and names files that are there, or nothing is visible and what was written is
//! deleted again. Cost: one pass over the rows wanted, encoded once for each format; memory as in `file`, a table at a time.
//! The future reads older rows from a disk and encodes: run it where it may block.

use std::{collections::HashMap, sync::Arc};

use arrow::{
    array::RecordBatch,
    datatypes::{Schema, SchemaRef},
};

use super::{
    Format, Manifest, ManifestTable, Part, Place, Producer, SnapshotError, file::FileUpload, manifest::moment_of,
};
use crate::{
    live_table::{TableSnapshot, TablesSnapshot},
    ring::TimeRange,
    schema::{SCHEMA_VERSION, Topic},
};

/// What is to be written, and where.
#[derive(Debug, Clone)]
pub struct SnapshotOrder {
    /// The target; the snapshot gets a name in it.
    pub place: Place,
    /// Moment of the tables, microseconds since the epoch; also the snapshot's name.
    pub as_of: i64,
    pub producer: Producer,
    pub formats: Vec<Format>,
    pub tables: Vec<Topic>,
    /// Go on from this one: write only rows that came since.
    pub base: Option<Manifest>,
}

/// Whether `order`, without its base, can go on from `base`: it numbers rows alike, has the same columns, and holds every
/// table and format asked for.
pub fn continues(order: &SnapshotOrder, base: &Manifest) -> bool {
    let has_table = |topic: &Topic| base.table(*topic).is_some_and(|table| !table.parts.is_empty());
    base.producer == order.producer
        && base.version == SCHEMA_VERSION
        && base.as_of < order.as_of
        && order.formats.iter().all(|format| base.formats.contains(format))
        && order.tables.iter().all(has_table)
}

/// Writes `snapshot` as `order` says and answers with its manifest, which is then there.
pub async fn write_snapshot(order: &SnapshotOrder, snapshot: &TablesSnapshot) -> Result<Manifest, SnapshotError> {
    let name = order.as_of.to_string();
    assert!(moment_of(&name).is_some(), "a snapshot's moment lies after the epoch");
    let place = order.place.inside(&name);
    if !place.is_empty().await? {
        return Err(SnapshotError::Occupied { location: place.shown().to_string() });
    }
    if let Some(folder) = place.folder() {
        let created = std::fs::create_dir_all(folder);
        created.map_err(|source| SnapshotError::Io { path: folder.display().to_string(), source })?;
    }
    let written = write_all(order, (&name, &place), snapshot).await;
    if written.is_err() {
        // Best effort: what is left has no manifest and is no snapshot.
        let _ = place.delete().await;
    }
    written
}

async fn write_all(
    order: &SnapshotOrder,
    (name, place): (&str, &Place),
    snapshot: &TablesSnapshot,
) -> Result<Manifest, SnapshotError> {
    let mut tables = Vec::with_capacity(order.tables.len());
    for topic in &order.tables {
        let table = snapshot.table(*topic);
        let mut parts = match &order.base {
            Some(base) => base.table(*topic).map(|table| table.parts.clone()).unwrap_or_default(),
            None => Vec::new(),
        };
        let from = parts.last().map_or(0, |part| part.end_row);
        // A whole snapshot has a file of every table, empty ones too; an incremental one only where rows came.
        if parts.is_empty() || table.next_row() > from {
            parts.push(write_part(order, (name, place), table, from).await?);
        }
        let rows = parts.iter().map(|part| part.rows).sum();
        tables.push(ManifestTable { name: topic.name().to_string(), rows, parts });
    }
    let manifest = Manifest {
        name: name.to_string(),
        as_of: order.as_of,
        version: SCHEMA_VERSION,
        producer: order.producer.clone(),
        base: order.base.as_ref().map(|base| base.name.clone()),
        chain: order.base.as_ref().map_or(0, |base| base.chain) + 1,
        formats: order.formats.clone(),
        tables,
    };
    place.publish(&manifest).await?;
    Ok(manifest)
}

/// Rows of one table from number `from` on, as one file of each format.
async fn write_part(
    order: &SnapshotOrder,
    (name, place): (&str, &Place),
    table: &TableSnapshot,
    from: u64,
) -> Result<Part, SnapshotError> {
    let schema = described(table.topic(), name, order);
    let mut uploads = Vec::with_capacity(order.formats.len());
    for format in &order.formats {
        match FileUpload::start(place, table.topic().name(), *format, &schema) {
            Ok(upload) => uploads.push(upload),
            Err(error) => return give_up(uploads, error).await,
        }
    }
    let mut part = Part {
        snapshot: name.to_string(),
        first_row: from.max(table.first_kept_row()),
        end_row: table.next_row(),
        rows: 0,
        times: None,
        files: Vec::new(),
    };
    if let Err(error) = fill(&mut uploads, (table, from), &schema, &mut part).await {
        return give_up(uploads, error).await;
    }
    while !uploads.is_empty() {
        match uploads.remove(0).finish().await {
            Ok(file) => part.files.push(file),
            Err(error) => return give_up(uploads, error).await,
        }
    }
    Ok(part)
}

async fn fill(
    uploads: &mut [FileUpload],
    (table, from): (&TableSnapshot, u64),
    schema: &SchemaRef,
    part: &mut Part,
) -> Result<(), SnapshotError> {
    for batch in table.batches_from(from) {
        let batch = batch?;
        if batch.num_rows() == 0 {
            continue;
        }
        let range = TimeRange::of(&batch);
        part.rows += batch.num_rows() as u64;
        part.times =
            Some(part.times.map_or((range.min, range.max), |(min, max)| (min.min(range.min), max.max(range.max))));
        let batch = RecordBatch::try_new(schema.clone(), batch.columns().to_vec());
        let batch = batch.expect("invariant: the schema is the table's own, with more metadata");
        for upload in uploads.iter_mut() {
            upload.write(&batch).await?;
        }
    }
    Ok(())
}

async fn give_up<T>(uploads: Vec<FileUpload>, error: SnapshotError) -> Result<T, SnapshotError> {
    for upload in uploads {
        upload.abort().await;
    }
    Err(error)
}

/// The table's schema with what the snapshot says of itself.
fn described(topic: Topic, name: &str, order: &SnapshotOrder) -> SchemaRef {
    let schema = topic.schema();
    let own = [
        ("snapshot", name.to_string()),
        ("as_of", order.as_of.to_string()),
        ("producer", order.producer.program.clone()),
    ];
    let metadata: HashMap<String, String> =
        schema.metadata().clone().into_iter().chain(own.map(|(key, value)| (key.to_string(), value))).collect();
    Arc::new(Schema::new_with_metadata(schema.fields().clone(), metadata))
}
