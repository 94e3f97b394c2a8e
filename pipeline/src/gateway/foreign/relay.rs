//! A stream on its way from a foreign worker to the client: bytes as they come, and the request's account beside them.
//!
//! Invariants: the client gets every byte of the worker's stream in order and nothing else, unless the worker fails: then
//! one event with a typed error and `[DONE]` close the stream, and an event that was cut off is closed before. The first
//! piece is a `first_token` row, then one `grew` row a second at most. Dropping it (the client left) closes the connection
//! to the worker and records `cancelled`. Nothing is buffered: a piece is read when the client's side can take one.
//! Cost: no copy but that of a burst into one piece. State: the stream's tail.

use std::{convert::Infallible, future::Future, pin::Pin, sync::Arc, task::Poll, time::Duration};

use axum::body::{Body, Bytes};
use futures::{future::poll_fn, stream::unfold};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Pool, told, told::Tail, upstream::Reply};
use crate::gateway::{error::ApiError, leases::Lease, recorder::Growth, serve::Case, slo::SloEnd};

/// At most one row of growth in this time.
const ROW_INTERVAL: Duration = Duration::from_secs(1);

/// See the file's header.
pub(super) struct Relay {
    pool: Arc<Pool>,
    case: Box<Case>,
    reply: Reply,
    first: Option<Bytes>,
    lease: Option<Arc<Lease>>,
    deadline: Pin<Box<Sleep>>,
    limit: Duration,
    tail: Tail,
    began: Instant,
    /// Last row of growth, and tokens counted since.
    row_at: Option<Instant>,
    uncounted: u32,
    has_ended: bool,
}

impl Relay {
    pub(super) fn new(
        (pool, case): (Arc<Pool>, Box<Case>),
        reply: Reply,
        first: Bytes,
        (lease, deadline): (Arc<Lease>, Instant),
    ) -> Self {
        let began = Instant::now();
        Self {
            pool,
            case,
            reply,
            first: Some(first),
            lease: Some(lease),
            deadline: Box::pin(sleep_until(deadline)),
            limit: deadline.saturating_duration_since(began),
            tail: Tail::default(),
            began,
            row_at: None,
            uncounted: 0,
            has_ended: false,
        }
    }

    pub(super) fn into_body(self) -> Body {
        // A box, since it is handed on with every piece.
        Body::from_stream(unfold(Box::new(self), |mut relay| async move {
            let bytes = relay.next().await?;
            Some((Ok::<_, Infallible>(bytes), relay))
        }))
    }

    async fn next(&mut self) -> Option<Bytes> {
        if self.has_ended {
            return None;
        }
        let piece = match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.piece().await,
        };
        match piece {
            Ok(Some(bytes)) => {
                self.saw(&bytes).await;
                Some(bytes)
            }
            Ok(None) => {
                self.finish().await;
                None
            }
            Err(error) => Some(self.fail(error).await),
        }
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, ApiError> {
        let (reply, deadline, limit) = (&mut self.reply, &mut self.deadline, self.limit);
        poll_fn(|cx| {
            if let Poll::Ready(piece) = reply.poll_piece(cx) {
                return Poll::Ready(piece.transpose().map_err(|error| ApiError::InstanceLost(error.to_string())));
            }
            deadline.as_mut().poll(cx).map(|()| Err(ApiError::TimedOut { limit }))
        })
        .await
    }

    async fn saw(&mut self, bytes: &[u8]) {
        self.uncounted += self.tail.push(bytes);
        let now = Instant::now();
        let is_due = self.row_at.is_none_or(|at| now - at >= ROW_INTERVAL);
        if is_due && self.uncounted > 0 {
            self.row_at = Some(now);
            let tokens = std::mem::take(&mut self.uncounted);
            self.case.recorder.grew(Growth { choice: 0, tokens }).await;
        }
    }

    /// Gives the lease back and closes the account.
    async fn finish(&mut self) {
        self.has_ended = true;
        self.lease = None;
        let mut sums = told::sums(self.tail.bytes());
        let tokens = sums.output_tokens.unwrap_or(self.tail.events());
        sums.output_tokens = Some(tokens);
        self.pool.fleet.saw_decode(tokens.saturating_sub(1), self.began.elapsed().as_secs_f64());
        self.case.recorder.settle(sums);
        self.case.recorder.finished(told::finish_reason(self.tail.bytes()).unwrap_or("other")).await;
        self.case.settled(&self.pool.gateway, SloEnd::Finished).await;
    }

    async fn fail(&mut self, error: ApiError) -> Bytes {
        self.has_ended = true;
        self.lease = None;
        self.case.recorder.failed(&error).await;
        self.case.settled(&self.pool.gateway, SloEnd::Failed).await;
        let gap = if self.tail.is_between_events() { "" } else { "\n\n" };
        Bytes::from(format!("{gap}data: {}\n\ndata: [DONE]\n\n", error.body()))
    }
}
