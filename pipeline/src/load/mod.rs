//! `evenkeel replay-load`: drives any OpenAI-compatible endpoint with a recorded trace and reports what a client sees
//! (SPEC D4, E5).
//!
//! | file | idea |
//! |---|---|
//! | `options` | the command line |
//! | `trace` | Mooncake JSONL and Azure CSV, plain or zstd |
//! | `prompt` | block ids to words, so that shared prefixes are really shared |
//! | `request` | one streamed completion and its timings |
//! | `replay` | the open loop: send by the trace's clock, bounded in flight |
//! | `report` | percentiles, the table, the JSON line |
//!
//! Invariant: it measures from outside and knows nothing of Evenkeel but the OpenAI protocol. State: the trace in memory, one task a
//! request in flight, histograms of fixed size.

pub mod options;
pub mod prompt;
pub mod replay;
pub mod report;
mod request;
pub mod trace;

pub use options::LoadOptions;
pub use replay::{LoadError, execute, replay};
pub use report::Report;
