//! The least predicted seconds, uncertainty counted; among those that can hardly be told apart, the least filled cache.
//!
//! Alike to the cheapest with room are those with room that cost at most `error_weight` times its uncertainty more and have as
//! much of the prompt cached: no hit is given up. Of these the one whose cache is filled least goes first, since there a
//! prompt pushes out the least of what others come back for; and who comes back to it is the load of later. A pool of unknown
//! size counts by its blocks. Where it is not known of one of them how much is cached, seconds decide alone. Ties go to
//! fewer leased tokens, then in turn.
//!
//! Cost: one sort. No state.

use super::{Candidate, RouteConfig};

pub(super) fn order(candidates: &mut [Candidate<'_>], config: &RouteConfig) {
    candidates.sort_by(|a, b| {
        let seconds = a.cost.compared_seconds.total_cmp(&b.cost.compared_seconds);
        seconds.then_with(|| (a.view.leased_tokens, a.place).cmp(&(b.view.leased_tokens, b.place)))
    });
    let Some(first) = candidates.iter().position(|candidate| candidate.cost.has_room) else { return };
    let least = candidates[first].cost;
    let bound = least.compared_seconds + config.error_weight * least.error_seconds;
    let is_alike = |candidate: &Candidate<'_>| {
        let cost = candidate.cost;
        cost.has_room && cost.compared_seconds <= bound && cost.hit_tokens >= least.hit_tokens
    };
    let mut emptiest: Option<(f64, usize)> = None;
    for rank in (first..candidates.len()).filter(|rank| is_alike(&candidates[*rank])) {
        let Some(fill) = fill(&candidates[rank]) else { return };
        // Of equals the first, which is the cheapest.
        if emptiest.is_none_or(|(least, _)| fill < least) {
            emptiest = Some((fill, rank));
        }
    }
    if let Some((_, rank)) = emptiest {
        candidates[first..=rank].rotate_right(1);
    }
}

/// Blocks cached, as a share of the pool where its size is known.
fn fill(candidate: &Candidate<'_>) -> Option<f64> {
    let total = candidate.view.engine.map_or(0, |engine| engine.blocks_total);
    Some(candidate.view.cached_blocks? as f64 / f64::from(total.max(1)))
}

pub(super) fn reason(chosen: &Candidate<'_>, prompt_tokens: u32) -> String {
    let cost = &chosen.cost;
    let fetch = match cost.fetch_tokens {
        0 => String::new(),
        tokens => format!(" + fetch of {tokens} {:.3}", cost.fetch.seconds),
    };
    format!(
        "least_seconds: {} in {:.3} ± {:.3} s (queue {:.3} + prefill {:.3}{fetch} + interference {:.3}; {} of {prompt_tokens} tokens cached)",
        cost.instance,
        cost.total_seconds,
        cost.error_seconds,
        cost.queue.seconds,
        cost.prefill.seconds,
        cost.interference.seconds,
        cost.hit_tokens
    )
}
