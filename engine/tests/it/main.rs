//! Integration tests of the engine crate.

mod data;
mod golden;
