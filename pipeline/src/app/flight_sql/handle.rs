//! A prepared statement as bytes: its text and the values bound to it. The client carries them, the server keeps nothing.
//!
//! Form: the length of the text as four bytes, the text, then an Arrow IPC stream with one row of values, or nothing.
//! A handle is as trusted as any statement: whoever forges one asks a question that they might have asked openly. So nothing is
//! taken on its word: what it claims to hold takes no memory before it is there, and compressed values, which could claim
//! anything, are refused.
//! Bounds: [`BYTES_MAX`], one row, [`queries::PARAMETERS_MAX`] columns.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::{array::RecordBatch, ipc};
use arrow_flight::{
    FlightData,
    decode::{DecodedPayload, FlightDataDecoder},
    error::FlightError,
};
use futures::{Stream, TryStreamExt};
use prost::bytes::Bytes;
use queries::{PARAMETERS_MAX, ScalarValue};
use tonic::Status;

use crate::{
    app::query_worker::{parameters_from_ipc, parameters_to_ipc},
    worker::flight_server::next_message,
};

/// Longest handle: text and values.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// The handle of a statement with values, or none.
pub(super) fn write(sql: &str, values: &[ScalarValue]) -> Result<Bytes, Status> {
    let mut bytes = (sql.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(sql.as_bytes());
    bytes.extend(parameters_to_ipc(values).map_err(|error| Status::invalid_argument(error.to_string()))?);
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
    let (length, rest) = handle.split_first_chunk::<4>().filter(|_| handle.len() <= BYTES_MAX).ok_or_else(wrong)?;
    let (sql, values) = rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or_else(wrong)?;
    let sql = std::str::from_utf8(sql).map_err(|_| wrong())?.to_string();
    if !is_plain_stream(values) {
        return Err(wrong());
    }
    // The decoder may panic on damaged bytes; see `next_message`.
    let values = catch_unwind(AssertUnwindSafe(|| parameters_from_ipc(values.to_vec()))).map_err(|_| wrong())?;
    Ok((sql, values.map_err(|_| wrong())?))
}

/// Whether bytes are messages of an Arrow IPC stream, each whole and none compressed.
fn is_plain_stream(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let Some(([0xff, 0xff, 0xff, 0xff], rest)) = bytes.split_first_chunk::<4>() else { return false };
        let Some((length, rest)) = rest.split_first_chunk::<4>() else { return false };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 {
            return rest.is_empty();
        }
        let Some((header, rest)) = rest.split_at_checked(length) else { return false };
        let Some(body) = plain_body(header) else { return false };
        let Some((_, rest)) = rest.split_at_checked(body) else { return false };
        bytes = rest;
    }
    true
}

/// Bytes of the body that a message's header names; `None`: no header, or a compressed body.
fn plain_body(header: &[u8]) -> Option<usize> {
    let message = ipc::root_as_message(header).ok()?;
    let dictionary = message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
    let batch = message.header_as_record_batch().or(dictionary);
    let is_compressed = batch.is_some_and(|batch| batch.compression().is_some());
    usize::try_from(message.bodyLength()).ok().filter(|_| !is_compressed)
}

/// The handle of `sql` with the values that a stream brings.
pub(super) async fn bind<S>(sql: &str, messages: S) -> Result<Bytes, Status>
where
    S: Stream<Item = Result<FlightData, Status>> + Send + 'static,
{
    let plain = messages.map_err(FlightError::from).and_then(|message: FlightData| async move {
        match plain_body(&message.data_header) {
            Some(_) => Ok(message),
            None => {
                Err(FlightError::DecodeError("parameters: expected plain Arrow messages, not compressed ones".into()))
            }
        }
    });
    let mut decoder = FlightDataDecoder::new(plain);
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
    let columns = rows.first().map(RecordBatch::columns).unwrap_or_default();
    let values = columns.iter().map(|column| ScalarValue::try_from_array(column, 0)).collect::<Result<Vec<_>, _>>();
    write(sql, &values.map_err(|error| Status::invalid_argument(error.to_string()))?)
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::Int64Array,
        ipc::writer::{IpcWriteOptions, StreamWriter},
    };

    use super::*;

    fn stream(rows: &[i64], options: IpcWriteOptions) -> Vec<u8> {
        let column = std::sync::Arc::new(Int64Array::from(rows.to_vec())) as _;
        let row = RecordBatch::try_from_iter([("$1", column)]).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &row.schema(), options).unwrap();
        writer.write(&row).unwrap();
        writer.into_inner().unwrap()
    }

    fn handle(values: &[u8]) -> Vec<u8> {
        [&8u32.to_be_bytes()[..], b"select 1", values].concat()
    }

    /// Scenario: handles with values and without; with no row, one and two; with compressed values; cut in the text, whose length
    /// then goes beyond the handle, and in the body of the values; too long; last, cut anywhere and with any byte changed.
    /// Guarantees: what was written is read; what holds no row of plain values is refused; the last, which may still hold some
    /// values, do not panic.
    #[test]
    fn forged_handles_are_refused() {
        let values = [ScalarValue::Int64(Some(7)), ScalarValue::Utf8(None)];
        let good = write("select 1", &values).unwrap();
        assert_eq!(read(&good).unwrap(), ("select 1".to_string(), values.to_vec()));
        assert_eq!(read(&write("select 1", &[]).unwrap()).unwrap().1, []);
        let plain = |rows: &[i64]| read(&handle(&stream(rows, IpcWriteOptions::default())));
        assert_eq!(plain(&[7]).unwrap().1, [ScalarValue::Int64(Some(7))]);
        assert!(plain(&[]).is_err() && plain(&[7, 8]).is_err());
        let zstd = IpcWriteOptions::default().try_with_compression(Some(ipc::CompressionType::ZSTD)).unwrap();
        assert!(read(&handle(&stream(&[7], zstd))).is_err());
        assert!((0..12).all(|end| read(&good[..end]).is_err()));
        let end_of_stream = 8;
        assert!(read(&good[..good.len() - end_of_stream - 1]).is_err());
        assert!(read(&vec![0; BYTES_MAX + 1]).is_err());
        for end in 0..good.len() {
            let _ = read(&good[..end]);
        }
        for at in 0..good.len() {
            for byte in [0x00, 0x7f, 0xff] {
                let mut forged = good.to_vec();
                forged[at] = byte;
                let _ = read(&forged);
            }
        }
    }
}
