//! Statements in, answers out, whichever protocol they come by.
//!
//! Transactions are kept only as far as clients look at them: every statement sees its own moment, and nothing is ever written. After
//! an error in a transaction, statements are refused until it ends or goes back to a savepoint, as PostgreSQL does; savepoints have no
//! names that anybody would look at.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use pgwire::{
    api::{
        ClientInfo, ConnectionHandle,
        portal::{Format, Portal},
        results::{CopyResponse, QueryResponse, Tag},
        store::PortalStore,
    },
    error::PgWireResult,
    messages::response::TransactionStatus,
};
use queries::{
    ScalarValue,
    postgres::command::{Command, DISCARD, Hold},
};

use super::{columns, copy, cursors::End, errors, extended::Prepared, parameters, session::Session};

/// Both protocols over one session.
pub(super) struct Dialogue {
    pub(super) session: Arc<Session>,
}

/// How a command is asked.
pub(super) struct Ask<'a> {
    pub(super) expected: &'a [Option<DataType>],
    pub(super) schema: Option<&'a SchemaRef>,
    pub(super) format: &'a Format,
    pub(super) portal: Option<&'a Portal<Arc<Prepared>>>,
}

impl Ask<'_> {
    /// What is bound.
    fn values(&self) -> PgWireResult<Vec<ScalarValue>> {
        self.portal.map_or(Ok(Vec::new()), |portal| parameters::values(portal, self.expected))
    }
}

/// What a command is answered with.
pub(super) enum Answer {
    Rows(QueryResponse),
    Copy(CopyResponse),
    Done(Tag),
}

/// Ends when the client asks for what begins now to be stopped.
pub(super) async fn stop_asked<C: ClientInfo>(client: &C) -> impl Future<Output = ()> + use<C> {
    let asked = match client.session_extensions().get::<Arc<ConnectionHandle>>() {
        Some(handle) => Some(handle.start_query().await),
        None => None,
    };
    async move {
        match asked {
            Some(asked) => drop(asked.await),
            None => std::future::pending().await,
        }
    }
}

impl Dialogue {
    pub(super) fn new(session: Arc<Session>) -> Dialogue {
        Dialogue { session }
    }

    /// Answers one command.
    pub(super) async fn run(
        &self,
        client: &mut (impl ClientInfo + Send + Sync),
        command: &Command,
        ask: Ask<'_>,
    ) -> PgWireResult<Answer> {
        let session = &self.session;
        let status = client.transaction_status();
        let is_end = matches!(command, Command::Commit | Command::Rollback | Command::RollbackTo);
        if status == TransactionStatus::Error && !is_end {
            let words = "current transaction is aborted, commands ignored until end of transaction block";
            return Err(errors::user("ERROR", "25P02", words));
        }
        Ok(match command {
            Command::Ask(sql) => {
                let answer = session.answer(client, (sql, ask.values()?)).await?;
                let schema = ask.schema.cloned().unwrap_or_else(|| columns::of_statement(&answer.schema, sql));
                Answer::Rows(columns::rows(&answer, &schema, ask.format)?)
            }
            Command::CopyOut { query, form } => {
                let answer = session.answer(client, (query, Vec::new())).await?;
                Answer::Copy(copy::out(&answer, query, *form)?)
            }
            Command::Show { name } => {
                let mut shown = columns::texts([name], vec![[session.show(name)?]])?;
                shown.set_command_tag("SHOW");
                Answer::Rows(shown)
            }
            Command::ShowAll => {
                let rows = session.show_all().into_iter().map(|(name, value)| [name, value, String::new()]).collect();
                let mut shown = columns::texts(["name", "setting", "description"], rows)?;
                shown.set_command_tag("SHOW");
                Answer::Rows(shown)
            }
            Command::Set { name, value } => {
                session.set(name, value)?;
                Answer::Done(Tag::new("SET"))
            }
            Command::Reset { name } => {
                session.reset(name.as_deref());
                Answer::Done(Tag::new("RESET"))
            }
            Command::Begin => {
                client.set_transaction_status(status.to_in_transaction_state());
                Answer::Done(Tag::new("BEGIN"))
            }
            Command::Commit | Command::Rollback => {
                client.set_transaction_status(TransactionStatus::Idle);
                let is_kept = matches!(command, Command::Commit) && status != TransactionStatus::Error;
                session.cursors.end(if is_kept { End::Commit } else { End::Rollback });
                Answer::Done(Tag::new(if is_kept { "COMMIT" } else { "ROLLBACK" }))
            }
            Command::RollbackTo if status == TransactionStatus::Idle => {
                let words = "ROLLBACK TO SAVEPOINT can only be used in transaction blocks";
                return Err(errors::user("ERROR", "25P01", words));
            }
            Command::RollbackTo => {
                client.set_transaction_status(TransactionStatus::Transaction);
                Answer::Done(Tag::new("ROLLBACK"))
            }
            Command::Declare { .. } | Command::Fetch { .. } | Command::Move { .. } | Command::Close { .. } => {
                return self.go_through(client, command, ask).await;
            }
            Command::Deallocate { .. } => Answer::Done(Tag::new("DEALLOCATE")),
            Command::Nothing(tag) => {
                if *tag == DISCARD {
                    session.reset(None);
                    session.cursors.close_all();
                }
                Answer::Done(Tag::new(tag))
            }
        })
    }

    /// Answers a command about a cursor.
    async fn go_through(
        &self,
        client: &(impl ClientInfo + Send + Sync),
        command: &Command,
        ask: Ask<'_>,
    ) -> PgWireResult<Answer> {
        let session = &self.session;
        Ok(match command {
            Command::Declare { declared, query } => {
                if client.transaction_status() == TransactionStatus::Idle && declared.hold == Hold::No {
                    let words = "DECLARE CURSOR can only be used in transaction blocks, unless it is WITH HOLD";
                    return Err(errors::user("ERROR", "25P01", words));
                }
                session.cursors.admit(&declared.name)?;
                let values = ask.values()?;
                let answer = session.answer(client, (query, values)).await.map_err(errors::without_position)?;
                let schema = columns::of_statement(&answer.schema, query);
                session.cursors.declare(declared, answer, schema)?;
                Answer::Done(Tag::new("DECLARE CURSOR"))
            }
            Command::Fetch { name, direction } => {
                let fetched = session.cursors.fetch(name, *direction)?;
                // The client says in which form it wants rows, if it can.
                let format = if ask.portal.is_some() { ask.format } else { &fetched.form };
                let mut rows = columns::rows(&fetched.rows, &fetched.schema, format)?;
                rows.set_command_tag("FETCH");
                Answer::Rows(rows)
            }
            Command::Move { name, direction } => {
                Answer::Done(Tag::new("MOVE").with_rows(session.cursors.pass(name, *direction)?))
            }
            Command::Close { name: Some(name) } => {
                session.cursors.close(name)?;
                Answer::Done(Tag::new("CLOSE CURSOR"))
            }
            Command::Close { name: None } => {
                session.cursors.close_all();
                Answer::Done(Tag::new("CLOSE CURSOR ALL"))
            }
            _ => unreachable!("invariant: commands about cursors alone come here"),
        })
    }

    /// Takes away what a command that was answered ends: portals with their transaction, prepared statements by name.
    pub(super) fn put_away(&self, command: &Command, store: &impl PortalStore) {
        let names = match command {
            Command::Commit | Command::Rollback => {
                store.clear_portals();
                return self.session.forget_portals();
            }
            Command::Deallocate { name: Some(name) } => {
                self.session.forget_statement(name);
                vec![name.clone()]
            }
            Command::Deallocate { name: None } | Command::Nothing(DISCARD) => self.session.forget_statements(),
            _ => return,
        };
        names.iter().for_each(|name| store.rm_statement(name));
    }
}
