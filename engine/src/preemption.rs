//! Who gives way (SPEC B8), by recomputation: the victim's blocks go back, its full ones stay reusable while nobody
//! needs their pages, and it waits before all fresh sequences of its lane.
//!
//! Invariant: the victim is the last in the order of service (lowest lane, then latest arrival), so the first in that
//! order never gives way and always makes progress.
//!
//! Cost: O(1) to find a victim. No state.

use crate::{config::LanePreemption, request::Lane, roster::Roster, running::RunKey};

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
