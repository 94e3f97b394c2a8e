//! Integration tests of the engine crate.

// Helpers of tests unwrap as the tests do.
#![allow(clippy::unwrap_used)]

mod cpu_runner;
mod data;
mod gguf_fuzz;
mod golden;
mod tokenizer;
