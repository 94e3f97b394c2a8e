//! Frames of a child as they come, and the notice that it has fallen silent.
//!
//! Invariant: a frame is given whole, once, in order; [`Frames::next`] may be dropped at any time and nothing is lost. Any byte is
//! a sign of life, also one of a frame that is not whole yet. Bound: one frame, of at most `wire::FRAME_BYTES_MAX`.

use std::{io, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use super::{
    beat::{Silence, between},
    wire::{Done, decode, length},
};

/// Room for what is read at once, more for a frame that is longer.
const READ_BYTES: usize = 1 << 16;
const READ_BYTES_MAX: usize = 1 << 22;

/// See the module.
pub(super) struct Frames<R> {
    /// Whose they are.
    process: usize,
    output: R,
    bytes: BytesMut,
    looks: Interval,
    silence: Silence,
    limit: Duration,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// Must be called on a tokio runtime. `limit`: the longest silence.
    pub(super) fn new(process: usize, output: R, limit: Duration) -> Self {
        let looks = looks(limit);
        Self { process, output, bytes: BytesMut::new(), looks, silence: Silence::default(), limit }
    }

    /// The next frame, or `None` at the end.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after a silence; another one for what is no frame.
    pub(super) async fn next(&mut self) -> io::Result<Option<Done>> {
        loop {
            if let Some(done) = self.whole()? {
                return Ok(Some(done));
            }
            tokio::select! {
                biased;
                read = self.output.read_buf(&mut self.bytes) => match read? {
                    0 => return Ok(None),
                    _ => self.silence.heard(),
                },
                _ = self.looks.tick() => if self.silence.look() {
                    return Err(silent(self.process, self.limit));
                },
            }
        }
    }

    /// Takes a frame that is whole; makes room for the rest of one that is not.
    fn whole(&mut self) -> io::Result<Option<Done>> {
        let missing = match self.bytes.first_chunk() {
            Some(head) => (4 + length(*head)?).saturating_sub(self.bytes.len()),
            None => 4,
        };
        if missing > 0 {
            self.bytes.reserve(missing.clamp(READ_BYTES, READ_BYTES_MAX));
            return Ok(None);
        }
        let head = self.bytes.split_to(4);
        let head = *head.first_chunk().expect("invariant: four bytes were split off");
        decode(&self.bytes.split_to(length(head)?)).map(Some)
    }
}

/// Ticks for looks; a listener that was held up looks once, not once for each look it missed.
pub(super) fn looks(limit: Duration) -> Interval {
    let period = between(limit).max(Duration::from_millis(1));
    let mut looks = interval_at(Instant::now() + period, period);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

/// The error that a silence is.
pub(super) fn silent(process: usize, limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("process {process} was not heard for {limit:?}"))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::{super::wire::encode, *};

    /// Scenario: three frames in pieces of one byte, each read dropped again and again before it is whole; a length that is a lie.
    /// Guarantees: the frames come whole and in order; then the end; the lie is an error.
    #[tokio::test]
    async fn frames_come_whole() {
        let (mut ours, theirs) = tokio::io::duplex(1);
        let mut frames = Frames::new(0, theirs, Duration::from_secs(600));
        let told = [Done::Connected, Done::Beat, Done::Silent { process: 7 }];
        let bytes: Vec<u8> = told.iter().flat_map(|done| encode(done).unwrap()).collect();
        let writer = tokio::spawn(async move {
            for byte in bytes {
                ours.write_all(&[byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            ours.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        });
        let mut got = Vec::new();
        let error = loop {
            tokio::select! {
                biased;
                done = frames.next() => match done {
                    Ok(done) => got.push(done.unwrap()),
                    Err(error) => break error,
                },
                () = tokio::task::yield_now() => {}
            }
        };
        assert_eq!(got, told);
        assert!(error.to_string().contains("too long"), "{error}");
        writer.await.unwrap();
    }

    /// Scenario: a listener that is held up for several silences, with a beat waiting for it, and with one that comes just then;
    /// then a child that says no more.
    /// Guarantees: what the listener missed by itself is not held against the child; its own silence is.
    #[tokio::test]
    async fn only_a_silence_of_the_child_counts() {
        let limit = Duration::from_millis(200);
        let (mut ours, theirs) = tokio::io::duplex(1 << 10);
        let mut frames = Frames::new(3, theirs, limit);
        let beat = encode(&Done::Beat).unwrap();
        ours.write_all(&beat).await.unwrap();
        std::thread::sleep(3 * limit);
        assert_eq!(frames.next().await.unwrap(), Some(Done::Beat));
        std::thread::sleep(3 * limit);
        let late = tokio::spawn(async move {
            ours.write_all(&beat).await.unwrap();
            ours
        });
        assert_eq!(frames.next().await.unwrap(), Some(Done::Beat));
        let _open = late.await.unwrap();
        let error = frames.next().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (io::ErrorKind::TimedOut, "process 3 was not heard for 200ms".into())
        );
    }
}
