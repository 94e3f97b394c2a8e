//! Two are drawn, and the one with fewer leased tokens is chosen: the baseline that balances well with little to know.
//!
//! Where neither has room, the others follow as they were drawn. Invariant: the first is never the heavier of the two drawn; what is
//! drawn depends on turn and instance alone. Cost: one sort. No state.

use super::{Candidate, draw};

pub(super) fn order(candidates: &mut [Candidate<'_>], turn: u64) {
    candidates.sort_by_cached_key(|candidate| draw(turn, candidate.view.instance));
    if candidates.len() >= 2 && candidates[1].view.leased_tokens < candidates[0].view.leased_tokens {
        candidates.swap(0, 1);
    }
}
