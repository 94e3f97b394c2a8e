//! Our side: the operator on one timely worker, as the dataflow has it, and the index it feeds. The other views are not here:
//! the hit-rate funnel, for one, keeps blocks of its own.
//!
//! Invariant: a batch is one epoch; it is applied when the epoch has closed.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use operators::{CacheIndex, CacheIndexConfig, KvRow, PrefixIndex, PrefixIndexConfig};
use timely::dataflow::{
    InputHandleVec, ProbeHandle,
    operators::{Inspect, Probe},
};

use super::side::Drive;

/// An index for about so many entries.
pub(super) fn index(entries: u64) -> Arc<PrefixIndex> {
    let max_entries = entries as usize * 2;
    Arc::new(PrefixIndex::new(PrefixIndexConfig { max_entries, seed: 42, ..PrefixIndexConfig::default() }))
}

/// Runs `drive` with a way to apply a batch.
pub(super) fn with_writer(index: Arc<PrefixIndex>, entries: u64, drive: Drive) {
    let cache = CacheIndexConfig { max_entries: entries as usize * 2, ..CacheIndexConfig::default() };
    let drive = Mutex::new(Some(drive));
    timely::execute_directly(move |worker| {
        let Some(drive) = drive.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let (mut rows, probe) = (InputHandleVec::<u64, KvRow>::new(), ProbeHandle::new());
        let changes = Rc::new(RefCell::new(Vec::new()));
        worker.dataflow::<u64, _, _>(|scope| {
            let (changes, blocks) = (changes.clone(), rows.to_stream(scope).cache_index(cache).blocks);
            let blocks = blocks.inner.inspect(move |(key, _, diff)| changes.borrow_mut().push((*key, *diff as i64)));
            blocks.probe_with(&probe);
        });
        drive(&mut |mut batch| {
            rows.send_batch(&mut batch);
            let next = *rows.time() + 1;
            rows.advance_to(next);
            worker.step_while(|| probe.less_than(&next));
            index.apply(&changes.borrow());
            changes.borrow_mut().clear();
        });
    });
}

/// The instance with the longest prefix and its length.
pub(super) fn longest(index: &PrefixIndex, hashes: &[u64]) -> (u32, u32) {
    index.prefix_matches(hashes).first().map_or((0, 0), |found| (found.instance, found.blocks))
}
