//! Columns of the views of traffic: what requests look like, and how many conversations are active (SPEC D4). See the rules in
//! `schema`.

use arrow::datatypes::{DataType, Field};

use super::{number, optional, stamp, text};

pub(super) fn request_distribution() -> Vec<Field> {
    let quantiles = |what: &'static str, unit: &'static str, words: &'static str| {
        ["p50", "p95", "p99"].map(|q| optional(number(&format!("{what}_{q}"), DataType::Float64, unit, words)))
    };
    let mut fields = vec![
        stamp("as_of", "end of the window"),
        text("model", "model name"),
        text("tier", "High, Medium or Low"),
        number("window_seconds", DataType::Float64, "s", "length of the window"),
        number("arrived", DataType::UInt64, "requests", "arrived in the window"),
        number("finished", DataType::UInt64, "requests", "finished in the window"),
        number("prompt_tokens", DataType::UInt64, "tokens", "prompt tokens of finished requests"),
        number("cached_tokens", DataType::UInt64, "tokens", "of which the engine reused"),
        number("output_tokens", DataType::UInt64, "tokens", "tokens they generated"),
    ];
    fields.extend(quantiles("prompt", "tokens", "prompt length"));
    fields.extend(quantiles("output", "tokens", "tokens generated"));
    fields.extend(quantiles("ttft_ms", "ms", "time to first token"));
    fields.extend(quantiles("itl_ms", "ms", "mean gap between tokens of a request"));
    fields.extend([
        optional(number("arrivals_per_second", DataType::Float64, "requests/s", "arrived over the window's length")),
        optional(number(
            "concurrent_tokens",
            DataType::Int64,
            "tokens",
            "context tokens of the group's live requests now",
        )),
        optional(number("concurrent_requests", DataType::Int64, "requests", "the group's live requests now")),
    ]);
    fields
}

pub(super) fn session_activity() -> Vec<Field> {
    vec![
        stamp("as_of", "end of the window"),
        text("model", "model name"),
        number("window_seconds", DataType::Float64, "s", "length of the window"),
        number("sessions", DataType::UInt64, "sessions", "with a request in the window"),
        number("requests", DataType::UInt64, "requests", "of these sessions in the window"),
        optional(number("turns_p50", DataType::Float64, "", "user messages per session so far")),
        optional(number("turns_p95", DataType::Float64, "", "user messages per session so far")),
        optional(number("turns_p99", DataType::Float64, "", "user messages per session so far")),
        number(
            "sampled_one_in",
            DataType::UInt64,
            "",
            "of how many sessions one was followed: 1 where figures are exact",
        ),
    ]
}
