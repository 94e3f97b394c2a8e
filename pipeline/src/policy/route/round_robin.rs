//! One after the other, whatever they hold and do: the baseline that every other policy must beat.
//!
//! Invariant: over as many turns as there are candidates with room each comes first once. Cost: one sort. No state.

use super::Candidate;

pub(super) fn order(candidates: &mut [Candidate<'_>]) {
    candidates.sort_by_key(|candidate| candidate.place);
}
