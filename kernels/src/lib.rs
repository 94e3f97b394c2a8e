//! Kernels: the arithmetic of a transformer, one signature an operation.
//!
//! | room | what lives there |
//! |---|---|
//! | `ops/<op>` | the only entry points: check shapes → plan → launch |
//! | `reference/<op>` | the judge: plain loops, f64 sums, no tricks |
//! | `cpu/<op>` | the fast bodies, AVX-512 / AVX2 / portable chosen at run time |
//! | `dtype`, `tensor` | how weights and activations lie in memory |
//! | `encode` | f32 to stored weights, for models that are requantised at load |
//! | `packed` | quantised weights in the order that the int8 bodies of `cpu/int8` read |
//! | `device` | a thread pool and an instruction set |
//! | `cpu/limits` | what the machine can do at most, for benches |
//!
//! Invariants: shapes are checked before any arithmetic ([`KernelError`]), so no kernel reads out of range. A row of a
//! result depends on that row's inputs alone and its sums run in one fixed order: results are bit-identical whatever
//! the number of threads and whatever else is in the batch (they may differ between instruction sets, within the
//! tolerance that each operation states as `|a-b| <= abs + eps*|b|`).
//!
//! Cost: weights stay quantised in memory; a worker thread holds one scratch tile (192 KiB for matmul, 18 KiB for that
//! of packed weights, 200 to 600 KiB for attention).
//!
//! Must not know: models, sequences, files, the environment, the clock.

pub mod cpu;
pub mod device;
pub mod dtype;
pub mod encode;
pub mod error;
pub mod ops;
pub mod packed;
pub mod reference;
pub mod tensor;

pub use cpu::limits::Limits;
pub use device::{Device, Isa};
pub use dtype::Dtype;
pub use error::KernelError;
pub use packed::PackedMatrix;
pub use tensor::{Rows, Weight, WeightMatrix};
