//! An answer as a table: columns aligned, NULL where nothing is known, and how many rows in what time. Pure.

use std::time::Duration;

use anyhow::Context;
use arrow::{
    array::{AsArray, RecordBatch},
    ipc::reader::StreamReader,
    util::{display::FormatOptions, pretty::pretty_format_batches_with_options},
};

/// See the module.
pub struct Answer(Vec<RecordBatch>);

impl Answer {
    /// Reads an Arrow stream.
    pub fn read(body: &[u8]) -> anyhow::Result<Self> {
        let reader = StreamReader::try_new(body, None).context("the answer is not an Arrow stream")?;
        let schema = reader.schema();
        let mut batches = reader.collect::<Result<Vec<_>, _>>().context("the answer's Arrow stream is torn")?;
        if batches.is_empty() {
            // So that an empty table shows its columns.
            batches.push(RecordBatch::new_empty(schema));
        }
        Ok(Self(batches))
    }

    pub fn table(&self) -> anyhow::Result<String> {
        let options = FormatOptions::default().with_null("NULL").with_display_error(true);
        Ok(pretty_format_batches_with_options(&self.0, &options)?.to_string())
    }

    fn rows(&self) -> usize {
        self.0.iter().map(RecordBatch::num_rows).sum()
    }

    /// `(3 rows, 1.2 ms)`.
    pub fn footer(&self, took: Duration) -> String {
        let rows = self.rows();
        let word = if rows == 1 { "row" } else { "rows" };
        match took.as_secs_f64() {
            seconds if seconds >= 1.0 => format!("({rows} {word}, {seconds:.2} s)"),
            seconds => format!("({rows} {word}, {:.1} ms)", seconds * 1e3),
        }
    }

    /// The first two columns, where they are text.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for batch in self.0.iter().filter(|batch| batch.num_columns() >= 2) {
            let texts = (batch.column(0).as_string_opt::<i32>(), batch.column(1).as_string_opt::<i32>());
            if let (Some(first), Some(second)) = texts {
                pairs.extend(first.iter().flatten().zip(second.iter().flatten()).map(|(a, b)| (a.into(), b.into())));
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::{
        array::{Int64Array, StringArray},
        ipc::writer::StreamWriter,
    };

    use super::*;

    fn stream(batches: &[RecordBatch], schema: &RecordBatch) -> Vec<u8> {
        let mut writer = StreamWriter::try_new(Vec::new(), &schema.schema()).expect("a writer");
        for batch in batches {
            writer.write(batch).expect("a batch");
        }
        writer.into_inner().expect("a stream")
    }

    /// Scenario: rows with a NULL; none; a body that is no Arrow stream; a torn one.
    /// Guarantees: columns are aligned and NULL is said; an empty answer shows its columns; bad bodies are errors in words.
    #[test]
    fn answers_are_tables() {
        let batch = RecordBatch::try_from_iter([
            ("tier", Arc::new(StringArray::from(vec!["High", "Low"])) as _),
            ("n", Arc::new(Int64Array::from(vec![Some(12), None])) as _),
        ])
        .expect("a batch");
        let answer = Answer::read(&stream(std::slice::from_ref(&batch), &batch)).expect("an answer");
        expect_test::expect![[r"
            +------+------+
            | tier | n    |
            +------+------+
            | High | 12   |
            | Low  | NULL |
            +------+------+"]]
        .assert_eq(&answer.table().expect("a table"));
        assert_eq!(answer.footer(Duration::from_micros(1234)), "(2 rows, 1.2 ms)");
        assert_eq!(answer.footer(Duration::from_millis(2500)), "(2 rows, 2.50 s)");
        assert!(answer.pairs().is_empty(), "the second column is a number");
        let empty = Answer::read(&stream(&[], &batch)).expect("an empty answer");
        assert!(empty.table().expect("a table").contains("| tier | n |"));
        assert!(Answer::read(b"<html>").is_err());
        let whole = stream(std::slice::from_ref(&batch), &batch);
        assert!(Answer::read(&whole[..whole.len() / 2]).is_err());
    }
}
