//! An output slice that several threads fill at the same time, each its own part.
//!
//! Invariant: parts handed out for one call do not overlap; the tasks of a call are cut so. It borrows the slice for as
//! long as it lives, so nobody else reads it meanwhile.

use std::marker::PhantomData;

pub(crate) struct SharedOut<'a, T = f32> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose disjoint parts go to different threads; `T` is `Send`.
unsafe impl<T: Send> Send for SharedOut<'_, T> {}
// SAFETY: as above; `part` is unsafe and asks for disjoint ranges.
unsafe impl<T: Send> Sync for SharedOut<'_, T> {}

impl<'a, T> SharedOut<'a, T> {
    pub(crate) fn new(values: &'a mut [T]) -> Self {
        Self { start: values.as_mut_ptr(), len: values.len(), borrow: PhantomData }
    }

    /// Values `from..from + len`; panics if that is out of range.
    ///
    /// # Safety
    /// No other part that overlaps this one may be alive.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn part(&self, from: usize, len: usize) -> &mut [T] {
        assert!(from <= self.len && len <= self.len - from, "invariant: tasks are cut inside the output");
        // SAFETY: in range (above), exclusive (caller), alive for the borrow.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}
