//! The same counts by a plain program: one thread and hash maps, over the same batches.
//!
//! It keeps what the views keep per instance (blocks held, live load, last step), and not the quantile sketches, step
//! fits, bounds and order checks. Invariant: its counts are what the views must come to. State: one entry per block
//! held and per open request.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};

use operators::LoadTotal;
use xxhash_rust::xxh3::xxh3_64;

use super::workload::Chunk;
use crate::{
    bus::rows_of,
    dataflow::ViewState,
    rows::{EngineStepRow, KvEventRow, RequestRow},
};

/// Per instance; nothing for a zero.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Counts {
    cached_blocks: BTreeMap<u32, i64>,
    load: BTreeMap<u32, LoadTotal>,
    last_step: BTreeMap<u32, u64>,
}

impl Counts {
    pub(super) fn of_views(state: &ViewState) -> Self {
        let cached = state.cached_blocks.iter().filter(|(_, blocks)| **blocks != 0);
        let load = state.instance_load.iter().filter(|(_, total)| **total != LoadTotal::default());
        Counts {
            cached_blocks: cached.map(|(instance, blocks)| (*instance, *blocks)).collect(),
            load: load.map(|(instance, total)| (*instance, *total)).collect(),
            last_step: state.instances.iter().map(|(instance, state)| (*instance, state.step.step)).collect(),
        }
    }
}

/// Times of one run of the plain program.
pub(super) struct PlainRun {
    pub(super) counts: Counts,
    /// Batches to rows.
    pub(super) decoding: Duration,
    /// Rows to counts.
    pub(super) counting: Duration,
}

#[derive(Default)]
struct Program {
    counts: Counts,
    blocks: HashSet<(u32, u64)>,
    /// Instance and tokens of each open request.
    open: HashMap<u64, (u32, i64)>,
}

/// Errors: a batch is not of its topic.
pub(super) fn run(chunks: &[Chunk]) -> anyhow::Result<PlainRun> {
    let mut program = Program::default();
    let (mut decoding, mut counting) = (Duration::ZERO, Duration::ZERO);
    for chunk in chunks {
        let started = Instant::now();
        let kv = rows_of::<KvEventRow>(&chunk.kv)?;
        let steps = rows_of::<EngineStepRow>(&chunk.steps)?;
        let requests = rows_of::<RequestRow>(&chunk.request_batch)?;
        decoding += started.elapsed();
        let started = Instant::now();
        kv.iter().for_each(|row| program.kv(row));
        program.counts.last_step.extend(steps.iter().map(|row| (row.instance, row.step)));
        requests.iter().for_each(|row| program.request(row));
        counting += started.elapsed();
    }
    program.counts.cached_blocks.retain(|_, blocks| *blocks != 0);
    program.counts.load.retain(|_, total| *total != LoadTotal::default());
    Ok(PlainRun { counts: program.counts, decoding, counting })
}

impl Program {
    fn kv(&mut self, row: &KvEventRow) {
        let Some(hash) = row.block_hash else { return };
        let key = (row.instance, hash);
        let change = match row.event.as_str() {
            "stored" => i64::from(self.blocks.insert(key)),
            "removed" => -i64::from(self.blocks.remove(&key)),
            _ => 0,
        };
        *self.counts.cached_blocks.entry(row.instance).or_default() += change;
    }

    fn request(&mut self, row: &RequestRow) {
        let Some(instance) = row.instance else { return };
        let request = xxh3_64(row.request_id.as_bytes());
        let before = match row.event.as_str() {
            "finished" => self.open.remove(&request),
            _ => {
                let tokens = i64::from(row.prompt_tokens) + i64::from(row.output_tokens);
                let total = self.counts.load.entry(instance).or_default();
                total.tokens += tokens;
                total.requests += 1;
                self.open.insert(request, (instance, tokens))
            }
        };
        if let Some((instance, tokens)) = before {
            let total = self.counts.load.entry(instance).or_default();
            total.tokens -= tokens;
            total.requests -= 1;
        }
    }
}
