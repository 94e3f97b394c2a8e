//! Measured rows as a Parquet file with units, for whoever reads them: policies, the simulator, a notebook.
//!
//! Invariant: a reader never sees half a table: it is written beside and renamed. Cost: one batch in memory. No state.

use std::{
    fs::{self, File},
    path::Path,
    sync::Arc,
};

use anyhow::Context;
use arrow::datatypes::Schema;
use parquet::arrow::ArrowWriter;
use serde::Serialize;

/// Writes the rows over whatever is there.
pub(super) fn write(out: &Path, schema: Schema, rows: &[impl Serialize]) -> anyhow::Result<()> {
    let schema = Arc::new(schema);
    let batch = serde_arrow::to_record_batch(schema.fields(), &rows)?;
    if let Some(folder) = out.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let beside = out.with_extension("part");
    let file = File::create(&beside).with_context(|| format!("--out: cannot write {}", beside.display()))?;
    let mut writer = ArrowWriter::try_new(file, schema, None)?;
    writer.write(&batch)?;
    writer.close()?;
    fs::rename(&beside, out).with_context(|| format!("--out: cannot write {}", out.display()))
}
