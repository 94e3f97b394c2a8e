//! Batches of the bus become rows with integer keys for the operators (`reference/stack.md` §4: strings cost 4 to 5 times).
//!
//! What cannot be a row is refused with its reason (`refused`): a batch without its topic's columns, an unknown event. Rows
//! off their time count in the open epoch and are told as late or early.
//!
//! Columns are read in place, but for the rows that begin, place or end a request. Request ids are hashed (XXH3-64), names are numbered. The time to first token is
//! remembered from `first_token` to the end of a request. The shape of an instance is the model and variant it serves: all
//! workers of one run on one kind of machine with one set of options. Cost: O(rows). State: [`NAMES_MAX`] names; one number per
//! open request up to a bound, at which the oldest is forgotten, and its end then has an unknown time to first token; one
//! number per instance up to [`INSTANCES_MAX`], beyond which instances have no known shape.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use arrow::{
    array::{
        Array, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt32Array,
        UInt64Array,
    },
    compute::filter_record_batch,
};
use operators::{ArrivedRow, End, FinishedRow, FlowRows, KvChange, KvRow, LoadEvent, LoadRow, StepRow, TrafficRow};
use queries::Topic;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    columns::{Columns, maybe, maybe_text, only, told},
    funnel_feed::FunnelFeed,
    kv_feed,
    plan_feed::PlanFeed,
    prompt_feed,
    recent::Recent,
    refused::{RefusedRows, Wrong},
};
use crate::{
    bus::{Published, RowsError},
    ids::{Micros, Name},
};

/// Distinct names of models, tenants and shapes that have a number of their own.
pub const NAMES_MAX: usize = 1024;
/// The name that all further ones share.
const OTHER: &str = "(other)";

/// Numbers for names, shared with whoever turns view rows back into names.
#[derive(Debug, Clone, Default)]
pub struct Names(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    numbers: HashMap<Name, u32>,
    names: Vec<Name>,
}

impl Names {
    /// The name's number; new names get the next one, and those beyond [`NAMES_MAX`] that of `(other)`.
    pub fn number(&self, name: &str) -> u32 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = known.numbers.get(name) {
            return *number;
        }
        let number = known.names.len().min(NAMES_MAX) as u32;
        if known.names.len() < NAMES_MAX {
            let name = Name::from(name);
            known.names.push(name.clone());
            known.numbers.insert(name, number);
        } else if known.names.len() == NAMES_MAX {
            known.names.push(Name::new_static(OTHER));
        }
        number
    }

    /// The number of a name that has one of its own.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).numbers.get(name).copied()
    }

    /// The name of a number given out before.
    pub fn name(&self, number: u32) -> Name {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.names.get(number as usize).cloned().unwrap_or_default()
    }
}

/// Instances whose model is remembered.
pub const INSTANCES_MAX: usize = 65_536;

/// Shape of an instance that has not said what it serves.
pub const UNKNOWN_SHAPE: u32 = u32::MAX;

/// There is one region until instances say where they stand.
const REGION: u16 = 0;

/// Topics the dataflow reads.
pub const TOPICS: [Topic; 6] =
    [Topic::Requests, Topic::Decisions, Topic::EngineSteps, Topic::KvEvents, Topic::Instances, Topic::Buckets];

/// See the module.
#[derive(Debug)]
pub struct Feed {
    names: Names,
    ttft_us: Recent<u64, i64>,
    funnel: FunnelFeed,
    plans: PlanFeed,
    /// Number of the model and variant that each instance serves.
    shapes: HashMap<u32, u32>,
    /// The name looked up last, and its number.
    latest: Option<(String, u32)>,
}

impl Feed {
    /// `open_max`: requests whose time to first token is remembered.
    pub fn new(names: Names, open_max: usize) -> Self {
        let (ttft_us, funnel) = (Recent::new(open_max), FunnelFeed::new(names.clone(), open_max));
        Self { names, ttft_us, funnel, plans: PlanFeed::default(), shapes: HashMap::new(), latest: None }
    }

    /// Puts the batch's rows into `rows`; what cannot be one goes to `refused`. `now`: for rows off their time.
    pub fn take(&mut self, published: &Published, now: Micros, (rows, refused): (&mut FlowRows, &RefusedRows)) {
        let mut wrong = Wrong::new(published.topic, now);
        if let Err(error) = self.take_columns(published, rows, &mut wrong) {
            *rows = FlowRows::default();
            wrong.refuse_batch(published.batch.num_rows(), &error);
        }
        refused.push(wrong.finish());
    }

    fn take_columns(&mut self, published: &Published, rows: &mut FlowRows, wrong: &mut Wrong) -> Result<(), RowsError> {
        let columns = Columns::new(published.topic, &published.batch);
        self.funnel.take(published, &columns, rows)?;
        match published.topic {
            Topic::Requests => {
                let batch = only(published.topic, &telling(&published.batch), &TOLD)?;
                for row in told::<Told<'_>>(published.topic, &batch)? {
                    if row.event == "arrived" {
                        prompt_feed::take(&self.names, &row, rows);
                    }
                    self.funnel.request(row, rows);
                }
                self.requests(&RequestColumns::of(&columns)?, rows, wrong);
            }
            Topic::EngineSteps => self.steps(&columns, &published.batch, rows)?,
            Topic::KvEvents => kv_feed::take(&columns, rows, wrong)?,
            Topic::Instances => self.instances(&columns, rows)?,
            Topic::Buckets => self.plans.take(&columns, &self.names, rows)?,
            _ => {}
        }
        if matches!(published.topic, Topic::Requests | Topic::EngineSteps | Topic::KvEvents) {
            let at = columns.time("at")?;
            (0..at.len()).for_each(|row| wrong.time(at.value(row)));
        }
        Ok(())
    }

    fn number(&mut self, name: &str) -> u32 {
        match &self.latest {
            Some((latest, number)) if latest == name => *number,
            _ => {
                let number = self.names.number(name);
                self.latest = Some((name.to_string(), number));
                number
            }
        }
    }

    fn requests(&mut self, columns: &RequestColumns<'_>, rows: &mut FlowRows, wrong: &mut Wrong) {
        (0..columns.event.len()).for_each(|row| self.request((columns, row), rows, wrong));
    }

    fn request(&mut self, (columns, row): (&RequestColumns<'_>, usize), rows: &mut FlowRows, wrong: &mut Wrong) {
        let event = columns.event.value(row);
        let is_end = matches!(event, "finished" | "cancelled" | "failed" | "rejected");
        let load = match event {
            "dispatched" => Some(LoadEvent::Arrived),
            "first_token" | "grew" => Some(LoadEvent::Grew),
            _ if is_end => Some(LoadEvent::Finished),
            "arrived" | "queued" => None,
            _ => {
                let value = Some(event.to_string());
                return wrong.refuse("unknown_event", ("event", value), maybe(columns.instance, row));
            }
        };
        let request = xxh3_64(columns.request_id.value(row).as_bytes());
        let (model, tier) = (self.number(columns.model.value(row)), tier_number(columns.tier.value(row)));
        if let (Some(event), Some(instance)) = (load, maybe(columns.instance, row)) {
            let tokens = columns.prompt_tokens.value(row).saturating_add(columns.output_tokens.value(row));
            let seq = columns.seq.value(row);
            let cached = maybe(columns.expected_hit_tokens, row).unwrap_or(0);
            rows.load.push(LoadRow { request, seq, instance, tokens, cached, event, region: REGION, model, tier });
        }
        match event {
            "arrived" => rows.traffic.push(TrafficRow::Arrived(columns.arrived(row, (model, tier)))),
            "first_token" => {
                if let Some(gap_us) = maybe(columns.gap_us, row) {
                    self.ttft_us.insert(request, gap_us);
                }
            }
            _ if is_end => {
                let ttft_us = self.ttft_us.remove(&request);
                if event == "finished" {
                    rows.traffic.push(TrafficRow::Finished(columns.finished(row, (model, tier), ttft_us)));
                }
            }
            _ => {}
        }
    }

    fn instances(&mut self, columns: &Columns<'_>, rows: &mut FlowRows) -> Result<(), RowsError> {
        let (instance, model, variant) = (columns.u32("instance")?, columns.text("model")?, columns.text("variant")?);
        let (epoch, state) = (columns.u64("epoch")?, columns.text("state")?);
        for row in 0..instance.len() {
            if matches!(state.value(row), "dead" | "stopped") {
                let (instance, epoch) = (instance.value(row), epoch.value(row));
                // Any number: it has no place among the events.
                rows.kv.push(KvRow { instance, epoch, seq: 1, event: KvChange::Gone });
            }
            let shape = match maybe_text(variant, row) {
                Some(variant) => self.names.number(&format!("{}/{variant}", model.value(row))),
                None => self.number(model.value(row)),
            };
            let instance = instance.value(row);
            if self.shapes.len() < INSTANCES_MAX || self.shapes.contains_key(&instance) {
                self.shapes.insert(instance, shape);
            }
        }
        Ok(())
    }

    fn steps(&self, columns: &Columns<'_>, batch: &RecordBatch, rows: &mut FlowRows) -> Result<(), RowsError> {
        let (at, instance) = (columns.time("at")?, columns.u32("instance")?);
        let (epoch, step, step_us) = (columns.u64("epoch")?, columns.u64("step")?, columns.i64("step_us")?);
        let [running, waiting] = [columns.u32("running")?, columns.u32("waiting")?];
        let [queued, context] = [columns.u32("queued_prefill_tokens")?, columns.u32("context_tokens")?];
        let [used, cached] = [columns.u32("blocks_used")?, columns.u32("blocks_cached")?];
        let total = columns.u32("blocks_total")?;
        let [prefill, decode] = [columns.u32("prefill_tokens")?, columns.u32("decode_tokens")?];
        rows.steps.extend((0..batch.num_rows()).map(|row| StepRow {
            instance: instance.value(row),
            epoch: epoch.value(row),
            step: step.value(row),
            at_us: at.value(row),
            running: running.value(row),
            waiting: waiting.value(row),
            queued_prefill_tokens: queued.value(row).into(),
            context_tokens: context.value(row).into(),
            blocks_used: used.value(row),
            blocks_cached: cached.value(row),
            blocks_total: total.value(row),
            prefill_tokens: prefill.value(row),
            decode_tokens: decode.value(row),
            step_us: step_us.value(row).max(0) as u64,
            shape: self.shapes.get(&instance.value(row)).copied().unwrap_or(UNKNOWN_SHAPE),
        }));
        Ok(())
    }
}

/// What is read of a row that begins, places or ends a request.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Told<'a> {
    pub at: Micros,
    pub request_id: &'a str,
    pub event: &'a str,
    pub model: &'a str,
    pub tier: &'a str,
    pub tenant: &'a str,
    pub instance: Option<u32>,
    pub prompt_tokens: u32,
    pub cached_tokens: Option<u32>,
    pub gap_us: Option<i64>,
    pub total_us: Option<i64>,
    pub block_tokens: Option<u32>,
    pub prompt_blocks: Option<Vec<Vec<u64>>>,
}

/// Columns of [`Told`].
const TOLD: [&str; 13] = [
    "at",
    "request_id",
    "event",
    "model",
    "tier",
    "tenant",
    "instance",
    "prompt_tokens",
    "cached_tokens",
    "gap_us",
    "total_us",
    "block_tokens",
    "prompt_blocks",
];

/// The rows that begin, place or end a request: all but those of its tokens.
fn telling(batch: &RecordBatch) -> RecordBatch {
    let events = batch.column_by_name("event").and_then(|column| column.as_string_opt::<i32>());
    let told = events
        .map(|events| -> BooleanArray { events.iter().map(|event| event.map(|event| event != "grew")).collect() });
    told.and_then(|told| filter_record_batch(batch, &told).ok()).unwrap_or_else(|| batch.clone())
}

/// The columns of `requests` that are read.
struct RequestColumns<'a> {
    at: &'a TimestampMicrosecondArray,
    request_id: &'a StringArray,
    seq: &'a UInt32Array,
    event: &'a StringArray,
    model: &'a StringArray,
    tier: &'a StringArray,
    instance: &'a UInt32Array,
    prompt_tokens: &'a UInt32Array,
    output_tokens: &'a UInt32Array,
    cached_tokens: &'a UInt32Array,
    gap_us: &'a Int64Array,
    total_us: &'a Int64Array,
    finish_reason: &'a StringArray,
    session_hash: &'a UInt64Array,
    turns: &'a UInt32Array,
    tenant_class: &'a StringArray,
    expected_hit_tokens: &'a UInt32Array,
}

impl<'a> RequestColumns<'a> {
    fn of(columns: &Columns<'a>) -> Result<Self, RowsError> {
        Ok(Self {
            at: columns.time("at")?,
            request_id: columns.text("request_id")?,
            seq: columns.u32("seq")?,
            event: columns.text("event")?,
            model: columns.text("model")?,
            tier: columns.text("tier")?,
            instance: columns.u32("instance")?,
            prompt_tokens: columns.u32("prompt_tokens")?,
            output_tokens: columns.u32("output_tokens")?,
            cached_tokens: columns.u32("cached_tokens")?,
            gap_us: columns.i64("gap_us")?,
            total_us: columns.i64("total_us")?,
            finish_reason: columns.text("finish_reason")?,
            session_hash: columns.u64("session_hash")?,
            turns: columns.u32("turns")?,
            tenant_class: columns.text("tenant_class")?,
            expected_hit_tokens: columns.u32("expected_hit_tokens")?,
        })
    }

    fn arrived(&self, row: usize, (model, tier): (u32, u8)) -> ArrivedRow {
        ArrivedRow {
            model,
            tier,
            prompt_tokens: self.prompt_tokens.value(row),
            at_us: self.at.value(row),
            session: maybe(self.session_hash, row),
            turns: maybe(self.turns, row).unwrap_or(1),
        }
    }

    fn finished(&self, row: usize, (model, tier): (u32, u8), ttft_us: Option<i64>) -> FinishedRow {
        let (prompt_tokens, output_tokens) = (self.prompt_tokens.value(row), self.output_tokens.value(row));
        let decode_us = maybe(self.total_us, row).zip(ttft_us).map(|(total, ttft)| (total - ttft).max(0) as u64);
        let gaps = u64::from(output_tokens.saturating_sub(1));
        FinishedRow {
            model,
            tier,
            prompt_tokens,
            output_tokens,
            cached_tokens: maybe(self.cached_tokens, row).unwrap_or(0).min(prompt_tokens),
            ttft_us: ttft_us.map(|us| us.max(0) as u64),
            itl_us_mean: decode_us.and_then(|us| us.checked_div(gaps)),
            at_us: self.at.value(row),
            end: if maybe_text(self.finish_reason, row) == Some("length") { End::Capped } else { End::Stopped },
            tenant_class: maybe_text(self.tenant_class, row).map_or(UNKNOWN_CLASS, tier_number),
        }
    }
}

/// Class of a tenant in rows that do not say it.
const UNKNOWN_CLASS: u8 = u8::MAX;

/// Name of a shape.
pub(super) fn shape_name(names: &Names, shape: u32) -> String {
    if shape == UNKNOWN_SHAPE { "unknown".into() } else { names.name(shape).into() }
}

/// Name of a tenant's class.
pub(super) fn class_name(number: u8) -> &'static str {
    if number == UNKNOWN_CLASS { "unknown" } else { tier_name(number) }
}

/// Number of a tier's name in the operators' rows.
pub(super) fn tier_number(name: &str) -> u8 {
    match name {
        "High" => 2,
        "Medium" => 1,
        _ => 0,
    }
}

/// Name of a tier's number.
pub(super) fn tier_name(number: u8) -> &'static str {
    match number {
        2 => "High",
        1 => "Medium",
        _ => "Low",
    }
}
