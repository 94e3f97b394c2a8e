//! Batches of the bus become rows of the hit-rate funnel and of the diagnosis (SPEC C5, D4).
//!
//! A request is known by the 128 bits of its id, so that its text can be had back; names are numbered as in `feed`.
//! Cost: O(rows); of `requests` only the rows that begin, place or end a request are decoded whole.
//! State: 60 bytes per open request up to a bound, at which the oldest is forgotten, and its end is then not diagnosed; one
//! number per instance up to [`INSTANCES_MAX`], beyond which the model of an instance is not known.

use std::collections::HashMap;

use arrow::array::Array;
use operators::{
    AskedRow, BlockChange, BlockRow, DecidedRow, DiagnosedRequest, DiagnosedStep, DiagnosisInput, EndedRow, FlowRows,
    FunnelPart, FunnelRow, ServesRow,
    funnel::{ANY_MODEL, MAX_NS_PER_TOKEN},
};
use queries::Topic;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_128;

use super::{
    columns::{Columns, maybe, maybe_text, only, told},
    feed::{Names, Told, tier_number},
    kv_feed::level_number,
    recent::Recent,
};
use crate::{
    bus::{Published, RowsError, rows_of},
    ids::Micros,
    rows::InstanceRow,
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

/// What is read of a decision.
#[derive(Deserialize)]
struct Decision<'a> {
    at: Micros,
    request_id: &'a str,
    outcome: &'a str,
    instance: Option<u32>,
    prompt_tokens: u32,
    visible_hit_tokens: Option<u32>,
    candidates: Vec<Candidate>,
}

#[derive(Deserialize)]
struct Candidate {
    instance: u32,
    hit_tokens: u32,
    prefill_seconds: f64,
}

/// Columns of [`Decision`].
const DECIDED: [&str; 7] =
    ["at", "request_id", "outcome", "instance", "prompt_tokens", "visible_hit_tokens", "candidates"];

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
    open: Recent<u128, Open>,
    /// Number of the model that each instance serves.
    models: HashMap<u32, u32>,
}

impl FunnelFeed {
    pub(super) fn new(names: Names, open_max: usize) -> Self {
        Self { names, open: Recent::new(open_max), models: HashMap::new() }
    }

    /// Appends the rows of a batch of any topic but `requests` to `rows`.
    ///
    /// # Errors
    /// The batch does not have its topic's columns.
    pub(super) fn take(
        &mut self,
        published: &Published,
        columns: &Columns<'_>,
        rows: &mut FlowRows,
    ) -> Result<(), RowsError> {
        match published.topic {
            Topic::Decisions => {
                let batch = only(published.topic, &published.batch, &DECIDED)?;
                let parts = told::<Decision<'_>>(published.topic, &batch)?;
                let parts = parts.iter().filter_map(decided_row);
                rows.funnel.extend(parts.map(|row| FunnelRow::Request(FunnelPart::Decided(row))));
            }
            Topic::Instances => {
                for row in rows_of::<InstanceRow>(&published.batch)? {
                    let model = self.names.number(&row.model);
                    if self.models.len() < INSTANCES_MAX || self.models.contains_key(&row.instance) {
                        self.models.insert(row.instance, model);
                        let serves = ServesRow { instance: row.instance, model, at_us: row.at };
                        rows.funnel.push(FunnelRow::Serves(serves));
                    }
                }
            }
            Topic::EngineSteps => self.steps(columns, rows)?,
            Topic::KvEvents => self.blocks(columns, rows)?,
            _ => {}
        }
        Ok(())
    }

    /// Appends what a row of `requests` tells.
    pub(super) fn request(&mut self, row: Told<'_>, rows: &mut FlowRows) {
        let request = request_number(row.request_id);
        match row.event {
            "arrived" => {
                self.open.insert(request, Open::default());
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
            // Refused before its prompt was known: there is nothing to tell of it.
            "rejected" if self.open.get_mut(&request).is_none() => {}
            _ => {
                let ended = EndedRow { at_us: row.at, request, delivered: row.cached_tokens };
                rows.funnel.push(FunnelRow::Request(FunnelPart::Ended(ended)));
                if let Some(open) = self.open.remove(&request).filter(|_| row.event == "finished") {
                    let model = self.names.number(row.model);
                    rows.diagnosis.push(DiagnosisInput::Request(diagnosed(&row, (request, model), open)));
                }
            }
        }
    }

    /// `None` if the row was written before prompts had blocks.
    fn asked(&self, request: u128, row: Told<'_>) -> Option<AskedRow> {
        let (prompts, block_tokens) = row.prompt_blocks.zip(row.block_tokens)?;
        Some(AskedRow {
            at_us: row.at,
            request,
            model: self.names.number(row.model),
            region: self.names.number(REGION),
            tier: tier_number(row.tier),
            tenant: self.names.number(row.tenant),
            prompt_tokens: row.prompt_tokens,
            block_tokens,
            prompts,
        })
    }

    fn model_of(&self, instance: u32) -> u32 {
        self.models.get(&instance).copied().unwrap_or(ANY_MODEL)
    }

    /// Dates of stored and removed blocks. A level that nobody knows is refused, as the cache index refuses it.
    fn blocks(&self, columns: &Columns<'_>, rows: &mut FlowRows) -> Result<(), RowsError> {
        let (at, instance, hash) = (columns.time("at")?, columns.u32("instance")?, columns.u64("block_hash")?);
        let (event, level) = (columns.text("event")?, columns.text("level")?);
        for row in 0..event.len() {
            let change = match event.value(row) {
                "stored" => BlockChange::Stored,
                "removed" => BlockChange::Removed,
                _ => continue,
            };
            let level = maybe_text(level, row).and_then(level_number).unwrap_or(u8::MAX);
            let (instance, at_us) = (instance.value(row), at.value(row));
            let hash = maybe(hash, row).unwrap_or(0);
            rows.funnel.push(FunnelRow::Block(BlockRow { hash, instance, level, change, at_us }));
        }
        Ok(())
    }

    fn steps(&self, columns: &Columns<'_>, rows: &mut FlowRows) -> Result<(), RowsError> {
        let (instance, epoch, step) = (columns.u32("instance")?, columns.u64("epoch")?, columns.u64("step")?);
        let (step_us, context) = (columns.i64("step_us")?, columns.u32("context_tokens")?);
        let (prefill, decode) = (columns.u32("prefill_tokens")?, columns.u32("decode_tokens")?);
        let [out, back] = [columns.u32("swapped_out_blocks")?, columns.u32("swapped_in_blocks")?];
        let copied = columns.u32("copied_blocks")?;
        rows.diagnosis.extend((0..instance.len()).map(|row| {
            let paged = [out, back, copied].map(|column| column.value(row));
            DiagnosisInput::Step(DiagnosedStep {
                model: self.model_of(instance.value(row)),
                instance: instance.value(row),
                epoch: epoch.value(row),
                step: step.value(row),
                step_us: step_us.value(row).max(0) as u64,
                prefill_tokens: prefill.value(row),
                decode_tokens: decode.value(row),
                context_tokens: context.value(row),
                paged_blocks: paged.into_iter().fold(0, u32::saturating_add),
            })
        }));
        Ok(())
    }
}

/// `None` for a decision to queue, which another one follows.
fn decided_row(row: &Decision<'_>) -> Option<DecidedRow> {
    let is_placed = match row.outcome {
        "admit" => true,
        "reject" => false,
        _ => return None,
    };
    let chosen = row.candidates.iter().find(|candidate| is_placed && Some(candidate.instance) == row.instance);
    let best = chosen.or(row.candidates.first());
    let eligible = row.candidates.iter().map(|candidate| candidate.hit_tokens).max().unwrap_or(0);
    Some(DecidedRow {
        at_us: row.at,
        request: request_number(row.request_id),
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

fn diagnosed(row: &Told<'_>, (request, model): (u128, u32), open: Open) -> DiagnosedRequest {
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
