//! A table that is written as it comes: CSV, JSON, Arrow or Parquet, by the name's ending.
//!
//! Invariant: a file under its own name is whole: it is written beside it, under the name with `.part`, and renamed at the end.
//! Memory: [`BATCH_ROWS`] rows, and in Parquet the row group being written, however long the table gets.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use arrow::{array::RecordBatch, datatypes::FieldRef, ipc::writer::StreamWriter};
use parquet::arrow::ArrowWriter;
use queries::encode;
use serde::{Serialize, de::DeserializeOwned};
use serde_arrow::schema::{SchemaLike, TracingOptions};

/// Rows held before they are written.
const BATCH_ROWS: usize = 2048;

/// See the module. `R`: a struct of values, with a time in the field `at`.
pub(super) struct Table<R> {
    fields: Vec<FieldRef>,
    rows: Vec<R>,
    form: Form,
    /// Where it is written, and what it is called at the end; `None`: the terminal.
    paths: Option<(PathBuf, PathBuf)>,
}

enum Form {
    Csv(Box<dyn Write>, Header),
    Json(Box<dyn Write>, Header),
    Arrow(Box<StreamWriter<BufWriter<File>>>),
    Parquet(Box<ArrowWriter<File>>),
}

/// What comes before the first row.
#[derive(PartialEq, Eq)]
enum Header {
    Due,
    Written,
}

impl<R: Serialize + DeserializeOwned> Table<R> {
    /// To a file, or as CSV to the terminal.
    pub(super) fn create(out: Option<&Path>) -> anyhow::Result<Self> {
        let options = TracingOptions::default()
            .overwrite("at", serde_json::json!({"name": "at", "data_type": "Timestamp(Microsecond, Some(\"UTC\"))"}))?;
        let fields = Vec::<FieldRef>::from_type::<R>(options)?;
        let batch = serde_arrow::to_record_batch(&fields, &Vec::<R>::new())?;
        let (form, paths) = match out {
            None => (Form::Csv(Box::new(io::stdout()), Header::Due), None),
            Some(out) => {
                let mut part = out.as_os_str().to_owned();
                part.push(".part");
                let part = PathBuf::from(part);
                let form = Form::create(out, &part, &batch).with_context(|| format!("--out {}", out.display()))?;
                (form, Some((part, out.to_path_buf())))
            }
        };
        Ok(Self { fields, rows: Vec::new(), form, paths })
    }

    pub(super) fn push(&mut self, row: R) -> anyhow::Result<()> {
        self.rows.push(row);
        if self.rows.len() == BATCH_ROWS { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> anyhow::Result<()> {
        let batch = serde_arrow::to_record_batch(&self.fields, &self.rows)?;
        self.rows.clear();
        self.form.write(&batch)
    }

    /// Writes what is left, and gives the file its name.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        self.write()?;
        self.form.finish()?;
        match self.paths {
            Some((part, out)) => fs::rename(part, &out).with_context(|| format!("--out {}", out.display())),
            None => Ok(()),
        }
    }
}

impl Form {
    fn create(out: &Path, part: &Path, empty: &RecordBatch) -> anyhow::Result<Form> {
        let text = || -> io::Result<Box<dyn Write>> { Ok(Box::new(BufWriter::new(File::create(part)?))) };
        Ok(match out.extension().and_then(|ending| ending.to_str()) {
            Some("csv") => Form::Csv(text()?, Header::Due),
            Some("json") => Form::Json(text()?, Header::Due),
            Some("arrow") => {
                let (file, schema) = (BufWriter::new(File::create(part)?), empty.schema());
                Form::Arrow(Box::new(StreamWriter::try_new_with_options(file, &schema, encode::zstd_options()?)?))
            }
            Some("parquet") => {
                Form::Parquet(Box::new(ArrowWriter::try_new(File::create(part)?, empty.schema(), None)?))
            }
            _ => bail!("expected a name ending in .parquet, .arrow, .json or .csv"),
        })
    }

    fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let batches = std::slice::from_ref(batch);
        match self {
            Form::Csv(file, header) => {
                let text = encode::csv(&batch.schema(), batches)?;
                let names = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| end + 1);
                let is_due = std::mem::replace(header, Header::Written) == Header::Due;
                file.write_all(if is_due { &text } else { &text[names..] })?;
            }
            Form::Json(file, header) => {
                let text = encode::json(&batch.schema(), batches)?;
                let objects = &text[1..text.len() - 1];
                let is_due = std::mem::replace(header, Header::Written) == Header::Due;
                if !is_due && objects.is_empty() {
                    return Ok(());
                }
                file.write_all(if is_due { b"[" } else { b",\n" })?;
                file.write_all(objects)?;
            }
            Form::Arrow(file) => file.write(batch)?,
            Form::Parquet(file) => file.write(batch)?,
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        match self {
            Form::Csv(mut file, _) => file.flush()?,
            Form::Json(mut file, _) => {
                file.write_all(b"]")?;
                file.flush()?;
            }
            Form::Arrow(mut file) => {
                file.finish()?;
                file.into_inner()?.flush()?;
            }
            Form::Parquet(file) => drop(file.close()?),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Row {
        at: i64,
        name: String,
        part: Option<f64>,
    }

    /// Scenario: a table of three batches and a bit in every form, one of exactly two batches, an empty one; an unknown ending.
    /// Guarantees: what a reader of the form finds is every row once, in order, under one header; until the end there is no file
    /// of that name; the unknown ending is refused in words.
    #[test]
    fn tables_come_whole() {
        let folder = tempfile::tempdir().unwrap();
        for rows in [3 * BATCH_ROWS + 5, 2 * BATCH_ROWS, 0] {
            for ending in ["csv", "json", "arrow", "parquet"] {
                let out = folder.path().join(format!("{rows}.{ending}"));
                let mut table = Table::<Row>::create(Some(&out)).unwrap();
                let row = |n: usize| Row {
                    at: n as i64,
                    name: format!("a,\"{n}\""),
                    part: n.is_multiple_of(2).then_some(0.5),
                };
                (0..rows).for_each(|n| table.push(row(n)).unwrap());
                assert!(!out.exists() && table.rows.len() < BATCH_ROWS);
                table.finish().unwrap();
                let found = read(&out, ending);
                assert_eq!(found.len(), rows, "{ending}");
                assert!(found.iter().enumerate().all(|(n, name)| *name == row(n).name), "{ending}");
            }
        }
        let error = Table::<Row>::create(Some(&folder.path().join("a.txt"))).err().unwrap();
        assert!(format!("{error:#}").contains("a name ending in .parquet"), "{error:#}");
    }

    fn read(path: &Path, ending: &str) -> Vec<String> {
        let file = || File::open(path).unwrap();
        let names = |batch: RecordBatch| {
            use arrow::array::AsArray;
            let names = batch.column_by_name("name").unwrap();
            let names: Vec<String> = match names.as_string_opt::<i64>() {
                Some(names) => names.iter().map(|name| name.unwrap().to_string()).collect(),
                None => names.as_string::<i32>().iter().map(|name| name.unwrap().to_string()).collect(),
            };
            names
        };
        match ending {
            "csv" => csv::Reader::from_reader(file()).records().map(|row| row.unwrap()[1].to_string()).collect(),
            "json" => {
                let rows: Vec<Row2> = serde_json::from_reader(file()).unwrap();
                rows.into_iter().map(|row| row.name).collect()
            }
            "arrow" => {
                let reader = arrow::ipc::reader::StreamReader::try_new(file(), None).unwrap();
                reader.flat_map(|batch| names(batch.unwrap())).collect()
            }
            _ => {
                let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReader::try_new(file(), 1 << 16).unwrap();
                reader.flat_map(|batch| names(batch.unwrap())).collect()
            }
        }
    }

    /// Times are text in JSON.
    #[derive(Deserialize)]
    struct Row2 {
        name: String,
    }
}
