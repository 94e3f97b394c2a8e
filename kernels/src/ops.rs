//! The operations: each checks shapes, plans the cut into tasks and launches a body on a [`Device`](crate::Device).
//!
//! Nothing here keeps state. Every refusal is a [`KernelError`](crate::KernelError) and leaves outputs untouched.

pub mod attention;
pub mod elementwise;
pub mod embedding;
pub mod logits;
pub mod matmul;
pub mod rms_norm;
pub mod rope;

/// Values that one task of a memory-bound operation should at least have.
pub(crate) const SMALL_TASK_VALUES: usize = 16 * 1024;

/// Rows per task so that a task has at least [`SMALL_TASK_VALUES`] values; at least 1.
pub(crate) fn rows_per_task(cols: usize) -> usize {
    (SMALL_TASK_VALUES / cols.max(1)).max(1)
}
