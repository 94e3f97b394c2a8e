//! Simple and extended protocol: statements in, rows out.
//!
//! Transactions are kept only as far as clients look at them: every statement sees its own moment, and nothing is ever written. After
//! an error in a transaction, statements are refused until it ends, as PostgreSQL does.

use std::{fmt::Debug, sync::Arc};

use arrow::datatypes::{DataType, SchemaRef};
use async_trait::async_trait;
use futures::{Sink, SinkExt};
use pgwire::{
    api::{
        ClientInfo, ClientPortalStore, DEFAULT_NAME, Type,
        portal::{Format, Portal},
        query::{ExtendedQueryHandler, SimpleQueryHandler},
        results::{FieldInfo, Response, Tag},
        stmt::{QueryParser, StoredStatement},
        store::{Entry, PortalStore},
    },
    error::{ErrorInfo, PgWireError, PgWireResult},
    messages::{
        PgWireBackendMessage,
        extendedquery::{Bind, BindComplete, Close, CloseComplete, Parse, ParseComplete, Sync as PgSync},
        response::{ReadyForQuery, TransactionStatus},
    },
};
use queries::postgres::command::{Command, DISCARD, commands};

use super::{columns, copy, errors, parameters, session::Session};

/// A prepared statement.
#[derive(Debug)]
pub(super) struct Prepared {
    command: Command,
    /// What the engine takes each parameter for.
    expected: Vec<Option<DataType>>,
    /// Columns of the answer as they are sent; `None` for what answers no rows.
    schema: Option<SchemaRef>,
}

/// Both protocols over one session.
pub(super) struct Dialogue {
    session: Arc<Session>,
}

/// What a command is answered with.
struct Ask<'a> {
    expected: &'a [Option<DataType>],
    schema: Option<&'a SchemaRef>,
    format: &'a Format,
    portal: Option<&'a Portal<Arc<Prepared>>>,
}

impl Dialogue {
    pub(super) fn new(session: Arc<Session>) -> Dialogue {
        Dialogue { session }
    }

    /// Answers one command.
    async fn run(&self, client: &impl ClientInfo, command: &Command, ask: Ask<'_>) -> PgWireResult<Response> {
        let session = &self.session;
        let status = client.transaction_status();
        let is_end = matches!(command, Command::Commit | Command::Rollback);
        if status == TransactionStatus::Error && !is_end {
            let words = "current transaction is aborted, commands ignored until end of transaction block";
            return Err(errors::user("ERROR", "25P02", words));
        }
        Ok(match command {
            Command::Ask(sql) => {
                let values = match ask.portal {
                    Some(portal) => parameters::values(portal, ask.expected)?,
                    None => Vec::new(),
                };
                let answer = session.answer(client, (sql, values)).await?;
                let schema = ask.schema.cloned().unwrap_or_else(|| columns::flat(&answer.schema));
                Response::Query(columns::rows(&answer, &schema, ask.format)?)
            }
            Command::CopyOut { query, form } => {
                let answer = session.answer(client, (query, Vec::new())).await?;
                Response::CopyOut(copy::out(&answer, *form)?)
            }
            Command::Show { name } => {
                let mut shown = columns::texts([name], vec![[session.show(name)?]])?;
                shown.set_command_tag("SHOW");
                Response::Query(shown)
            }
            Command::ShowAll => {
                let rows = session.show_all().into_iter().map(|(name, value)| [name, value, String::new()]).collect();
                let mut shown = columns::texts(["name", "setting", "description"], rows)?;
                shown.set_command_tag("SHOW");
                Response::Query(shown)
            }
            Command::Set { name, value } => {
                session.set(name, value)?;
                Response::Execution(Tag::new("SET"))
            }
            Command::Reset { name } => {
                session.reset(name.as_deref());
                Response::Execution(Tag::new("RESET"))
            }
            Command::Begin => Response::TransactionStart(Tag::new("BEGIN")),
            Command::Commit if status == TransactionStatus::Error => Response::TransactionEnd(Tag::new("ROLLBACK")),
            Command::Commit => Response::TransactionEnd(Tag::new("COMMIT")),
            Command::Rollback => Response::TransactionEnd(Tag::new("ROLLBACK")),
            Command::Deallocate { .. } => Response::Execution(Tag::new("DEALLOCATE")),
            Command::Nothing(tag) => {
                if *tag == DISCARD {
                    session.reset(None);
                }
                Response::Execution(Tag::new(tag))
            }
        })
    }

    /// Takes prepared statements away that `DEALLOCATE` names.
    fn deallocate(&self, command: &Command, store: &impl PortalStore) {
        let names = match command {
            Command::Deallocate { name: Some(name) } => {
                self.session.forget_statement(name);
                vec![name.clone()]
            }
            Command::Deallocate { name: None } | Command::Nothing(DISCARD) => self.session.forget_statements(),
            _ => return,
        };
        names.iter().for_each(|name| store.rm_statement(name));
    }

    /// Columns that a command answers with, and what its parameters are taken for.
    async fn prepare(
        &self,
        client: &impl ClientInfo,
        command: Command,
        types: &[Option<Type>],
    ) -> PgWireResult<Prepared> {
        let (expected, schema) = match &command {
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
                (described.parameters, Some(columns::flat(&described.schema)))
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
impl SimpleQueryHandler for Dialogue {
    async fn do_query<C>(&self, client: &mut C, query: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let commands = commands(query).map_err(|error| errors::sql(&error, query))?;
        if commands.is_empty() {
            return Ok(vec![Response::EmptyQuery]);
        }
        let mut responses = Vec::with_capacity(commands.len());
        for command in &commands {
            let ask = Ask { expected: &[], schema: None, format: &Format::UnifiedText, portal: None };
            match self.run(client, command, ask).await {
                Ok(response) => responses.push(response),
                // What came before it is answered; nothing after it is.
                Err(error) if responses.is_empty() => return Err(error),
                Err(error) => {
                    responses.push(Response::Error(Box::new(ErrorInfo::from(error))));
                    break;
                }
            }
            self.deallocate(command, client.portal_store());
        }
        Ok(responses)
    }
}

/// Statements as they come in the extended protocol.
pub(super) struct Parser {
    session: Arc<Session>,
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
        let dialogue = Dialogue { session: self.session.clone() };
        dialogue.prepare(client, command, types).await.map(|prepared| Some(Arc::new(prepared)))
    }

    fn get_parameter_types(&self, statement: &Arc<Prepared>) -> PgWireResult<Vec<Type>> {
        let known = |expected: &Option<DataType>| expected.as_ref().and_then(parameters::pg_of).unwrap_or(Type::TEXT);
        Ok(statement.expected.iter().map(known).collect())
    }

    fn get_result_schema(&self, statement: &Arc<Prepared>, format: Option<&Format>) -> PgWireResult<Vec<FieldInfo>> {
        match &statement.schema {
            Some(schema) => columns::fields(schema, format.unwrap_or(&Format::UnifiedText)),
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
            self.session.forget_portal(name);
            client.portal_store().rm_portal(name);
        }
        client.feed(PgWireBackendMessage::CloseComplete(CloseComplete::new())).await?;
        Ok(())
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

    async fn do_query<C>(&self, client: &mut C, portal: &Portal<Arc<Prepared>>, _: usize) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Arc<Prepared>>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let prepared = portal.statement.statement.clone();
        let ask = Ask {
            expected: &prepared.expected,
            schema: prepared.schema.as_ref(),
            format: &portal.result_column_format,
            portal: Some(portal),
        };
        let response = self.run(client, &prepared.command, ask).await?;
        self.deallocate(&prepared.command, client.portal_store());
        Ok(response)
    }
}
