//! The crate's integration tests, in one binary (a second one would link DataFusion again).
#![allow(clippy::unwrap_used)]

mod answers;
mod encode;
mod fixtures;
mod history;
mod live_table;
mod saved;
mod slt;
mod snapshot;
mod snapshot_store;
mod sql;
mod views;
