//! A fleet as the views show it, without processes: directory, leases, engine figures and a filled cache index.
//!
//! Invariant: the same for the same number of instances. Half of what is in flight the engines have not reported, as it is when requests
//! come faster than steps. State: the cache index, about 600,000 entries at 1,000 instances.

use std::sync::Arc;

use operators::{InstanceState as EngineState, PrefixIndexConfig, StepFit, StepRow, views::ViewChanges};
use xxhash_rust::xxh3::xxh3_64;

use super::super::super::glue::Views;
use crate::{
    dataflow::{FlowViews, Names},
    gateway::{
        instances::{InstanceDirectory, InstanceEntry, InstanceState},
        leases::{Lease, Leases},
    },
    ids::{InstanceId, Micros, ProcessEpoch},
    policy::{DEFAULT_VARIANT, FetchTimes},
};

pub const MODEL: &str = "model";
pub const BLOCK_TOKENS: usize = 16;
/// Blocks at the beginning of every prompt, held by all instances.
const SHARED_BLOCKS: u64 = 100;
/// Documents that prompts are about.
const DOCUMENTS: u64 = 128;
const EPOCH_US: i64 = 100_000;

pub struct Plant {
    pub views: Views,
    pub now: Micros,
    blocks: usize,
}

/// A number that looks random.
fn dice(what: u64, of: u64) -> u64 {
    xxh3_64(&[what.to_le_bytes(), of.to_le_bytes()].concat())
}

impl Plant {
    pub fn new(instances: u32, blocks: usize) -> Plant {
        let directory = Arc::new(InstanceDirectory::default());
        for id in 0..instances {
            directory.put(InstanceEntry {
                id: InstanceId(id),
                name: format!("w{id}"),
                epoch: ProcessEpoch(1),
                model: MODEL.into(),
                variant: DEFAULT_VARIANT.into(),
                state: InstanceState::Ready,
                client: None,
                leases: Arc::<Leases>::default(),
                fetch: FetchTimes::default(),
            });
        }
        let flow = FlowViews::new(1, PrefixIndexConfig::default(), Names::default(), (0, EPOCH_US));
        let mut changes = ViewChanges { instances: (0..instances).map(figures).collect(), ..ViewChanges::default() };
        let shared = (0..SHARED_BLOCKS).flat_map(|block| (0..instances).map(move |id| (block_hash(0, block), id)));
        changes.cache.extend(shared.map(|(hash, id)| ((hash, id, 0), 1)));
        for document in 1..=DOCUMENTS {
            // One to four hold it, each as far as it got.
            for holder in 0..1 + dice(document, 1) % 4 {
                let id = (dice(document, 2 + holder) % u64::from(instances)) as u32;
                let to = SHARED_BLOCKS + dice(document, 6 + holder) % (blocks as u64 - SHARED_BLOCKS);
                let held = (SHARED_BLOCKS..to).map(|block| ((block_hash(document, block), id, 0), 1));
                changes.cache.extend(held);
            }
        }
        changes.cache.sort_unstable();
        changes.cache.dedup();
        flow.take(0, changes);
        let views = Views {
            directory,
            flow: Some(Arc::new(flow)),
            plans: Arc::default(),
            stale_after_us: 10 * EPOCH_US,
            silent_after_us: 100 * EPOCH_US,
        };
        Plant { views, now: EPOCH_US, blocks }
    }

    /// Block hashes of the prompt of a turn.
    pub fn prompt(&self, turn: u64) -> Vec<Vec<u64>> {
        let document = 1 + dice(turn, 100) % DOCUMENTS;
        vec![
            (0..self.blocks as u64)
                .map(|block| block_hash(if block < SHARED_BLOCKS { 0 } else { document }, block))
                .collect(),
        ]
    }

    pub fn reserve(&self, instance: InstanceId, tokens: u64, most: u64) -> Option<Lease> {
        self.views.directory.get(instance)?.leases.reserve(tokens, most)
    }
}

fn block_hash(document: u64, block: u64) -> u64 {
    dice(document << 32 | block, 200)
}

/// What the engine of an instance said last.
fn figures(instance: u32) -> EngineState {
    let running = (dice(instance.into(), 300) % 4) as u32;
    EngineState {
        epoch: 0,
        step: StepRow {
            instance,
            epoch: 1,
            step: 1,
            running,
            queued_prefill_tokens: dice(instance.into(), 301) % 8000,
            blocks_used: running * 2000,
            blocks_total: 40_000,
            step_us: 20_000,
            ..StepRow::default()
        },
        tokens_per_s: 0,
        prefill_tokens_per_s: Some(8000 + dice(instance.into(), 302) % 2000),
        fit: Some(StepFit {
            samples: 100,
            base_ns: 15_000_000,
            per_sequence_ns: 200_000,
            per_prefill_token_ns: 100_000,
        }),
    }
}
