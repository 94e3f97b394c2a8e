//! Rows on their way into the bus: publishers put them into columns, the bus's thread takes these as batches (DESIGN §3).
//!
//! Invariants: rows of a topic keep the order in which they were put; a batch has exactly its topic's schema, metadata included; what is put
//! before the intake is closed is taken, and afterwards nothing is. Who takes is woken by the first row since it took everything, and
//! at once (`is_urgent`) when a topic has `flush_rows` rows or a publisher found no room.
//! Bound: room for `queue_rows` rows of all topics not yet taken (publishers wait, in order, or are told). A row takes that of one for each
//! full [`ROOM_BYTES`], so `queue_rows` of them have twice as many KiB at most, and no column outgrows what Arrow can hold; one that is larger
//! than all room goes alone. Cost: a row is put under its topic's lock, in the time of [`Cell::put`]; nothing is allocated for it, and
//! nothing goes from one thread to another but finished columns.

use std::{
    any::Any,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use arrow::{array::RecordBatch, error::ArrowError};
use queries::Topic;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, TryAcquireError};

use super::PublishError;
use crate::{
    config::QUEUE_ROWS_MAX,
    rows::{
        Row,
        columns::{Cell, Column, Record},
    },
};

/// A larger row takes the room of several.
const ROOM_BYTES: usize = 1024;
const _: () = assert!(QUEUE_ROWS_MAX * 2 * ROOM_BYTES < 1 << 31, "a column of text holds less");

/// Rows could not be put into columns or taken out of them.
#[derive(Debug, thiserror::Error)]
#[error("rows of topic {topic} do not fit its columns: {detail}")]
pub struct RowsError {
    pub topic: &'static str,
    pub detail: String,
}

impl RowsError {
    pub(crate) fn new(topic: Topic, detail: impl ToString) -> RowsError {
        RowsError { topic: topic.name(), detail: detail.to_string() }
    }
}

/// Columns of some topic.
trait Columns: Send {
    fn as_any(&mut self) -> &mut dyn Any;
    fn take(&mut self, topic: Topic) -> Result<RecordBatch, ArrowError>;
}

impl<C: Record> Columns for C {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn take(&mut self, topic: Topic) -> Result<RecordBatch, ArrowError> {
        self.take_batch(topic.schema())
    }
}

/// Rows of one topic.
#[derive(Default)]
struct Collected {
    /// Of the topic's row type, once there was a row.
    columns: Option<Box<dyn Columns>>,
    rows: usize,
    /// The room that they take; the bus's own are put without.
    room: usize,
    is_closed: bool,
    /// Empty columns, for when those above are taken.
    spare: Option<Box<dyn Columns>>,
}

/// The rows of all topics that are not yet taken.
pub(super) struct Intake {
    topics: [Mutex<Collected>; Topic::ALL.len()],
    room: Semaphore,
    room_rows: usize,
    flush_rows: usize,
    wake: Notify,
    has_rows: AtomicBool,
    is_urgent: AtomicBool,
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intake").field("room_taken", &self.room_taken()).finish_non_exhaustive()
    }
}

impl Intake {
    pub(super) fn new(flush_rows: usize, queue_rows: usize) -> Intake {
        let room_rows = queue_rows.clamp(1, QUEUE_ROWS_MAX);
        Intake {
            topics: Topic::ALL.map(|_| Mutex::default()),
            room: Semaphore::new(room_rows),
            room_rows,
            flush_rows: flush_rows.max(1),
            wake: Notify::new(),
            has_rows: AtomicBool::new(false),
            is_urgent: AtomicBool::new(false),
        }
    }

    /// Room taken, in rows of [`ROOM_BYTES`].
    pub(super) fn room_taken(&self) -> usize {
        self.room_rows - self.room.available_permits().min(self.room_rows)
    }

    /// Puts a row; waits while there is no room. Errors: `Closed`.
    pub(super) async fn put<R: Row>(&self, row: &R) -> Result<(), PublishError> {
        let wanted = self.room_of(row);
        if self.room.available_permits() < wanted as usize {
            self.hurry();
        }
        let room = self.room.acquire_many(wanted).await.map_err(|_| PublishError::Closed)?;
        self.fill(room, row)
    }

    /// Puts a row without waiting. Errors: `Full`, `Closed`.
    pub(super) fn try_put<R: Row>(&self, row: &R) -> Result<(), PublishError> {
        match self.room.try_acquire_many(self.room_of(row)) {
            Ok(room) => self.fill(room, row),
            Err(TryAcquireError::NoPermits) => {
                self.hurry();
                Err(PublishError::Full)
            }
            Err(TryAcquireError::Closed) => Err(PublishError::Closed),
        }
    }

    /// Puts a row where there is room for it; the room is free again at once if it is refused, else when the row is taken.
    fn fill<R: Row>(&self, room: SemaphorePermit<'_>, row: &R) -> Result<(), PublishError> {
        self.add(row, room.num_permits())?;
        room.forget();
        Ok(())
    }

    fn room_of<R: Row>(&self, row: &R) -> u32 {
        (row.bytes() / ROOM_BYTES).clamp(1, self.room_rows) as u32
    }

    /// Puts a row of the bus's own: whether there is room or not, and when it is closed.
    pub(super) fn put_own<R: Row>(&self, row: &R) {
        self.add(row, 0).expect("invariant: own rows are put at any time");
    }

    fn add<R: Row>(&self, row: &R, room: usize) -> Result<(), PublishError> {
        let rows = {
            let mut topic = self.topic(R::TOPIC);
            if topic.is_closed && room > 0 {
                return Err(PublishError::Closed);
            }
            let columns = topic.columns.get_or_insert_with(|| Box::new(<R as Cell>::Column::with_room(0)));
            let columns = columns.as_any().downcast_mut().expect("invariant: a topic has one type of rows");
            row.put(columns);
            topic.rows += 1;
            topic.room += room;
            topic.rows
        };
        if rows == self.flush_rows {
            self.hurry();
        } else if !self.has_rows.load(Ordering::Acquire) && !self.has_rows.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
        Ok(())
    }

    fn hurry(&self) {
        self.is_urgent.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Returns when there are rows that nobody was woken for, and whether they should be taken at once.
    pub(super) async fn wait(&self) -> bool {
        self.wake.notified().await;
        self.is_urgent.swap(false, Ordering::AcqRel)
    }

    /// To be called before every topic's rows are taken: later rows wake again.
    pub(super) fn begin(&self) {
        self.has_rows.store(false, Ordering::Release);
    }

    /// The rows of a topic and how many they are, if there are any. Their room is free again.
    pub(super) fn take(&self, topic: Topic) -> Option<(usize, Result<RecordBatch, RowsError>)> {
        let (mut columns, rows) = {
            let mut collected = self.topic(topic);
            let spare = collected.spare.take();
            let (rows, room) = (std::mem::take(&mut collected.rows), std::mem::take(&mut collected.room));
            if rows == 0 {
                collected.spare = spare;
                return None;
            }
            self.room.add_permits(room);
            (std::mem::replace(&mut collected.columns, spare)?, rows)
        };
        let batch = columns.take(topic).map_err(|error| RowsError::new(topic, error));
        if batch.is_ok() {
            self.topic(topic).spare = Some(columns);
        }
        Some((rows, batch))
    }

    /// From now on publishers are told `Closed`.
    pub(super) fn close(&self) {
        Topic::ALL.iter().for_each(|topic| self.topic(*topic).is_closed = true);
        self.room.close();
    }

    fn topic(&self, topic: Topic) -> MutexGuard<'_, Collected> {
        self.topics[topic.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rows of a batch as structs, in order. Errors: the batch is not of `R`'s topic.
pub fn rows_of<R: Row>(batch: &RecordBatch) -> Result<Vec<R>, RowsError> {
    serde_arrow::from_record_batch(batch).map_err(|error| RowsError::new(R::TOPIC, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bus::tests::row, rows::InstanceRow};

    /// Scenario: an intake closes while publishers have room but have not put their rows; that moment is held still here.
    /// Guarantees: they are told `Closed`, and their room is free again.
    #[test]
    fn a_refused_row_gives_its_room_back() {
        let intake = Intake::new(8, 4);
        intake.try_put(&row(0)).unwrap();
        intake.topic(Topic::Instances).is_closed = true;
        for number in 1..10 {
            assert!(matches!(intake.try_put(&row(number)), Err(PublishError::Closed)));
            let put = futures::executor::block_on(intake.put(&row(number)));
            assert!(matches!(put, Err(PublishError::Closed)));
        }
        assert_eq!(intake.room_taken(), 1);
        assert_eq!(intake.take(Topic::Instances).unwrap().0, 1);
        assert_eq!(intake.room_taken(), 0);
    }

    /// Scenario: room for 32 rows of a KiB; rows of ten, one of a hundred.
    /// Guarantees: three rows of ten fit, and small ones beside them; one that is larger than all room is put when nothing else is there,
    /// and nothing beside it; what is taken frees as much.
    #[test]
    fn a_large_row_takes_the_room_of_several() {
        let intake = Intake::new(64, 32);
        let large = |kib: usize| InstanceRow { detail: Some("x".repeat(kib << 10)), ..row(0) };
        let put = |row: InstanceRow| intake.try_put(&row).is_ok();
        let took = [large(10), large(10), large(10), large(10), row(1), row(2), row(3)].map(put);
        assert_eq!(took, [true, true, true, false, true, true, false]);
        assert!(!put(large(100)));
        assert_eq!((intake.room_taken(), intake.take(Topic::Instances).unwrap().0, intake.room_taken()), (32, 5, 0));
        assert_eq!([large(100), row(1)].map(put), [true, false]);
        assert_eq!((intake.room_taken(), intake.take(Topic::Instances).unwrap().0, intake.room_taken()), (32, 1, 0));
    }
}
