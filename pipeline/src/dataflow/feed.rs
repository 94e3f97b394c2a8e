//! Batches of the bus become rows with integer keys for the operators (`reference/stack.md` §4: strings cost 4 to 5 times).
//!
//! Request ids are hashed (XXH3-64), model names are numbered. The time to first token is remembered from `first_token` to
//! the end of a request. Cost: O(rows). State: [`MODELS_MAX`] names, and one number per open request up to a bound; at
//! the bound the oldest is forgotten, and its end then has an unknown time to first token.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use operators::{ArrivedRow, FinishedRow, FlowRows, KvChange, KvRow, LoadEvent, LoadRow, StepRow, TrafficRow};
use queries::Topic;
use xxhash_rust::xxh3::xxh3_64;

use super::{funnel_feed::FunnelFeed, prompt_feed};
use crate::{
    bus::{Published, RowsError, rows_of},
    rows::{EngineStepRow, KvEventRow, RequestRow},
};

/// Distinct model names; further ones count as the last.
pub const MODELS_MAX: usize = 1024;

/// Numbers for model names, shared with whoever turns view rows back into names.
#[derive(Debug, Clone, Default)]
pub struct Names(Arc<Mutex<Vec<String>>>);

impl Names {
    /// The name's number; new names get the next one.
    pub fn number(&self, name: &str) -> u32 {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = names.iter().position(|known| known == name);
        let index = found.unwrap_or_else(|| {
            if names.len() < MODELS_MAX {
                names.push(name.to_string());
            }
            names.len() - 1
        });
        index as u32
    }

    /// The name of a number given out before.
    pub fn name(&self, number: u32) -> String {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(number as usize).cloned().unwrap_or_default()
    }
}

/// Topics the dataflow reads.
pub const TOPICS: [Topic; 5] =
    [Topic::Requests, Topic::Decisions, Topic::EngineSteps, Topic::KvEvents, Topic::Instances];

/// See the module.
#[derive(Debug)]
pub struct Feed {
    names: Names,
    open_max: usize,
    ttft_us: HashMap<u64, i64>,
    order: VecDeque<u64>,
    funnel: FunnelFeed,
}

impl Feed {
    /// `open_max`: requests whose time to first token is remembered.
    pub fn new(names: Names, open_max: usize) -> Self {
        let open_max = open_max.max(1);
        let funnel = FunnelFeed::new(names.clone(), open_max);
        Self { names, open_max, ttft_us: HashMap::new(), order: VecDeque::new(), funnel }
    }

    /// Appends the batch's rows to `rows`.
    ///
    /// # Errors
    /// The batch does not have its topic's columns.
    pub fn take(&mut self, published: &Published, rows: &mut FlowRows) -> Result<(), RowsError> {
        prompt_feed::take(&self.names, published, rows)?;
        self.funnel.take(published, rows)?;
        match published.topic {
            Topic::Requests => {
                for row in rows_of::<RequestRow>(&published.batch)? {
                    self.request(&row, rows);
                }
            }
            Topic::EngineSteps => rows.steps.extend(rows_of::<EngineStepRow>(&published.batch)?.iter().map(step)),
            Topic::KvEvents => rows.kv.extend(rows_of::<KvEventRow>(&published.batch)?.iter().map(kv)),
            _ => {}
        }
        Ok(())
    }

    fn request(&mut self, row: &RequestRow, rows: &mut FlowRows) {
        let request = xxh3_64(row.request_id.as_bytes());
        let is_end = matches!(row.event.as_str(), "finished" | "cancelled" | "failed" | "rejected");
        let event = match row.event.as_str() {
            "dispatched" => Some(LoadEvent::Arrived),
            "first_token" | "grew" => Some(LoadEvent::Grew),
            _ if is_end => Some(LoadEvent::Finished),
            _ => None,
        };
        if let (Some(event), Some(instance)) = (event, row.instance) {
            let tokens = row.prompt_tokens.saturating_add(row.output_tokens);
            rows.load.push(LoadRow { request, seq: row.seq, instance, tokens, event });
        }
        if row.event == "first_token"
            && let Some(gap_us) = row.gap_us
        {
            self.remember(request, gap_us);
        }
        let (model, tier) = (self.names.number(&row.model), tier_number(&row.tier));
        if row.event == "arrived" {
            let prompt_tokens = row.prompt_tokens;
            rows.traffic.push(TrafficRow::Arrived(ArrivedRow { model, tier, prompt_tokens, at_us: row.at }));
        }
        if is_end {
            let ttft_us = self.ttft_us.remove(&request);
            if row.event == "finished" {
                rows.traffic.push(TrafficRow::Finished(finished(row, (model, tier), ttft_us)));
            }
        }
    }

    fn remember(&mut self, request: u64, ttft_us: i64) {
        self.ttft_us.insert(request, ttft_us);
        self.order.push_back(request);
        while self.ttft_us.len() > self.open_max || self.order.len() > 2 * self.open_max {
            match self.order.pop_front() {
                Some(oldest) => drop(self.ttft_us.remove(&oldest)),
                None => break,
            }
        }
    }
}

fn finished(row: &RequestRow, (model, tier): (u32, u8), ttft_us: Option<i64>) -> FinishedRow {
    let decode_us = row.total_us.zip(ttft_us).map(|(total, ttft)| (total - ttft).max(0) as u64);
    let gaps = u64::from(row.output_tokens.saturating_sub(1));
    FinishedRow {
        model,
        tier,
        prompt_tokens: row.prompt_tokens,
        output_tokens: row.output_tokens,
        cached_tokens: row.cached_tokens.unwrap_or(0).min(row.prompt_tokens),
        ttft_us: ttft_us.map(|us| us.max(0) as u64),
        itl_us_mean: decode_us.and_then(|us| us.checked_div(gaps)),
        at_us: row.at,
    }
}

fn step(row: &EngineStepRow) -> StepRow {
    StepRow {
        instance: row.instance,
        epoch: row.epoch,
        step: row.step,
        at_us: row.at,
        running: row.running,
        waiting: row.waiting,
        queued_prefill_tokens: row.queued_prefill_tokens.into(),
        context_tokens: row.context_tokens.into(),
        blocks_used: row.blocks_used,
        blocks_cached: row.blocks_cached,
        blocks_total: row.blocks_total,
        prefill_tokens: row.prefill_tokens,
        decode_tokens: row.decode_tokens,
        step_us: row.step_us.max(0) as u64,
    }
}

/// A row without the fields its event needs becomes a row the operator refuses, so that the gap is seen.
fn kv(row: &KvEventRow) -> KvRow {
    let level = match row.level.as_deref() {
        Some("L1") => 0,
        Some("L2") => 1,
        _ => u8::MAX,
    };
    let hash = row.block_hash.unwrap_or(0);
    let event = match row.event.as_str() {
        "stored" => KvChange::Stored { hash, parent: row.parent_hash, level, tokens: row.tokens.unwrap_or(0) },
        "hit" => KvChange::Hit { hash, level, tokens: row.tokens.unwrap_or(0) },
        "removed" => KvChange::Removed { hash, level },
        "cleared" => KvChange::Cleared,
        _ => KvChange::Removed { hash, level: u8::MAX },
    };
    KvRow { instance: row.instance, epoch: row.epoch, seq: row.seq, event }
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
