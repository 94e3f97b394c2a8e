//! The same index within the whole dataflow on one worker, as `serve` has it: with the hit-rate funnel, which reads the
//! blocks held from the readers' index, and with block rows that date every change.
//!
//! Invariant: a batch is one epoch; it is applied when the epoch has closed. State: the dataflow's, at the bounds that `serve`
//! sets by default, but for the entries of the index, which have room.

use std::sync::{Arc, Mutex, PoisonError};

use operators::{
    BlockChange, BlockRow, BlocksHeld, CacheIndexConfig, FlowConfig, FlowRows, FunnelRow, KvChange, KvRow, PrefixIndex,
    views::build_beside,
};

use super::side::Drive;
use crate::{
    config::{self, Overrides},
    dataflow::flow_config,
};

/// What `serve` has by default, with room for so many entries.
pub(super) fn config(entries: u64) -> anyhow::Result<FlowConfig> {
    let serving = flow_config(&config::load(None, Overrides::default())?.dataflow);
    let cache = CacheIndexConfig { max_entries: entries as usize * 2, ..serving.cache };
    Ok(FlowConfig { cache, ..serving })
}

/// Runs `drive` with a way to apply a batch.
pub(super) fn with_writer(index: Arc<PrefixIndex>, config: FlowConfig, drive: Drive) {
    let drive = Mutex::new(Some(drive));
    timely::execute_directly(move |worker| {
        let Some(drive) = drive.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let held = BlocksHeld::Shared(index.clone());
        let mut flow = build_beside(worker, (&config, held), move |_, changes| {
            index.apply(&changes.cache);
            index.complete(changes.epoch);
        });
        drive(&mut |kv| {
            let open = flow.inputs.open();
            let funnel = kv.iter().filter_map(|row| dated(row, open as i64)).map(FunnelRow::Block).collect();
            let sent = flow.inputs.send(&mut FlowRows { kv, funnel, ..FlowRows::default() });
            sent.expect("invariant: a batch of the bench fits an epoch");
            flow.inputs.advance(open + 1).expect("invariant: epochs rise");
            worker.step_while(|| flow.closed() != Some(open));
        });
    });
}

fn dated(row: &KvRow, epoch: i64) -> Option<BlockRow> {
    let (hash, level, change) = match row.event {
        KvChange::Stored { hash, level, .. } => (hash, level, BlockChange::Stored),
        KvChange::Removed { hash, level } => (hash, level, BlockChange::Removed),
        _ => return None,
    };
    Some(BlockRow { hash, instance: row.instance, level, change, at_us: epoch * 10_000 })
}
