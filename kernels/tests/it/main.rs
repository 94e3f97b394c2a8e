//! Kernels against their references, on random shapes and values. proptest prints the seed of a failure and keeps it.

mod attention;
mod data;
mod matmul;
mod rows;
