//! Connects the processes of one generation, and gives timely the sockets (its own connecting panics on strangers, has no
//! notion of a generation, and waits a second between attempts).
//!
//! Process 0 listens until every other has said hello, tells all the generation and its settings, waits until all are connected
//! among themselves, and lets them go; each then connects to it once more, for signs of life (`beat`). Invariant: all sockets of a mesh belong to processes that were told the same generation;
//! who does not know the key, or speaks something else, is dropped.
//! Bounds: a stranger costs [`HELLO_WAIT`]; once process 0 has everybody, [`JOIN_WAIT`] for the rest; hellos of
//! [`HELLO_BYTES_MAX`]. Process 0 and a process that looks for it wait without end: somebody may be late.

use std::{
    collections::BTreeMap,
    io,
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::wire::{Setup, Start, read_frame_within, write_frame};

const HELLO_WAIT: Duration = Duration::from_secs(1);
const JOIN_WAIT: Duration = Duration::from_secs(10);
/// Between two looks at a listener, and two attempts to connect.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const HELLO_BYTES_MAX: usize = 1 << 16;
const MAGIC: &str = "evenkeel dataflow 1";

/// First words on a connection.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    magic: String,
    key: String,
    process: usize,
    /// `None` to process 0, which tells it; the second time, for beats, as it was told.
    generation: Option<u64>,
}

/// Process 0 to all, and back.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Word {
    Start(Box<Start>),
    Joined,
    Go,
}

/// A socket to each other process, and what all have in common.
pub struct Mesh {
    pub sockets: Vec<Option<TcpStream>>,
    /// Between process 0 and each other one, besides timely's.
    pub beats: Vec<(usize, TcpStream)>,
    pub start: Start,
}

/// Connects. Blocks until all are there.
pub fn connect(setup: &Setup) -> io::Result<Mesh> {
    let listener = TcpListener::bind(&setup.addresses[setup.process])?;
    listener.set_nonblocking(true)?;
    let mesh = match &setup.start {
        Some(start) if setup.process == 0 => gather(setup, start.clone(), &listener)?,
        _ => join(setup, &listener)?,
    };
    for socket in mesh.sockets.iter().flatten() {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(None)?;
    }
    Ok(mesh)
}

/// Process 0.
fn gather(setup: &Setup, start: Start, listener: &TcpListener) -> io::Result<Mesh> {
    let mut sockets: Vec<Option<TcpStream>> = setup.addresses.iter().map(|_| None).collect();
    while sockets[1..].iter().any(Option::is_none) {
        // A newer hello of the same process replaces the older: that one has ended meanwhile.
        if let Some((process, socket)) = accept(setup, listener, None)? {
            sockets[process] = Some(socket);
        }
    }
    for socket in sockets.iter_mut().flatten() {
        write_frame(socket, &Word::Start(Box::new(start.clone())))?;
    }
    for socket in sockets.iter_mut().flatten() {
        socket.set_read_timeout(Some(JOIN_WAIT))?;
        expect(socket, &Word::Joined)?;
    }
    for socket in sockets.iter_mut().flatten() {
        write_frame(socket, &Word::Go)?;
    }
    let mut beats = BTreeMap::new();
    let by = Instant::now() + JOIN_WAIT;
    while beats.len() + 1 < setup.addresses.len() {
        not_later_than(by)?;
        beats.extend(accept(setup, listener, Some(start.generation))?);
    }
    Ok(Mesh { sockets, beats: beats.into_iter().collect(), start })
}

fn not_later_than(by: Instant) -> io::Result<()> {
    match Instant::now() > by {
        true => Err(io::Error::new(io::ErrorKind::TimedOut, "not all processes came")),
        false => Ok(()),
    }
}

/// Any other process.
fn join(setup: &Setup, listener: &TcpListener) -> io::Result<Mesh> {
    let mut first = reach(&setup.addresses[0], None)?;
    write_frame(&mut first, &hello(setup, None))?;
    let Word::Start(start) = read_frame_within(&mut first, HELLO_BYTES_MAX)? else {
        return Err(unexpected("process 0 did not say what to start"));
    };
    let by = Instant::now() + JOIN_WAIT;
    let mut sockets: Vec<Option<TcpStream>> = setup.addresses.iter().map(|_| None).collect();
    for (address, place) in setup.addresses.iter().zip(&mut sockets).take(setup.process).skip(1) {
        let mut socket = reach(address, Some(by))?;
        write_frame(&mut socket, &hello(setup, Some(start.generation)))?;
        *place = Some(socket);
    }
    while sockets[setup.process + 1..].iter().any(Option::is_none) {
        not_later_than(by)?;
        if let Some((process, socket)) = accept(setup, listener, Some(start.generation))? {
            sockets[process] = Some(socket);
        }
    }
    write_frame(&mut first, &Word::Joined)?;
    first.set_read_timeout(Some(JOIN_WAIT))?;
    expect(&mut first, &Word::Go)?;
    sockets[0] = Some(first);
    let mut beats = reach(&setup.addresses[0], Some(Instant::now() + JOIN_WAIT))?;
    write_frame(&mut beats, &hello(setup, Some(start.generation)))?;
    Ok(Mesh { sockets, beats: vec![(0, beats)], start: *start })
}

fn hello(setup: &Setup, generation: Option<u64>) -> Hello {
    Hello { magic: MAGIC.into(), key: setup.key.clone(), process: setup.process, generation }
}

/// Connects as soon as somebody listens; until `by`, or without end.
fn reach(address: &str, by: Option<Instant>) -> io::Result<TcpStream> {
    loop {
        match TcpStream::connect(address) {
            Ok(socket) => return Ok(socket),
            Err(error) if by.is_some_and(|by| Instant::now() > by) => return Err(error),
            Err(_) => thread::sleep(LOOK_AGAIN),
        }
    }
}

/// One look at the listener. `None`: nobody came, or somebody who does not belong here.
fn accept(setup: &Setup, listener: &TcpListener, generation: Option<u64>) -> io::Result<Option<(usize, TcpStream)>> {
    let mut socket = match listener.accept() {
        Ok((socket, _)) => socket,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            thread::sleep(LOOK_AGAIN);
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(HELLO_WAIT))?;
    let Ok(hello) = read_frame_within::<Hello>(&mut socket, HELLO_BYTES_MAX) else { return Ok(None) };
    let is_ours = hello.magic == MAGIC
        && hello.key == setup.key
        && hello.generation == generation
        && (setup.process + 1..setup.addresses.len()).contains(&hello.process);
    Ok(is_ours.then_some((hello.process, socket)))
}

fn expect(socket: &mut TcpStream, word: &Word) -> io::Result<()> {
    match read_frame_within::<Word>(socket, HELLO_BYTES_MAX)? {
        got if got == *word => Ok(()),
        _ => Err(unexpected("an unexpected word from a peer")),
    }
}

fn unexpected(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail)
}
