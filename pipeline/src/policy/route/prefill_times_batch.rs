//! Fewest new prefill tokens × batch size (LMetric, arXiv 2603.15202): a baseline without a weight to tune.
//!
//! New prefill tokens are those waiting at the instance and the request's own that are not cached there; the batch counts the request, so
//! that an idle instance is judged by its tokens. Cost: one sort. No state.

use super::Candidate;

pub(super) fn order(candidates: &mut [Candidate<'_>]) {
    candidates.sort_by_key(|candidate| (product(candidate), candidate.view.leased_tokens, candidate.place));
}

fn product(candidate: &Candidate<'_>) -> u64 {
    candidate.work.prefill_tokens.saturating_mul(candidate.work.batch)
}

pub(super) fn reason(chosen: &Candidate<'_>) -> String {
    format!(
        "prefill_times_batch: {} new prefill tokens × batch of {} on {}",
        chosen.work.prefill_tokens, chosen.work.batch, chosen.view.instance
    )
}
