//! Columns of the hit-rate funnel and of the diagnosis (SPEC C5, D4).

use arrow::datatypes::{DataType, Field};

use super::{at, number, optional, stamp, text, texts};

const LAYER: &str = "prompt, potential, present, visible, eligible, selected or delivered";
const LEVEL: &str = "of `present`: KV level that held the tokens; L1 (device), L2 (host) or lower";
const REASON: &str = "NULL: tokens that reached the layer; else why tokens did not, or by which gain more did";
const TOKENS: &str = "that reached the layer, or were lost for the reason; below zero for a gain";
const SECONDS: &str = "predicted time to compute the tokens lost; NULL where no prefill rate was known";

pub(super) fn funnel() -> Vec<Field> {
    let mut fields = vec![
        at("when the request was decided; when it came, if it never was"),
        text("request_id", "the request"),
        text("model", "model name"),
        text("region", "region that served it"),
        text("tier", "High, Medium or Low"),
        text("tenant", "whose key the request came with"),
        optional(number("instance", DataType::UInt32, "", "instance chosen")),
    ];
    fields.extend(layer());
    fields
}

pub(super) fn funnel_window() -> Vec<Field> {
    let mut fields = vec![
        stamp("as_of", "end of the window"),
        text("span", "tumbling: one window; running: since the group's first request"),
        number("window_seconds", DataType::Float64, "s", "length of the span"),
        text("model", "model name; (other): groups beyond the bound"),
        text("region", "region"),
        text("tier", "High, Medium or Low"),
        text("tenant", "tenant"),
        number("requests", DataType::UInt64, "requests", "requests closed in the span"),
    ];
    fields.extend(layer());
    fields
}

fn layer() -> Vec<Field> {
    vec![
        text("layer", LAYER),
        optional(text("level", LEVEL)),
        optional(text("reason", REASON)),
        number("tokens", DataType::Int64, "tokens", TOKENS),
        optional(number("predicted_seconds", DataType::Float64, "s", SECONDS)),
    ]
}

pub(super) fn diagnosis() -> Vec<Field> {
    let count = |name: &str, words: &str| number(name, DataType::UInt64, "", words);
    let seconds = |name: &str, words: &str| number(name, DataType::Float64, "s", words);
    let share = |name: &str, words: &str| optional(number(name, DataType::Float64, "", words));
    let most = |name: &str, words: &str| number(name, DataType::Float64, "", words);
    let worst = |name: &str, data_type, words: &str| optional(number(name, data_type, "", words));
    vec![
        stamp("as_of", "end of the window"),
        text("model", "model name"),
        seconds("window_seconds", "length of the window"),
        text("verdict", "scheduling, iteration_spikes, bandwidth, clear, or too_little to judge"),
        count("requests", "requests that finished in the window"),
        count("slow_requests", "of these, the slowest hundredth, at least one: those looked at"),
        seconds("slow_from_seconds", "least latency among the slowest"),
        seconds("slow_seconds", "latency of the slowest, added up"),
        seconds("slow_queue_seconds", "of it, in the gateway's queue"),
        seconds("slow_wait_seconds", "of it, up to the first token, beyond queue and computing the prompt"),
        share("queue_share", "share of the last two in the latency of the slowest"),
        most("queue_share_most", "above it: scheduling"),
        count("steps", "engine steps that could be compared with the fit of earlier windows"),
        seconds("step_seconds", "their length"),
        count("spikes", "steps much longer than the fit says"),
        seconds("spike_seconds", "what they took beyond the fit"),
        count("spikes_paged", "spikes in which KV blocks were copied between levels"),
        share("spike_share", "share of spike_seconds in step_seconds"),
        most("spike_share_most", "above it: iteration_spikes"),
        count("decode_steps", "steps that only decoded and were no spikes"),
        seconds("decode_seconds", "their length"),
        seconds("decode_predicted_seconds", "their length by the fit, for their sequences and context"),
        seconds("context_seconds", "of it, for reading the context's KV"),
        share("decode_ratio", "decode_seconds over decode_predicted_seconds"),
        most("decode_ratio_most", "above it: bandwidth"),
        texts("worst_requests", "ids of the slowest requests, slowest first, at most three"),
        worst("worst_step_instance", DataType::UInt32, "instance of the step that was longest beyond the fit"),
        worst("worst_step_epoch", DataType::UInt64, "its incarnation"),
        worst("worst_step", DataType::UInt64, "its number"),
        optional(number("worst_step_us", DataType::Int64, "us", "its length")),
    ]
}
