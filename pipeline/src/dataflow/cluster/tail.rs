//! What came while the log was read, in order.
//!
//! Invariant: either everything since the reading began, or nothing and a mark. Bound: [`TAIL_MAX`] entries; at the bound all are
//! dropped, and the log, which has them, is read once more.

use std::collections::VecDeque;

use crate::bus::Published;

/// Batches and epochs kept while the log is read.
const TAIL_MAX: usize = 8192;

pub(super) enum Kept {
    Batch(Published),
    Close(u64),
}

/// See the module.
#[derive(Default)]
pub(super) struct Tail {
    pub kept: VecDeque<Kept>,
    pub is_overrun: bool,
}

impl Tail {
    pub(super) fn keep(&mut self, kept: Kept) {
        if self.is_overrun || self.kept.len() == TAIL_MAX {
            self.is_overrun = true;
            self.kept.clear();
            return;
        }
        self.kept.push_back(kept);
    }
}
