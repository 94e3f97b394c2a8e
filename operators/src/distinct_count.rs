//! How many different blocks have come, counted as they come: HyperLogLog registers with "historic inverse probability"
//! increments (Cohen, "All-Distances Sketches, Revisited", 2015; Ting, "Streamed approximate counting", 2014).
//!
//! A block that changes a register does so with a probability known beforehand, so its weight is one over it. The weights
//! of the blocks of any part of the stream add up to an unbiased count of the blocks first seen there, which is what the
//! usual estimator (and the crates that offer it) cannot say.
//!
//! Invariant: a block seen before has no weight. Error: one standard error of the whole count is 0.83 / sqrt(registers),
//! 0.32 %. Cost: O(1). State: [`REGISTERS`] bytes.

/// 64 KiB.
const REGISTERS: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 16;

/// See the module.
pub(crate) struct DistinctCount {
    ranks: Vec<u8>,
    /// Sum of 2^-rank; over the number of registers it is the probability that a new block changes one.
    free: f64,
}

impl DistinctCount {
    pub fn new() -> Self {
        Self { ranks: vec![0; REGISTERS], free: REGISTERS as f64 }
    }

    /// Takes a block by its hash, which must be mixed well. The weight is how many new blocks it stands for; at least 1.
    pub fn insert(&mut self, hash: u64) -> Option<f64> {
        let register = &mut self.ranks[(hash >> (64 - INDEX_BITS)) as usize];
        // The added bit keeps the rank below 50.
        let rank = ((hash << INDEX_BITS | 1 << (INDEX_BITS - 1)).leading_zeros() + 1) as u8;
        if rank <= *register {
            return None;
        }
        let weight = REGISTERS as f64 / self.free;
        self.free += share(rank) - share(*register);
        *register = rank;
        Some(weight)
    }
}

fn share(rank: u8) -> f64 {
    (0.5_f64).powi(rank.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reuse_stack::mix;

    /// Scenario: 300,000 blocks, each three times; the second 100,000 come after the first.
    /// Guarantees: the whole is counted within 3 standard errors, and so is the middle third alone; a block seen before
    /// weighs nothing.
    #[test]
    fn parts_of_a_stream_are_counted() {
        let mut count = DistinctCount::new();
        let mut thirds = [0.0; 3];
        for (third, weight) in thirds.iter_mut().enumerate() {
            for _ in 0..3 {
                let blocks = third as u64 * 100_000..(third as u64 + 1) * 100_000;
                *weight += blocks.filter_map(|block| count.insert(mix(block))).sum::<f64>();
            }
        }
        let whole: f64 = thirds.iter().sum();
        assert!((whole / 300_000.0 - 1.0).abs() < 3.0 * 0.0032, "{whole}");
        // One standard error of a part is the root of the sum of weight · (weight - 1) over its blocks.
        assert!((thirds[1] / 100_000.0 - 1.0).abs() < 3.0 * 0.005, "{}", thirds[1]);
        assert_eq!(count.insert(mix(5)), None);
    }
}
