//! Columns of `buckets`: how the length axis of a model is cut, and which instances serve which part (SPEC B3).
//!
//! Invariant: the rows of one plan are `buckets` rows that follow each other in order of `bucket`; their ranges cover the axis.
//! The plan in force is the one with the highest `plan` of its model.

use arrow::datatypes::{DataType, Field, Fields};

use super::{at, number, numbers, optional, text};

pub(super) fn buckets() -> Vec<Field> {
    vec![
        at("when the plan came into force"),
        number("plan", DataType::UInt64, "", "id of the plan, higher than those before"),
        text("model", "model name"),
        text(
            "state",
            "cut, or why not: family, small_fleet, large_fleet, several_variants or no_load; then all is one bucket",
        ),
        text("trigger", "what made it new: start, period, drift or fleet"),
        text("cut", "scan_cut, optimal or off: policy of the cut"),
        text("capacity", "calibrated, or default: no capacity curve for the model, every token counts the same"),
        number("bucket", DataType::UInt32, "", "number of the bucket, from 0"),
        number("buckets", DataType::UInt32, "buckets", "in the plan"),
        number("from_tokens", DataType::UInt32, "tokens", "prompts of at least this length belong to it …"),
        optional(number("to_tokens", DataType::UInt32, "tokens", "… and below this; NULL: without end")),
        numbers("instances", "instances that serve it"),
        number(
            "load",
            DataType::Float64,
            "instances",
            "live uncached work in it when it was cut, by the capacity curve",
        ),
        number("target_load", DataType::Float64, "instances", "L_target: load per instance if it were even"),
        optional(number("imbalance", DataType::Float64, "", "of the plan: largest load per instance over the mean")),
        optional(number("imbalance_before", DataType::Float64, "", "the same of the plan before, by the load of now")),
        number("moved", DataType::UInt32, "instances", "that had another range before, of the whole plan"),
    ]
}

/// How a request fits the bucket of one candidate, in `decisions`.
pub(super) fn bucket_fit() -> Fields {
    Fields::from(vec![
        number("instance", DataType::UInt32, "", "candidate"),
        text("fit", "home, borrows, over_budget (foreign, with no room in the budget) or free (not in a plan)"),
        number("work_tokens", DataType::UInt64, "tokens", "uncached prompt and output that it would borrow"),
        number("bucket_seconds", DataType::Float64, "s", "what borrowing costs others, part of compared_seconds"),
    ])
}
