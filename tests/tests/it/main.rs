//! Cross-crate tests, one binary (each further one would link DataFusion again).
#![allow(clippy::unwrap_used)]

mod cluster;
mod documents;
mod foreign_kv;
mod gateway;
mod layering;
mod miss_ratio;
mod models;
mod monitoring;
mod process;
mod replay_load;
mod tidy;
