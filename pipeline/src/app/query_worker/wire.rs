//! Questions, answers and errors as messages; batches as pieces of an Arrow IPC stream.
//!
//! Invariants: a question, an answer and an error come out as they went in; an answer that breaks off is an error, never a shorter
//! answer (its last part says that it is). Cost: one copy of the rows on each side. State: an open IPC stream.

use std::time::Duration;

use arrow::{
    array::{ArrayRef, RecordBatch},
    buffer::Buffer,
    datatypes::{DataType, Field, Schema, SchemaRef},
    error::ArrowError,
    ipc::{reader::StreamDecoder, writer::StreamWriter},
};
use queries::{Caller, Described, QueryResult, Question, ScalarValue, SqlError};

use crate::query_proto::{AnswerPart, AskRequest, DescribeReply};

/// A message that is none of ours.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("rows: {0}")]
    Arrow(#[from] ArrowError),
    #[error("an error: {0}")]
    Error(#[from] serde_json::Error),
    #[error("parameters: {0}")]
    Parameters(String),
    #[error("it has no schema")]
    NoSchema,
}

/// Writes batches of one schema as pieces of one stream.
pub(super) struct Pieces(StreamWriter<Vec<u8>>);

impl Pieces {
    pub(super) fn new(schema: &Schema) -> Result<Pieces, ArrowError> {
        StreamWriter::try_new(Vec::new(), schema).map(Pieces)
    }

    /// The next piece; the first has the schema too.
    pub(super) fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        // So that the bytes are not moved again and again while they grow.
        self.0.get_mut().reserve(batch.get_array_memory_size());
        self.0.write(batch)?;
        Ok(std::mem::take(self.0.get_mut()))
    }

    /// The last piece, with the end mark.
    fn end(mut self) -> Result<Vec<u8>, ArrowError> {
        self.0.finish()?;
        Ok(std::mem::take(self.0.get_mut()))
    }
}

/// Reads such pieces.
#[derive(Default)]
pub(super) struct Joined(StreamDecoder);

impl Joined {
    /// The batches that are whole with this piece.
    pub(super) fn take(&mut self, piece: Vec<u8>) -> Result<Vec<RecordBatch>, ArrowError> {
        let (mut buffer, mut batches) = (Buffer::from(piece), Vec::new());
        while !buffer.is_empty() {
            batches.extend(self.0.decode(&mut buffer)?);
        }
        Ok(batches)
    }

    /// The schema of a stream that has ended.
    pub(super) fn end(mut self) -> Result<SchemaRef, WireError> {
        self.0.finish()?;
        self.0.schema().ok_or(WireError::NoSchema)
    }
}

fn whole(schema: &Schema, batch: Option<&RecordBatch>) -> Result<Vec<u8>, ArrowError> {
    let mut pieces = Pieces::new(schema)?;
    let mut bytes = batch.map(|batch| pieces.batch(batch)).transpose()?.unwrap_or_default();
    bytes.extend(pieces.end()?);
    Ok(bytes)
}

/// `seen`: rows of each topic that the answer must know.
pub(super) fn question_to_proto(question: &Question, seen: Vec<u64>) -> Result<AskRequest, WireError> {
    let caller = &question.caller;
    Ok(AskRequest {
        sql: question.sql.clone(),
        parameters: parameters_to_ipc(&question.parameters)?,
        caller: caller.name.clone(),
        timeout_us: caller.timeout.map(|own| u64::try_from(own.as_micros()).unwrap_or(u64::MAX)),
        memory_bytes: caller.memory_bytes.map(|own| own as u64),
        rows_max: caller.rows_max.map(|own| own as u64),
        concurrent_max: caller.concurrent_max.map(|own| own as u64),
        seen,
        as_of: question.as_of,
    })
}

pub(super) fn question_from_proto(request: AskRequest) -> Result<Question, WireError> {
    let number = |own: Option<u64>| own.map(|own| usize::try_from(own).unwrap_or(usize::MAX));
    let caller = Caller {
        name: request.caller,
        timeout: request.timeout_us.map(Duration::from_micros),
        memory_bytes: number(request.memory_bytes),
        rows_max: number(request.rows_max),
        concurrent_max: number(request.concurrent_max),
    };
    let parameters = parameters_from_ipc(request.parameters)?;
    Ok(Question { parameters, as_of: request.as_of, ..Question::new(request.sql, caller) })
}

pub(crate) fn parameters_to_ipc(values: &[ScalarValue]) -> Result<Vec<u8>, WireError> {
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let columns = values.iter().map(ScalarValue::to_array).collect::<Result<Vec<ArrayRef>, _>>();
    let columns = columns.map_err(|error| WireError::Parameters(error.to_string()))?;
    let field = |(at, column): (usize, &ArrayRef)| Field::new(format!("${}", at + 1), column.data_type().clone(), true);
    let schema = Schema::new(columns.iter().enumerate().map(field).collect::<Vec<_>>());
    let row = RecordBatch::try_new(schema.clone().into(), columns)?;
    Ok(whole(&schema, Some(&row))?)
}

pub(crate) fn parameters_from_ipc(bytes: Vec<u8>) -> Result<Vec<ScalarValue>, WireError> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let rows = Joined::default().take(bytes)?;
    let row = rows.first().filter(|row| row.num_rows() == 1);
    let row = row.ok_or_else(|| WireError::Parameters("expected one row".into()))?;
    let value = |column: &ArrayRef| ScalarValue::try_from_array(column, 0);
    row.columns().iter().map(|column| value(column).map_err(|error| WireError::Parameters(error.to_string()))).collect()
}

fn error_to_json(error: &SqlError) -> Vec<u8> {
    serde_json::to_vec(error).expect("invariant: an error of words and numbers is JSON")
}

/// An answer as parts, each made when it is asked for.
pub(super) fn answer_to_proto(answer: Result<QueryResult, SqlError>) -> Box<dyn Iterator<Item = AnswerPart> + Send> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return Box::new(std::iter::once(failed(&error))),
    };
    let mut pieces = match Pieces::new(&answer.schema) {
        Ok(pieces) => Some(pieces),
        Err(error) => return Box::new(std::iter::once(unwritable(&error))),
    };
    let mut batches = answer.batches.into_iter();
    Box::new(std::iter::from_fn(move || {
        let open = pieces.as_mut()?;
        let (piece, is_last) = match batches.next() {
            Some(batch) => (open.batch(&batch), false),
            None => (pieces.take()?.end(), true),
        };
        Some(piece.map_or_else(|error| unwritable(&error), |ipc| AnswerPart { ipc, error: Vec::new(), is_last }))
    }))
}

fn unwritable(error: &ArrowError) -> AnswerPart {
    failed(&SqlError::Execution(format!("the answer cannot be written: {error}")))
}

fn failed(error: &SqlError) -> AnswerPart {
    AnswerPart { ipc: Vec::new(), error: error_to_json(error), is_last: true }
}

/// Why there is no answer, if that is what the bytes say.
pub(super) fn error_from_json(bytes: &[u8]) -> Result<Option<SqlError>, WireError> {
    if bytes.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(bytes)?)) }
}

/// Name of a parameter whose type the statement does not tell.
const UNKNOWN: &str = "?";

pub(super) fn described_to_proto(described: Result<Described, SqlError>) -> DescribeReply {
    let written = described.and_then(|described| {
        let field = |own: &Option<DataType>| match own {
            Some(own) => Field::new("$", own.clone(), true),
            None => Field::new(UNKNOWN, DataType::Null, true),
        };
        let parameters = Schema::new(described.parameters.iter().map(field).collect::<Vec<_>>());
        let write = |schema: &Schema| {
            whole(schema, None).map_err(|error| SqlError::Execution(format!("the schema cannot be written: {error}")))
        };
        Ok((write(&described.schema)?, write(&parameters)?))
    });
    match written {
        Ok((answer, parameters)) => DescribeReply { answer, parameters, error: Vec::new() },
        Err(error) => DescribeReply { error: error_to_json(&error), ..DescribeReply::default() },
    }
}

pub(super) fn described_from_proto(reply: DescribeReply) -> Result<Result<Described, SqlError>, WireError> {
    if let Some(error) = error_from_json(&reply.error)? {
        return Ok(Err(error));
    }
    let schema = |bytes| {
        let mut joined = Joined::default();
        joined.take(bytes)?;
        joined.end()
    };
    let own = |field: &std::sync::Arc<Field>| (field.name() != UNKNOWN).then(|| field.data_type().clone());
    let parameters = schema(reply.parameters)?.fields().iter().map(own).collect();
    Ok(Ok(Described { schema: schema(reply.answer)?, parameters }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, RecordBatchOptions, StringArray};
    use queries::LimitOf;

    use super::*;

    fn batch(from: i64) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + 3));
        let words: ArrayRef = Arc::new(StringArray::from_iter((0..3).map(|at| (at != 1).then(|| format!("w{at}")))));
        RecordBatch::try_from_iter_with_nullable([("n", numbers, false), ("w", words, true)]).unwrap()
    }

    fn read(parts: Vec<AnswerPart>) -> Result<(SchemaRef, Vec<RecordBatch>), WireError> {
        let (mut joined, mut batches) = (Joined::default(), Vec::new());
        for part in parts {
            assert!(part.error.is_empty());
            batches.extend(joined.take(part.ipc)?);
        }
        Ok((joined.end()?, batches))
    }

    /// Scenario: answers of no, one and several batches, of no columns, and slices.
    /// Guarantees: they come out as they went in; the last part, and no other, says that it is the last.
    #[test]
    fn answers_round_trip() {
        let none = RecordBatch::try_new_with_options(
            Arc::new(Schema::empty()),
            Vec::new(),
            &RecordBatchOptions::new().with_row_count(Some(4)),
        );
        for (schema, batches) in [
            (batch(0).schema(), Vec::new()),
            (batch(0).schema(), vec![batch(0)]),
            (batch(0).schema(), vec![batch(0), batch(7).slice(1, 1), batch(9)]),
            (Arc::new(Schema::empty()), vec![none.unwrap()]),
        ] {
            let answer = QueryResult { schema: schema.clone(), batches: batches.clone() };
            let parts: Vec<_> = answer_to_proto(Ok(answer)).collect();
            assert_eq!(parts.iter().position(|part| part.is_last), Some(parts.len() - 1));
            assert_eq!(read(parts).unwrap(), (schema, batches));
        }
    }

    /// Scenario: a question with every limit and parameters of several types, NULL among them; one with nothing.
    /// Guarantees: they come out as they went in.
    #[test]
    fn questions_round_trip() {
        let caller = Caller {
            timeout: Some(Duration::from_micros(1500)),
            memory_bytes: Some(7),
            rows_max: Some(0),
            concurrent_max: Some(2),
            ..Caller::new("acme")
        };
        let parameters =
            vec![ScalarValue::Int64(Some(3)), ScalarValue::Utf8(Some("it's".into())), ScalarValue::Float64(None)];
        let full = Question { parameters, as_of: Some(-5), ..Question::new("select $1", caller) };
        for question in [full, Question::new("select 1", Caller::new("local"))] {
            let sent = question_to_proto(&question, vec![1, 2]).unwrap();
            let got = question_from_proto(sent).unwrap();
            let parts = |q: Question| (q.sql, q.parameters, q.as_of, q.caller);
            assert_eq!(parts(got), parts(question));
        }
    }

    /// Scenario: every kind of error; a description with a known and an unknown parameter.
    /// Guarantees: they come out as they went in.
    #[test]
    fn errors_and_descriptions_round_trip() {
        let of = LimitOf::Key;
        let limit = Duration::from_millis(1234);
        for error in [
            SqlError::Refused("no".into()),
            SqlError::TimedOut { limit, of },
            SqlError::TooManyRows { limit: 3, of },
            SqlError::OutOfMemory { limit_bytes: 3, of, detail: "\u{0}\"".into() },
            SqlError::Busy { running: 1, waiting: 2 },
            SqlError::CallerBusy { caller: "acme".into(), limit: 1 },
            SqlError::EngineRestarted("why".into()),
        ] {
            let parts: Vec<_> = answer_to_proto(Err(error.clone())).collect();
            assert_eq!(error_from_json(&parts[0].error).unwrap(), Some(error.clone()));
            let reply = described_to_proto(Err(error.clone()));
            assert_eq!(described_from_proto(reply).unwrap().unwrap_err(), error);
        }
        let parameters = vec![Some(DataType::Utf8), None, Some(DataType::Int64)];
        let reply = described_to_proto(Ok(Described { schema: batch(0).schema(), parameters: parameters.clone() }));
        let got = described_from_proto(reply).unwrap().unwrap();
        assert_eq!((got.schema, got.parameters), (batch(0).schema(), parameters));
    }

    /// Scenario: bytes that are no message of ours.
    /// Guarantees: errors, no panic.
    #[test]
    fn nonsense_is_an_error() {
        let message = [[0xff; 4], [8, 0, 0, 0], [7; 4], [7; 4]].concat();
        assert!(Joined::default().take(message).is_err());
        let mut cut = Joined::default();
        assert!(cut.take(vec![7; 100]).unwrap().is_empty() && cut.end().is_err());
        assert!(Joined::default().end().is_err());
        assert!(parameters_from_ipc(vec![1, 2, 3]).is_err());
        assert!(error_from_json(b"{").is_err());
        let empty = DescribeReply::default();
        assert!(described_from_proto(empty).is_err());
    }
}
