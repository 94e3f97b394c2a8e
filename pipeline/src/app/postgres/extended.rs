//! Extended protocol: statements prepared, bound and run, in parts if the client wants them so.
//!
//! Bounds: [`session::STATEMENTS_MAX`](super::session::STATEMENTS_MAX), [`session::PORTALS_MAX`](super::session::PORTALS_MAX).

use std::{fmt::Debug, sync::Arc};

use arrow::datatypes::{DataType, SchemaRef};
use async_trait::async_trait;
use futures::{Sink, SinkExt};
use pgwire::{
    api::{
        ClientInfo, ClientPortalStore, DEFAULT_NAME, Type,
        copy::send_copy_out_response,
        portal::{Format, Portal, PortalExecutionState},
        query::{ExtendedQueryHandler, send_describe_response, send_execution_response, send_partial_query_response},
        results::{DescribePortalResponse, FieldInfo, Response, Tag},
        stmt::{QueryParser, StoredStatement},
        store::{Entry, PortalStore},
    },
    error::{PgWireError, PgWireResult},
    messages::{
        PgWireBackendMessage,
        extendedquery::{
            Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete, Sync as PgSync,
        },
        response::{EmptyQueryResponse, ReadyForQuery, TransactionStatus},
    },
};
use queries::postgres::command::{Command, commands};

use super::{
    columns,
    dialogue::{Answer, Ask, Dialogue, stop_asked},
    errors, parameters,
    session::Session,
};

/// A prepared statement.
#[derive(Debug)]
pub(super) struct Prepared {
    command: Command,
    /// What the engine takes each parameter for.
    expected: Vec<Option<DataType>>,
    /// Columns of the answer as they are sent; `None` for what answers no rows.
    schema: Option<SchemaRef>,
}

/// Statements as they come in the extended protocol.
pub(super) struct Parser {
    session: Arc<Session>,
}

impl Parser {
    /// Columns that a command answers with, and what its parameters are taken for.
    async fn prepare(
        &self,
        client: &impl ClientInfo,
        command: Command,
        types: &[Option<Type>],
    ) -> PgWireResult<Prepared> {
        let (expected, schema) = match &command {
            Command::Declare { query, .. } => {
                let described = self.session.describe(client, (query, Vec::new())).await;
                (described.map_err(errors::without_position)?.parameters, None)
            }
            Command::Ask(sql) => {
                let mut described = self.session.describe(client, (sql, Vec::new())).await?;
                let count = described.parameters.len().max(types.len());
                let is_told = |at: usize| {
                    let named = types.get(at).and_then(Option::as_ref);
                    named.is_none() && described.parameters.get(at).is_some_and(Option::is_some)
                };
                if !(0..count).all(is_told) {
                    // Once more with the client's types: an answer's columns may depend on them.
                    let blank = |at: usize| {
                        let expected = described.parameters.get(at).and_then(Option::as_ref);
                        parameters::blank(types.get(at).and_then(Option::as_ref), expected)
                    };
                    let blanks = (0..count).map(blank).collect();
                    described.schema = self.session.describe(client, (sql, blanks)).await?.schema;
                }
                (described.parameters, Some(columns::of_statement(&described.schema, sql)))
            }
            Command::Show { name } => {
                let field = arrow::datatypes::Field::new(name, DataType::Utf8, true);
                (Vec::new(), Some(Arc::new(arrow::datatypes::Schema::new(vec![field]))))
            }
            Command::ShowAll => {
                let field = |name: &str| arrow::datatypes::Field::new(name, DataType::Utf8, true);
                let fields = ["name", "setting", "description"].map(field).to_vec();
                (Vec::new(), Some(Arc::new(arrow::datatypes::Schema::new(fields))))
            }
            _ => (Vec::new(), None),
        };
        Ok(Prepared { command, expected, schema })
    }
}

#[async_trait]
impl QueryParser for Parser {
    type Statement = Arc<Prepared>;

    async fn parse_sql<C>(&self, client: &C, sql: &str, types: &[Option<Type>]) -> PgWireResult<Option<Arc<Prepared>>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        let mut commands = commands(sql).map_err(|error| errors::sql(&error, sql))?;
        if commands.len() > 1 {
            return Err(errors::user("ERROR", "42601", "cannot insert multiple commands into a prepared statement"));
        }
        let Some(command) = commands.pop() else { return Ok(None) };
        self.prepare(client, command, types).await.map(|prepared| Some(Arc::new(prepared)))
    }

    fn get_parameter_types(&self, statement: &Arc<Prepared>) -> PgWireResult<Vec<Type>> {
        let known = |expected: &Option<DataType>| expected.as_ref().and_then(parameters::pg_of).unwrap_or(Type::TEXT);
        Ok(statement.expected.iter().map(known).collect())
    }

    fn get_result_schema(&self, statement: &Arc<Prepared>, format: Option<&Format>) -> PgWireResult<Vec<FieldInfo>> {
        let schema = match &statement.command {
            // As the cursor is now: it may be another one than when the statement was prepared.
            Command::Fetch { name, .. } => self.session.cursors.shape(name).map(|(schema, _)| schema),
            _ => statement.schema.clone(),
        };
        match schema {
            Some(schema) => columns::fields(&schema, format.unwrap_or(&Format::UnifiedText)),
            None => Ok(Vec::new()),
        }
    }
}

#[async_trait]
impl ExtendedQueryHandler for Dialogue {
    type Statement = Arc<Prepared>;
    type QueryParser = Parser;

    fn query_parser(&self) -> Arc<Parser> {
        Arc::new(Parser { session: self.session.clone() })
    }

    async fn on_parse<C>(&self, client: &mut C, message: Parse) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Arc<Prepared>>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.clone().unwrap_or_else(|| DEFAULT_NAME.to_owned());
        self.session.prepare(&name)?;
        let parsed = StoredStatement::parse(client, &message, self.query_parser()).await;
        let forget = |_: &PgWireError| {
            self.session.forget_statement(&name);
            client.portal_store().rm_statement(&name);
        };
        match parsed.inspect_err(forget)? {
            Some(statement) => client.portal_store().put_statement(Arc::new(statement)),
            None => client.portal_store().put_empty_statement(&name),
        }
        client.feed(PgWireBackendMessage::ParseComplete(ParseComplete::new())).await?;
        Ok(())
    }

    async fn on_bind<C>(&self, client: &mut C, message: Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Arc<Prepared>>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.statement_name.as_deref().unwrap_or(DEFAULT_NAME);
        let portal = message.portal_name.as_deref().unwrap_or(DEFAULT_NAME);
        self.session.open(portal)?;
        match client.portal_store().get_statement(name) {
            Some(Entry::Value(statement)) => {
                client.portal_store().put_portal(Arc::new(Portal::try_new(&message, statement)?));
            }
            Some(Entry::Empty) => client.portal_store().put_empty_portal(portal),
            None => return Err(PgWireError::StatementNotFound(name.to_owned())),
        }
        client.feed(PgWireBackendMessage::BindComplete(BindComplete::new())).await?;
        Ok(())
    }

    async fn on_close<C>(&self, client: &mut C, message: Close) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Arc<Prepared>>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        if message.target_type == b'S' {
            self.session.forget_statement(name);
            client.portal_store().rm_statement(name);
        } else {
            // A cursor is a portal, too; none of that name is none of either.
            let _ = self.session.cursors.close(name);
            self.session.forget_portal(name);
            client.portal_store().rm_portal(name);
        }
        client.feed(PgWireBackendMessage::CloseComplete(CloseComplete::new())).await?;
        Ok(())
    }

    /// A cursor is described as a portal, as psycopg does.
    async fn on_describe<C>(&self, client: &mut C, message: Describe) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Arc<Prepared>>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        if message.target_type == b'S' || client.portal_store().get_portal(name).is_some() {
            return self._on_describe(client, message).await;
        }
        match self.session.cursors.shape(name) {
            Some((schema, format)) => {
                let described = DescribePortalResponse::new(columns::fields(&schema, &format)?);
                send_describe_response(client, &described).await
            }
            None => Err(no_portal(&message.name)),
        }
    }

    /// Outside a transaction all portals end here.
    async fn on_sync<C>(&self, client: &mut C, _: PgSync) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Arc<Prepared>>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let status = client.transaction_status();
        if status == TransactionStatus::Idle {
            client.portal_store().clear_portals();
            self.session.forget_portals();
        }
        client.send(PgWireBackendMessage::ReadyForQuery(ReadyForQuery::new(status))).await?;
        Ok(())
    }

    /// Runs a portal, or goes on with one that was suspended after the rows that were asked for.
    async fn on_execute<C>(&self, client: &mut C, message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Arc<Prepared>>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        let portal = match client.portal_store().get_portal(name) {
            Some(Entry::Value(portal)) => portal,
            Some(Entry::Empty) => {
                client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
                return Ok(());
            }
            None => return Err(no_portal(&message.name)),
        };
        let most = usize::try_from(message.max_rows).unwrap_or(0);
        let mut state = portal.state.lock().await;
        if matches!(*state, PortalExecutionState::Initial) {
            let prepared = portal.statement.statement.clone();
            let ask = Ask {
                expected: &prepared.expected,
                schema: prepared.schema.as_ref(),
                format: &portal.result_column_format,
                portal: Some(&portal),
            };
            let stop = stop_asked(client).await;
            let answer = tokio::select! {
                answer = self.run(client, &prepared.command, ask) => answer?,
                () = stop => return Err(PgWireError::QueryCanceled),
            };
            self.put_away(&prepared.command, client.portal_store());
            match answer {
                Answer::Rows(rows) => *state = PortalExecutionState::Suspended(rows),
                Answer::Copy(rows) => return send_copy_out_response(client, rows).await,
                Answer::Done(tag) => return send_execution_response(client, tag).await,
            }
        }
        let is_suspended = match &mut *state {
            // As they are sent, so that a part of an answer is never there twice, however many rows the client says that it takes.
            PortalExecutionState::Suspended(rows) => send_partial_query_response(client, rows, most).await?,
            _ => {
                send_execution_response(client, Tag::new("SELECT").with_rows(0)).await?;
                false
            }
        };
        if !is_suspended {
            *state = PortalExecutionState::Finished;
        }
        Ok(())
    }

    async fn do_query<C>(&self, _: &mut C, _: &Portal<Arc<Prepared>>, _: usize) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Arc<Prepared>>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        unreachable!("invariant: portals are run above")
    }
}

fn no_portal(name: &Option<String>) -> PgWireError {
    let name = name.as_deref().unwrap_or_default();
    errors::user("ERROR", "34000", &format!("portal {name:?} does not exist"))
}
