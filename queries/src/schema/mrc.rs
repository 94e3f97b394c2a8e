//! The table `mrc`: hit rate as a function of cache capacity (SPEC X4).

use arrow::datatypes::{DataType, Field};

use super::{number, optional, stamp, text};

pub(super) fn mrc() -> Vec<Field> {
    vec![
        stamp("as_of", "state of the view"),
        text("scope", "whose prompts: all, or those of one model, tier or tenant"),
        optional(text("model", "model name, with scope model")),
        optional(text("tier", "High, Medium or Low, with scope tier")),
        optional(text("tenant", "whose key the requests came with, with scope tenant")),
        number("window_seconds", DataType::Float64, "s", "span of the arrivals counted"),
        number("prompts", DataType::UInt64, "prompts", "prompts that arrived in it"),
        number("prompt_tokens", DataType::UInt64, "tokens", "their tokens"),
        optional(number(
            "capacity_blocks",
            DataType::UInt64,
            "blocks",
            "capacity of the LRU cache of each model; NULL: without a bound",
        )),
        optional(number("capacity_tokens", DataType::UInt64, "tokens", "the same in tokens")),
        number("hit_tokens", DataType::UInt64, "tokens", "prompt tokens that a cache of this capacity would reuse"),
        number("hit_rate", DataType::Float64, "", "hit_tokens over prompt_tokens"),
        number(
            "hit_rate_error",
            DataType::Float64,
            "",
            "one standard error of hit_rate; 0 where every block is followed",
        ),
        number("sampling_rate", DataType::Float64, "", "share of the blocks followed at this capacity"),
        number("blocks_seen", DataType::UInt64, "blocks", "different blocks followed, those not sampled estimated"),
    ]
}
