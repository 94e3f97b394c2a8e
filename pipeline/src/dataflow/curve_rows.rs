//! Miss-ratio curves become rows of the bus: one for each capacity, and one without a bound (SPEC X4).
//!
//! Cost: O(capacities) a curve. No state.

use operators::{CurveGroup, CurvePoint, CurveRow};

use super::feed::{Names, tier_name};
use crate::{ids::Micros, rows::MrcRow};

/// Start of epoch 0 and length of an epoch, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct EpochClock {
    pub origin: Micros,
    pub epoch_us: i64,
}

/// The rows of one curve, at rising capacities.
pub(super) fn curve_rows(curve: &CurveRow, names: &Names, clock: EpochClock) -> Vec<MrcRow> {
    let name = |number: u32| Some(names.name(number).into());
    let (scope, model, tier, tenant) = match curve.group {
        CurveGroup::All => ("all", None, None, None),
        CurveGroup::Model(model) => ("model", name(model), None, None),
        CurveGroup::Tier(tier) => ("tier", None, Some(tier_name(tier).to_string()), None),
        CurveGroup::Tenant(tenant) => ("tenant", None, None, name(tenant)),
    };
    let base = MrcRow {
        as_of: clock.origin + (curve.epoch as i64 + 1) * clock.epoch_us,
        scope: scope.into(),
        model,
        tier,
        tenant,
        window_seconds: (curve.epoch - curve.from_epoch + 1) as f64 * clock.epoch_us as f64 / 1e6,
        prompts: curve.requests,
        prompt_tokens: curve.prompt_tokens,
        blocks_seen: curve.blocks,
        ..MrcRow::default()
    };
    let row = |point: &CurvePoint| {
        let capacity_blocks = (point.capacity_blocks < u64::MAX).then_some(point.capacity_blocks);
        let is_exact = curve.exact_blocks == u64::MAX || point.capacity_blocks <= curve.exact_blocks;
        let share = |tokens: u64| tokens as f64 / curve.prompt_tokens.max(1) as f64;
        MrcRow {
            capacity_blocks,
            capacity_tokens: capacity_blocks.map(|blocks| blocks.saturating_mul(curve.block_tokens.into())),
            hit_tokens: point.hit_tokens,
            hit_rate: share(point.hit_tokens),
            hit_rate_error: share(point.error_tokens),
            sampling_rate: if is_exact { 1.0 } else { f64::from(curve.sampling_ppm) / 1e6 },
            ..base.clone()
        }
    };
    curve.points.iter().chain([&curve.infinite]).map(row).collect()
}
