//! What policies see of the views: mode, figures of an instance, cached prefixes of a request's prompts.
//!
//! The gateway and the replay (SPEC X2) read views through here, so they see the same of the same state. Pure; cost: that of
//! the look-ups. No state.

use operators::{CacheTrust, InstanceState as EngineState, PredictionError, PrefixMatch};

use super::views::{FlowViews, ViewState};
use crate::{
    ids::{InstanceId, Micros},
    policy::{EngineView, KV_LEVELS, LevelTokens, PrefixHit, PrefixHits, PrefixReading, ViewMode},
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
        let (mut reading, mut hits) = (PrefixReading::default(), Vec::new());
        for hashes in prompts {
            let found = index.prefix_matches(hashes);
            reading.blocks.push(found.iter().map(|held| held.blocks as usize).max().unwrap_or(0));
            hits.extend(found.iter().map(|held| prefix_hit(held, block_size as u32)));
        }
        reading.hits = PrefixHits::new(hits);
        reading
    });
    reading.as_of = as_of;
    reading
}

/// The blocks of a match as tokens. Levels that policies do not tell apart are farther than all they know.
fn prefix_hit(held: &PrefixMatch, block_size: u32) -> PrefixHit {
    let mut tokens = [0u32; KV_LEVELS];
    for (level, blocks) in held.by_level.iter().enumerate() {
        let place = &mut tokens[level.min(KV_LEVELS - 1)];
        *place = place.saturating_add(blocks.saturating_mul(block_size));
    }
    PrefixHit { instance: InstanceId(held.instance), tokens: LevelTokens(tokens) }
}

/// One standard deviation in units of the mean absolute error, of a normal distribution.
const DEVIATIONS: f64 = 1.253_314_137_315_5;

/// The figures at `now`. Those older than `silent_after` say nothing of what runs (SPEC X5): leases stand for that, which never
/// adds capacity; what was learnt of the speed, and the blocks last seen in use, are kept. Of an idle engine, which has nothing
/// to report, that is what it reported last.
pub fn current_view(views: &ViewState, state: EngineState, (now, silent_after_us): (Micros, i64)) -> EngineView {
    let engine = engine_view(views, state);
    match now - engine.reported_at > silent_after_us {
        true => EngineView { running: 0, waiting: 0, queued_prefill_tokens: 0, context_tokens: 0, ..engine },
        false => engine,
    }
}

/// Blocks of the cache index on an instance that has reported.
pub fn cached_blocks(views: &ViewState, instance: InstanceId) -> u64 {
    views.cached_blocks.get(&instance.0).map_or(0, |blocks| (*blocks).max(0) as u64)
}

/// What policies see of an instance's figures as they were reported; `views` are those they are from.
fn engine_view(views: &ViewState, state: EngineState) -> EngineView {
    let step = state.step;
    let errors = views.service_times.get(&step.shape);
    let deviation = |error: &PredictionError| (error.samples > 0).then_some(error.mape * DEVIATIONS);
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
        prefill_error: errors.and_then(|row| deviation(&row.prefill_error)),
        decode_error: errors.and_then(|row| deviation(&row.decode_error)),
    }
}
