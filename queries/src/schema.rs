//! The bus's topics and their Arrow schemas, declared once. A topic, its SQL table and its snapshot file have the same name.
//!
//! Names here are public: operators of a fleet write SQL against them. Change one only with a line in the changelog. A column is
//! added to a table only where NULL, or zero, is true of the rows that were written before it: so old logs are read on.
//! Every field carries `comment` and, where it has one, `unit` as Arrow field metadata; snapshots keep both. Times are
//! microseconds since the epoch in UTC. `NULL` means unknown or not applicable, never zero.

mod buckets;
mod load;
mod mrc;
mod predictors;
mod slo;
mod traffic;

use std::{collections::HashMap, sync::Arc, sync::LazyLock};

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

mod funnel;
mod modes;
mod replay;

/// Version of all schemas together; written into log segments and snapshots.
pub const SCHEMA_VERSION: u32 = 1;

/// A named stream of rows on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// One row per event in a request's life.
    Requests,
    /// One row per decision, with its inputs and every candidate.
    Decisions,
    /// One row per decision and shadow policy: what it would have decided (SPEC X1).
    ShadowDecisions,
    /// One row per engine step.
    EngineSteps,
    /// One row per change of an instance's prefix cache.
    KvEvents,
    /// One row per change of an instance's state.
    Instances,
    /// View: live load per 500-token atom and instance, once per publishing period (SPEC B2).
    AtomLoad,
    /// View: live load per region, model, tier and bucket (SPEC B2).
    LoadTotals,
    /// Bucket plans: how the length axis of a model is cut, and who serves what (SPEC B3).
    Buckets,
    /// View: distribution of finished requests per model and tier (SPEC D4).
    RequestDistribution,
    /// View: active sessions per model (SPEC D4).
    SessionActivity,
    /// View: service time of prefill and decode per instance shape, as learnt (SPEC A4).
    ServiceTime,
    /// View: output lengths per model, tier, tenant's class and prompt length, as learnt (SPEC A4).
    OutputLength,
    /// View: level, trend and season of arrivals per model, with a forecast (SPEC A5).
    ArrivalTrend,
    /// View: how well each predictor has predicted (SPEC A4).
    PredictionError,
    /// View: what routing believes of each instance (SPEC C4).
    InstanceLoad,
    /// View: hit rate as a function of cache capacity, from reuse distances (SPEC X4).
    Mrc,
    /// View: per request, how many prompt tokens reached each layer of the hit-rate funnel, and why not (SPEC C5).
    Funnel,
    /// View: the funnel summed up per model, region, tier and tenant (SPEC C5).
    FunnelWindow,
    /// View: why the slowest requests of a window were slow (SPEC D4).
    Diagnosis,
    /// One row per request that ended, or was refused for its deadline: met or missed, and what was predicted (SPEC A4).
    Slo,
    /// View: predicted chances of deadlines against the share that came true (SPEC A4).
    SloReliability,
    /// How far the cache index can be trusted: changes of mode, audits, what was asked for again (SPEC C4).
    CacheView,
    /// Rows that the dataflow would not take as they stand, with the reason.
    RefusedRows,
    /// One row each time an instance switches speculation on or off for a class of requests (SPEC D2).
    Speculation,
    /// Faults of Evenkeel itself: a full disk, a dead worker, a refused row.
    Faults,
    /// One row per start of a server: the settings that decide (SPEC X2).
    Settings,
    /// One row each time policies were asked, with everything they read (SPEC X2).
    PolicyInputs,
    /// One row per epoch of the dataflow in which rows came, and which rows (SPEC X2).
    Epochs,
    /// One row each time a part of Evenkeel changed its mode, and what is done in it (SPEC X5).
    Modes,
    /// One row per snapshot that was written or failed (SPEC E3).
    Snapshots,
}

/// Rows of `policy_inputs` kept in memory: they are wide and read from the log.
const WIDE_LIVE_ROWS_MAX: usize = 1 << 15;

impl Topic {
    pub const ALL: [Topic; 31] = [
        Topic::Requests,
        Topic::Decisions,
        Topic::ShadowDecisions,
        Topic::EngineSteps,
        Topic::KvEvents,
        Topic::Instances,
        Topic::AtomLoad,
        Topic::LoadTotals,
        Topic::Buckets,
        Topic::RequestDistribution,
        Topic::SessionActivity,
        Topic::ServiceTime,
        Topic::OutputLength,
        Topic::ArrivalTrend,
        Topic::PredictionError,
        Topic::InstanceLoad,
        Topic::Mrc,
        Topic::Funnel,
        Topic::FunnelWindow,
        Topic::Diagnosis,
        Topic::Slo,
        Topic::SloReliability,
        Topic::CacheView,
        Topic::RefusedRows,
        Topic::Speculation,
        Topic::Faults,
        Topic::Settings,
        Topic::PolicyInputs,
        Topic::Epochs,
        Topic::Modes,
        Topic::Snapshots,
    ];

    /// The topic's name, which is also its table's and its file's.
    pub fn name(self) -> &'static str {
        match self {
            Topic::Requests => "requests",
            Topic::Decisions => "decisions",
            Topic::ShadowDecisions => "shadow_decisions",
            Topic::EngineSteps => "engine_steps",
            Topic::KvEvents => "kv_events",
            Topic::Instances => "instances",
            Topic::AtomLoad => "atom_load",
            Topic::LoadTotals => "load_totals",
            Topic::Buckets => "buckets",
            Topic::RequestDistribution => "request_distribution",
            Topic::SessionActivity => "session_activity",
            Topic::ServiceTime => "service_time",
            Topic::OutputLength => "output_length",
            Topic::ArrivalTrend => "arrival_trend",
            Topic::PredictionError => "prediction_error",
            Topic::InstanceLoad => "instance_load",
            Topic::Mrc => "mrc",
            Topic::Funnel => "funnel",
            Topic::FunnelWindow => "funnel_window",
            Topic::Diagnosis => "diagnosis",
            Topic::Slo => "slo",
            Topic::SloReliability => "slo_reliability",
            Topic::CacheView => "cache_view",
            Topic::RefusedRows => "refused_rows",
            Topic::Speculation => "speculation",
            Topic::Faults => "faults",
            Topic::Settings => "settings",
            Topic::PolicyInputs => "policy_inputs",
            Topic::Epochs => "epochs",
            Topic::Modes => "modes",
            Topic::Snapshots => "snapshots",
        }
    }

    pub fn from_name(name: &str) -> Option<Topic> {
        Topic::ALL.into_iter().find(|topic| topic.name() == name)
    }

    /// Position in [`Topic::ALL`], for arrays indexed by topic.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Most rows of the topic that are worth keeping in memory; older ones are read from the log.
    pub fn live_rows_max(self) -> usize {
        match self {
            Topic::PolicyInputs | Topic::Epochs => WIDE_LIVE_ROWS_MAX,
            _ => usize::MAX,
        }
    }

    pub fn schema(self) -> SchemaRef {
        SCHEMAS[self.index()].clone()
    }
}

static SCHEMAS: LazyLock<Vec<SchemaRef>> = LazyLock::new(|| {
    Topic::ALL
        .iter()
        .map(|topic| {
            let metadata = HashMap::from([
                ("table".to_string(), topic.name().to_string()),
                ("version".to_string(), SCHEMA_VERSION.to_string()),
            ]);
            Arc::new(Schema::new_with_metadata(fields(*topic), metadata))
        })
        .collect()
});

fn fields(topic: Topic) -> Vec<Field> {
    match topic {
        Topic::Requests => requests(),
        Topic::Decisions => decisions(),
        Topic::ShadowDecisions => replay::shadow_decisions(),
        Topic::EngineSteps => engine_steps(),
        Topic::KvEvents => kv_events(),
        Topic::Instances => instances(),
        Topic::AtomLoad => load::atom_load(),
        Topic::LoadTotals => load::load_totals(),
        Topic::Buckets => buckets::buckets(),
        Topic::RequestDistribution => traffic::request_distribution(),
        Topic::SessionActivity => traffic::session_activity(),
        Topic::ServiceTime => predictors::service_time(),
        Topic::OutputLength => predictors::output_length(),
        Topic::ArrivalTrend => predictors::arrival_trend(),
        Topic::PredictionError => predictors::prediction_error(),
        Topic::InstanceLoad => instance_load(),
        Topic::Mrc => mrc::mrc(),
        Topic::Funnel => funnel::funnel(),
        Topic::FunnelWindow => funnel::funnel_window(),
        Topic::Diagnosis => funnel::diagnosis(),
        Topic::Slo => slo::slo(),
        Topic::SloReliability => slo::slo_reliability(),
        Topic::CacheView => cache_view(),
        Topic::RefusedRows => refused_rows(),
        Topic::Speculation => speculation(),
        Topic::Faults => modes::faults(),
        Topic::Settings => replay::settings(),
        Topic::PolicyInputs => replay::policy_inputs(),
        Topic::Epochs => replay::epochs(),
        Topic::Modes => modes::modes(),
        Topic::Snapshots => modes::snapshots(),
    }
}

fn requests() -> Vec<Field> {
    vec![
        at("when it happened"),
        text("request_id", "id of the request, also in the x-evenkeel-request-id header"),
        number("seq", DataType::UInt32, "", "order of the request's events, from 1"),
        text("event", "arrived, queued, dispatched, first_token, grew, finished, cancelled, failed or rejected"),
        text("model", "model name"),
        text("tier", "High, Medium or Low"),
        text("tenant", "whose key the request came with"),
        optional(number("instance", DataType::UInt32, "", "instance that serves it")),
        number("prompt_tokens", DataType::UInt32, "tokens", "prompt length"),
        number("output_tokens", DataType::UInt32, "tokens", "generated so far"),
        optional(number("cached_tokens", DataType::UInt32, "tokens", "prompt tokens whose KV the engine reused")),
        optional(number(
            "gap_us",
            DataType::Int64,
            "us",
            "first_token: since arrival (TTFT); grew: since the previous token (ITL)",
        )),
        optional(number("total_us", DataType::Int64, "us", "since arrival, on the last event")),
        optional(text("finish_reason", "stop, length, tool_calls, cancelled or failed, on the last event")),
        optional(text("error", "reason of a failure or refusal")),
        optional(text("variant", "variant of the model at the instance that serves it")),
        optional(number("block_tokens", DataType::UInt32, "tokens", "arrived: tokens of one block")),
        hashes("prompt_blocks", "arrived: chained XXH3-64 of the full blocks of each prompt, seed 1337"),
        optional(number(
            "session_hash",
            DataType::UInt64,
            "",
            "arrived: the conversation, by tenant, user and its messages up to the first of the user; NULL if not known",
        )),
        optional(number("turns", DataType::UInt32, "", "arrived: user messages of the conversation so far")),
        optional(text("tenant_class", "best tier the tenant may have")),
        optional(number(
            "expected_hit_tokens",
            DataType::UInt32,
            "tokens",
            "prompt tokens that routing believed cached at the instance",
        )),
    ]
}

fn candidate() -> Fields {
    Fields::from(vec![
        number("instance", DataType::UInt32, "", "candidate"),
        number("hit_tokens", DataType::UInt32, "tokens", "prompt tokens its cache is believed to hold"),
        number("queue_seconds", DataType::Float64, "s", "predicted time until its queue is drained"),
        number("prefill_seconds", DataType::Float64, "s", "predicted time to compute the uncached prompt"),
        number("interference_seconds", DataType::Float64, "s", "predicted slowing of what runs there"),
        number("total_seconds", DataType::Float64, "s", "sum of the terms"),
        number("fetch_tokens", DataType::UInt32, "tokens", "of hit_tokens, those held below L1"),
        number("fetch_seconds", DataType::Float64, "s", "predicted time to bring these to L1"),
        number("queue_error_seconds", DataType::Float64, "s", "uncertainty of queue_seconds: one standard deviation"),
        number("prefill_error_seconds", DataType::Float64, "s", "uncertainty of prefill_seconds"),
        number("fetch_error_seconds", DataType::Float64, "s", "uncertainty of fetch_seconds"),
        number("interference_error_seconds", DataType::Float64, "s", "uncertainty of interference_seconds"),
        number("error_seconds", DataType::Float64, "s", "uncertainty of total_seconds"),
        number(
            "compared_seconds",
            DataType::Float64,
            "s",
            "total_seconds + policy.route.error_weight × error_seconds, and what borrowing from another bucket costs",
        ),
        optional(number("has_room", DataType::Boolean, "", "its lease had room for the request")),
    ])
}

fn decisions() -> Vec<Field> {
    let predicted = |name: &str, comment: &str| optional(number(name, DataType::Float64, "s", comment));
    vec![
        at("when it was decided"),
        text("decision_id", "id of the decision, also in the x-evenkeel-decision header"),
        text("request_id", "the request"),
        text("model", "model name"),
        text("tenant", "whose key the request came with"),
        text("tier", "High, Medium or Low"),
        text("tier_reason", "why that tier"),
        text("outcome", "admit, queue or reject"),
        text("reason", "why that outcome and that instance"),
        text("throttle_step", "step of throttling in force"),
        text("route_policy", "policy that chose the instance"),
        optional(number("instance", DataType::UInt32, "", "instance chosen")),
        number("prompt_tokens", DataType::UInt32, "tokens", "prompt length"),
        number("max_tokens", DataType::UInt32, "tokens", "most tokens to generate"),
        number("predicted_hit_tokens", DataType::UInt32, "tokens", "longest cached prefix in the view"),
        optional(number(
            "predicted_seconds",
            DataType::Float64,
            "s",
            "predicted time to first token at the instance chosen",
        )),
        number("turns", DataType::UInt32, "", "user messages in the conversation"),
        text("view_mode", "exact, approximate, degraded, stale, off or none: how far the views could be trusted"),
        optional(stamp("view_as_of", "state of the views the decision read")),
        optional(number(
            "saturation",
            DataType::Float64,
            "",
            "the saturation signal throttling read, 0 to 1 and above",
        )),
        Field::new(
            "candidates",
            DataType::List(Arc::new(Field::new("item", DataType::Struct(candidate()), false))),
            false,
        )
        .with_metadata(HashMap::from([("comment".to_string(), "every candidate with its cost terms".to_string())])),
        optional(text("variant", "variant of the model at the instance chosen; the reason says if it is a fallback")),
        optional(number(
            "visible_hit_tokens",
            DataType::UInt32,
            "tokens",
            "longest cached prefix that routing saw and believed, on any instance; 0 if the views could not be read",
        )),
        optional(stamp("first_token_due", "when the first token is due")),
        optional(stamp("whole_due", "when the whole answer is due, where its sender stated a budget for it")),
        predicted("predicted_wait_seconds", "in the queue, as far as that is known"),
        predicted("predicted_first_token_seconds", "to the first token, on the instance where its chance is best"),
        predicted("predicted_whole_seconds", "to the end of an answer of mean length, there"),
        optional(number("meet_probability", DataType::Float64, "", "predicted chance of the deadline, there")),
        optional(number("is_trial", DataType::Boolean, "", "it would have been refused and was let through to see")),
        optional(
            Field::new(
                "bucket_fits",
                DataType::List(Arc::new(Field::new("item", DataType::Struct(buckets::bucket_fit()), false))),
                true,
            )
            .with_metadata(HashMap::from([(
                "comment".to_string(),
                "how the request fits the bucket of each candidate; NULL where no bucket plan says anything"
                    .to_string(),
            )])),
        ),
    ]
}

fn engine_steps() -> Vec<Field> {
    vec![
        at("end of the step"),
        number("instance", DataType::UInt32, "", "instance"),
        number("epoch", DataType::UInt64, "", "incarnation of the instance's process"),
        number("step", DataType::UInt64, "", "number of the step in this incarnation, from 1"),
        number("step_us", DataType::Int64, "us", "duration of the step"),
        number("prefill_tokens", DataType::UInt32, "tokens", "prompt tokens computed"),
        number("decode_tokens", DataType::UInt32, "tokens", "sequences that generated"),
        number("running", DataType::UInt32, "sequences", "running after the step"),
        number("waiting", DataType::UInt32, "sequences", "waiting after the step"),
        number("preempted", DataType::UInt32, "sequences", "preempted in the step"),
        number(
            "cached_tokens",
            DataType::UInt32,
            "tokens",
            "prompt tokens reused by sequences first scheduled in the step",
        ),
        number(
            "scheduled_prompt_tokens",
            DataType::UInt32,
            "tokens",
            "prompt tokens of sequences first scheduled in the step",
        ),
        number("queued_prefill_tokens", DataType::UInt32, "tokens", "prompt tokens not computed yet"),
        number("context_tokens", DataType::UInt32, "tokens", "tokens with KV held by running sequences"),
        number("blocks_used", DataType::UInt32, "blocks", "held by sequences"),
        number("blocks_cached", DataType::UInt32, "blocks", "kept only for reuse"),
        number("blocks_total", DataType::UInt32, "blocks", "in the pool"),
        number("proposed_tokens", DataType::UInt32, "tokens", "guessed tokens that were verified (speculation)"),
        number(
            "accepted_tokens",
            DataType::UInt32,
            "tokens",
            "guessed tokens that were right: generated beside those of decode_tokens",
        ),
        number("swapped", DataType::UInt32, "sequences", "of those preempted, moved to L2; the others are recomputed"),
        number("swapped_out_blocks", DataType::UInt32, "blocks", "copied to L2"),
        number("swapped_in_blocks", DataType::UInt32, "blocks", "copied back from L2"),
        number("copied_blocks", DataType::UInt32, "blocks", "copied within L1 to reuse a part of a block"),
        number("l2_blocks_used", DataType::UInt32, "blocks", "in use in L2"),
    ]
}

fn kv_events() -> Vec<Field> {
    vec![
        at("when the engine reported it"),
        number("instance", DataType::UInt32, "", "instance"),
        number("epoch", DataType::UInt64, "", "incarnation of the instance's process"),
        number("seq", DataType::UInt64, "", "order within the incarnation, from 1, without gaps"),
        text(
            "event",
            "stored, hit, removed or cleared; sum: what the instance holds in an audit bucket; listed: all of a bucket follows",
        ),
        optional(number(
            "block_hash",
            DataType::UInt64,
            "",
            "chained XXH3-64 of the block, seed 1337; of a sum: the sum of hash × (2 × level + 1), L1 being level 0",
        )),
        optional(number("parent_hash", DataType::UInt64, "", "hash of the block before it")),
        optional(text("level", "L1 (device), L2 (host), L2.5 (local disk) or L3 (shared storage)")),
        optional(number("tokens", DataType::UInt32, "tokens", "tokens in the block; of a hit: tokens reused")),
        optional(number(
            "bucket",
            DataType::UInt32,
            "",
            "of sum and listed: audit bucket, the first 4 bits of the hash",
        )),
        optional(number(
            "blocks",
            DataType::UInt32,
            "blocks",
            "of sum and listed: pairs of block and level held there",
        )),
    ]
}

fn instances() -> Vec<Field> {
    vec![
        at("when the state was entered"),
        number("instance", DataType::UInt32, "", "instance"),
        text("name", "name of the instance"),
        number("epoch", DataType::UInt64, "", "incarnation of the instance's process"),
        text("state", "starting, ready, draining, dead or stopped"),
        text("model", "model it serves"),
        optional(text("address", "where it listens")),
        optional(number("pid", DataType::UInt32, "", "process id")),
        optional(text("detail", "why, in words")),
        optional(number("phase_us", DataType::Int64, "us", "time spent in the state before this one")),
        optional(text("variant", "variant of the model it serves")),
    ]
}

fn instance_load() -> Vec<Field> {
    vec![
        stamp("as_of", "state of the view"),
        number("instance", DataType::UInt32, "", "instance"),
        number("epoch", DataType::UInt64, "", "incarnation of the instance's process"),
        number("running", DataType::UInt32, "sequences", "running"),
        number("waiting", DataType::UInt32, "sequences", "waiting in the engine"),
        number("leased_tokens", DataType::UInt64, "tokens", "reserved by the gateway at dispatch and not finished"),
        number("context_tokens", DataType::UInt64, "tokens", "tokens of live requests, from the load view"),
        number("queued_prefill_tokens", DataType::UInt64, "tokens", "prompt tokens not computed yet"),
        number("cached_blocks", DataType::UInt64, "blocks", "blocks in the cache index"),
        number("blocks_used", DataType::UInt32, "blocks", "held by sequences"),
        number("blocks_total", DataType::UInt32, "blocks", "in the pool"),
        optional(number("prefill_tokens_per_second", DataType::Float64, "tokens/s", "learnt prefill rate")),
        optional(number("decode_step_seconds", DataType::Float64, "s", "learnt duration of a decode step")),
        optional(number("tokens_per_second", DataType::Float64, "tokens/s", "generated in the last second")),
    ]
}

fn cache_view() -> Vec<Field> {
    vec![
        at("state of the view"),
        number("instance", DataType::UInt32, "", "instance"),
        number("epoch", DataType::UInt64, "", "incarnation of the instance's process"),
        text("event", "mode: it changed; audit: the instance told sums of what it holds; listing: it told the blocks"),
        text("mode", "exact, approximate (blocks left out at a bound), degraded (blocks missing or stale) or dropped"),
        text("cause", "sound, full, drift, gap, lost, silent or gone: why that mode"),
        optional(number("held_blocks", DataType::UInt64, "blocks", "pairs of block and level the instance holds")),
        optional(number("indexed_blocks", DataType::UInt64, "blocks", "pairs of it in the cache index")),
        optional(number(
            "differing_blocks",
            DataType::UInt64,
            "blocks",
            "pairs in one of the two alone: of an audit at least as many, of a listing exactly",
        )),
        optional(number("drift_ratio", DataType::Float64, "", "differing_blocks over held_blocks")),
    ]
}

fn refused_rows() -> Vec<Field> {
    vec![
        at("when it was refused"),
        text("topic", "topic of the row"),
        text("reason", "why, one word"),
        optional(text("field", "the field that was wrong")),
        optional(text("value", "its value")),
        optional(number("instance", DataType::UInt32, "", "instance the row was of")),
        number("count", DataType::UInt64, "rows", "how many the row stands for"),
        text("detail", "in words"),
    ]
}

fn speculation() -> Vec<Field> {
    vec![
        at("end of the step in which it was switched"),
        number("instance", DataType::UInt32, "", "instance"),
        number("epoch", DataType::UInt64, "", "incarnation of the instance's process"),
        text("class", "class of requests: their tier; their lane, L1 to L3, where the caller named no tier"),
        text("state", "active: guesses are verified; cool: they would lose, and are only probed"),
        number("predicted_gain", DataType::Float32, "", "tokens a second with guesses over without, as predicted"),
        number("drawn", DataType::UInt64, "tokens", "tokens of the class since the incarnation began"),
        number("proposed", DataType::UInt64, "tokens", "guessed tokens that were verified"),
        number("accepted", DataType::UInt64, "tokens", "of these, how many were right"),
    ]
}

fn described(field: Field, unit: &str, comment: &str) -> Field {
    let mut metadata = HashMap::from([("comment".to_string(), comment.to_string())]);
    if !unit.is_empty() {
        metadata.insert("unit".to_string(), unit.to_string());
    }
    field.with_metadata(metadata)
}

fn stamp(name: &str, comment: &str) -> Field {
    described(Field::new(name, DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), false), "", comment)
}

fn at(comment: &str) -> Field {
    stamp("at", comment)
}

fn text(name: &str, comment: &str) -> Field {
    described(Field::new(name, DataType::Utf8, false), "", comment)
}

/// A list of texts.
fn texts(name: &str, comment: &str) -> Field {
    let item = Field::new("item", DataType::Utf8, false);
    described(Field::new(name, DataType::List(Arc::new(item)), false), "", comment)
}

/// A list of numbers of instances.
fn numbers(name: &str, comment: &str) -> Field {
    let item = Field::new("item", DataType::UInt32, false);
    described(Field::new(name, DataType::List(Arc::new(item)), false), "", comment)
}

/// One list of hashes for each prompt.
fn hashes(name: &str, comment: &str) -> Field {
    let prompt = DataType::List(Arc::new(Field::new("item", DataType::UInt64, false)));
    let prompts = DataType::List(Arc::new(Field::new("item", prompt, false)));
    described(Field::new(name, prompts, true), "", comment)
}

fn number(name: &str, data_type: DataType, unit: &str, comment: &str) -> Field {
    described(Field::new(name, data_type, false), unit, comment)
}

fn optional(field: Field) -> Field {
    field.with_nullable(true)
}
