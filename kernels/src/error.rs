//! What a kernel can refuse. Shapes are checked before any arithmetic, so a kernel never reads out of range.

/// A refused kernel call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Two shapes that must agree do not.
    #[error("{op}: {what} is {got}, expected {expected}")]
    Shape { op: &'static str, what: &'static str, got: usize, expected: usize },
    /// A data type this operation has no body for.
    #[error("{op}: no kernel for data type {dtype}")]
    Dtype { op: &'static str, dtype: &'static str },
}
