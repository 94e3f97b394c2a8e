//! KV events of foreign engines as rows of ours (SPEC C4, DESIGN §6). No sockets here: bytes in, rows out.
//!
//! | file | idea |
//! |---|---|
//! | `decode` | a payload's events, in both shapes of vLLM and that of SGLang |
//! | `chain` | their hashes to ours |
//! | `sequence` | their order, restarts and gaps |
//!
//! Invariant: hostile bytes are refused with field and value, and never panic. Bounds: see the files.

mod chain;
mod decode;
mod sequence;
#[cfg(test)]
mod tests;

pub use chain::{ForeignChain, ORPHANS_MAX};
pub use decode::{DEPTH_MAX, ForeignEngine, ForeignError, ForeignEvent, ForeignStored, PAYLOAD_BYTES_MAX, decode};
pub use sequence::{ForeignRows, ForeignWire, RECENT, WAITING_BYTES_MAX, WAITING_MAX};
