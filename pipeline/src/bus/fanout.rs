//! Hands batches to lossless subscribers and lossy watchers (DESIGN §3).
//!
//! Invariant: a subscriber gets every batch of its topics from its subscription on, in order. Bounds: `capacity` batches a
//! subscriber (the bus waits for it), `capacity` for all watchers together (who is further behind skips and counts).
//! Cost: a batch is a few pointers; O(subscribers) sends a batch.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arrow::array::RecordBatch;
use queries::Topic;
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use super::{Shared, counters::Count};

/// How long a stopping bus waits for a subscriber that is full.
pub const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// A batch as it left the bus.
#[derive(Debug, Clone)]
pub struct Published {
    pub topic: Topic,
    /// Number of the batch's first row in the topic.
    pub first_row: u64,
    pub batch: RecordBatch,
}

#[derive(Debug, Clone)]
struct Subscriber {
    topics: [bool; Topic::ALL.len()],
    sender: mpsc::Sender<Published>,
}

/// Everyone who listens.
#[derive(Debug)]
pub(crate) struct Fanout {
    listeners: Mutex<Listeners>,
    capacity: usize,
}

#[derive(Debug)]
struct Listeners {
    subscribers: Vec<Subscriber>,
    /// `None` when the bus has stopped: who comes later finds the end at once.
    watchers: Option<broadcast::Sender<Published>>,
}

impl Fanout {
    pub(super) fn new(capacity: usize) -> Fanout {
        let capacity = capacity.max(1);
        let listeners = Listeners { subscribers: Vec::new(), watchers: Some(broadcast::channel(capacity).0) };
        Fanout { listeners: Mutex::new(listeners), capacity }
    }

    pub(super) fn subscribe(&self, topics: &[Topic]) -> Subscription {
        let (sender, batches) = mpsc::channel(self.capacity);
        let mut wanted = [false; Topic::ALL.len()];
        for topic in topics {
            wanted[topic.index()] = true;
        }
        let mut listeners = self.lock();
        if listeners.watchers.is_some() {
            listeners.subscribers.push(Subscriber { topics: wanted, sender });
        }
        Subscription { batches }
    }

    pub(super) fn watch(&self, shared: Arc<Shared>) -> Watcher {
        let batches = match &self.lock().watchers {
            Some(watchers) => watchers.subscribe(),
            None => broadcast::channel(1).1,
        };
        Watcher { batches, lagged: 0, shared }
    }

    /// Batches waiting at the subscriber that is furthest behind.
    pub(super) fn deepest(&self) -> usize {
        let listeners = self.lock();
        let depths = listeners.subscribers.iter().map(|s| s.sender.max_capacity() - s.sender.capacity()).max();
        depths.unwrap_or(0)
    }

    /// Hands a batch to everyone. Waits for subscribers that are full; once `stop` is cancelled, [`STOP_PATIENCE`] at most
    /// for each, and one that takes longer loses its subscription. Each wait is counted when it begins.
    pub(super) async fn send(&self, published: Published, waits: &Count, stop: &CancellationToken) {
        let listening: Vec<_> = {
            let listeners = self.lock();
            if let Some(watchers) = &listeners.watchers {
                // Having no receiver is no error.
                let _ = watchers.send(published.clone());
            }
            let wanted = listeners.subscribers.iter().filter(|s| s.topics[published.topic.index()]);
            wanted.map(|s| s.sender.clone()).collect()
        };
        for sender in listening {
            let full = match sender.try_send(published.clone()) {
                Ok(()) => continue,
                Err(mpsc::error::TrySendError::Full(batch)) => batch,
                Err(mpsc::error::TrySendError::Closed(_)) => {
                    self.forget(&sender);
                    continue;
                }
            };
            waits.add(1);
            let sent = tokio::select! {
                sent = sender.send(full) => sent.is_ok(),
                () = out_of_patience(stop) => false,
            };
            if !sent {
                self.forget(&sender);
            }
        }
    }

    /// Ends every subscription and watch: what was sent can still be received, then comes the end.
    pub(super) fn close(&self) {
        let mut listeners = self.lock();
        listeners.subscribers.clear();
        listeners.watchers = None;
    }

    fn forget(&self, gone: &mpsc::Sender<Published>) {
        self.lock().subscribers.retain(|subscriber| !subscriber.sender.same_channel(gone));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn out_of_patience(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(STOP_PATIENCE).await;
}

/// Every batch of some topics, in order.
#[derive(Debug)]
pub struct Subscription {
    batches: mpsc::Receiver<Published>,
}

impl Subscription {
    /// The next batch; `None` when the bus has stopped and everything was received.
    pub async fn recv(&mut self) -> Option<Published> {
        self.batches.recv().await
    }

    /// The same on a plain thread.
    pub fn blocking_recv(&mut self) -> Option<Published> {
        self.batches.blocking_recv()
    }

    /// The next batch if there is one now. Errors: none yet, or the bus has stopped.
    pub fn try_recv(&mut self) -> Result<Published, mpsc::error::TryRecvError> {
        self.batches.try_recv()
    }

    /// Batches waiting.
    pub fn depth(&self) -> usize {
        self.batches.len()
    }
}

/// The newest batches of all topics.
#[derive(Debug)]
pub struct Watcher {
    batches: broadcast::Receiver<Published>,
    lagged: u64,
    shared: Arc<Shared>,
}

impl Watcher {
    /// The next batch, after what was skipped if the watcher fell behind; `None` when the bus has ended.
    pub async fn recv(&mut self) -> Option<Published> {
        loop {
            match self.batches.recv().await {
                Ok(published) => return Some(published),
                Err(broadcast::error::RecvError::Lagged(skipped)) => {
                    self.lagged += skipped;
                    self.shared.counters.watcher_lag.add(skipped);
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// Batches this watcher skipped so far.
    pub fn lagged(&self) -> u64 {
        self.lagged
    }
}
