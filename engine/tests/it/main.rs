//! Integration tests of the engine crate.

mod cpu_runner;
mod data;
mod gguf_fuzz;
mod golden;
mod tokenizer;
