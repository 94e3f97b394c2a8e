//! The stack of an LRU cache without an end, as an order-statistics structure: how many blocks were used since this one?
//!
//! A block holds the slot of its last use; slots are given out in order, and a Fenwick tree over words of 64 slots counts
//! those in use. The depth of a block is the number of blocks in slots not before its own, itself included: an LRU cache
//! of `c` blocks holds a block exactly if its depth is at most `c` (the inclusion property of LRU).
//!
//! Invariant: the slots in use and the map are one to one; depths are `1..=len`.
//! Cost: O(log n) a use, a depth or a removal; when slots run out they are given out anew, O(n) after at least n uses.
//! State: at most about 50 bytes a block (12 in a hash map at 7/8 load at most, 8 in each of at most 2 slots, 0.2 in the
//! tree); the caller bounds the number of blocks.
use crate::IntMap;

const WORD: usize = 64;
/// Slots at the start; a multiple of [`WORD`].
const SLOTS: usize = 128;

/// See the module.
#[derive(Clone)]
pub(crate) struct LruStack {
    /// Block to slot.
    slots: IntMap<u64, u32>,
    /// Slot to block; stale where the slot is free.
    blocks: Vec<u64>,
    /// One bit a slot in use.
    used: Vec<u64>,
    /// Fenwick tree over the words of `used`, from 1.
    counts: Vec<u32>,
    /// The next slot to give out.
    next: usize,
    /// No slot before this one is in use.
    oldest: usize,
}

impl LruStack {
    pub fn new() -> Self {
        let words = SLOTS / WORD;
        Self {
            slots: IntMap::default(),
            blocks: vec![0; SLOTS],
            used: vec![0; words],
            counts: vec![0; words + 1],
            next: 0,
            oldest: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The blocks, least recently used first.
    pub fn oldest_first(&self) -> impl Iterator<Item = u64> {
        let in_use = |slot: &usize| self.used[slot / WORD] >> (slot % WORD) & 1 == 1;
        (self.oldest..self.next).filter(in_use).map(|slot| self.blocks[slot])
    }

    /// Blocks used since this one, itself included; `None` if it is not held.
    pub fn depth(&self, block: u64) -> Option<usize> {
        let slot = *self.slots.get(&block)? as usize;
        Some(self.len() - self.used_before(slot))
    }

    /// Makes the block the most recently used one.
    pub fn touch(&mut self, block: u64) {
        if self.next == self.blocks.len() {
            self.give_out_anew();
        }
        let slot = self.next;
        self.next += 1;
        if let Some(before) = self.slots.insert(block, slot as u32) {
            self.release(before as usize);
        }
        self.blocks[slot] = block;
        self.used[slot / WORD] |= 1 << (slot % WORD);
        self.add(slot, 1);
    }

    /// Drops the least recently used block and names it.
    pub fn pop_oldest(&mut self) -> Option<u64> {
        while self.oldest < self.next && self.used[self.oldest / WORD] >> (self.oldest % WORD) & 1 == 0 {
            self.oldest += 1;
        }
        let block = *self.blocks.get(self.oldest).filter(|_| self.oldest < self.next)?;
        self.slots.remove(&block);
        self.release(self.oldest);
        Some(block)
    }

    /// Drops the block; false if it is not held.
    pub fn remove(&mut self, block: u64) -> bool {
        let slot = self.slots.remove(&block);
        slot.inspect(|slot| self.release(*slot as usize)).is_some()
    }

    /// Drops all blocks but those wanted.
    pub fn retain(&mut self, wanted: impl Fn(u64) -> bool) {
        let kept: Vec<u64> = self.oldest_first().filter(|block| wanted(*block)).collect();
        *self = Self::new();
        kept.into_iter().for_each(|block| self.touch(block));
    }

    fn release(&mut self, slot: usize) {
        self.used[slot / WORD] &= !(1 << (slot % WORD));
        self.add(slot, -1);
    }

    fn add(&mut self, slot: usize, count: i32) {
        let mut word = slot / WORD + 1;
        while word < self.counts.len() {
            self.counts[word] = self.counts[word].wrapping_add_signed(count);
            word += word & word.wrapping_neg();
        }
    }

    fn used_before(&self, slot: usize) -> usize {
        let mut word = slot / WORD;
        let within = self.used[word] & ((1 << (slot % WORD)) - 1);
        let mut count = within.count_ones();
        while word > 0 {
            count += self.counts[word];
            word &= word - 1;
        }
        count as usize
    }

    /// Moves the blocks to the first slots, in order; doubles the slots if more than half are in use.
    fn give_out_anew(&mut self) {
        let held: Vec<u64> = self.oldest_first().collect();
        let slots = if held.len() > self.blocks.len() / 2 { 2 * self.blocks.len() } else { self.blocks.len() };
        let words = slots / WORD;
        self.blocks.resize(slots, 0);
        self.used = vec![0; words];
        self.counts = vec![0; words + 1];
        for (slot, block) in held.iter().enumerate() {
            self.blocks[slot] = *block;
            self.used[slot / WORD] |= 1 << (slot % WORD);
            self.slots.insert(*block, slot as u32);
        }
        for word in 1..=words {
            self.counts[word] += self.used[word - 1].count_ones();
            let parent = word + (word & word.wrapping_neg());
            if parent <= words {
                self.counts[parent] += self.counts[word];
            }
        }
        (self.next, self.oldest) = (held.len(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: 20,000 uses of up to 700 blocks by a fixed generator, some drops of the oldest, some removals of one and of a third;
    /// many rounds of slots.
    /// Guarantees: after each step the depth of a block is its place in a plain list; the oldest is the list's last.
    #[test]
    fn depths_are_places_in_a_list() {
        let (mut stack, mut list, mut state) = (LruStack::new(), Vec::<u64>::new(), 7_u64);
        for step in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = (state >> 33) % (1 + step / 20).min(700);
            assert_eq!(stack.depth(block), list.iter().position(|held| *held == block).map(|place| place + 1));
            match state >> 50 & 63 {
                0..4 => assert_eq!(stack.pop_oldest(), list.pop()),
                4..8 => {
                    assert_eq!(stack.remove(block), list.contains(&block));
                    list.retain(|held| *held != block);
                }
                8 if step % 16 == 0 => {
                    stack.retain(|block| block % 3 != 0);
                    list.retain(|block| block % 3 != 0);
                }
                _ => {
                    stack.touch(block);
                    list.retain(|held| *held != block);
                    list.insert(0, block);
                }
            }
            assert_eq!(stack.len(), list.len());
        }
        assert!(stack.oldest_first().eq(list.iter().rev().copied()));
        assert!(stack.blocks.len() <= 4 * 700, "slots stay bounded: {}", stack.blocks.len());
    }
}
