//! The same counts by a plain program: one thread and hash maps, over the same batches.
//!
//! It decodes batches as the dataflow does, by the dataflow's own code. It keeps what the views keep per instance (blocks
//! held, live load, last step), and not the other groupings of the load, the sketches, fits, predictors, bounds and order
//! checks: `operators/benches/flow` compares those with plain programs that keep the same. Invariant: its counts are what the views must come to. State: one entry per block
//! held and per open request.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};

use operators::{FlowRows, KvChange, KvRow, LoadEvent, LoadRow, LoadTotal};
use queries::Topic;

use super::workload::Chunk;
use crate::{
    bus::Published,
    dataflow::{Feed, Names, RefusedRows, ViewState},
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
    let (mut program, refused) = (Program::default(), RefusedRows::default());
    let mut feed = Feed::new(Names::default(), usize::MAX / 4);
    let (mut decoding, mut counting) = (Duration::ZERO, Duration::ZERO);
    for chunk in chunks {
        let started = Instant::now();
        let mut rows = FlowRows::default();
        let batches =
            [(Topic::KvEvents, &chunk.kv), (Topic::EngineSteps, &chunk.steps), (Topic::Requests, &chunk.request_batch)];
        for (topic, batch) in batches {
            let published = Published { topic, first_row: 0, batch: batch.clone() };
            feed.take(&published, chunk.requests.first().map_or(0, |row| row.at), (&mut rows, &refused));
        }
        decoding += started.elapsed();
        anyhow::ensure!(rows.kv.len() == chunk.kv.num_rows(), "events of the bench were refused");
        let started = Instant::now();
        rows.kv.iter().for_each(|row| program.kv(row));
        program.counts.last_step.extend(rows.steps.iter().map(|row| (row.instance, row.step)));
        rows.load.iter().for_each(|row| program.load(row));
        counting += started.elapsed();
    }
    program.counts.cached_blocks.retain(|_, blocks| *blocks != 0);
    program.counts.load.retain(|_, total| *total != LoadTotal::default());
    Ok(PlainRun { counts: program.counts, decoding, counting })
}

impl Program {
    fn kv(&mut self, row: &KvRow) {
        let change = match row.event {
            KvChange::Stored { hash, .. } => i64::from(self.blocks.insert((row.instance, hash))),
            KvChange::Removed { hash, .. } => -i64::from(self.blocks.remove(&(row.instance, hash))),
            _ => 0,
        };
        *self.counts.cached_blocks.entry(row.instance).or_default() += change;
    }

    fn load(&mut self, row: &LoadRow) {
        let before = match row.event {
            LoadEvent::Finished => self.open.remove(&row.request),
            LoadEvent::Arrived | LoadEvent::Grew => {
                let tokens = i64::from(row.tokens);
                let total = self.counts.load.entry(row.instance).or_default();
                total.tokens += tokens;
                total.requests += 1;
                self.open.insert(row.request, (row.instance, tokens))
            }
        };
        if let Some((instance, tokens)) = before {
            let total = self.counts.load.entry(instance).or_default();
            total.tokens -= tokens;
            total.requests -= 1;
        }
    }
}
