//! Columns of the tables that make a log enough to decide again (SPEC X2): what policies read, where epochs ended, and the
//! settings in force.
//!
//! Invariant: with these and the input topics, every decision and every view is a function of rows. Their live rings are small
//! ([`Topic::live_rows_max`](super::Topic::live_rows_max)): a replay reads the log.

use std::{collections::HashMap, sync::Arc};

use arrow::datatypes::{DataType, Field, Fields};

use super::{at, number, optional, stamp, text};

pub(super) fn settings() -> Vec<Field> {
    vec![
        at("when a server started with them"),
        text("id", "XXH3-64 of the text, in hexadecimal; rows of policy_inputs name it"),
        text("program", "version of the program"),
        text("text", "TOML: the sections of the configuration that decide, model and block size; never a key"),
    ]
}

fn instance_input() -> Fields {
    let figure = |name: &str, unit: &str, comment: &str| optional(number(name, DataType::UInt32, unit, comment));
    let share = |name: &str, comment: &str| optional(number(name, DataType::Float64, "", comment));
    let fetch = |name: &str, comment: &str| optional(number(name, DataType::Float64, "s", comment));
    Fields::from(vec![
        number("instance", DataType::UInt32, "", "instance"),
        number("epoch", DataType::UInt64, "", "incarnation of the instance's process"),
        text("model", "model it serves"),
        text("variant", "variant of the model it serves"),
        number("is_ready", DataType::Boolean, "", "takes new requests"),
        number("leased_tokens", DataType::UInt64, "tokens", "reserved on it"),
        number("leased_requests", DataType::UInt32, "requests", "reserved on it"),
        optional(stamp("reported_at", "its last engine step in the views; NULL: no figures of this incarnation")),
        figure("running", "sequences", "running"),
        figure("waiting", "sequences", "waiting"),
        optional(number("queued_prefill_tokens", DataType::UInt64, "tokens", "prompt tokens not computed yet")),
        optional(number("context_tokens", DataType::UInt64, "tokens", "live context")),
        figure("blocks_used", "blocks", "held by sequences"),
        figure("blocks_total", "blocks", "in the pool"),
        optional(number("prefill_tokens_per_second", DataType::Float64, "tokens/s", "learnt prefill rate")),
        optional(number("decode_step_seconds", DataType::Float64, "s", "learnt duration of a decode step")),
        share("prefill_error", "how far predictions of prefill were off lately, one standard deviation as a share"),
        share("decode_error", "the same of decode steps"),
        fetch("l2_fetch_seconds_per_token", "measured time to bring a token's KV from L2"),
        fetch("l25_fetch_seconds_per_token", "… from L2.5"),
        fetch("l3_fetch_seconds_per_token", "… from L3"),
    ])
}

fn hit() -> Fields {
    Fields::from(vec![
        number("instance", DataType::UInt32, "", "instance"),
        number("tokens", DataType::UInt32, "tokens", "longest prefix it is believed to hold"),
        number("l2_tokens", DataType::UInt32, "tokens", "of these, held no nearer than in L2"),
        number("l25_tokens", DataType::UInt32, "tokens", "… than in L2.5"),
        number("l3_tokens", DataType::UInt32, "tokens", "… than in L3"),
    ])
}

fn service_input() -> Fields {
    Fields::from(vec![
        text("variant", "variant of the model"),
        number("chunk_tokens", DataType::UInt32, "tokens", "most prompt tokens that one step prefills"),
        optional(list("prefill", DataType::Float64, "coefficients of the fit, then its noise; NULL: not known")),
        optional(list("decode", DataType::Float64, "coefficients of the fit, then its noise; NULL: not known")),
    ])
}

fn queue_step() -> Fields {
    Fields::from(vec![
        number("tier", DataType::UInt8, "", "0 is High"),
        number("start_by_us", DataType::Int64, "us", "latest start, from the Unix epoch"),
        number("tokens", DataType::UInt64, "tokens", "of all that must start by then"),
        number("requests", DataType::UInt32, "requests", "that must start by then"),
    ])
}

fn seat() -> Fields {
    Fields::from(vec![
        number("instance", DataType::UInt32, "", "instance"),
        number("plan", DataType::UInt64, "", "the plan, as in buckets"),
        number("from_tokens", DataType::UInt32, "tokens", "prompts of at least this length are at home …"),
        optional(number("to_tokens", DataType::UInt32, "tokens", "… and below this; NULL: without end")),
        number("foreign_tokens", DataType::UInt64, "tokens", "work of other buckets in flight on it"),
    ])
}

fn prompt_due() -> Fields {
    Fields::from(vec![
        number("instance", DataType::UInt32, "", "instance"),
        number("due_us", DataType::Int64, "us", "by when its request must be whole, from the Unix epoch"),
        number("tokens", DataType::UInt32, "tokens", "of it that were not cached"),
    ])
}

fn cached() -> Fields {
    Fields::from(vec![
        number("instance", DataType::UInt32, "", "instance"),
        number("blocks", DataType::UInt64, "blocks", "believed to be cached there, at any level"),
    ])
}

fn refused() -> Fields {
    Fields::from(vec![
        number("at_us", DataType::Int64, "us", "when, from the Unix epoch"),
        number("tier", DataType::UInt8, "", "0 is High"),
        number("engine_seconds", DataType::Float64, "s", "engine time that it would have taken"),
    ])
}

fn list(name: &str, item: DataType, comment: &str) -> Field {
    Field::new(name, DataType::List(Arc::new(Field::new("item", item, false))), false)
        .with_metadata(HashMap::from([("comment".to_string(), comment.to_string())]))
}

pub(super) fn policy_inputs() -> Vec<Field> {
    let hashes = DataType::List(Arc::new(Field::new("item", DataType::UInt64, false)));
    let waiting = |name: &str, unit: &str, comment: &str| optional(number(name, DataType::UInt64, unit, comment));
    let budget = |name: &str, comment: &str| optional(number(name, DataType::Int64, "us", comment));
    let lengths = DataType::List(Arc::new(Field::new("item", DataType::UInt32, false)));
    vec![
        at("the time the policies were given"),
        text("reading", "arrival, placement, wait, wait_over or tick: which policies were asked"),
        text("decision_id", "decision made from it; empty for a tick, which only moves the throttle"),
        text("request_id", "the request; empty for a tick"),
        text("settings", "id of the settings in force"),
        text("view_mode", "exact, approximate, degraded, stale or off"),
        optional(stamp("view_as_of", "state of the views")),
        list("instances", DataType::Struct(instance_input()), "the fleet as the policies saw it"),
        list(
            "least_loaded",
            DataType::UInt32,
            "of a large fleet, the instances with the fewest leased tokens, least first",
        ),
        list("hits", DataType::Struct(hit()), "cached prefix of the prompts, added up per instance"),
        optional(stamp("hits_as_of", "state of the cache index; NULL: not looked at, or it changed while it was read")),
        list("block_hashes", hashes, "per prompt, block hashes up to the first that no instance was believed to hold"),
        optional(text("tenant", "arrival: whose key the request came with")),
        optional(text("tenant_class", "arrival: best tier of the tenant")),
        list("variants", DataType::Utf8, "placement: variants of the model that may serve it, best first"),
        optional(text("tier", "placement: tier of the request")),
        number("prompt_tokens", DataType::UInt32, "tokens", "prompt length"),
        number("max_tokens", DataType::UInt32, "tokens", "arrival: as asked for; placement: as admitted"),
        optional(number("turns", DataType::UInt32, "", "arrival: user messages in the conversation")),
        optional(number("tie_turn", DataType::UInt64, "", "whose turn it was among equal instances")),
        list("excluded", DataType::UInt32, "placement: instances left out, since they failed or have no client"),
        optional(text("throttle_step", "arrival, tick: step in force before")),
        optional(number("throttle_since_us", DataType::Int64, "us", "arrival, tick: since when, from the Unix epoch")),
        waiting("queued_requests", "requests", "arrival: requests in the queue at admission"),
        waiting("queued_tokens", "tokens", "arrival: tokens they hold"),
        waiting(
            "pushed_requests",
            "requests",
            "arrival: requests in the queue when this one came to it; NULL: it did not",
        ),
        waiting("pushed_tokens", "tokens", "arrival: tokens they hold"),
        optional(text(
            "lease",
            "placement: reserved, lost (others took the room, or too many instances were spared) or none; arrival: reserved, where what routing chose then was taken",
        )),
        optional(text("because", "placement: what led to it, in words")),
        waiting("queued_bytes", "bytes", "arrival: memory held by the requests in the queue at admission"),
        waiting("pushed_bytes", "bytes", "arrival: the same when this one came to it; NULL: it did not"),
        waiting("request_bytes", "bytes", "arrival: memory that the request holds while it waits"),
        optional(text("model", "model asked for, whose instances and throttle were looked at; NULL: the only one")),
        optional(stamp("arrived_at", "arrival, wait: when the request came; its budgets count from here")),
        budget("slo_first_token_us", "arrival: budget stated for the first token, as far as the key allows"),
        budget("slo_whole_us", "arrival: the same for the whole answer"),
        budget("slo_per_token_us", "arrival: the same for each token after the first"),
        optional(text("tier_asked", "arrival: tier its sender chose, whose key allows that")),
        optional(text("tier_asked_max", "arrival: its sender wants no better tier")),
        optional(number("sequences", DataType::UInt32, "sequences", "arrival, wait: that it runs")),
        optional(stamp("forecast_as_of", "arrival, wait: state of the predictors; NULL: not read")),
        optional(list("output_lengths", lengths, "arrival, wait: equally likely lengths, for High, Medium and Low")),
        optional(list("services", DataType::Struct(service_input()), "arrival, wait: service times by variant")),
        optional(number(
            "drain_tokens_per_second",
            DataType::Float64,
            "tokens/s",
            "arrival, wait: that leave the queue",
        )),
        optional(list(
            "skill",
            DataType::Float64,
            "arrival, wait: mean and variance of the logarithm of actual over predicted time, to the first token and to the end",
        )),
        optional(list("queue_steps", DataType::Struct(queue_step()), "arrival, wait: what waits, by latest start")),
        optional(list(
            "bucket_seats",
            DataType::Struct(seat()),
            "places of the instances in the bucket plan; NULL: none",
        )),
        optional(list(
            "prompts_due",
            DataType::Struct(prompt_due()),
            "prompts to be computed, of requests with deadlines that count; NULL: none",
        )),
        optional(list(
            "spared",
            DataType::UInt32,
            "placement: instances that took no more, since requests there would have missed their deadlines; NULL: none",
        )),
        optional(number(
            "missed_share",
            DataType::Float64,
            "",
            "arrival, wait: share, from 0 to 1, of the engines' time that lately went to answers that came too late, or is expected to",
        )),
        optional(number(
            "request_seconds",
            DataType::Float64,
            "s",
            "arrival, wait: engine time of a request that started lately, on average; NULL: none did",
        )),
        optional(list(
            "cached_blocks",
            DataType::Struct(cached()),
            "how much is cached on the instances where that is known; NULL: on none",
        )),
        optional(stamp(
            "refused_since",
            "arrival, wait: those refused before are not in refused_lately; NULL: all are that were in ten seconds",
        )),
        optional(list(
            "refused_lately",
            DataType::Struct(refused()),
            "arrival, wait: requests refused for a predicted miss that were likely to be met where nothing ran, the cheapest first; NULL: none",
        )),
        optional(number(
            "chance_offset",
            DataType::Float64,
            "",
            "arrival, wait: log odds that came true are chance_offset + chance_slope x those of the predicted times",
        )),
        optional(number("chance_slope", DataType::Float64, "", "see chance_offset; NULL: taken as predicted")),
    ]
}

pub(super) fn shadow_decisions() -> Vec<Field> {
    let seconds = |name: &str, comment: &str| optional(number(name, DataType::Float64, "s", comment));
    let instance = |name: &str, comment: &str| optional(number(name, DataType::UInt32, "", comment));
    vec![
        at("when the acting policy decided"),
        text("shadow", "name of the shadow policy"),
        text("decision_id", "the acting policy's decision, a row of decisions"),
        text("request_id", "the request"),
        text("tenant", "whose key the request came with"),
        text("acting_tier", "High, Medium or Low"),
        text("shadow_tier", "the same by the shadow"),
        text("acting_outcome", "admit, queue or reject"),
        text("shadow_outcome", "the same by the shadow"),
        text("acting_reason", "why"),
        text("shadow_reason", "the same by the shadow"),
        text("acting_throttle_step", "step of throttling in force"),
        text("shadow_throttle_step", "the same by the shadow, whose throttle goes on by itself"),
        instance("acting_instance", "instance chosen"),
        instance("shadow_instance", "the same by the shadow"),
        seconds("acting_seconds", "predicted seconds there, by the acting policy's settings"),
        seconds("shadow_seconds", "predicted seconds at the shadow's choice, by the acting policy's settings"),
        seconds("seconds_difference", "shadow_seconds - acting_seconds: below zero where the shadow would be faster"),
        optional(number(
            "hit_tokens_difference",
            DataType::Int64,
            "tokens",
            "cached prompt tokens at the shadow's choice less those at the acting policy's",
        )),
        number("is_changed", DataType::Boolean, "", "tier, outcome, instance or throttle step differ"),
    ]
}

pub(super) fn epochs() -> Vec<Field> {
    let range = |topic: &str| {
        [
            number(&format!("{topic}_from"), DataType::UInt64, "rows", "first row of the topic in this epoch"),
            number(&format!("{topic}_to"), DataType::UInt64, "rows", "row after the last"),
        ]
    };
    let mut fields = vec![
        at("when the epoch was closed"),
        stamp("flow_start", "start of epoch 0 of the dataflow; names the dataflow"),
        number("epoch_us", DataType::Int64, "us", "length of an epoch"),
        number("epoch", DataType::UInt64, "", "an epoch in which rows came; others have no row here"),
    ];
    for topic in ["requests", "engine_steps", "kv_events", "decisions", "instances", "buckets"] {
        fields.extend(range(topic));
    }
    fields
}
