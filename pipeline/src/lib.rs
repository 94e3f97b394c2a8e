//! Evenkeel's processes: the only crate that knows tokio, HTTP, gRPC, JSON, the environment and the wall clock.
//!
//! Modules in order; each uses only those before it (DESIGN §1, STYLE "Rooms"):
//! `config` → `bus` → `policy` → `dataflow` → `gateway` → `worker` → `replay` → `app`.
//! `ids` and `rows` are plain types below all of them, `http2` settings for calls between our processes; `models` (model files) and
//! `load` (a client that plays traces) stand alone, for `app`. One edge goes back: the tree of `config` holds the settings that each policy declares and checks.

pub mod app;
pub mod bus;
pub mod config;
pub mod dataflow;
pub mod gateway;
pub mod http2;
pub mod ids;
pub mod load;
pub mod models;
pub mod policy;
pub mod replay;
pub mod rows;
pub mod worker;

/// Code generated from `proto/worker.proto`.
pub mod proto {
    #![allow(missing_docs, clippy::all, unused_results, rust_2018_idioms)]
    tonic::include_proto!("evenkeel.worker.v1");
}

/// Code generated from `proto/query.proto`.
pub mod query_proto {
    #![allow(missing_docs, clippy::all, unused_results, rust_2018_idioms)]
    tonic::include_proto!("evenkeel.query.v1");
}
