//! Simple protocol: a message of statements, each answered before the next one is begun.
//!
//! After an error nothing that follows in the message is done. Cost: one answer at a time.

use std::fmt::Debug;

use async_trait::async_trait;
use futures::{Sink, SinkExt};
use pgwire::{
    api::{
        ClientInfo, ClientPortalStore,
        copy::send_copy_out_response,
        portal::Format,
        query::{SimpleQueryHandler, send_execution_response, send_query_response, send_ready_for_query},
        results::Response,
        store::PortalStore,
    },
    error::{PgWireError, PgWireResult},
    messages::{PgWireBackendMessage, response::EmptyQueryResponse, simplequery::Query},
};
use queries::postgres::command::commands;

use super::{
    dialogue::{Answer, Ask, Dialogue, stop_asked},
    errors,
};

#[async_trait]
impl SimpleQueryHandler for Dialogue {
    async fn on_query<C>(&self, client: &mut C, message: Query) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let commands = commands(&message.query).map_err(|error| errors::sql(&error, &message.query))?;
        if commands.is_empty() {
            client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
        }
        for command in &commands {
            let ask = Ask { expected: &[], schema: None, format: &Format::UnifiedText, portal: None };
            let stop = stop_asked(client).await;
            let answer = tokio::select! {
                answer = self.run(client, command, ask) => answer?,
                () = stop => return Err(PgWireError::QueryCanceled),
            };
            self.put_away(command, client.portal_store());
            match answer {
                Answer::Rows(rows) => send_query_response(client, rows, true).await?,
                Answer::Copy(rows) => send_copy_out_response(client, rows).await?,
                Answer::Done(tag) => send_execution_response(client, tag).await?,
            }
        }
        let status = client.transaction_status();
        send_ready_for_query(client, status).await
    }

    async fn do_query<C>(&self, _: &mut C, _: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        unreachable!("invariant: messages of statements are answered above")
    }
}
