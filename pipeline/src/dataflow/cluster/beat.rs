//! Signs of life: a process that runs says so ten times in each *silence*, and who hears nothing for a whole silence gives it up.
//!
//! A beat comes from a thread that does nothing else, so a dataflow that is busy, however long, is not taken for one that
//! hangs; a stopped process, a frozen machine and a cut cable are. A silence is counted in looks of the listener, not by its
//! clock: a listener that was itself stopped or starved counts the one look it missed, and finds the beats that came
//! meanwhile. What beats but gives no answers is another fault, found by `pipes::STALL`.
//!
//! Invariant: only [`LOOKS`] looks in a row without a byte end a wait. Cost: ten frames of five bytes a silence and process,
//! two threads a process. State: one number for each peer.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    process,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use super::wire::{Done, write_frame};

/// Looks in a silence, and beats.
pub(super) const LOOKS: u32 = 10;
/// Exit code of a process that gave up a peer.
const EXIT_SILENT_PEER: i32 = 76;

/// What a process writes to: whole frames, one at a time.
pub(super) type Output = Arc<Mutex<io::BufWriter<io::Stdout>>>;

/// Time between two beats, and between two looks.
pub(super) fn between(silence: Duration) -> Duration {
    silence / LOOKS
}

/// How many looks in a row found nothing.
#[derive(Debug, Default)]
pub(super) struct Silence(u32);

impl Silence {
    pub(super) fn heard(&mut self) {
        self.0 = 0;
    }

    /// One look that found nothing; true if that was one too many.
    pub(super) fn look(&mut self) -> bool {
        self.0 += 1;
        self.0 >= LOOKS
    }
}

/// Beats to whoever started this process, from now on. While a frame is being written that is sign enough.
pub(super) fn beat(output: Output, silence: Duration, at_end: fn() -> !) -> io::Result<()> {
    thread::Builder::new().name("beats".into()).spawn(move || {
        loop {
            thread::sleep(between(silence));
            let Ok(mut output) = output.try_lock() else { continue };
            if write_frame(&mut *output, &Done::Beat).is_err() {
                at_end();
            }
        }
    })?;
    Ok(())
}

/// Beats to peers and listens to theirs; ends the process, after a last word, when one of them falls silent or ends.
pub(super) fn watch_peers(peers: Vec<(usize, TcpStream)>, silence: Duration, output: Output) -> io::Result<()> {
    let mut peers: Vec<Peer> =
        peers.into_iter().map(|(process, socket)| Peer::new(process, socket)).collect::<io::Result<_>>()?;
    thread::Builder::new().name("peers".into()).spawn(move || {
        loop {
            thread::sleep(between(silence));
            if let Some(process) = peers.iter_mut().find_map(|peer| peer.is_lost().then_some(peer.process)) {
                eprintln!("evenkeel: dataflow process ends: process {process} was not heard for {silence:?}");
                if let Ok(mut output) = output.try_lock() {
                    let _ = write_frame(&mut *output, &Done::Silent { process });
                }
                process::exit(EXIT_SILENT_PEER);
            }
        }
    })?;
    Ok(())
}

struct Peer {
    process: usize,
    socket: TcpStream,
    silence: Silence,
}

impl Peer {
    fn new(process: usize, socket: TcpStream) -> io::Result<Peer> {
        socket.set_nonblocking(true)?;
        Ok(Peer { process, socket, silence: Silence::default() })
    }

    /// One beat and one look. A connection that ends is none of its business: timely's end with it, and at once.
    fn is_lost(&mut self) -> bool {
        // A full socket is a peer that does not read; that shows in what is not read from it.
        let _ = self.socket.write(&[0]);
        let mut bytes = [0; 64];
        match self.socket.read(&mut bytes) {
            Ok(_) => self.silence.heard(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.silence.look(),
            Err(_) => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Scenario: a peer that beats, falls silent for nine looks, beats again, and falls silent for good.
    /// Guarantees: nine looks are none too many, and a beat makes them forgotten; the tenth in a row is.
    #[test]
    fn a_silence_is_counted_in_looks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = Peer::new(1, listener.accept().unwrap().0).unwrap();
        for _ in 0..2 {
            theirs.write_all(&[0]).unwrap();
            while peer.socket.peek(&mut [0]).is_err() {
                thread::yield_now();
            }
            assert!((0..LOOKS).all(|_| !peer.is_lost()), "one look that heard it, and nine");
        }
        assert!(peer.is_lost());
    }
}
