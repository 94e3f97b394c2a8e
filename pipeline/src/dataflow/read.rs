//! What policies see of the views: mode, figures of an instance, cached prefixes of a request's prompts.
//!
//! The gateway and the replay (SPEC X2) read views through here, so they see the same of the same state. Pure; cost: that of
//! the look-ups. No state.

use operators::{CacheTrust, InstanceState as EngineState};

use super::views::{FlowViews, ViewState};
use crate::{
    ids::{InstanceId, Micros},
    policy::{EngineView, PrefixReading, ViewMode},
};

/// How far a state can be trusted at `now`; `None`: the dataflow is off.
pub fn view_mode(state: Option<&ViewState>, now: Micros, stale_after_us: i64) -> ViewMode {
    let Some(state) = state else { return ViewMode::Off };
    match state.as_of {
        None => ViewMode::Stale,
        Some(as_of) if now - as_of > stale_after_us => ViewMode::Stale,
        Some(_) => match state.cache_trust() {
            CacheTrust::Exact => ViewMode::Exact,
            CacheTrust::Approximate => ViewMode::Approximate,
            CacheTrust::Degraded | CacheTrust::Dropped => ViewMode::Degraded,
        },
    }
}

/// One look at the cache index for all prompts of a request.
pub fn read_prefixes(flow: &FlowViews, prompts: &[Vec<u64>], block_size: usize) -> PrefixReading {
    let (mut reading, as_of) = flow.read_prefixes(|index| {
        let mut reading = PrefixReading::default();
        for hashes in prompts {
            let found = index.longest_prefix(hashes);
            reading.blocks.push(found.iter().map(|(_, blocks)| *blocks as usize).max().unwrap_or(0));
            for (instance, blocks) in found {
                reading.hits.add(InstanceId(instance), blocks.saturating_mul(block_size as u32));
            }
        }
        reading
    });
    reading.as_of = as_of;
    reading
}

/// What policies see of an instance's figures.
pub fn engine_view(state: EngineState) -> EngineView {
    let step = state.step;
    EngineView {
        reported_at: step.at_us,
        running: step.running,
        waiting: step.waiting,
        queued_prefill_tokens: step.queued_prefill_tokens,
        context_tokens: step.context_tokens,
        blocks_used: step.blocks_used,
        blocks_total: step.blocks_total,
        prefill_tokens_per_second: state.prefill_tokens_per_s.map(|rate| rate as f64),
        decode_step_seconds: state.fit.map(|fit| fit.predict_ns(step.running.max(1).into(), 0) as f64 / 1e9),
    }
}
