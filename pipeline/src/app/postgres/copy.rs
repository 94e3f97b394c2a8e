//! `COPY (query) TO STDOUT`: rows as tab-separated text, CSV or PostgreSQL's binary form. What psql's `\copy … to` and psycopg's
//! `copy()` send. Cost: a row at a time, as it is sent.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow_pg::encoder::{Encoder, encode_value};
use futures::stream;
use pgwire::{
    api::{
        portal::Format,
        results::{CopyCsvOptions, CopyEncoder, CopyResponse, CopyTextOptions, FieldInfo},
    },
    error::PgWireResult,
    messages::copy::CopyData,
};
use queries::{
    QueryResult,
    postgres::command::{CopyForm, Header},
};

use super::columns;

/// The answer of a query as copied rows.
pub(super) fn out(answer: &QueryResult, query: &str, form: CopyForm) -> PgWireResult<CopyResponse> {
    let schema = columns::of_statement(&answer.schema, query);
    let format = if form == CopyForm::Binary { Format::UnifiedBinary } else { Format::UnifiedText };
    let fields = Arc::new(columns::fields(&schema, &format)?);
    let encoder = match form {
        CopyForm::Text => CopyEncoder::new_text(fields.clone(), CopyTextOptions::default()),
        CopyForm::Csv { .. } => CopyEncoder::new_csv(fields.clone(), CopyCsvOptions::default()),
        CopyForm::Binary => CopyEncoder::new_binary(fields.clone()),
    };
    let head = matches!(form, CopyForm::Csv { header: Header::Yes }).then(|| Ok(header(&fields)));
    let batches = columns::batches(answer, &schema)?;
    let code = i8::from(form == CopyForm::Binary);
    let width = fields.len();
    let rows = Rows { batches, fields, encoder, batch: 0, row: 0 };
    Ok(CopyResponse::new(code, width, stream::iter(head.into_iter().chain(rows))))
}

/// The line of names.
fn header(fields: &[FieldInfo]) -> CopyData {
    let quote = |name: &str| match name.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_string(),
    };
    let names: Vec<String> = fields.iter().map(|field| quote(field.name())).collect();
    CopyData::new(format!("{}\n", names.join(",")).into())
}

struct Rows {
    batches: Vec<RecordBatch>,
    fields: Arc<Vec<FieldInfo>>,
    encoder: CopyEncoder,
    batch: usize,
    row: usize,
}

impl Iterator for Rows {
    type Item = PgWireResult<CopyData>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.row >= self.batches.get(self.batch)?.num_rows() {
            (self.batch, self.row) = (self.batch + 1, 0);
        }
        let batch = &self.batches[self.batch];
        for (at, field) in self.fields.iter().enumerate() {
            let column = batch.column(at);
            if let Err(error) = encode_value(&mut self.encoder, column, self.row, batch.schema_ref().field(at), field) {
                return Some(Err(error));
            }
        }
        self.row += 1;
        Some(Ok(Encoder::take_row(&mut self.encoder)))
    }
}
