//! SQL from outside in a process of its own (SPEC E2; DESIGN §6): `evenkeel query-worker`, a child of `serve`.
//!
//! Why a process: a statement may run on after its end (a join that compares every row with every row), fill memory that no pool counts
//! (`repeat('x', 1000000000)`), or overflow a stack, and threads of `serve` can be protected against none of that. A process has an
//! address space of its own with a bound, can be killed, and comes back. `serve` keeps an engine for its own statements alone, which are
//! fixed texts over bounded spans of time (`explain`).
//! Why one and not a pool: it holds the tables' rows once more. What ends it ends the statements beside it too; they are told
//! [`queries::SqlError::EngineRestarted`], and the next one finds the process back, within about a second.
//!
//! | file | idea |
//! |---|---|
//! | `options` | how the process is called |
//! | `process` | its body: bounds first, then two connections and the engine |
//! | `slice` | long turns for heavy queries' threads, so that those who serve are let in at once |
//! | `service` | rows in, questions answered, health told |
//! | `wire` | questions, answers and errors as messages; Arrow IPC in pieces |
//! | `feed` | rows of the bus, sent to the process from where it is |
//! | `keeper` | starts it, feeds it, watches it, ends it, starts it again |
//! | `metrics` | what /metrics says of it |
//! | `client` | [`queries::SqlAnswers`] by the process that is there now |
//!
//! Its two connections are socket pairs that it inherits as stdin and stdout: no path, no port, and both end with either process. Rows
//! come over one, questions over the other, so that neither waits for the other; both speak gRPC (`proto/query.proto`), whose streams
//! bring bounded flow and cancellation.
//! A question says how far it must have seen the tables, so an answer knows every row that was in the server's tables when it was asked.
//! Bounds: `sql.worker_memory` of address space; rows under way to it by [`feed::MESSAGES_MAX`] and one window, after which it is sent
//! what it missed from the tables, and the bus never waits; statements by `sql.concurrent_max` and their waiting ones.

mod client;
mod feed;
mod keeper;
mod metrics;
mod options;
pub mod process;
mod service;
mod slice;
#[cfg(test)]
mod tests;
mod wire;

pub use client::SqlProcess;
pub use keeper::{Counters as SqlCounters, Keeper, KeeperSetup};
pub use metrics::register;
pub use options::QueryWorkerOptions;
pub(crate) use wire::{parameters_from_ipc, parameters_to_ipc};

/// Longest message either way: 8192 rows of the widest topics are some tens of megabytes.
const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Bytes on their way in one stream, and in one connection.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
