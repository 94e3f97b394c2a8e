//! The layers of the hit-rate funnel and the reasons for which tokens do not get from one to the next (C5).
//!
//! Invariant: each reason belongs to one layer, the one that the tokens did not reach; so per request and per sum of
//! requests, a layer is the next one plus the tokens of the next one's reasons, gains counting as negative tokens.
//! Cost and state: none.
use serde::{Deserialize, Serialize};

/// How many layers there are.
pub const LAYERS: usize = 7;
/// How many reasons there are.
pub const LOSSES: usize = 16;

/// How far prompt tokens got on their way to being reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Layer {
    /// All tokens of the prompt.
    Prompt,
    /// In the longest prefix ever seen for the model: what an infinite cache would reuse.
    Potential,
    /// In the longest prefix that one instance held, at any level, when it was decided.
    Present,
    /// In the longest prefix that the gateway's view knew of, and believed.
    Visible,
    /// The same over the instances that were ready and allowed.
    Eligible,
    /// The same on the instance chosen.
    Selected,
    /// Reused, as the engine reports.
    Delivered,
}

impl Layer {
    pub const ALL: [Self; LAYERS] =
        [Self::Prompt, Self::Potential, Self::Present, Self::Visible, Self::Eligible, Self::Selected, Self::Delivered];

    pub fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Potential => "potential",
            Self::Present => "present",
            Self::Visible => "visible",
            Self::Eligible => "eligible",
            Self::Selected => "selected",
            Self::Delivered => "delivered",
        }
    }
}

/// Why tokens did not reach a layer, or (gains, counted as negative tokens) how more reached it than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Loss {
    /// Nobody asked for it or stored it before.
    NeverSeen,
    /// Held, but by several instances, none of which has it all.
    Split,
    /// An instance stored it once and none can use it now: it, or a block before it, is gone.
    Evicted,
    /// Asked for before, never stored: still being computed, or too short-lived.
    NotStored,
    /// Held, but not in the view, or the view was too old to be believed.
    StaleView,
    /// Gain: in the view, and gone.
    Phantom,
    /// Known on instances only that were not ready or not allowed.
    Ineligible,
    /// Gain that the layer's definition rules out: the rows contradict each other.
    EligibleGain,
    /// Known on an instance that was not chosen for its load, or by a policy that does not look at caches.
    TradedForLoad,
    /// The request was refused, or left before it was placed.
    NotServed,
    /// Gain that the layer's definition rules out.
    SelectedGain,
    /// The view claimed it on the instance chosen, which had dropped it when it was decided.
    StaleClaim,
    /// The instance chosen held it below L1 and computed it anew: fetching would have taken too long.
    TransferTooSlow,
    /// The instance chosen held it when it was decided, and no more when the request ran.
    EngineEviction,
    /// The request ended without a report, or its end never came.
    Unreported,
    /// Gain: reused though the view did not know it.
    UnseenHit,
}

impl Loss {
    pub const ALL: [Self; LOSSES] = [
        Self::NeverSeen,
        Self::Split,
        Self::Evicted,
        Self::NotStored,
        Self::StaleView,
        Self::Phantom,
        Self::Ineligible,
        Self::EligibleGain,
        Self::TradedForLoad,
        Self::NotServed,
        Self::SelectedGain,
        Self::StaleClaim,
        Self::TransferTooSlow,
        Self::EngineEviction,
        Self::Unreported,
        Self::UnseenHit,
    ];

    /// The layer not reached.
    pub fn layer(self) -> Layer {
        match self {
            Self::NeverSeen => Layer::Potential,
            Self::Split | Self::Evicted | Self::NotStored => Layer::Present,
            Self::StaleView | Self::Phantom => Layer::Visible,
            Self::Ineligible | Self::EligibleGain => Layer::Eligible,
            Self::TradedForLoad | Self::NotServed | Self::SelectedGain => Layer::Selected,
            Self::StaleClaim | Self::TransferTooSlow | Self::EngineEviction | Self::Unreported | Self::UnseenHit => {
                Layer::Delivered
            }
        }
    }

    /// The reason code; unique within a layer.
    pub fn name(self) -> &'static str {
        match self {
            Self::NeverSeen => "never_seen",
            Self::Split => "split",
            Self::Evicted => "evicted",
            Self::NotStored => "not_stored",
            Self::StaleView | Self::StaleClaim => "stale_view",
            Self::Phantom => "phantom",
            Self::Ineligible => "ineligible",
            Self::EligibleGain | Self::SelectedGain => "contradiction",
            Self::TradedForLoad => "traded_for_load",
            Self::NotServed => "not_served",
            Self::TransferTooSlow => "transfer_too_slow",
            Self::EngineEviction => "engine_eviction",
            Self::Unreported => "unreported",
            Self::UnseenHit => "unseen_hit",
        }
    }
}
