//! The dataflow over several processes: timely's own cluster communication, kept alive from outside (DESIGN §4; SPEC X5).
//!
//! ```text
//! serve:  bus → feeder ──rows, epochs──> child 0 ═══ timely over TCP ═══ child 1, child 2 …
//!                views <───changes────── child 0
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `hosts` | addresses of the processes, and the word they know each other by |
//! | `wire` | what goes over the pipes and the handshake: length and bincode |
//! | `mesh` | connects the processes; one generation at a time |
//! | `process` | the body of a child: timely workers between two pipes |
//! | `children` | starts children, and knows when one has ended |
//! | `beat` | signs of life, and who gives up whom without them |
//! | `frames` | what a child says, and the notice of its silence |
//! | `patience` | how long a silence may last, by how earlier generations ended |
//! | `keeper` | `evenkeel dataflow`: keeps a child of another host's server running |
//! | `pipes` | the server's end of child 0 |
//! | `reread` | which rows of the log a new generation reads |
//! | `tail` | what came while the log was read |
//! | `seat` | in the server: feeds child 0, notices a loss, brings everything back from the log |
//!
//! Why children: when a peer dies timely's communication threads panic, its workers panic when they next send or wait for ever,
//! a panic in a destructor aborts, and no process can join again. None of that can be contained in a process that must go on
//! serving. So timely runs in processes that are there for nothing else: any panic there ends the process at once, every other
//! process of the cluster sees the end of its connection and ends too, and all are started again, as one new generation.
//! A process that stands still ends no connection, so each also beats, from a thread of its own, to whoever started it (server or
//! keeper), and process 0 and each other one to each other: a silence is a loss like any other. A false alarm, on a machine that gave a
//! thread no time for that long, costs what a loss costs, a generation read again from the log, and doubles the next silence.
//! Rows enter at process 0 alone and all changes leave there, so the others hold no input and time is process 0's alone.
//!
//! Invariant: a generation sees every row of the dataflow's life in the epoch in which it came (`epochs` says which), however
//! often it was started, so its views are those of an undisturbed run. Bounds: [`QUEUE_FRAMES`] frames each way, frames of at
//! most `wire::FRAME_BYTES_MAX`, a wait for a child of at most `pipes::STALL`, rows read again of at most `seat::REBUILD_ROWS_MAX`.

mod beat;
mod children;
mod frames;
mod hosts;
mod keeper;
mod mesh;
mod patience;
mod pipes;
mod process;
mod reread;
mod seat;
mod tail;
mod wire;

pub use children::ChildCommand;
pub use hosts::{Hosts, HostsError};
pub use keeper::{KeeperOptions, keep};
pub use process::run as run_process;
pub use seat::{Notice, Parts, Seat};
pub use wire::{Done, Order, Setup, Start, read_frame, write_frame};

/// Frames between the server and its child that are on their way in the child.
pub const QUEUE_FRAMES: usize = 256;
