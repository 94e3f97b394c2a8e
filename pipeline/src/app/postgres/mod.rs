//! The PostgreSQL wire (SPEC E2): psql, Grafana's PostgreSQL source, JDBC and psycopg connect as to a database.
//!
//! | file | idea |
//! |---|---|
//! | `line` | the bytes of a connection, watched: too many, too slow, gone |
//! | `tls` | the door's certificate and key |
//! | `login` | who is asking: SCRAM-SHA-256 with the key as the password |
//! | `session` | what a connection has set, and its questions to the engine |
//! | `dialogue` | statements in, answers out |
//! | `simple`, `extended` | the two protocols they come by |
//! | `cursors` | DECLARE, FETCH, MOVE, CLOSE: answers kept and gone through |
//! | `columns` | answers as PostgreSQL's rows |
//! | `parameters` | bound values as the engine takes them |
//! | `errors` | refusals as SQLSTATE, hint and position |
//! | `copy` | `COPY (…) TO STDOUT` |
//!
//! Bounds: `server.pg_connections_max` sessions (a further client is told so, SQLSTATE 53300), [`DOORSTEP_MAX`] connections that have
//! not logged in, `server.header_timeout` to log in, `server.pg_idle_timeout` between two messages, [`MESSAGE_BYTES_MAX`] a message,
//! [`session::STATEMENTS_MAX`] prepared statements and [`session::PORTALS_MAX`] open portals a session, [`cursors::CURSORS_MAX`] cursors
//! with [`cursors::CURSOR_BYTES_MAX`] of answers a session; a client that does not read
//! its answer for [`line::STALL_MAX`] is cut. A client that cancels or goes away stops its query.
//! TLS is there if `server.pg_tls_cert` is set; the key is never sent (SCRAM) either way.

mod columns;
mod copy;
mod cursors;
mod dialogue;
mod errors;
mod extended;
mod line;
mod login;
mod parameters;
mod session;
mod simple;
#[cfg(test)]
mod tests;
mod tls;

use std::{io, sync::Arc, time::Duration};

use futures::{SinkExt, StreamExt};
use pgwire::{
    api::{
        ClientInfo, ConnectionManager, NoopHandler, PgWireConnectionState, RandomPidSecretKeyGenerator,
        cancel::DefaultCancelHandler,
    },
    error::{ErrorInfo, PgWireError},
    messages::{PgWireBackendMessage, PgWireFrontendMessage},
    tokio::{
        TlsAcceptor,
        server::{MaybeTls, PgWireMessageServerCodec, negotiate_tls, process_error, process_message},
    },
};
use queries::SqlAnswers;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_util::{
    codec::{Framed, FramedParts},
    sync::CancellationToken,
};

pub use self::tls::TlsError;
use self::{
    dialogue::Dialogue,
    extended::Prepared,
    line::{Gone, Line},
    login::{Login, Passwords},
    session::Session,
};
use super::http;
use crate::{config, gateway::auth::Keys};

/// Longest message of a client.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Connections that may wait before they have logged in, beside the sessions: a cancel request is one of them.
const DOORSTEP_MAX: usize = 16;

/// What the door needs.
pub struct PgDoor {
    answers: Arc<dyn SqlAnswers>,
    keys: Keys,
    passwords: Option<Arc<Passwords>>,
    tls: Option<TlsAcceptor>,
    sessions: Arc<Semaphore>,
    login_timeout: Duration,
    idle_timeout: Duration,
    /// Which connection a cancel request means.
    running: Arc<ConnectionManager>,
    numbers: Arc<RandomPidSecretKeyGenerator>,
}

impl PgDoor {
    /// A door over `answers` with the limits of the configuration.
    ///
    /// Errors: files for TLS that cannot be used.
    pub fn new(config: &config::Server, answers: Arc<dyn SqlAnswers>) -> Result<PgDoor, TlsError> {
        let has_tls = !config.pg_tls_cert.as_os_str().is_empty();
        let tls = has_tls.then(|| tls::acceptor(&config.pg_tls_cert, &config.pg_tls_key)).transpose()?;
        Ok(PgDoor {
            answers,
            tls,
            keys: Keys::new(&config.keys),
            passwords: (!config.keys.is_empty()).then(|| Arc::new(Passwords::new(&config.keys))),
            sessions: Arc::new(Semaphore::new(config.pg_connections_max)),
            login_timeout: config.header_timeout,
            idle_timeout: config.pg_idle_timeout,
            running: Arc::default(),
            numbers: Arc::default(),
        })
    }
}

/// Serves until `stop`; open connections then end.
pub async fn serve(listener: TcpListener, door: Arc<PgDoor>, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(door.sessions.available_permits() + DOORSTEP_MAX));
    while let Some((stream, place)) = http::accept(&listener, &places, &stop).await {
        let (door, stop) = (door.clone(), stop.clone());
        tokio::spawn(async move {
            let served = tokio::select! {
                _ = stop.cancelled() => Ok(()),
                served = connection(stream, door) => served,
            };
            if let Err(error) = served {
                tracing::debug!(%error, "PostgreSQL connection ended");
            }
            drop(place);
        });
    }
}

type Socket = Framed<Line, PgWireMessageServerCodec<Arc<Prepared>>>;

/// One connection from its first byte to its last.
async fn connection(stream: TcpStream, door: Arc<PgDoor>) -> io::Result<()> {
    let log_in_by = Instant::now() + door.login_timeout;
    let (stream, gone) = Gone::watch(stream)?;
    let Ok(framed) = timeout(door.login_timeout, negotiate_tls(stream, door.tls.clone())).await else { return Ok(()) };
    let Some(framed) = framed? else { return Ok(()) };
    let parts = framed.into_parts();
    if matches!(parts.io, MaybeTls::Tls(_)) && !parts.read_buf.is_empty() {
        // Sent before there was TLS, perhaps by somebody else: it must not pass for what was sent within.
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "bytes came between the request for TLS and its handshake",
        ));
    }
    let mut line: FramedParts<Line, _> = FramedParts::new(Line::new(parts.io), parts.codec);
    (line.read_buf, line.write_buf) = (parts.read_buf, parts.write_buf);
    let mut socket: Socket = Framed::from_parts(line);

    let session = Arc::new(Session::new(door.clone(), gone));
    let login = Arc::new(Login::new(&door));
    let dialogue = Arc::new(Dialogue::new(session));
    let cancel = Arc::new(DefaultCancelHandler::new(door.running.clone()));
    let mut place: Option<OwnedSemaphorePermit> = None;
    loop {
        let is_known = place.is_some();
        let patience = if is_known { door.idle_timeout } else { log_in_by.saturating_duration_since(Instant::now()) };
        socket.get_mut().allow(MESSAGE_BYTES_MAX);
        let message = match timeout(patience, socket.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(error))) => return farewell(&mut socket, error.into()).await,
            Ok(None) => return Ok(()),
            Err(_) if is_known => return farewell(&mut socket, errors::idle(patience)).await,
            Err(_) => return farewell(&mut socket, errors::slow_login(patience)).await,
        };
        if matches!(message, PgWireFrontendMessage::Terminate(_)) {
            return Ok(());
        }
        let is_cancel = matches!(message, PgWireFrontendMessage::CancelRequest(_));
        let is_extended = message.is_extended_query();
        let (simple, extended) = (dialogue.clone(), dialogue.clone());
        let copies = Arc::new(NoopHandler);
        let done = process_message(message, &mut socket, login.clone(), simple, extended, copies, cancel.clone()).await;
        match done {
            Ok(()) if is_cancel => return Ok(()),
            Ok(()) => {}
            // Who has not logged in gets no second try on the same connection.
            Err(error) if !is_known => return farewell(&mut socket, error.into()).await,
            Err(error) => {
                let error = ErrorInfo::from(error);
                if error.is_fatal() {
                    return farewell(&mut socket, error).await;
                }
                process_error(&mut socket, PgWireError::UserError(Box::new(error)), is_extended).await?;
            }
        }
        if !is_known && matches!(socket.state(), PgWireConnectionState::ReadyForQuery) {
            match door.sessions.clone().try_acquire_owned() {
                Ok(free) => place = Some(free),
                Err(_) => return farewell(&mut socket, errors::crowded()).await,
            }
        }
    }
}

/// Says why, and closes.
async fn farewell(socket: &mut Socket, error: ErrorInfo) -> io::Result<()> {
    socket.send(PgWireBackendMessage::ErrorResponse(error.into())).await?;
    socket.close().await
}
