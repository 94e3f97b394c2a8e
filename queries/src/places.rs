//! Places among the running queries: who has one, who waits for one, and who was left and has not stopped yet.
//!
//! Invariant: a query holds its place until nothing of it runs any more. Its operators run in tasks of their own and may outlive its main
//! task, so the place goes with the memory pool that every one of them holds ([`PlacedPool`]), not with that task. A query that nobody
//! waits for any more (past its time, or its caller has gone) is *left*; what is left and goes on is told by [`Places::left`], and who
//! runs the process may end it. A caller who asks again while what it left still stops waits for that, if its own number is reached by it.
//! Bounds: `concurrent_max` places, [`WAITING_PER_SLOT`] waiting for each of them, and a caller's own number, running and waiting together.
//! Cost: two locks a query, held for a search among at most all of these.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use datafusion::{
    error::Result,
    execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation},
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::{answers::Caller, sql_error::SqlError};

/// Queries that may wait for each one that may run.
pub const WAITING_PER_SLOT: usize = 8;

/// All places of an engine.
pub(crate) struct Places {
    concurrent_max: usize,
    free: Arc<Semaphore>,
    waiting: Semaphore,
    asked: Arc<Mutex<Asked>>,
}

/// Queries that run or wait, by number.
#[derive(Default)]
struct Asked {
    next: u64,
    queries: BTreeMap<u64, Query>,
    /// Told when a query is gone.
    gone: Arc<Notify>,
}

struct Query {
    caller: String,
    is_left: bool,
}

fn lock(asked: &Mutex<Asked>) -> MutexGuard<'_, Asked> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One query's entry; gone when this drops.
struct Entry {
    number: u64,
    asked: Arc<Mutex<Asked>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut asked = lock(&self.asked);
        asked.queries.remove(&self.number);
        asked.gone.notify_waiters();
    }
}

/// A place, given back when this drops.
pub(crate) struct Place {
    entry: Entry,
    _permit: OwnedSemaphorePermit,
}

/// Marks a query as left, unless it is over.
pub(crate) struct Leave {
    number: u64,
    asked: Arc<Mutex<Asked>>,
}

impl Place {
    pub(crate) fn leave(&self) -> Leave {
        Leave { number: self.entry.number, asked: self.entry.asked.clone() }
    }
}

impl Leave {
    pub(crate) fn now(&self) {
        if let Some(query) = lock(&self.asked).queries.get_mut(&self.number) {
            query.is_left = true;
        }
    }
}

impl Places {
    pub(crate) fn new(concurrent_max: usize) -> Places {
        let concurrent_max = concurrent_max.max(1);
        Places {
            concurrent_max,
            free: Arc::new(Semaphore::new(concurrent_max)),
            waiting: Semaphore::new(concurrent_max * WAITING_PER_SLOT),
            asked: Arc::default(),
        }
    }

    /// Queries that hold a place.
    pub(crate) fn running(&self) -> usize {
        self.concurrent_max - self.free.available_permits()
    }

    /// Numbers of the queries that were left and still run.
    pub(crate) fn left(&self) -> Vec<u64> {
        lock(&self.asked).queries.iter().filter(|(_, query)| query.is_left).map(|(number, _)| *number).collect()
    }

    /// A place, after a bounded wait in a bounded queue.
    ///
    /// Errors: [`SqlError::CallerBusy`] at once, or when what the caller left does not stop within `wait`; [`SqlError::Busy`].
    pub(crate) async fn take(&self, caller: &Caller, wait: Duration) -> Result<Place, SqlError> {
        let most = self.concurrent_max * WAITING_PER_SLOT;
        let busy = || SqlError::Busy { running: self.running(), waiting: most - self.waiting.available_permits() };
        let entry = match self.enter(caller)? {
            Some(entry) => entry,
            None => {
                let _waiting = self.waiting.try_acquire().map_err(|_| busy())?;
                let stopped = tokio::time::timeout(wait, self.enter_when_stopped(caller)).await;
                stopped.unwrap_or_else(|_| Err(caller_busy(caller)))?
            }
        };
        if let Ok(permit) = self.free.clone().try_acquire_owned() {
            return Ok(Place { entry, _permit: permit });
        }
        let _waiting = self.waiting.try_acquire().map_err(|_| busy())?;
        match tokio::time::timeout(wait, self.free.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Place { entry, _permit: permit }),
            Ok(Err(_)) | Err(_) => Err(busy()),
        }
    }

    async fn enter_when_stopped(&self, caller: &Caller) -> Result<Entry, SqlError> {
        let gone = lock(&self.asked).gone.clone();
        loop {
            let mut told = std::pin::pin!(gone.notified());
            told.as_mut().enable();
            if let Some(entry) = self.enter(caller)? {
                return Ok(entry);
            }
            told.await;
        }
    }

    /// `None`: the caller's number is reached by queries that it left and that have not stopped yet.
    fn enter(&self, caller: &Caller) -> Result<Option<Entry>, SqlError> {
        let mut asked = lock(&self.asked);
        if let Some(limit) = caller.concurrent_max {
            let own = || asked.queries.values().filter(|query| query.caller == caller.name);
            if own().filter(|query| !query.is_left).count() >= limit {
                return Err(caller_busy(caller));
            }
            if own().count() >= limit {
                return Ok(None);
            }
        }
        let number = asked.next;
        asked.next += 1;
        asked.queries.insert(number, Query { caller: caller.name.clone(), is_left: false });
        Ok(Some(Entry { number, asked: self.asked.clone() }))
    }
}

fn caller_busy(caller: &Caller) -> SqlError {
    SqlError::CallerBusy { caller: caller.name.clone(), limit: caller.concurrent_max.unwrap_or(usize::MAX) }
}

/// A query's memory, with its place: whoever may still use the one holds the other.
pub(crate) struct PlacedPool {
    memory: GreedyMemoryPool,
    _place: Arc<Place>,
}

impl PlacedPool {
    pub(crate) fn new(bytes: usize, place: Arc<Place>) -> PlacedPool {
        PlacedPool { memory: GreedyMemoryPool::new(bytes), _place: place }
    }
}

impl fmt::Debug for PlacedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

impl fmt::Display for PlacedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.memory, f)
    }
}

impl MemoryPool for PlacedPool {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.memory.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.memory.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.memory.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.memory.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.memory.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.memory.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.memory.memory_limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a caller of one at once whose query is left and has not stopped asks again, once until it has stopped and once for too
    /// short a time.
    /// Guarantees: it waits for its own and then has a place; where that does not stop it is told so; whose query runs is told at once.
    #[tokio::test]
    async fn who_left_a_query_waits_until_it_has_stopped() {
        let places = Places::new(2);
        let one = Caller { concurrent_max: Some(1), ..Caller::new("acme") };
        let first = places.take(&one, Duration::ZERO).await.expect("nothing runs");
        let busy = SqlError::CallerBusy { caller: "acme".into(), limit: 1 };
        assert_eq!(places.take(&one, Duration::from_secs(60)).await.err(), Some(busy.clone()));
        first.leave().now();
        assert_eq!(places.take(&one, Duration::from_millis(10)).await.err(), Some(busy));
        let (second, ()) = tokio::join!(places.take(&one, Duration::from_secs(60)), async { drop(first) });
        assert!(second.is_ok());
        assert_eq!(places.running(), 1);
    }
}
