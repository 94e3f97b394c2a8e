//! Columns of deadlines and of how they fared (SPEC A4). See the rules in `schema`.

use arrow::datatypes::{DataType, Field};

use super::{at, number, optional, stamp, text};

fn seconds(name: &str, comment: &str) -> Field {
    number(name, DataType::Float64, "s", comment)
}

pub(super) fn slo() -> Vec<Field> {
    vec![
        at("when the request ended"),
        text("request_id", "the request"),
        text("model", "model name"),
        text("tenant", "whose key the request came with"),
        text("tier", "High, Medium or Low"),
        optional(number("instance", DataType::UInt32, "", "instance that served it last; NULL: none")),
        text("outcome", "finished, failed, late (dropped by the engine) or refused (a miss was predicted)"),
        number("is_stated", DataType::Boolean, "", "the sender stated a budget; else the tier's target holds"),
        optional(number("is_met", DataType::Boolean, "", "the deadline was met; NULL: it was refused")),
        optional(seconds(
            "margin_seconds",
            "left of the nearer deadline; below zero: missed by so much; NULL: refused or failed",
        )),
        seconds("first_token_budget_seconds", "from arrival to when the first token was due"),
        optional(seconds("whole_budget_seconds", "from arrival to when the whole answer was due; NULL: whenever")),
        optional(seconds("first_token_seconds", "from arrival to the first token; NULL: none came")),
        seconds("whole_seconds", "from arrival to the end"),
        seconds("wait_seconds", "in the gateway's queue"),
        optional(seconds("predicted_first_token_seconds", "as predicted on arrival; NULL: too little was known")),
        optional(seconds("predicted_whole_seconds", "as predicted on arrival; NULL: too little was known")),
        optional(number(
            "meet_probability",
            DataType::Float64,
            "",
            "predicted chance, on arrival; refused: at that time",
        )),
        optional(number("start_meet_probability", DataType::Float64, "", "predicted chance, at dispatch")),
        number("is_trial", DataType::Boolean, "", "it would have been refused and was let through to see"),
        number("prompt_tokens", DataType::UInt32, "tokens", "prompt length"),
        optional(number("cached_tokens", DataType::UInt32, "tokens", "prompt tokens reused; NULL: it never ran")),
        number("output_tokens", DataType::UInt32, "tokens", "generated"),
    ]
}

pub(super) fn slo_reliability() -> Vec<Field> {
    vec![
        stamp("as_of", "state of the curve"),
        text("model", "model name"),
        text("tier", "High, Medium or Low"),
        number("predicted_from", DataType::Float64, "", "start of the bin of predicted chances, inclusive"),
        number("predicted_to", DataType::Float64, "", "end of the bin, exclusive but for 1"),
        number(
            "requests",
            DataType::UInt64,
            "requests",
            "that ended, with a chance in the bin on arrival, since the start",
        ),
        number("met", DataType::UInt64, "requests", "of them, those that met their deadline"),
        number("predicted_mean", DataType::Float64, "", "mean of their predicted chances"),
        number(
            "met_share",
            DataType::Float64,
            "",
            "met over requests: the same as predicted_mean if predictions are right",
        ),
    ]
}
