//! Batches of the bus become rows of the hit-rate funnel and of the diagnosis (SPEC C5, D4).
//!
//! A request is known by the 128 bits of its id, so that its text can be had back; names are numbered as in `feed`.
//! Cost: O(rows); of `requests` only the rows that begin, place or end a request are decoded whole.
//! State: 60 bytes per open request up to a bound, at which the oldest is forgotten, and its end is then not diagnosed; one
//! number per instance up to [`INSTANCES_MAX`], beyond which the model of an instance is not known.

use std::collections::{HashMap, VecDeque};

use arrow::{
    array::{Array, AsArray, BooleanArray, RecordBatch, StringArray},
    compute::filter_record_batch,
    datatypes::{Int64Type, TimestampMicrosecondType, UInt32Type, UInt64Type},
};
use operators::{
    AskedRow, BlockChange, BlockRow, DecidedRow, DiagnosedRequest, DiagnosedStep, DiagnosisInput, EndedRow, FlowRows,
    FunnelPart, FunnelRow,
    funnel::{ANY_MODEL, MAX_NS_PER_TOKEN},
};
use queries::Topic;
use xxhash_rust::xxh3::xxh3_128;

use super::feed::{Names, tier_number};
use crate::{
    bus::{Published, RowsError, rows_of},
    ids::Micros,
    rows::{DecisionRow, InstanceRow, RequestRow},
};

/// Instances whose model is remembered.
const INSTANCES_MAX: usize = 65_536;
/// There is one region until instances say where they stand.
const REGION: &str = "local";
const REQUEST_PREFIX: &str = "req-";

/// The number of a request. Ids of the gateway are a prefix and 32 hexadecimal digits, and come back from
/// [`request_id`]; any other id is hashed.
pub(super) fn request_number(id: &str) -> u128 {
    let digits = id.strip_prefix(REQUEST_PREFIX).filter(|digits| digits.len() == 32);
    digits.and_then(|digits| u128::from_str_radix(digits, 16).ok()).unwrap_or_else(|| xxh3_128(id.as_bytes()))
}

/// The id that has this number.
pub(super) fn request_id(number: u128) -> String {
    format!("{REQUEST_PREFIX}{number:032x}")
}

/// What is remembered of an open request.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    queued: Option<Micros>,
    placed: Option<Micros>,
    ttft_us: Option<i64>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct FunnelFeed {
    names: Names,
    open_max: usize,
    open: HashMap<u128, Open>,
    order: VecDeque<u128>,
    /// Number of the model that each instance serves.
    models: HashMap<u32, u32>,
}

impl FunnelFeed {
    pub(super) fn new(names: Names, open_max: usize) -> Self {
        Self { names, open_max, open: HashMap::new(), order: VecDeque::new(), models: HashMap::new() }
    }

    /// Appends the batch's rows to `rows`.
    pub(super) fn take(&mut self, published: &Published, rows: &mut FlowRows) -> Result<(), RowsError> {
        match published.topic {
            Topic::Requests => {
                for row in rows_of::<RequestRow>(&telling(&published.batch))? {
                    self.request(row, rows);
                }
            }
            Topic::Decisions => {
                let decided = rows_of::<DecisionRow>(&published.batch)?;
                let parts = decided.iter().filter_map(decided_row);
                rows.funnel.extend(parts.map(|row| FunnelRow::Request(FunnelPart::Decided(row))));
            }
            Topic::Instances => {
                for row in rows_of::<InstanceRow>(&published.batch)? {
                    let model = self.names.number(&row.model);
                    if self.models.len() < INSTANCES_MAX || self.models.contains_key(&row.instance) {
                        self.models.insert(row.instance, model);
                    }
                }
            }
            Topic::EngineSteps => self.steps(&published.batch, rows),
            Topic::KvEvents => self.blocks(&published.batch, rows),
            _ => {}
        }
        Ok(())
    }

    fn request(&mut self, row: RequestRow, rows: &mut FlowRows) {
        let request = request_number(&row.request_id);
        match row.event.as_str() {
            "arrived" => {
                self.remember(request);
                if let Some(asked) = self.asked(request, row) {
                    rows.funnel.push(FunnelRow::Request(FunnelPart::Asked(asked)));
                }
            }
            "queued" => {
                if let Some(open) = self.open.get_mut(&request) {
                    open.queued = Some(row.at);
                }
            }
            "dispatched" => {
                if let Some(open) = self.open.get_mut(&request) {
                    open.placed.get_or_insert(row.at);
                }
            }
            "first_token" => {
                if let Some(open) = self.open.get_mut(&request) {
                    open.ttft_us = row.gap_us;
                }
            }
            _ => {
                let ended = EndedRow { at_us: row.at, request, delivered: row.cached_tokens };
                rows.funnel.push(FunnelRow::Request(FunnelPart::Ended(ended)));
                if let Some(open) = self.open.remove(&request).filter(|_| row.event == "finished") {
                    let model = self.names.number(&row.model);
                    rows.diagnosis.push(DiagnosisInput::Request(diagnosed(&row, (request, model), open)));
                }
            }
        }
    }

    fn remember(&mut self, request: u128) {
        self.open.insert(request, Open::default());
        self.order.push_back(request);
        while self.open.len() > self.open_max || self.order.len() > 2 * self.open_max {
            match self.order.pop_front() {
                Some(oldest) => drop(self.open.remove(&oldest)),
                None => break,
            }
        }
    }

    /// `None` if the row was written before prompts had blocks.
    fn asked(&self, request: u128, row: RequestRow) -> Option<AskedRow> {
        let (prompts, block_tokens) = row.prompt_blocks.zip(row.block_tokens)?;
        Some(AskedRow {
            at_us: row.at,
            request,
            model: self.names.number(&row.model),
            region: self.names.number(REGION),
            tier: tier_number(&row.tier),
            tenant: self.names.number(&row.tenant),
            prompt_tokens: row.prompt_tokens,
            block_tokens,
            prompts,
        })
    }

    fn model_of(&self, instance: u32) -> u32 {
        self.models.get(&instance).copied().unwrap_or(ANY_MODEL)
    }

    /// Dates of stored and removed blocks. The bus has checked the columns.
    fn blocks(&self, batch: &RecordBatch, rows: &mut FlowRows) {
        let Some(columns) = Events::of(batch) else { return };
        for row in 0..batch.num_rows() {
            let change = match columns.event.value(row) {
                "stored" => BlockChange::Stored,
                "removed" => BlockChange::Removed,
                _ => continue,
            };
            let level = match columns.level.is_valid(row).then(|| columns.level.value(row)) {
                Some("L1") => 0,
                Some("L2") => 1,
                // Refused, as the cache index refuses it.
                _ => u8::MAX,
            };
            let instance = columns.instance.value(row);
            let (hash, at_us, model) = (columns.hash.value(row), columns.at.value(row), self.model_of(instance));
            rows.funnel.push(FunnelRow::Block(BlockRow { hash, instance, level, change, at_us, model }));
        }
    }

    fn steps(&self, batch: &RecordBatch, rows: &mut FlowRows) {
        let u32s = |name: &str| batch.column_by_name(name).and_then(|column| column.as_primitive_opt::<UInt32Type>());
        let u64s = |name: &str| batch.column_by_name(name).and_then(|column| column.as_primitive_opt::<UInt64Type>());
        let step_us = batch.column_by_name("step_us").and_then(|column| column.as_primitive_opt::<Int64Type>());
        let (Some(instance), Some(epoch), Some(step), Some(step_us)) =
            (u32s("instance"), u64s("epoch"), u64s("step"), step_us)
        else {
            return;
        };
        let (Some(prefill), Some(decode), Some(context)) =
            (u32s("prefill_tokens"), u32s("decode_tokens"), u32s("context_tokens"))
        else {
            return;
        };
        let copied = ["swapped_out_blocks", "swapped_in_blocks", "copied_blocks"].map(u32s);
        rows.diagnosis.extend((0..batch.num_rows()).map(|row| {
            DiagnosisInput::Step(DiagnosedStep {
                model: self.model_of(instance.value(row)),
                instance: instance.value(row),
                epoch: epoch.value(row),
                step: step.value(row),
                step_us: step_us.value(row).max(0) as u64,
                prefill_tokens: prefill.value(row),
                decode_tokens: decode.value(row),
                context_tokens: context.value(row),
                paged_blocks: copied.iter().flatten().map(|column| column.value(row)).fold(0, u32::saturating_add),
            })
        }));
    }
}

/// Columns of `kv_events` that are read.
struct Events<'a> {
    at: &'a arrow::array::PrimitiveArray<TimestampMicrosecondType>,
    instance: &'a arrow::array::PrimitiveArray<UInt32Type>,
    event: &'a StringArray,
    hash: &'a arrow::array::PrimitiveArray<UInt64Type>,
    level: &'a StringArray,
}

impl<'a> Events<'a> {
    fn of(batch: &'a RecordBatch) -> Option<Self> {
        Some(Self {
            at: batch.column_by_name("at")?.as_primitive_opt()?,
            instance: batch.column_by_name("instance")?.as_primitive_opt()?,
            event: batch.column_by_name("event")?.as_string_opt()?,
            hash: batch.column_by_name("block_hash")?.as_primitive_opt()?,
            level: batch.column_by_name("level")?.as_string_opt()?,
        })
    }
}

/// The rows that begin, place or end a request: all but those of its tokens.
fn telling(batch: &RecordBatch) -> RecordBatch {
    let events = batch.column_by_name("event").and_then(|column| column.as_string_opt::<i32>());
    let told = events
        .map(|events| -> BooleanArray { events.iter().map(|event| event.map(|event| event != "grew")).collect() });
    told.and_then(|told| filter_record_batch(batch, &told).ok()).unwrap_or_else(|| batch.clone())
}

/// `None` for a decision to queue, which another one follows.
fn decided_row(row: &DecisionRow) -> Option<DecidedRow> {
    let is_placed = match row.outcome.as_str() {
        "admit" => true,
        "reject" => false,
        _ => return None,
    };
    let chosen = row.candidates.iter().find(|candidate| is_placed && Some(candidate.instance) == row.instance);
    let best = chosen.or(row.candidates.first());
    let eligible = row.candidates.iter().map(|candidate| candidate.hit_tokens).max().unwrap_or(0);
    Some(DecidedRow {
        at_us: row.at,
        request: request_number(&row.request_id),
        placed: row.instance.filter(|_| is_placed),
        visible: row.visible_hit_tokens.unwrap_or(eligible),
        eligible,
        selected: chosen.map_or(0, |candidate| candidate.hit_tokens),
        ns_per_token: best.map_or(0, |cost| {
            let computed = row.prompt_tokens.saturating_sub(cost.hit_tokens).max(1);
            // Saturates; a rate that low is no prediction.
            ((cost.prefill_seconds * 1e9 / f64::from(computed)) as u64).min(MAX_NS_PER_TOKEN)
        }),
    })
}

fn diagnosed(row: &RequestRow, (request, model): (u128, u32), open: Open) -> DiagnosedRequest {
    let total_us = row.total_us.unwrap_or(0).max(0) as u64;
    let queue_us = open.queued.zip(open.placed).map_or(0, |(queued, placed)| (placed - queued).max(0) as u64);
    DiagnosedRequest {
        model,
        total_us,
        request,
        queue_us: queue_us.min(total_us),
        ttft_us: open.ttft_us.map(|us| us.max(0) as u64),
        instance: row.instance,
        computed_tokens: row.prompt_tokens.saturating_sub(row.cached_tokens.unwrap_or(0)),
    }
}
