//! The least time that this machine needs for what a case computes: the roofline that figures are held against (E).
//!
//! A prompt's products run in int8 and its attention in f32, one after the other, so their least times add up. A decode
//! step multiplies every weight with one vector a sequence: it takes as long as reading the weights once, or as the
//! products, whichever is longer. Invariant: nothing here is measured; limits come from the same run. Cost: O(1).

use engine::{model::Config, runner::cpu::Limits};

/// Work of a model, in multiply-adds and bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    /// Products of one token in all layers.
    layer_products: f64,
    /// Products that give one token's logits.
    output_products: f64,
    /// Products of attention for each pair of a token and one it sees.
    pair_products: f64,
    /// Weights read in a step.
    weight_bytes: f64,
}

impl Work {
    pub(super) fn new(config: &Config, vocab: usize, weight_bytes: usize) -> Self {
        let (hidden, head) = (config.hidden, config.head_dim);
        let attention = 2 * hidden * head * (config.heads + config.kv_heads);
        let feed_forward = 3 * hidden * config.feed_forward;
        Work {
            layer_products: (config.layers * (attention + feed_forward)) as f64,
            output_products: (hidden * vocab) as f64,
            pair_products: (2 * config.layers * config.heads * head) as f64,
            weight_bytes: weight_bytes as f64,
        }
    }

    /// Most tokens a second of a prompt of so many tokens.
    pub(super) fn prefill_tokens_per_second(&self, tokens: usize, limits: &Limits) -> f64 {
        let tokens = tokens as f64;
        let pairs = tokens * (tokens + 1.0) / 2.0;
        let int8 = 2.0 * (tokens * self.layer_products + self.output_products) / (limits.int8_gops * 1e9);
        tokens / (int8 + 2.0 * pairs * self.pair_products / (limits.f32_gflops * 1e9))
    }

    /// Most tokens a second of so many sequences with next to no context.
    pub(super) fn decode_tokens_per_second(&self, sequences: usize, limits: &Limits) -> f64 {
        let sequences = sequences as f64;
        let read = self.weight_bytes / (limits.memory_gbytes * 1e9);
        let int8 = 2.0 * sequences * (self.layer_products + self.output_products) / (limits.int8_gops * 1e9);
        sequences / read.max(int8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a model and a machine of round numbers.
    /// Guarantees: a prompt's times add up; a decode step is bound by memory first and by arithmetic later.
    #[test]
    fn least_times() {
        let work = Work { layer_products: 4e6, output_products: 1e6, pair_products: 1e3, weight_bytes: 5e6 };
        let limits = Limits { f32_gflops: 1.0, int8_gops: 1.0, l2_gbytes: 9.0, l3_gbytes: 9.0, memory_gbytes: 1.0 };
        // 2 · (3 · 4e6 + 1e6) + 2 · 6 · 1e3 operations at 1e9 a second.
        assert!((work.prefill_tokens_per_second(3, &limits) - 3.0 / 0.026_012).abs() < 1e-9);
        let fast = Limits { int8_gops: 20.0, ..limits };
        assert!((work.decode_tokens_per_second(1, &fast) - 200.0).abs() < 1e-9);
        assert!((work.decode_tokens_per_second(20, &fast) - 2000.0).abs() < 1e-9);
    }
}
