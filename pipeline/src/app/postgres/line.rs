//! The bytes of a connection, watched: a message that grows too long, a client that does not read, one that has gone.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pgwire::tokio::server::MaybeTls;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};

/// How long a client may leave an answer unread.
pub(super) const STALL_MAX: Duration = Duration::from_secs(60);
/// How often a client is looked after while its query runs and it has more to say.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The message that ends a session.
const TERMINATE: u8 = b'X';

/// The connection's two directions.
pub(super) struct Line {
    io: MaybeTls,
    /// Bytes that may still come before the next message is complete.
    left: usize,
    /// Runs while the client does not take what is written.
    stall: Option<Pin<Box<Sleep>>>,
}

impl Line {
    pub(super) fn new(io: MaybeTls) -> Line {
        Line { io, left: 0, stall: None }
    }

    /// Allows the next message this many bytes.
    pub(super) fn allow(&mut self, bytes: usize) {
        self.left = bytes;
    }

    /// Ends a write that has been held up for too long.
    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(STALL_MAX)));
        ready!(stall.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long")));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        self.left = self.left.saturating_sub(buffer.filled().len() - before);
        read
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// Tells when the client has gone: a second handle of the connection that looks at what comes and takes nothing.
#[derive(Debug)]
pub(super) struct Gone(TcpStream);

impl Gone {
    /// The connection, and who watches it.
    pub(super) fn watch(stream: TcpStream) -> io::Result<(TcpStream, Gone)> {
        let stream = stream.into_std()?;
        let second = TcpStream::from_std(stream.try_clone()?)?;
        Ok((TcpStream::from_std(stream)?, Gone(second)))
    }

    /// Ends when the client has closed its side, or has said, without TLS, that it is about to.
    pub(super) async fn wait(&self) {
        let mut first = [0];
        loop {
            // Its side may be closed behind bytes that are still to be read.
            match self.0.ready(Interest::READABLE).await {
                Ok(state) if !state.is_read_closed() => {}
                Ok(_) | Err(_) => return,
            }
            match self.0.peek(&mut first).await {
                Ok(0) | Err(_) => return,
                Ok(_) if first[0] == TERMINATE => return,
                Ok(_) => sleep(LOOK_INTERVAL).await,
            }
        }
    }
}
