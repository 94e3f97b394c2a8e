//! Fewest leased tokens, ties in turn: the baseline that counts tokens, and the safe policy, since the gateway knows its leases in every
//! mode (SPEC X5).
//!
//! Cost: one sort. No state.

use super::Candidate;

pub(super) fn order(candidates: &mut [Candidate<'_>]) {
    candidates.sort_by_key(|candidate| (candidate.view.leased_tokens, candidate.place));
}
