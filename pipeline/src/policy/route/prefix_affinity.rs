//! Affinity with thresholds, as the cache-aware policy of sglang-router has it: a baseline.
//!
//! While requests in flight are balanced, a request whose longest cached prefix is at least `cache_threshold` of its prompt goes to
//! the holder of that prefix; every other request, and every request while the fleet is out of balance (most − least > `balance_abs`
//! and most > `balance_rel` × least), goes to the instance with the fewest requests. The original keeps a tree of the texts it has
//! sent; here the cache index says who holds what. That one threshold breaks affinity for everybody at once is its known weakness, and
//! why it is a baseline. Cost: one sort. No state.

use super::{AffinityConfig, Candidate};

pub(super) fn order(candidates: &mut [Candidate<'_>], prompt_tokens: u32, config: &AffinityConfig) {
    let loads = || candidates.iter().map(|candidate| candidate.view.leased_requests);
    let (least, most) = (loads().min().unwrap_or(0), loads().max().unwrap_or(0));
    let is_uneven = most - least > config.balance_abs && f64::from(most) > config.balance_rel * f64::from(least);
    let longest = candidates.iter().map(|candidate| candidate.cost.hit_tokens).max().unwrap_or(0);
    let is_cached = longest > 0 && f64::from(longest) >= config.cache_threshold * f64::from(prompt_tokens);
    let follows_cache = is_cached && !is_uneven;
    candidates.sort_by_key(|candidate| {
        let missed = if follows_cache { longest - candidate.cost.hit_tokens } else { 0 };
        (missed, candidate.view.leased_requests, candidate.place)
    });
}

pub(super) fn reason(chosen: &Candidate<'_>, prompt_tokens: u32) -> String {
    format!(
        "prefix_affinity: {} of {prompt_tokens} tokens cached on {}, {} requests in flight there",
        chosen.cost.hit_tokens, chosen.view.instance, chosen.view.leased_requests
    )
}
