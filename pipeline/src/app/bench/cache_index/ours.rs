//! Our side: the views' dataflow on one timely worker, as in `serve`, and the index it feeds.
//!
//! Invariant: a batch is one epoch; it is applied when the epoch has closed.

use std::sync::{Arc, Mutex, PoisonError};

use operators::{CacheIndexConfig, FlowConfig, FlowRows, PrefixIndex, PrefixIndexConfig, views};

use super::side::Drive;

/// An index for about so many entries.
pub(super) fn index(entries: u64) -> Arc<PrefixIndex> {
    let max_entries = entries as usize * 2;
    Arc::new(PrefixIndex::new(PrefixIndexConfig { max_entries, seed: 42, ..PrefixIndexConfig::default() }))
}

/// Runs `drive` with a way to apply a batch.
pub(super) fn with_writer(index: Arc<PrefixIndex>, entries: u64, drive: Drive) {
    let cache = CacheIndexConfig { max_entries: entries as usize * 2, ..CacheIndexConfig::default() };
    let config = FlowConfig { cache, ..FlowConfig::default() };
    let drive = Mutex::new(Some(drive));
    timely::execute_directly(move |worker| {
        let Some(drive) = drive.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let mut flow = views::build(worker, &config, move |_, changes| index.apply(&changes.cache));
        let mut open = 0;
        drive(&mut |rows| {
            let mut rows = FlowRows { kv: rows, ..FlowRows::default() };
            flow.inputs.send(&mut rows).expect("invariant: a batch is smaller than the feed's bound");
            open += 1;
            flow.inputs.advance(open).expect("invariant: epochs rise");
            while flow.closed() != Some(open - 1) {
                worker.step();
            }
        });
    });
}

/// The instance with the longest prefix and its length.
pub(super) fn longest(index: &PrefixIndex, hashes: &[u64]) -> (u32, u32) {
    index.prefix_matches(hashes).first().map_or((0, 0), |found| (found.instance, found.blocks))
}
