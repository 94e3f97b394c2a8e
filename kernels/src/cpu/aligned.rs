//! Bytes that start on a cache line, so that a vector of packed weights never lies across two.
//!
//! Invariant: the length is the one asked for, padding is zero. Cost: up to 63 bytes more than asked for.

const LINE: usize = 64;

/// Read and written through its bytes only.
#[derive(Clone, Copy)]
#[repr(align(64))]
#[expect(dead_code, reason = "read as bytes of the whole vector")]
struct Line([u8; LINE]);

#[derive(Clone)]
pub(crate) struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        Self { lines: vec![Line([0; LINE]); len.div_ceil(LINE)], len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the lines are initialised and hold `len` bytes or more without gaps (size = alignment = 64).
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<u8>(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }

    /// Whole f32 that the bytes have room for.
    pub(crate) fn floats(&self) -> usize {
        self.len / size_of::<f32>()
    }

    /// The bytes as f32.
    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above; lines are aligned for f32, and any bits are one.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.floats()) }
    }
}

impl Default for AlignedBytes {
    fn default() -> Self {
        Self::zeroed(0)
    }
}
