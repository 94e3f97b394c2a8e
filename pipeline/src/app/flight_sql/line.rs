//! Connections of the Flight port: how many, who has a place, and which are cut.
//!
//! A connection becomes a session with its first call that shows a key, and keeps its place until it ends; without a free place the
//! call is refused in words. Telemetry of workers takes no place. A connection that has become neither within
//! [`Bounds::entry_timeout`], a refused one too, is cut. Peers that do not answer pings are gone: see [`Bounds::ping_timeout`].
//!
//! Bounds: [`Bounds::sessions_max`] sessions, [`Bounds::beside_max`] connections beside them (further ones wait in the listen
//! backlog), [`CALLS_MAX`] calls at once on a connection.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status, transport::server::Connected};

use super::{FlightDoor, held::STALL_MAX, refused, service};
use crate::{app::http, config::Config, worker::flight_server::REMOTE_TOPICS};

/// Calls at once on one connection; a client's further ones wait there.
const CALLS_MAX: u32 = 32;
/// Connections beside sessions and telemetry: those that have not asked yet, and those that are told to come back.
const DOORSTEP_MAX: usize = 16;
/// How often a peer is pinged, and how long it may take to answer.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// How many clients there may be, and how slow.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub sessions_max: usize,
    pub beside_max: usize,
    /// Until when a connection must have shown a key or begun telemetry.
    pub entry_timeout: Duration,
    pub ping_interval: Duration,
    /// How long a peer may leave a ping unanswered.
    pub ping_timeout: Duration,
    /// How long a client may leave an answer unread.
    pub stall_max: Duration,
}

impl Bounds {
    pub fn of(config: &Config) -> Bounds {
        let workers = config.worker_count() as usize;
        Bounds {
            sessions_max: config.server.flight_connections_max,
            beside_max: DOORSTEP_MAX + REMOTE_TOPICS.len() * workers,
            entry_timeout: config.server.header_timeout,
            ping_interval: PING_INTERVAL,
            ping_timeout: PING_INTERVAL,
            stall_max: STALL_MAX,
        }
    }
}

/// Serves until `stop`; open calls may then end.
pub async fn serve(listener: TcpListener, door: FlightDoor, stop: CancellationToken) {
    let bounds = door.bounds;
    let served = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(bounds.ping_interval))
        .http2_keepalive_timeout(Some(bounds.ping_timeout))
        .max_concurrent_streams(Some(CALLS_MAX))
        .add_service(service(door))
        .serve_with_incoming_shutdown(lines(listener, bounds, stop.clone()), stop.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the Flight door ended");
    }
}

/// Connections as they come; ends with `stop`.
fn lines(
    listener: TcpListener,
    bounds: Bounds,
    stop: CancellationToken,
) -> impl Stream<Item = io::Result<Line>> + Send {
    let places = Arc::new(Semaphore::new(bounds.sessions_max + bounds.beside_max));
    let sessions = Arc::new(Semaphore::new(bounds.sessions_max));
    stream::unfold((listener, places, sessions, stop), move |(listener, places, sessions, stop)| async move {
        let (stream, place) = http::accept(&listener, &places, &stop).await?;
        let line = Line::new(stream, sessions.clone(), (place, bounds.entry_timeout));
        Some((Ok(line), (listener, places, sessions, stop)))
    })
}

/// One connection as its calls see it.
#[derive(Debug, Clone)]
pub(super) struct Peer(Arc<PeerState>);

#[derive(Debug)]
struct PeerState {
    addresses: Option<(SocketAddr, SocketAddr)>,
    sessions: Arc<Semaphore>,
    session: Mutex<Option<OwnedSemaphorePermit>>,
    is_telemetry: AtomicBool,
}

impl Peer {
    /// The connection of a call.
    pub(super) fn of<T>(request: &Request<T>) -> Result<&Peer, Status> {
        request.extensions().get::<Peer>().ok_or_else(|| Status::internal("the call has no connection"))
    }

    /// Gives the connection a place, if it has none yet.
    pub(super) fn sit(&self) -> Result<(), Status> {
        let mut session = self.0.session.lock().unwrap_or_else(PoisonError::into_inner);
        if session.is_none() {
            let place = self.0.sessions.clone().try_acquire_owned();
            let words = "too many connections (server.flight_connections_max); close one, or try again later";
            *session = Some(place.map_err(|_| refused(tonic::Code::ResourceExhausted, ("crowded", words)))?);
        }
        Ok(())
    }

    /// Whether the other side is on this machine. If so the connection may stay without a place.
    pub(super) fn is_telemetry(&self) -> bool {
        let is_here = self.0.addresses.is_some_and(|(own, peer)| peer.ip().is_loopback() || peer.ip() == own.ip());
        self.0.is_telemetry.fetch_or(is_here, Ordering::Relaxed);
        is_here
    }

    fn may_stay(&self) -> bool {
        self.0.is_telemetry.load(Ordering::Relaxed)
            || self.0.session.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// A connection, cut if nobody it may stay for has come by then.
struct Line {
    stream: TcpStream,
    peer: Peer,
    entry: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Line {
    fn new(stream: TcpStream, sessions: Arc<Semaphore>, (place, entry): (OwnedSemaphorePermit, Duration)) -> Line {
        let _ = stream.set_nodelay(true);
        let state = PeerState {
            addresses: stream.local_addr().ok().zip(stream.peer_addr().ok()),
            sessions,
            session: Mutex::default(),
            is_telemetry: AtomicBool::new(false),
        };
        Line { stream, peer: Peer(Arc::new(state)), entry: Some(Box::pin(sleep(entry))), _place: place }
    }
}

impl Connected for Line {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl Drop for Line {
    /// Calls may outlive their connection for a moment; its place does not.
    fn drop(&mut self) {
        self.peer.0.session.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(entry) = &mut self.entry
            && entry.as_mut().poll(context).is_ready()
        {
            if !self.peer.may_stay() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.entry = None;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
