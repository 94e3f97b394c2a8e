//! An answer that waits for its client: held for so long, then thrown away.
//!
//! HTTP/2 asks for the next message only when the client has room for it, so a client that does not read would hold the answer's
//! batches for as long as it stays connected. Invariant: an answer that is not asked for during [`STALL_MAX`] is dropped with all it
//! holds, whether or not the client ever reads again; if it does, the stream ends with `DEADLINE_EXCEEDED`. What HTTP/2 has taken
//! already (a message) stays. Cost: a timer for each answer under way.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};

use super::refused;

/// How long a client may leave an answer unread.
pub(super) const STALL_MAX: Duration = Duration::from_secs(60);

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct Holding<T> {
    /// `None`: thrown away, or at its end.
    messages: Option<Messages<T>>,
    asked: Instant,
    is_stalled: bool,
}

/// A stream whose rest is dropped when nobody asks for it.
pub(super) struct Held<T> {
    holding: Arc<Mutex<Holding<T>>>,
    stall_max: Duration,
}

impl<T: Send + 'static> Held<T> {
    /// Holds `messages` while they are asked for at least each `stall_max`. Needs a runtime.
    pub(super) fn new(messages: Messages<T>, stall_max: Duration) -> Held<T> {
        let holding = Holding { messages: Some(messages), asked: Instant::now(), is_stalled: false };
        let holding = Arc::new(Mutex::new(holding));
        tokio::spawn(watch(Arc::downgrade(&holding), stall_max));
        Held { holding, stall_max }
    }
}

/// Drops what is held once it was left alone for too long; ends with the answer.
async fn watch<T>(holding: Weak<Mutex<Holding<T>>>, stall_max: Duration) {
    loop {
        let due = {
            let Some(holding) = holding.upgrade() else { return };
            let mut holding = holding.lock().unwrap_or_else(PoisonError::into_inner);
            if holding.messages.is_none() {
                return;
            }
            let due = holding.asked + stall_max;
            if due <= Instant::now() {
                holding.is_stalled = true;
                holding.messages = None;
                return;
            }
            due
        };
        sleep_until(due).await;
    }
}

impl<T: Send + 'static> Stream for Held<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut holding = self.holding.lock().unwrap_or_else(PoisonError::into_inner);
        holding.asked = Instant::now();
        if std::mem::take(&mut holding.is_stalled) {
            let words = format!("the answer was not read for {:?} and is gone; ask again", self.stall_max);
            return Poll::Ready(Some(Err(refused(Code::DeadlineExceeded, ("unread", &words)))));
        }
        let Some(messages) = &mut holding.messages else { return Poll::Ready(None) };
        let next = messages.poll_next_unpin(context);
        if matches!(next, Poll::Ready(None)) {
            holding.messages = None;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    /// Ten messages, and who knows whether they are still held.
    fn answer(stall_max: Duration) -> (Held<Arc<u32>>, Vec<Weak<u32>>) {
        let messages: Vec<Arc<u32>> = (0..10).map(Arc::new).collect();
        let known = messages.iter().map(Arc::downgrade).collect();
        (Held::new(Box::pin(stream::iter(messages.into_iter().map(Ok))), stall_max), known)
    }

    /// Scenario: a client reads an answer to its end.
    /// Guarantees: it gets all; each message asked for is a new beginning of the time it has.
    #[tokio::test]
    async fn an_answer_that_is_read_is_given_whole() {
        let (mut read, known) = answer(Duration::from_secs(3600));
        for expected in 0..10 {
            let before = Instant::now();
            assert_eq!(*read.next().await.unwrap().unwrap(), expected);
            assert!(read.holding.lock().unwrap().asked >= before);
        }
        assert!(read.next().await.is_none());
        assert!(known.iter().all(|message| message.upgrade().is_none()));
    }

    /// Scenario: a client reads two messages and then nothing.
    /// Guarantees: after a while nothing of the answer is held; when it reads again its stream ends with DEADLINE_EXCEEDED in words,
    /// once.
    #[tokio::test]
    async fn an_answer_that_is_not_read_is_dropped() {
        let (mut stalled, known) = answer(Duration::from_millis(100));
        assert!(stalled.next().await.is_some() && stalled.next().await.is_some());
        while known.iter().any(|message| message.upgrade().is_some()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let status = stalled.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(status.message().contains("not read for 100ms"), "{status}");
        assert_eq!(status.metadata().get("x-evenkeel-code").unwrap(), "unread");
        assert!(stalled.next().await.is_none());
    }
}
