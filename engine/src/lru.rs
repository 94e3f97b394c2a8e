//! A list of block numbers in the order they were let go, least recent first (SPEC C2).
//!
//! Doubly linked inside two flat arrays, so that a block in the middle can be taken out when its content is reused.
//!
//! Invariant: a block is in the list at most once; `len` counts the list.
//!
//! Cost: O(1) for each call but `iter`; 9 bytes a block of the pool, allocated once. Bound: the pool's size.

const NONE: u32 = u32::MAX;

/// The list. Blocks are numbers below the capacity it was made with.
#[derive(Debug)]
pub(crate) struct LruList {
    before: Vec<u32>,
    after: Vec<u32>,
    present: Vec<bool>,
    oldest: u32,
    newest: u32,
    len: usize,
}

impl LruList {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            before: vec![NONE; capacity],
            after: vec![NONE; capacity],
            present: vec![false; capacity],
            oldest: NONE,
            newest: NONE,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts `block` at the recent end.
    pub(crate) fn push_newest(&mut self, block: u32) {
        assert!(!self.present[block as usize], "invariant: block {block} is in the list at most once");
        self.present[block as usize] = true;
        self.before[block as usize] = self.newest;
        self.after[block as usize] = NONE;
        match self.newest {
            NONE => self.oldest = block,
            newest => self.after[newest as usize] = block,
        }
        self.newest = block;
        self.len += 1;
    }

    /// Takes the least recent block.
    pub(crate) fn pop_oldest(&mut self) -> Option<u32> {
        let oldest = self.oldest;
        if oldest == NONE {
            return None;
        }
        self.remove(oldest);
        Some(oldest)
    }

    /// Takes `block` out, wherever it is.
    pub(crate) fn remove(&mut self, block: u32) {
        assert!(self.present[block as usize], "invariant: block {block} is in the list");
        self.present[block as usize] = false;
        let (before, after) = (self.before[block as usize], self.after[block as usize]);
        match before {
            NONE => self.oldest = after,
            before => self.after[before as usize] = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.before[after as usize] = before,
        }
        self.len -= 1;
    }

    /// From least to most recent.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.oldest;
        std::iter::from_fn(move || {
            let block = next;
            if block == NONE {
                return None;
            }
            next = self.after[block as usize];
            Some(block)
        })
    }
}
