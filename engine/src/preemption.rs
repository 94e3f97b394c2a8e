//! Who gives way (SPEC B8), and how: by swap to L2 or by recomputation, whichever is predicted cheaper.
//!
//! By recomputation the victim's blocks go back and its full ones stay reusable while nobody needs their pages; by swap
//! its KV is copied to host memory first and copied back when it runs again. Either way it waits before all fresh
//! sequences of its lane.
//!
//! Invariants: the victim is the last in the order of service (lowest lane, then latest arrival), so the first in that
//! order never gives way and always makes progress. The prediction is a pure function of the stated rates.
//!
//! Cost: O(1). No state.

use crate::{
    config::{LanePreemption, SwapRates},
    request::Lane,
    roster::Roster,
    running::RunKey,
};

/// The running sequence that gives way when pages run out.
pub(crate) fn victim_for_pages(roster: &Roster) -> Option<RunKey> {
    roster.running.last_key()
}

/// The running sequence that gives its place to one waiting in `lane`, if the rule allows it.
pub(crate) fn victim_for_lane(roster: &Roster, lane: Lane, rule: LanePreemption) -> Option<RunKey> {
    victim_for_pages(roster).filter(|victim| match rule {
        LanePreemption::Background => victim.lane == Lane::L3 && lane < Lane::L3,
        LanePreemption::Lower => victim.lane > lane,
        LanePreemption::Off => false,
    })
}

/// What happens to the KV of a sequence that gives way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivingWay {
    /// Copied to L2 and back.
    Swap,
    /// Dropped and computed again.
    Recompute,
}

/// The KV at stake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldKv {
    pub tokens: usize,
    pub blocks: usize,
    /// Free slots of L2.
    pub l2_free: usize,
}

/// The cheaper way at the given rates. Two copies a block (out and in) stand against one prefill of all tokens; what
/// the prefix cache may still hold on the return is not counted on, because pages are short when this is asked.
pub fn cheaper_way(rates: SwapRates, held: HeldKv) -> GivingWay {
    let copies = rates.copy_ns_per_block.saturating_mul(2).saturating_mul(held.blocks as u64);
    let prefill = rates.prefill_ns_per_token.saturating_mul(held.tokens as u64);
    match held.blocks > 0 && held.blocks <= held.l2_free && copies < prefill {
        true => GivingWay::Swap,
        false => GivingWay::Recompute,
    }
}
