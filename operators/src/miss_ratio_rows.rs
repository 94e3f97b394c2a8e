//! Rows of miss-ratio curves: whose requests, over which epochs, and the points (X4).
//!
//! Invariant: points are at rising capacities and their hit tokens do not fall. Cost: reading a point is a binary search.
//! State: none.
use serde::{Deserialize, Serialize};

use crate::{miss_ratio::CurvePoint, rows::PromptRow};

/// Whose requests a curve is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CurveGroup {
    All,
    Tier(u8),
    Model(u32),
    Tenant(u32),
}

impl CurveGroup {
    /// The groups of a request.
    pub fn of(row: &PromptRow) -> [Self; 4] {
        [Self::All, Self::Tier(row.tier), Self::Model(row.model), Self::Tenant(row.tenant)]
    }

    /// The groups of a request under its model; the first is the whole.
    pub(crate) fn within_model(row: &PromptRow) -> [Self; 3] {
        [Self::Model(row.model), Self::Tier(row.tier), Self::Tenant(row.tenant)]
    }

    /// The group in a report of what was refused.
    pub(crate) fn subject(self) -> u64 {
        match self {
            Self::All => 0,
            Self::Tier(tier) => 1 << 32 | u64::from(tier),
            Self::Model(model) => 2 << 32 | u64::from(model),
            Self::Tenant(tenant) => 3 << 32 | u64::from(tenant),
        }
    }
}

/// The curve of one group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CurveRow {
    /// The last epoch covered, and the one in which the row was made.
    pub epoch: u64,
    pub group: CurveGroup,
    /// The first epoch covered; not before the group's first row.
    pub from_epoch: u64,
    pub requests: u64,
    /// The hit rate is `hit_tokens / prompt_tokens`.
    pub prompt_tokens: u64,
    /// Length of a block, of the latest request.
    pub block_tokens: u32,
    /// Capacities (of each model's cache) up to this one are exact; `u64::MAX` while all are.
    pub exact_blocks: u64,
    /// Share of older blocks that is followed, in millionths.
    pub sampling_ppm: u32,
    /// Different blocks held, estimated when not all are followed; over all models of the group.
    pub blocks: u64,
    /// At rising capacities, up to about twice `blocks`.
    pub points: Vec<CurvePoint>,
    /// Without a bound; its capacity is `u64::MAX`.
    pub infinite: CurvePoint,
}

impl CurveRow {
    /// The curve at a capacity: at the greatest one of its points that is not above it.
    pub fn at(&self, capacity_blocks: u64) -> CurvePoint {
        let above = self.points.partition_point(|point| point.capacity_blocks <= capacity_blocks);
        let none = CurvePoint { capacity_blocks, hit_tokens: 0, error_tokens: 0 };
        above.checked_sub(1).map_or(none, |index| self.points[index])
    }

    /// Hit tokens of a point as a share of the prompts'; `None` without prompts.
    pub fn hit_rate(&self, point: CurvePoint) -> Option<f64> {
        (self.prompt_tokens > 0).then(|| point.hit_tokens as f64 / self.prompt_tokens as f64)
    }
}
