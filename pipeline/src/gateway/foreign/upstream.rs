//! HTTP to one foreign worker: kept connections, and answers that are read where they are used.
//!
//! A connection belongs to one request at a time and is driven by that request's task, so an answer's bytes cross no task
//! and no channel between threads on their way to the client. What came together goes on together: the pieces of a burst
//! become one. TCP_NODELAY is set. Dropping a [`Reply`] before its end closes the connection, which tells the worker that
//! nobody listens.
//!
//! Invariants: a connection is kept only after an answer that ended well; a request on a kept connection that ended before
//! its head came is sent once more on a fresh one, since the worker may have closed it meanwhile.
//! Bounds: [`IDLE_MAX`] kept connections a worker, [`PIECE_MAX`] bytes a piece. Cost: a few microseconds a request beside the
//! system calls.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header, response::Parts},
};
use bytes::BytesMut;
use futures::future::poll_fn;
use http_body_util::Full;
use hyper::{
    body::{Body, Incoming},
    client::conn::http1::{Connection, SendRequest, handshake},
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use crate::config::ForeignWorker;

/// Connections kept for later requests.
pub const IDLE_MAX: usize = 512;
/// Most bytes of an answer handed on at once.
pub const PIECE_MAX: usize = 256 << 10;

/// The worker did not answer, or stopped in the middle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    #[error("cannot connect to {url}: {detail}")]
    Connect { url: String, detail: String },
    #[error("{url} closed the connection: {detail}")]
    Lost { url: String, detail: String },
}

/// What is sent to a worker.
#[derive(Debug, Clone)]
pub struct Ask {
    pub method: Method,
    /// As in `/v1/completions`.
    pub path: &'static str,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Ask {
    pub fn get(path: &'static str) -> Self {
        Self { method: Method::GET, path, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

/// See the file's header.
pub struct Upstream {
    /// For people, and the start of every URL.
    base: String,
    host: String,
    port: u16,
    /// Of the URL's path.
    prefix: String,
    authority: HeaderValue,
    key: Option<HeaderValue>,
    connect_timeout: Duration,
    #[expect(clippy::vec_box, reason = "requests take a line in its box")]
    idle: Mutex<Vec<Box<Line>>>,
}

/// One connection, with nothing on it. Boxed, since it goes from request to request and is large.
struct Line {
    sender: SendRequest<Full<Bytes>>,
    connection: Connection<TokioIo<TcpStream>, Full<Bytes>>,
}

impl Upstream {
    /// `None`: the configuration would have refused the URL.
    pub fn new(worker: &ForeignWorker, connect_timeout: Duration) -> Option<Self> {
        let uri: Uri = worker.base().parse().ok()?;
        let bearer = |key: &String| HeaderValue::from_str(&format!("Bearer {key}")).ok();
        Some(Self {
            base: worker.base().to_string(),
            host: uri.host()?.trim_matches(['[', ']']).to_string(),
            port: uri.port_u16().unwrap_or(80),
            prefix: uri.path().trim_end_matches('/').to_string(),
            authority: HeaderValue::from_str(uri.authority()?.as_str()).ok()?,
            key: worker.key.as_ref().and_then(bearer),
            connect_timeout,
            idle: Mutex::default(),
        })
    }

    pub fn url(&self) -> &str {
        &self.base
    }

    /// Sends a request and waits for the head of its answer.
    pub async fn call(self: &Arc<Self>, ask: &Ask) -> Result<Reply, UpstreamError> {
        if let Some(kept) = self.kept().await
            && let Ok(reply) = self.send(kept, ask).await
        {
            return Ok(reply);
        }
        let fresh = self.connect().await?;
        self.send(fresh, ask).await
    }

    /// A kept connection that is still there.
    async fn kept(&self) -> Option<Box<Line>> {
        loop {
            let mut line = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            let is_good = poll_fn(|cx| {
                if line.drive(cx).is_ready() {
                    return Poll::Ready(false);
                }
                // What is not ready now had something left over.
                Poll::Ready(matches!(line.sender.poll_ready(cx), Poll::Ready(Ok(()))))
            })
            .await;
            if is_good {
                return Some(line);
            }
        }
    }

    async fn connect(&self) -> Result<Box<Line>, UpstreamError> {
        let failed = |detail: String| UpstreamError::Connect { url: self.base.clone(), detail };
        let connecting = timeout(self.connect_timeout, TcpStream::connect((self.host.as_str(), self.port)));
        let stream = match connecting.await {
            Ok(connected) => connected.map_err(|error| failed(error.to_string()))?,
            Err(_) => return Err(failed(format!("no answer in {:?}", self.connect_timeout))),
        };
        stream.set_nodelay(true).map_err(|error| failed(error.to_string()))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| failed(error.to_string()))?;
        Ok(Box::new(Line { sender, connection }))
    }

    async fn send(self: &Arc<Self>, mut line: Box<Line>, ask: &Ask) -> Result<Reply, UpstreamError> {
        let request = self.request(ask)?;
        let Line { sender, connection } = &mut *line;
        let mut sent = pin!(sender.send_request(request));
        let mut is_open = true;
        let answer = poll_fn(|cx| {
            for _ in 0..2 {
                if let Poll::Ready(answer) = sent.as_mut().poll(cx) {
                    return Poll::Ready(answer.map_err(|error| self.lost(&error)));
                }
                if is_open {
                    is_open = Pin::new(&mut *connection).poll(cx).is_pending();
                }
            }
            match is_open {
                true => Poll::Pending,
                false => Poll::Ready(Err(self.lost(&"before the head of an answer"))),
            }
        })
        .await?;
        let (head, body) = answer.into_parts();
        let line = is_open.then_some(line);
        Ok(Reply { head, body, line, upstream: self.clone(), state: BodyState::Open })
    }

    fn request(&self, ask: &Ask) -> Result<Request<Full<Bytes>>, UpstreamError> {
        let mut request = Request::new(Full::new(ask.body.clone()));
        *request.method_mut() = ask.method.clone();
        *request.uri_mut() = match self.prefix.as_str() {
            "" => Uri::from_static(ask.path),
            prefix => format!("{prefix}{}", ask.path).parse().map_err(|error| self.lost(&error))?,
        };
        *request.headers_mut() = ask.headers.clone();
        request.headers_mut().insert(header::HOST, self.authority.clone());
        if let Some(key) = &self.key {
            request.headers_mut().insert(header::AUTHORIZATION, key.clone());
        }
        Ok(request)
    }

    fn lost(&self, error: &dyn std::fmt::Display) -> UpstreamError {
        UpstreamError::Lost { url: self.base.clone(), detail: error.to_string() }
    }

    fn keep(&self, line: Box<Line>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(line);
        }
    }
}

impl Line {
    fn drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.connection).poll(cx).map(drop)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum BodyState {
    Open,
    Ended,
    Failed(UpstreamError),
}

/// An answer whose head has come.
pub struct Reply {
    pub head: Parts,
    body: Incoming,
    /// `None`: the worker closed it after the answer.
    line: Option<Box<Line>>,
    upstream: Arc<Upstream>,
    state: BodyState,
}

impl Reply {
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// What has come of the body since, in one piece; `None` at its end.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, UpstreamError>>> {
        let mut pieces = Pieces::default();
        let mut was_driven = false;
        while self.state == BodyState::Open && pieces.len() < PIECE_MAX {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        pieces.push(data);
                    }
                    was_driven = false;
                }
                Poll::Ready(Some(Err(error))) => self.state = BodyState::Failed(self.upstream.lost(&error)),
                Poll::Ready(None) => self.state = BodyState::Ended,
                Poll::Pending if was_driven && self.line.is_some() => break,
                Poll::Pending => {
                    was_driven = true;
                    match self.line.as_mut().map(|line| line.drive(cx)) {
                        Some(Poll::Pending) => {}
                        Some(Poll::Ready(())) => self.line = None,
                        None => {
                            self.state = BodyState::Failed(self.upstream.lost(&"in the middle of an answer"));
                        }
                    }
                }
            }
        }
        match (pieces.join(), &self.state) {
            (Some(bytes), _) => Poll::Ready(Some(Ok(bytes))),
            (None, BodyState::Open) => Poll::Pending,
            (None, BodyState::Ended) => Poll::Ready(None),
            (None, BodyState::Failed(error)) => Poll::Ready(Some(Err(error.clone()))),
        }
    }

    /// The whole body, if it is not larger than `most` bytes; larger ones are an error.
    pub async fn whole(&mut self, most: usize) -> Result<Bytes, UpstreamError> {
        let mut pieces = Pieces::default();
        while let Some(piece) = poll_fn(|cx| self.poll_piece(cx)).await {
            pieces.push(piece?);
            if pieces.len() > most {
                return Err(self.upstream.lost(&format!("its answer is larger than {most} bytes")));
            }
        }
        Ok(pieces.join().unwrap_or_default())
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let (BodyState::Ended, Some(line)) = (&self.state, self.line.take())
            && !line.sender.is_closed()
        {
            self.upstream.keep(line);
        }
    }
}

/// Pieces that become one; the first alone is not copied.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    all: BytesMut,
}

impl Pieces {
    fn len(&self) -> usize {
        self.first.len().max(self.all.len())
    }

    fn push(&mut self, piece: Bytes) {
        if self.first.is_empty() {
            self.first = piece;
            return;
        }
        if self.all.is_empty() {
            self.all.reserve((self.first.len() + piece.len()).max(4096));
            self.all.extend_from_slice(&self.first);
        }
        self.all.extend_from_slice(&piece);
    }

    fn join(self) -> Option<Bytes> {
        let bytes = if self.all.is_empty() { self.first } else { self.all.freeze() };
        (!bytes.is_empty()).then_some(bytes)
    }
}
