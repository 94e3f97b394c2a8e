//! Workers: one process holds one engine, the gateway's process supervises them (DESIGN §6).
//!
//! | file | idea |
//! |---|---|
//! | `engine_thread` | one std thread owns the engine; bounded commands in, one bounded channel a sequence out |
//! | `wire` | protocol messages to domain types and back |
//! | `server`, `client` | the gRPC `Worker` service, and an `InstanceClient` over it |
//! | `grammars` | compiles what a request's text must look like |
//! | `step_rows` | step reports as rows of the bus |
//! | `kv_account` | what a worker tells of its KV blocks when asked |
//! | `telemetry` | rows leave the worker by Arrow Flight `DoPut`; bounded, never in the engine's way |
//! | `flight_server` | the receiving end in `serve` |
//! | `process`, `options` | the body of `evenkeel worker`, and its command line |
//! | `swap_rates` | what computing and moving KV costs on this machine |
//! | `variant_files` | whether the files of variants speak of the same tokens |
//! | `model`, `gguf`, `paced` | from options to an engine: a model file, or a simulated one |
//! | `foreign` | engines of others: asked for their health and models, registered while they answer |
//! | `child`, `supervisor` | worker processes: start, watch, restart, drain, stop |
//!
//! Invariants: the engine thread never waits for a client, the network or the bus; a dropped output stream cancels its
//! sequence within one step; an incarnation has an epoch that grows with every restart, and nothing of an older epoch is
//! believed once a newer one is known; a worker never outlives its supervisor. Must not know: HTTP (but for `foreign`), policies, SQL.

pub mod child;
pub mod client;
pub mod engine_thread;
pub mod flight_server;
pub mod foreign;
mod gguf;
pub mod grammars;
pub mod kv_account;
pub mod model;
pub mod options;
pub mod paced;
pub mod process;
pub mod server;
pub mod step_rows;
pub mod supervisor;
mod swap_rates;
pub mod telemetry;
pub mod variant_files;
pub mod wire;

use std::time::{SystemTime, UNIX_EPOCH};

use crate::ids::{Micros, micros};

/// The wall clock, in microseconds since the epoch. A clock before 1970 reads as zero.
pub(crate) fn wall_micros() -> Micros {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests;
