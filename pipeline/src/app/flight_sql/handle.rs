//! A prepared statement as bytes: its text and the values bound to it. The client carries them, the server keeps nothing.
//!
//! Form: the length of the text as four bytes, the text, then an Arrow IPC stream with one row of values, or nothing.
//! A handle is as trusted as any statement: whoever forges one asks a question that they might have asked openly.
//! Bounds: [`BYTES_MAX`], one row, [`queries::PARAMETERS_MAX`] columns.

use arrow::{
    array::RecordBatch,
    error::ArrowError,
    ipc::{reader::StreamReader, writer::StreamWriter},
};
use arrow_flight::{
    FlightData,
    decode::{DecodedPayload, FlightDataDecoder},
    error::FlightError,
};
use futures::{Stream, TryStreamExt};
use prost::bytes::Bytes;
use queries::{PARAMETERS_MAX, ScalarValue};
use tonic::Status;

use crate::worker::flight_server::next_message;

/// Longest handle: text and values.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// The handle of a statement with one row of values, or none.
pub(super) fn write(sql: &str, values: &[RecordBatch]) -> Result<Bytes, Status> {
    let mut bytes = (sql.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(sql.as_bytes());
    if let Some(first) = values.first() {
        let write = |bytes: &mut Vec<u8>| -> Result<(), ArrowError> {
            let mut writer = StreamWriter::try_new(bytes, &first.schema())?;
            values.iter().try_for_each(|batch| writer.write(batch))?;
            writer.finish()
        };
        write(&mut bytes).map_err(|error| Status::internal(error.to_string()))?;
    }
    if bytes.len() > BYTES_MAX {
        let many = bytes.len();
        return Err(Status::invalid_argument(format!(
            "the statement and its values have {many} bytes, at most {BYTES_MAX} are allowed"
        )));
    }
    Ok(bytes.into())
}

/// Text and values of a handle.
pub(super) fn read(handle: &[u8]) -> Result<(String, Vec<ScalarValue>), Status> {
    let wrong = || Status::invalid_argument("the prepared statement's handle is not one of this server's");
    let (length, rest) = handle.split_first_chunk::<4>().ok_or_else(wrong)?;
    let (sql, values) = rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or_else(wrong)?;
    let sql = std::str::from_utf8(sql).map_err(|_| wrong())?.to_string();
    if values.is_empty() {
        return Ok((sql, Vec::new()));
    }
    // The reader may panic on damaged bytes; see `next_message`.
    let row = std::panic::catch_unwind(|| -> Result<Option<RecordBatch>, ArrowError> {
        StreamReader::try_new(values, None)?.next().transpose()
    });
    let row = row.map_err(|_| wrong())?.map_err(|_| wrong())?.ok_or_else(wrong)?;
    let values = row.columns().iter().map(|column| ScalarValue::try_from_array(column, 0));
    Ok((sql, values.collect::<Result<_, _>>().map_err(|_| wrong())?))
}

/// The handle of `sql` with the values that a stream brings.
pub(super) async fn bind<S>(sql: &str, messages: S) -> Result<Bytes, Status>
where
    S: Stream<Item = Result<FlightData, Status>> + Send + 'static,
{
    let mut decoder = FlightDataDecoder::new(messages.map_err(FlightError::from));
    let mut rows = Vec::new();
    while let Some(message) = next_message(&mut decoder).await {
        if let DecodedPayload::RecordBatch(batch) = message?.payload {
            if batch.num_columns() > PARAMETERS_MAX {
                let many = batch.num_columns();
                return Err(Status::invalid_argument(format!(
                    "{many} parameters, at most {PARAMETERS_MAX} are allowed"
                )));
            }
            if batch.num_rows() > 0 {
                rows.push(batch);
            }
            if rows.iter().map(RecordBatch::num_rows).sum::<usize>() > 1 {
                return Err(Status::invalid_argument(
                    "several rows of parameters; a query takes one: ask once for each row",
                ));
            }
        }
    }
    write(sql, &rows)
}
