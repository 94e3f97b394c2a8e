//! The capacity curve of the model served, from the table that `evenkeel calibrate` wrote (SPEC B1).
//!
//! Invariant: a file that is not there, cannot be read or says nothing of this model with this many threads gives the flat
//! default and the reason, never half a curve. Cost: one read at the start. State: the curve; files above [`BYTES_MAX`] are
//! refused.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch},
    datatypes::{DataType, Float64Type, UInt32Type},
    error::ArrowError,
};
use parquet::{arrow::arrow_reader::ParquetRecordBatchReaderBuilder, errors::ParquetError};

use crate::policy::{CapacityCurve, CapacityError, CapacityPoint, CapacitySource};

/// A table of a few rows a model is far smaller.
const BYTES_MAX: u64 = 16 << 20;

/// Why a file gives no curve.
#[derive(Debug, thiserror::Error)]
enum CapacityFileError {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("has {0} bytes; expected at most {BYTES_MAX}")]
    TooLarge(u64),
    #[error("is no Parquet file: {0}")]
    Parquet(#[from] ParquetError),
    #[error("cannot be decoded: {0}")]
    Arrow(#[from] ArrowError),
    #[error("has no column {name} of {expected}")]
    Column { name: &'static str, expected: DataType },
    #[error("has NULL in column {0}")]
    Null(&'static str),
    #[error("has no rows of {model} with {threads} threads; it knows {known}")]
    NoRows { model: String, threads: u32, known: String },
    #[error("has no usable curve: {0}")]
    Curve(#[from] CapacityError),
}

/// Whose curve is wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calibrated<'a> {
    pub model: &'a str,
    pub threads: u32,
    /// What an instance is taken to carry if nothing is known.
    pub default_tokens_max: u64,
}

/// The curve and where it comes from.
pub(super) fn load(path: &Path, wanted: Calibrated<'_>) -> (CapacityCurve, CapacitySource) {
    match read(path, wanted) {
        Ok(curve) => (curve, CapacitySource::Calibrated),
        Err(error) => {
            let reason = match &error {
                CapacityFileError::Io(error) if error.kind() == io::ErrorKind::NotFound => {
                    format!("{} is not there; `evenkeel calibrate` writes it", path.display())
                }
                error => format!("{} {error}", path.display()),
            };
            (CapacityCurve::flat(wanted.default_tokens_max), CapacitySource::Default(reason))
        }
    }
}

fn read(path: &Path, wanted: Calibrated<'_>) -> Result<CapacityCurve, CapacityFileError> {
    let bytes = fs::metadata(path)?.len();
    if bytes > BYTES_MAX {
        return Err(CapacityFileError::TooLarge(bytes));
    }
    let (mut points, mut known) = (Vec::new(), Vec::new());
    for batch in ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?.build()? {
        let batch = batch?;
        let models = column(&batch, "model", DataType::Utf8)?;
        let threads = column(&batch, "threads", DataType::UInt32)?;
        let lengths = column(&batch, "length_tokens", DataType::UInt32)?;
        let shares = column(&batch, "instance_share_per_token", DataType::Float64)?;
        for row in 0..batch.num_rows() {
            let model = models.as_string::<i32>().value(row);
            let threads = threads.as_primitive::<UInt32Type>().value(row);
            if name_of(model) == wanted.model && threads == wanted.threads {
                let length_tokens = lengths.as_primitive::<UInt32Type>().value(row);
                let share_per_token = shares.as_primitive::<Float64Type>().value(row);
                points.push(CapacityPoint { length_tokens, share_per_token });
            } else {
                known.push(format!("{} with {threads}", name_of(model)));
            }
        }
    }
    if points.is_empty() {
        known.dedup();
        known.truncate(8);
        let known = if known.is_empty() { "nothing".into() } else { known.join(", ") };
        return Err(CapacityFileError::NoRows { model: wanted.model.into(), threads: wanted.threads, known });
    }
    Ok(CapacityCurve::new(points)?)
}

/// A model's name where the table has the path of its file.
fn name_of(model: &str) -> &str {
    match model.strip_suffix(".gguf") {
        Some(path) => path.rsplit('/').next().unwrap_or(path),
        None => model,
    }
}

fn column(batch: &RecordBatch, name: &'static str, expected: DataType) -> Result<ArrayRef, CapacityFileError> {
    let found = batch.column_by_name(name).filter(|column| *column.data_type() == expected);
    let column = found.ok_or(CapacityFileError::Column { name, expected })?;
    if column.null_count() > 0 {
        return Err(CapacityFileError::Null(name));
    }
    Ok(column.clone())
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{Field, Schema};
    use serde::Serialize;

    use super::*;
    use crate::app::table_file;

    #[derive(Serialize)]
    struct Row {
        model: &'static str,
        threads: u32,
        length_tokens: u32,
        instance_share_per_token: Option<f64>,
    }

    fn row(model: &'static str, length_tokens: u32, share: f64) -> Row {
        Row { model, threads: 1, length_tokens, instance_share_per_token: Some(share) }
    }

    fn schema(share: DataType) -> Schema {
        Schema::new(vec![
            Field::new("model", DataType::Utf8, false),
            Field::new("threads", DataType::UInt32, false),
            Field::new("length_tokens", DataType::UInt32, false),
            Field::new("instance_share_per_token", share, true),
        ])
    }

    const WANTED: Calibrated<'_> = Calibrated { model: "toy", threads: 1, default_tokens_max: 1000 };

    /// Scenario: rows of the model among others, under its name and under the path of its file.
    /// Guarantees: they are the curve, and the state says calibrated.
    #[test]
    fn a_calibrated_curve_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("capacity.parquet");
        let rows = [row("/models/toy.gguf", 32, 0.001), row("other", 64, 0.5), row("toy", 128, 0.002)];
        table_file::write(&path, schema(DataType::Float64), &rows).unwrap();
        let (curve, source) = load(&path, WANTED);
        assert_eq!((source, curve.points().len()), (CapacitySource::Calibrated, 2));
        assert_eq!(curve.share_per_token(80), 0.0015);
    }

    /// Scenario: no file, a folder, an empty file, text, a torn Parquet file, a wrong column type, a missing value, another
    /// model, a fraction of 0, a length twice, a file too large.
    /// Guarantees: the default curve each time, and the reason names what is wrong; nothing panics.
    #[test]
    fn wrong_files_give_the_default_and_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let written = |name: &str, share, rows: &[Row]| {
            table_file::write(&at(name), schema(share), rows).unwrap();
            at(name)
        };
        fs::write(at("empty"), "").unwrap();
        fs::write(at("text"), "model,threads\n").unwrap();
        let whole = fs::read(written("whole", DataType::Float64, &[row("toy", 32, 0.1)])).unwrap();
        fs::write(at("torn"), &whole[..whole.len() / 2]).unwrap();
        File::create(at("large")).unwrap().set_len(BYTES_MAX + 1).unwrap();
        let paths = [
            at("none"),
            folder.path().to_path_buf(),
            at("empty"),
            at("text"),
            at("torn"),
            at("large"),
            written("type", DataType::Float32, &[row("toy", 32, 0.1)]),
            written("null", DataType::Float64, &[Row { instance_share_per_token: None, ..row("toy", 32, 0.1) }]),
            written("other", DataType::Float64, &[row("other", 32, 0.1)]),
            written("zero", DataType::Float64, &[row("toy", 32, 0.0)]),
            written("twice", DataType::Float64, &[row("toy", 32, 0.1), row("toy", 32, 0.2)]),
        ];
        let reasons = paths.map(|path| match load(&path, WANTED) {
            (curve, CapacitySource::Default(reason)) if curve == CapacityCurve::flat(1000) => reason,
            other => panic!("{}: {other:?}", path.display()),
        });
        for (reason, part) in reasons.iter().zip([
            "evenkeel calibrate",
            "Is a directory",
            "is no Parquet file",
            "is no Parquet file",
            "is no Parquet file",
            "expected at most",
            "no column instance_share_per_token of Float64",
            "NULL in column instance_share_per_token",
            "no rows of toy with 1 threads; it knows other with 1",
            "instance_share_per_token = 0 at 32 tokens",
            "length_tokens = 32 after 32",
        ]) {
            assert!(reason.contains(part), "{reason:?} lacks {part:?}");
        }
    }
}
