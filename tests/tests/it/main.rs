//! Cross-crate tests, one binary (each further one would link DataFusion again).

mod layering;
mod tidy;
