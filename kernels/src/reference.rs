//! The judge: every operation in plain loops with f64 sums. Slow on purpose; allocates its results.

pub mod attention;
pub mod dequantize;
pub mod elementwise;
pub mod int8;
pub mod matmul;
pub mod rms_norm;
pub mod rope;
