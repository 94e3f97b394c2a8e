//! Events as workers and gateway make them, ready before anything is timed.
//!
//! Invariant: the same number of chunks is the same events. KV events are four in five of all, a quarter of them
//! removals of the oldest blocks; one request in eight is left open, so that a load stays. Memory: every event twice,
//! as rows and as batches, for requests; once for the rest.

use anyhow::Context;
use arrow::array::RecordBatch;

use crate::{
    rows::{EngineStepRow, KvEventRow, RequestRow},
    worker::telemetry::batch_of,
};

const INSTANCES: u64 = 4;
const KV_ROWS: u64 = 1024;
const STEP_ROWS: u64 = 128;
const REQUESTS: u64 = 32;

/// What is published together: two batches of one worker, and rows of the gateway.
pub(super) struct Chunk {
    pub(super) instance: u32,
    /// Number of the batches within their producer, from 1.
    pub(super) batch_seq: u64,
    pub(super) kv: RecordBatch,
    pub(super) steps: RecordBatch,
    pub(super) requests: Vec<RequestRow>,
    /// The same rows as `requests`, for the plain program.
    pub(super) request_batch: RecordBatch,
}

impl Chunk {
    pub(super) fn events(&self) -> usize {
        self.kv.num_rows() + self.steps.num_rows() + self.requests.len()
    }
}

/// Blocks and steps of one worker so far.
#[derive(Default, Clone)]
struct WorkerCounts {
    kv_seq: u64,
    stored: u64,
    removed: u64,
    steps: u64,
}

/// `chunks` chunks with `at` as the time of the first event.
pub(super) fn chunks(chunks: u64, at: i64) -> anyhow::Result<Vec<Chunk>> {
    let mut workers = vec![WorkerCounts::default(); INSTANCES as usize];
    (0..chunks)
        .map(|number| {
            let instance = number % INSTANCES;
            let worker = &mut workers[instance as usize];
            let kv: Vec<_> = (0..KV_ROWS).map(|n| kv_row(worker, (instance, n), at)).collect();
            let steps: Vec<_> = (0..STEP_ROWS).map(|_| step_row(worker, instance, at)).collect();
            let requests: Vec<_> = (0..REQUESTS).flat_map(|n| life(number * REQUESTS + n, instance, at)).collect();
            let (kv, steps) = (batch_of(&kv)?, batch_of(&steps)?);
            let request_batch = batch_of(&requests)?;
            let batch_seq = number / INSTANCES + 1;
            Ok(Chunk { instance: instance as u32, batch_seq, kv, steps, requests, request_batch })
        })
        .collect::<anyhow::Result<_>>()
        .context("cannot make the bench's events")
}

/// Name of the `number`-th block of an instance: distinct for each pair.
fn block_hash(instance: u64, number: u64) -> u64 {
    (number * INSTANCES + instance + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn kv_row(worker: &mut WorkerCounts, (instance, n): (u64, u64), at: i64) -> KvEventRow {
    worker.kv_seq += 1;
    let is_removal = n % 4 == 3;
    let counter = if is_removal { &mut worker.removed } else { &mut worker.stored };
    *counter += 1;
    KvEventRow {
        block_hash: Some(block_hash(instance, *counter)),
        event: if is_removal { "removed" } else { "stored" }.into(),
        tokens: (!is_removal).then_some(16),
        ..stored(instance as u32, worker.kv_seq, at)
    }
}

/// A `stored` event without a block, to be filled in.
pub(super) fn stored(instance: u32, seq: u64, at: i64) -> KvEventRow {
    KvEventRow {
        at,
        instance,
        epoch: 1,
        seq,
        event: "stored".into(),
        block_hash: None,
        parent_hash: None,
        level: Some("L1".into()),
        tokens: Some(16),
        ..KvEventRow::default()
    }
}

fn step_row(worker: &mut WorkerCounts, instance: u64, at: i64) -> EngineStepRow {
    worker.steps += 1;
    let running = 1 + (worker.steps % 16) as u32;
    EngineStepRow {
        at: at + worker.steps as i64 * 5_000,
        instance: instance as u32,
        epoch: 1,
        step: worker.steps,
        step_us: 5_000 + i64::from(running) * 40,
        prefill_tokens: 0,
        decode_tokens: running,
        running,
        waiting: 0,
        preempted: 0,
        cached_tokens: 0,
        scheduled_prompt_tokens: 0,
        queued_prefill_tokens: 0,
        context_tokens: running * 500,
        blocks_used: running * 32,
        blocks_cached: 0,
        blocks_total: 4096,
        ..EngineStepRow::default()
    }
}

/// The events of a request; every eighth one has not ended.
fn life(number: u64, instance: u64, at: i64) -> Vec<RequestRow> {
    let prompt_tokens = 100 + (number * 97 % 4000) as u32;
    let row = |seq: u32, event: &str, output_tokens: u32| RequestRow {
        at: at + i64::from(seq) * 1_000,
        request_id: format!("bench-{number}").into(),
        seq,
        event: event.into(),
        model: "bench".into(),
        tier: "Medium".into(),
        tenant: "bench".into(),
        instance: (seq > 1).then_some(instance as u32),
        prompt_tokens,
        output_tokens,
        cached_tokens: Some(0),
        gap_us: (event == "first_token").then_some(20_000),
        total_us: (event == "finished").then_some(300_000),
        finish_reason: (event == "finished").then(|| "length".into()),
        session_hash: (seq == 1).then_some(number / 4),
        turns: (seq == 1).then_some(1 + (number % 4) as u32),
        ..RequestRow::default()
    };
    let mut rows = vec![row(1, "arrived", 0), row(2, "dispatched", 0), row(3, "first_token", 1)];
    if number % 8 != 7 {
        rows.push(row(4, "finished", 32));
    }
    rows
}
