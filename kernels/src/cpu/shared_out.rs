//! An output slice that several threads fill at the same time, each its own part.
//!
//! Invariant: parts handed out for one call do not overlap; the tasks of a call are cut so. It borrows the slice for as
//! long as it lives, so nobody else reads it meanwhile.

use std::marker::PhantomData;

pub(crate) struct SharedOut<'a> {
    start: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a `&mut [f32]` whose disjoint parts go to different threads; f32 is `Send`.
unsafe impl Send for SharedOut<'_> {}
// SAFETY: as above; `part` is unsafe and asks for disjoint ranges.
unsafe impl Sync for SharedOut<'_> {}

impl<'a> SharedOut<'a> {
    pub(crate) fn new(values: &'a mut [f32]) -> Self {
        Self { start: values.as_mut_ptr(), len: values.len(), borrow: PhantomData }
    }

    /// Values `from..from + len`; panics if that is out of range.
    ///
    /// # Safety
    /// No other part that overlaps this one may be alive.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn part(&self, from: usize, len: usize) -> &mut [f32] {
        assert!(from <= self.len && len <= self.len - from, "invariant: tasks are cut inside the output");
        // SAFETY: in range (above), exclusive (caller), alive for the borrow.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}
