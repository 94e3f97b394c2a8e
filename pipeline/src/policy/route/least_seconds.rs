//! The least predicted seconds, uncertainty counted; ties go to fewer leased tokens, then in turn.
//!
//! Cost: one sort. No state.

use super::Candidate;

pub(super) fn order(candidates: &mut [Candidate<'_>]) {
    candidates.sort_by(|a, b| {
        let seconds = a.cost.compared_seconds.total_cmp(&b.cost.compared_seconds);
        seconds.then_with(|| (a.view.leased_tokens, a.place).cmp(&(b.view.leased_tokens, b.place)))
    });
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
