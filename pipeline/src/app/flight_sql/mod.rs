//! Arrow Flight SQL (SPEC E2) on the Flight port, beside the telemetry of workers: ADBC, JDBC and ODBC drivers speak it.
//!
//! | file | idea |
//! |---|---|
//! | `handle` | a prepared statement as the bytes the client carries |
//! | `line` | connections: how many, who has a place, which are cut |
//! | `held` | an answer that its client does not read |
//! | `catalogue` | catalogs, schemas, tables, types, and what the server says of itself |
//!
//! Every call with SQL brings a key where keys are configured: `Authorization: Bearer KEY`, or `Basic` with the key as the password,
//! which a handshake turns into a bearer. Telemetry comes from this machine alone, without a key.
//! Invariant: no state is kept between calls. A ticket holds the statement, a prepared statement's handle holds its text and the
//! values bound to it; so there is nothing to bound, to expire or to lose in a restart.
//! Bounds: the engine's and the key's; [`handle::BYTES_MAX`]; one row of parameters; those of connections ([`line`]) and of answers
//! that nobody reads ([`held`]). A client that goes away stops its query.
//! Errors: gRPC status with the engine's word (`x-evenkeel-code`) in the metadata.

mod catalogue;
mod handle;
mod held;
mod line;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::{
    array::RecordBatch,
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use arrow_flight::{
    Action, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest, HandshakeResponse, IpcMessage,
    SchemaAsIpc, Ticket,
    encode::FlightDataEncoderBuilder,
    error::FlightError,
    flight_service_server::FlightServiceServer,
    sql::{
        ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult,
        Any, CommandGetCatalogs, CommandGetDbSchemas, CommandGetSqlInfo, CommandGetTableTypes, CommandGetTables,
        CommandGetXdbcTypeInfo, CommandPreparedStatementQuery, CommandStatementQuery, CommandStatementUpdate,
        DoPutPreparedStatementResult, ProstMessageExt, SqlInfo, TicketStatementQuery,
        server::{DoPutError, FlightSqlService, PeekableFlightDataStream},
    },
};
use base64::{Engine as _, prelude::BASE64_STANDARD_NO_PAD};
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;
use queries::{Caller, QueryResult, Question, SqlAnswers, SqlError};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataMap, MetadataValue},
};

pub use self::line::{Bounds, serve};
use self::{held::Held, line::Peer};
use super::sql_routes::caller;
use crate::{
    gateway::auth::Keys,
    worker::flight_server::{self, Answers, MESSAGE_BYTES_MAX, RemoteSink},
};

/// What the door needs.
pub struct FlightDoor {
    pub answers: Arc<dyn SqlAnswers>,
    pub keys: Keys,
    /// Where workers' telemetry goes, and where it is decoded.
    pub telemetry: Arc<dyn RemoteSink>,
    pub ingest: Handle,
    pub bounds: Bounds,
}

fn service(door: FlightDoor) -> FlightServiceServer<FlightDoor> {
    FlightServiceServer::new(door).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

type Stream<T> = Response<Answers<T>>;

impl FlightDoor {
    /// Who asks.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        self.key(request).map(|(caller, _)| caller)
    }

    /// Who asks, and the key they showed. Their connection is a session from now on.
    fn key<T>(&self, request: &Request<T>) -> Result<(Caller, String), Status> {
        let shown = request.metadata().get("authorization").map(key_of).transpose()?.unwrap_or_default();
        let wrong =
            if shown.is_empty() { "a key is required: Authorization: Bearer KEY" } else { "the key is not known" };
        let tenant = self.keys.of_key(&shown).ok_or_else(|| Status::unauthenticated(wrong))?;
        Peer::of(request)?.sit()?;
        Ok((caller(&tenant), shown))
    }

    async fn info(
        &self,
        question: Question,
        descriptor: FlightDescriptor,
        ticket: Vec<u8>,
    ) -> Result<FlightInfo, Status> {
        let described = self.answers.describe(question).await.map_err(|error| status(&error))?;
        info(&described.schema, descriptor, ticket)
    }

    async fn rows(&self, question: Question) -> Result<Stream<FlightData>, Status> {
        let answer = self.answers.answer(question).await.map_err(|error| status(&error))?;
        Ok(self.batches(answer.schema, answer.batches))
    }

    /// Batches as a stream of Flight messages, one at a time.
    fn batches(&self, schema: SchemaRef, batches: Vec<RecordBatch>) -> Stream<FlightData> {
        let batches = stream::iter(batches.into_iter().map(Ok::<_, FlightError>));
        let encoded = FlightDataEncoderBuilder::new().with_schema(schema).build(batches).map_err(Status::from);
        Response::new(Box::pin(Held::new(Box::pin(encoded), self.bounds.stall_max)))
    }

    fn one_batch(&self, batch: arrow_flight::error::Result<RecordBatch>) -> Result<Stream<FlightData>, Status> {
        let batch = batch?;
        Ok(self.batches(batch.schema(), vec![batch]))
    }

    /// Rows that the catalogue calls need.
    async fn ask(&self, caller: Caller, sql: &str) -> Result<QueryResult, Status> {
        self.answers.answer(Question::new(sql, caller)).await.map_err(|error| status(&error))
    }
}

/// The key of an `Authorization` header.
fn key_of(value: &MetadataValue<Ascii>) -> Result<String, Status> {
    let wrong =
        || Status::unauthenticated("authorization: expected `Bearer KEY`, or `Basic` with the key as the password");
    let text = value.to_str().map_err(|_| wrong())?;
    let (scheme, rest) = text.split_once(' ').ok_or_else(wrong)?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(rest.trim().to_string());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(wrong());
    }
    let pair = BASE64_STANDARD_NO_PAD.decode(rest.trim().trim_end_matches('=')).map_err(|_| wrong())?;
    let pair = String::from_utf8(pair).map_err(|_| wrong())?;
    pair.split_once(':').map(|(_, key)| key.to_string()).ok_or_else(wrong)
}

/// Why not, as gRPC says it.
fn status(error: &SqlError) -> Status {
    let code = match error {
        SqlError::ReadOnly => Code::PermissionDenied,
        SqlError::TimedOut { .. } => Code::DeadlineExceeded,
        SqlError::TooManyRows { .. } | SqlError::OutOfMemory { .. } => Code::ResourceExhausted,
        SqlError::Busy { .. } | SqlError::CallerBusy { .. } | SqlError::EngineRestarted(_) => Code::Unavailable,
        SqlError::Execution(_) => Code::FailedPrecondition,
        _ => Code::InvalidArgument,
    };
    refused(code, (error.code(), &error.to_string()))
}

/// A status with the engine's word, or one of ours, in its metadata.
fn refused(code: Code, (word, words): (&'static str, &str)) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert("x-evenkeel-code", MetadataValue::from_static(word));
    Status::with_metadata(code, words, metadata)
}

fn info(schema: &Schema, descriptor: FlightDescriptor, ticket: Vec<u8>) -> Result<FlightInfo, Status> {
    let endpoint = FlightEndpoint::new().with_ticket(Ticket { ticket: ticket.into() });
    let info = FlightInfo::new().try_with_schema(schema).map_err(|error| Status::internal(error.to_string()))?;
    Ok(info.with_endpoint(endpoint).with_descriptor(descriptor))
}

fn schema_bytes(schema: &Schema) -> Result<prost::bytes::Bytes, Status> {
    let message: Result<IpcMessage, _> = SchemaAsIpc::new(schema, &Default::default()).try_into();
    message.map(|message| message.0).map_err(|error: arrow::error::ArrowError| Status::internal(error.to_string()))
}

fn read_only<T>() -> Result<T, Status> {
    Err(Status::permission_denied("this endpoint is read-only: SELECT, EXPLAIN, DESCRIBE and SHOW are allowed"))
}

#[tonic::async_trait]
impl FlightSqlService for FlightDoor {
    type FlightService = FlightDoor;

    /// Turns a key shown once into the bearer header of the calls that follow.
    async fn do_handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Stream<HandshakeResponse>, Status> {
        let (_, key) = self.key(&request)?;
        let answer = HandshakeResponse { protocol_version: 0, payload: key.clone().into() };
        let mut response: Stream<HandshakeResponse> = Response::new(Box::pin(stream::iter([Ok(answer)])));
        if !key.is_empty() {
            let bearer =
                format!("Bearer {key}").parse().map_err(|_| Status::unauthenticated("the key is not known"))?;
            response.metadata_mut().insert("authorization", bearer);
        }
        Ok(response)
    }

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let caller = self.caller(&request)?;
        let ticket = TicketStatementQuery { statement_handle: query.query.clone().into_bytes().into() };
        let question = Question::new(query.query, caller);
        self.info(question, request.into_inner(), ticket.as_any().encode_to_vec()).await.map(Response::new)
    }

    async fn do_get_statement(
        &self,
        ticket: TicketStatementQuery,
        request: Request<Ticket>,
    ) -> Result<Stream<FlightData>, Status> {
        let caller = self.caller(&request)?;
        let sql = String::from_utf8(ticket.statement_handle.to_vec());
        let sql = sql.map_err(|_| Status::invalid_argument("the ticket is not one of this server's"))?;
        self.rows(Question::new(sql, caller)).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        query: ActionCreatePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let question = Question::new(query.query.clone(), self.caller(&request)?);
        let described = self.answers.describe(question).await.map_err(|error| status(&error))?;
        let field = |(at, kind): (usize, &Option<DataType>)| {
            Field::new(format!("${}", at + 1), kind.clone().unwrap_or(DataType::Utf8), true)
        };
        let parameters = Schema::new(described.parameters.iter().enumerate().map(field).collect::<Vec<_>>());
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: handle::write(&query.query, &[])?,
            dataset_schema: schema_bytes(&described.schema)?,
            parameter_schema: schema_bytes(&parameters)?,
        })
    }

    /// Nothing is kept, so there is nothing to close.
    async fn do_action_close_prepared_statement(
        &self,
        _: ActionClosePreparedStatementRequest,
        _: Request<Action>,
    ) -> Result<(), Status> {
        Ok(())
    }

    /// Binds values: answers with a handle that holds them.
    async fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        self.caller(&request)?;
        let (sql, _) = handle::read(&query.prepared_statement_handle)?;
        let bound = handle::bind(&sql, request.into_inner().into_peekable()).await?;
        Ok(DoPutPreparedStatementResult { prepared_statement_handle: Some(bound) })
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let caller = self.caller(&request)?;
        let (sql, parameters) = handle::read(&query.prepared_statement_handle)?;
        let ticket = query.as_any().encode_to_vec();
        let question = Question { parameters, ..Question::new(sql, caller) };
        self.info(question, request.into_inner(), ticket).await.map(Response::new)
    }

    async fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<Ticket>,
    ) -> Result<Stream<FlightData>, Status> {
        let caller = self.caller(&request)?;
        let (sql, parameters) = handle::read(&query.prepared_statement_handle)?;
        self.rows(Question { parameters, ..Question::new(sql, caller) }).await
    }

    /// A stream whose descriptor is no command of Flight SQL: telemetry of a worker on this machine.
    async fn do_put_fallback(
        &self,
        request: Request<PeekableFlightDataStream>,
        _: Any,
    ) -> Result<Stream<arrow_flight::PutResult>, Status> {
        if !Peer::of(&request)?.is_telemetry() {
            return Err(Status::permission_denied("telemetry is taken from workers on this machine alone"));
        }
        let (sender, answers) = mpsc::channel(1);
        let put = flight_server::put(self.telemetry.clone(), request.into_inner().into_peekable()).await?;
        self.ingest.spawn(async move {
            let mut put = put;
            while let Some(answer) = put.next().await {
                if sender.send(answer).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn do_put_error_callback(
        &self,
        request: Request<PeekableFlightDataStream>,
        error: DoPutError,
    ) -> Result<Stream<arrow_flight::PutResult>, Status> {
        match error {
            DoPutError::MissingCommand => Err(Status::invalid_argument("the stream is empty")),
            // Telemetry says so itself, with the names it takes.
            DoPutError::MissingFlightDescriptor => self.do_put_fallback(request, Any::default()).await,
        }
    }

    async fn do_put_statement_update(
        &self,
        _: CommandStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        self.caller(&request)?;
        read_only()
    }

    async fn get_flight_info_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.caller(&request)?;
        let ticket = query.as_any().encode_to_vec();
        info(&query.into_builder().schema(), request.into_inner(), ticket).map(Response::new)
    }

    async fn do_get_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<Ticket>,
    ) -> Result<Stream<FlightData>, Status> {
        self.caller(&request)?;
        self.one_batch(catalogue::catalogs(query))
    }

    async fn get_flight_info_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.caller(&request)?;
        let ticket = query.as_any().encode_to_vec();
        info(&query.into_builder().schema(), request.into_inner(), ticket).map(Response::new)
    }

    async fn do_get_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<Ticket>,
    ) -> Result<Stream<FlightData>, Status> {
        let listed = self.ask(self.caller(&request)?, catalogue::TABLES).await?;
        self.one_batch(catalogue::schemas(query, &listed))
    }

    async fn get_flight_info_tables(
        &self,
        query: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.caller(&request)?;
        let ticket = query.as_any().encode_to_vec();
        info(&query.into_builder().schema(), request.into_inner(), ticket).map(Response::new)
    }

    async fn do_get_tables(
        &self,
        query: CommandGetTables,
        request: Request<Ticket>,
    ) -> Result<Stream<FlightData>, Status> {
        let caller = self.caller(&request)?;
        let listed = self.ask(caller.clone(), catalogue::TABLES).await?;
        let mut tables = Vec::new();
        for table in catalogue::listed(&listed) {
            let schema = match query.include_schema {
                true => {
                    let every = Question::new(format!("SELECT * FROM {}", table.path()), caller.clone());
                    self.answers.describe(every).await.map_err(|error| status(&error))?.schema
                }
                false => Arc::new(Schema::empty()),
            };
            tables.push((table, schema));
        }
        self.one_batch(catalogue::tables(query, &tables))
    }

    async fn get_flight_info_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.caller(&request)?;
        let ticket = query.as_any().encode_to_vec();
        info(&query.into_builder().schema(), request.into_inner(), ticket).map(Response::new)
    }

    async fn do_get_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<Ticket>,
    ) -> Result<Stream<FlightData>, Status> {
        let listed = self.ask(self.caller(&request)?, catalogue::TABLES).await?;
        self.one_batch(catalogue::table_types(query, &listed))
    }

    async fn get_flight_info_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.caller(&request)?;
        let ticket = query.as_any().encode_to_vec();
        info(&query.into_builder(catalogue::server()).schema(), request.into_inner(), ticket).map(Response::new)
    }

    async fn do_get_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<Ticket>,
    ) -> Result<Stream<FlightData>, Status> {
        self.caller(&request)?;
        self.one_batch(query.into_builder(catalogue::server()).build())
    }

    async fn get_flight_info_xdbc_type_info(
        &self,
        query: CommandGetXdbcTypeInfo,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.caller(&request)?;
        let ticket = query.as_any().encode_to_vec();
        info(&query.into_builder(catalogue::types()).schema(), request.into_inner(), ticket).map(Response::new)
    }

    async fn do_get_xdbc_type_info(
        &self,
        query: CommandGetXdbcTypeInfo,
        request: Request<Ticket>,
    ) -> Result<Stream<FlightData>, Status> {
        self.caller(&request)?;
        self.one_batch(query.into_builder(catalogue::types()).build())
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}
