//! Kernels against their references, on random shapes and values. proptest prints the seed of a failure and keeps it.

// Helpers of tests unwrap as the tests do.
#![allow(clippy::unwrap_used)]

mod attention;
mod data;
mod encode;
mod int8;
mod layouts;
mod matmul;
mod rows;
