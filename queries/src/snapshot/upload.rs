//! Bytes on their way into a store: in one piece if they are few, in parts while they grow if they are many (SPEC E3).
//!
//! Invariants: nothing is visible under the name until [`Upload::finish`] has answered; an upload that fails or is aborted leaves no
//! parts in the store, as far as the store still answers. Memory: [`PARTS_AT_ONCE`] + 1 parts of [`PART_BYTES`]. A file has at most
//! 10 000 parts where the store says so: 80 GB.

use bytes::BytesMut;
use object_store::{MultipartUpload, ObjectStoreExt, Result};
use tokio::task::JoinSet;

use super::{Place, SnapshotError};

/// Bytes sent at once.
pub(super) const PART_BYTES: usize = 8 << 20;
/// Parts on their way at once.
const PARTS_AT_ONCE: usize = 2;

/// A file on its way.
pub(super) struct Upload {
    place: Place,
    name: String,
    held: BytesMut,
    parts: Option<Parts>,
}

/// An upload that the store knows of.
struct Parts {
    upload: Box<dyn MultipartUpload>,
    running: JoinSet<Result<()>>,
}

impl Parts {
    /// Waits until fewer than `most` parts are on their way.
    async fn wait_below(&mut self, most: usize) -> Result<()> {
        while self.running.len() >= most.max(1) {
            if let Some(sent) = self.running.join_next().await {
                sent.map_err(object_store::Error::from)??;
            }
        }
        Ok(())
    }

    async fn send(&mut self, bytes: BytesMut) -> Result<()> {
        self.wait_below(PARTS_AT_ONCE).await?;
        self.running.spawn(self.upload.put_part(bytes.freeze().into()));
        Ok(())
    }

    async fn complete(&mut self, last: BytesMut) -> Result<()> {
        if !last.is_empty() {
            self.send(last).await?;
        }
        self.wait_below(1).await?;
        self.upload.complete().await.map(|_| ())
    }
}

impl Upload {
    pub(super) fn new(place: &Place, name: &str) -> Upload {
        Upload { place: place.clone(), name: name.to_string(), held: BytesMut::new(), parts: None }
    }

    /// Takes bytes; waits while enough is on its way. After an error the upload is to be aborted.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.held.extend_from_slice(bytes);
        while self.held.len() >= PART_BYTES {
            let part = self.held.split_to(PART_BYTES);
            self.send(part).await.map_err(self.place.failed(&self.name))?;
        }
        Ok(())
    }

    async fn send(&mut self, part: BytesMut) -> Result<()> {
        if self.parts.is_none() {
            let upload = self.place.store().put_multipart(&self.place.path(&self.name)).await?;
            self.parts = Some(Parts { upload, running: JoinSet::new() });
        }
        self.parts.as_mut().expect("invariant: it was just begun").send(part).await
    }

    /// Makes the file whole and there. After an error nothing of it is left.
    pub(super) async fn finish(mut self) -> Result<(), SnapshotError> {
        let last = std::mem::take(&mut self.held);
        let done = match &mut self.parts {
            Some(parts) => parts.complete(last).await,
            None => self.place.store().put(&self.place.path(&self.name), last.freeze().into()).await.map(|_| ()),
        };
        let done = done.map_err(self.place.failed(&self.name));
        if done.is_err() {
            self.abort().await;
        }
        done
    }

    /// Gives the upload up; what the store has of it goes.
    pub(super) async fn abort(self) {
        if let Some(mut parts) = self.parts {
            parts.running.shutdown().await;
            // A store that has gone keeps what it has; see docs/snapshots.md.
            let _ = parts.upload.abort().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use futures::FutureExt;
    use object_store::{Error, PutPayload, PutResult, UploadPart, memory::InMemory};

    use super::*;

    /// A store's upload that fails at one part or, after so many, at its end.
    #[derive(Debug)]
    struct Fails {
        at: usize,
        parts: usize,
        aborted: Arc<AtomicUsize>,
    }

    fn failure() -> Error {
        Error::Generic { store: "Fails", source: "the part is lost".into() }
    }

    #[async_trait::async_trait]
    impl MultipartUpload for Fails {
        fn put_part(&mut self, _: PutPayload) -> UploadPart {
            self.parts += 1;
            let sent = if self.parts == self.at { Err(failure()) } else { Ok(()) };
            async move { sent }.boxed()
        }

        async fn complete(&mut self) -> Result<PutResult> {
            Err(failure())
        }

        async fn abort(&mut self) -> Result<()> {
            self.aborted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }

    fn bytes(many: usize) -> Vec<u8> {
        (0..many).map(|at| (at % 251) as u8).collect()
    }

    /// Scenario: a file of five parts whose first part fails, whose last one fails, whose completion fails; given up by who writes
    /// it where writing fails.
    /// Guarantees: an error, and the store is told once to throw away what it has.
    #[tokio::test]
    async fn a_failed_upload_leaves_no_parts() {
        for at in [1, 5, 6] {
            let aborted = Arc::new(AtomicUsize::new(0));
            let upload = Box::new(Fails { at, parts: 0, aborted: aborted.clone() });
            let place = Place::of(Arc::new(InMemory::new()), "fleet", "memory:///fleet");
            let parts = Some(Parts { upload, running: JoinSet::new() });
            let mut own = Upload { parts, ..Upload::new(&place, "big") };
            let error = match own.write(&bytes(4 * PART_BYTES + 1)).await {
                Ok(()) => own.finish().await.unwrap_err(),
                Err(error) => {
                    own.abort().await;
                    error
                }
            };
            assert!(error.to_string().contains("the part is lost"), "{error}");
            assert_eq!(aborted.load(Ordering::SeqCst), 1, "failing at {at}");
        }
    }

    /// Scenario: a file of some bytes, one of just a part, one of three parts and some bytes; each read again.
    /// Guarantees: the same bytes come back, in pieces of at most [`super::super::place::PIECE_BYTES`]; only from a whole part on does
    /// the store hear of the file before it is whole.
    #[tokio::test]
    async fn files_of_any_size_come_back_in_pieces() {
        use futures::TryStreamExt;
        let place = Place::of(Arc::new(InMemory::new()), "fleet", "memory:///fleet");
        for (many, pieces) in
            [(5, vec![5]), (PART_BYTES, vec![PART_BYTES]), (2 * PART_BYTES + 7, vec![PART_BYTES, PART_BYTES, 7])]
        {
            let written = bytes(many);
            let mut upload = Upload::new(&place, "file");
            for chunk in written.chunks(1 << 20) {
                upload.write(chunk).await.unwrap();
            }
            assert_eq!(upload.parts.is_some(), many >= PART_BYTES);
            upload.finish().await.unwrap();
            let (size, read) = place.read("file").await.unwrap();
            let read: Vec<_> = read.try_collect().await.unwrap();
            assert_eq!(size, many as u64);
            assert_eq!(read.iter().map(|piece| piece.len()).collect::<Vec<_>>(), pieces);
            assert!(read.concat() == written);
        }
    }
}
