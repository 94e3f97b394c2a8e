//! Who rests in a step (SPEC A4 d, B7): where the whole batch would make the step longer than somebody needs it to be, those
//! with the most time let it run in a smaller one.
//!
//! A batch takes longer the more decode in it; on machines where it takes much longer (a CPU), one request with little time
//! left is late in a large batch and in time in a small one, while others could wait. Each sequence that decodes has a time
//! by which it draws next: the pace it needs to be whole before it is dropped, or the longest gap, whichever is shorter.
//! The step takes as many as keep it within the pace of whoever needs it fastest and can be saved, the most urgent first; the
//! others rest, and come nearer to their own time by it.
//!
//! A smaller batch draws fewer tokens a second. Where it would draw less than half as many (a machine on which a batch takes
//! hardly longer than one sequence), nobody rests: little would be gained for one, and much lost for all.
//!
//! Invariants: somebody always runs; nobody rests unless the whole batch is predicted to be too slow for somebody who can be
//! saved; who rests is due later than all who run. Cost: O(n log n) in a step in which somebody rests, else O(n). No state.

use crate::{Micros, running::RunKey, step_pace::StepPace};

/// A sequence that decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decoding {
    pub key: RunKey,
    /// When it drew last.
    pub drew_at: Micros,
    /// Microseconds a token that it needs to be whole before it is dropped; `None`: it is not dropped.
    pub needs_us: Option<Micros>,
}

/// Those that rest in this step, by key. `gap_us`: nobody is to wait longer for a token because of others.
pub(crate) fn resting(decoding: &[Decoding], gap_us: Micros, pace: &StepPace) -> Vec<RunKey> {
    let (batch, time) = (decoding.len(), |sequences: usize| pace.decode_us(sequences));
    let (Some(alone), Some(all)) = (time(1), time(batch)) else { return Vec::new() };
    let mut needs: Vec<Micros> = decoding.iter().filter_map(|one| one.needs_us).collect();
    needs.retain(|us| (alone..all).contains(us));
    needs.sort_unstable();
    // The largest batch that keeps a pace, if it draws at least half as many tokens a second as the whole one.
    let batch_for = |within: Micros| {
        let fits = |count: &usize| time(*count).is_some_and(|us| us <= within);
        let fit = (1..batch).rev().find(fits)?;
        (2 * fit as Micros * all >= batch as Micros * time(fit)?).then_some((within, fit))
    };
    let Some((within, fit)) = needs.into_iter().find_map(batch_for) else { return Vec::new() };
    // Who needs more than that cannot be saved.
    let due = |one: &Decoding| {
        let gap = one.needs_us.filter(|needs| *needs >= within).map_or(gap_us, |needs| needs.min(gap_us));
        one.drew_at + gap
    };
    let mut order: Vec<(Micros, RunKey)> = decoding.iter().map(|one| (due(one), one.key)).collect();
    order.sort_unstable();
    let mut rest: Vec<RunKey> = order.split_off(fit).into_iter().map(|(_, key)| key).collect();
    rest.sort_unstable();
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{request::Lane, sequence::Arrival, step::StepStats};

    /// 2 ms a step and 2 ms a sequence.
    fn pace() -> StepPace {
        let mut pace = StepPace::default();
        for step in 0..100 {
            let (prefill, decode) = (step % 3 * 20, step % 17);
            let stats = StepStats { prefill_tokens: prefill, decode_tokens: decode, ..StepStats::default() };
            pace.learn(&stats, Micros::from(2_000 + 2_000 * decode + 100 * prefill));
        }
        pace
    }

    fn one(arrival: u64, drew_at: Micros, needs_us: Option<Micros>) -> Decoding {
        Decoding { key: RunKey { lane: Lane::L2, arrival: Arrival(arrival) }, drew_at, needs_us }
    }

    fn rest(decoding: &[Decoding]) -> Vec<u64> {
        resting(decoding, 100_000, &pace()).into_iter().map(|key| key.arrival.0).collect()
    }

    /// Scenario: ten sequences, 22 ms a step; one needs 13 ms a token: five fit. The same where all have time, where it
    /// cannot be saved, and before the pace is known.
    /// Guarantees: those that drew latest rest; nobody rests without need.
    #[test]
    fn those_with_the_most_time_rest() {
        let with = |needs| (0..9).map(|id| one(id, id as Micros, None)).chain([one(9, 50, needs)]).collect::<Vec<_>>();
        assert_eq!(rest(&with(Some(13_000))), [4, 5, 6, 7, 8]);
        assert!(rest(&with(None)).is_empty());
        assert!(rest(&with(Some(30_000))).is_empty());
        assert!(rest(&with(Some(1_000))).is_empty(), "it would be late alone");
        assert!(resting(&with(Some(13_000)), 100_000, &StepPace::default()).is_empty());
    }

    /// Scenario: a machine on which ten sequences take hardly longer than one; one of them needs a little less than that.
    /// Guarantees: nobody rests where a batch of a few would draw a fraction of the tokens.
    #[test]
    fn nobody_rests_where_little_is_gained() {
        let mut flat = StepPace::default();
        for step in 0..100u32 {
            let stats = StepStats { prefill_tokens: step % 3 * 20, decode_tokens: step % 17, ..StepStats::default() };
            flat.learn(&stats, Micros::from(5_000 + 50 * (step % 17) + 100 * (step % 3 * 20)));
        }
        let with = |needs| (0..9).map(|id| one(id, 0, None)).chain([one(9, 0, Some(needs))]).collect::<Vec<_>>();
        assert!(resting(&with(5_200), 100_000, &flat).is_empty());
        assert_eq!(resting(&with(5_400), 100_000, &flat).len(), 2);
        let mut both = with(5_400);
        both[0].needs_us = Some(5_200);
        assert_eq!(resting(&both, 100_000, &flat).len(), 2, "the one that can be saved counts");
    }

    /// Scenario: sequences that need 13 ms a token beside five times as many with time, over a thousand steps.
    /// Guarantees: those in need draw in each step but for the turns the others cannot miss, and nobody waits longer than
    /// the gap and a step.
    #[test]
    fn nobody_rests_for_long() {
        let pace = pace();
        let mut decoding: Vec<Decoding> = (0..10).map(|id| one(id, 0, None)).collect();
        decoding.extend((10..12).map(|id| one(id, 0, Some(13_000))));
        let (mut now, mut drawn, mut steps, mut longest) = (0, [0u32; 12], 0, 0);
        while steps < 1000 {
            let rest = resting(&decoding, 100_000, &pace);
            now += pace.decode_us(decoding.len() - rest.len()).unwrap();
            for (place, one) in decoding.iter_mut().enumerate().filter(|(_, one)| rest.binary_search(&one.key).is_err())
            {
                longest = longest.max(now - one.drew_at);
                (one.drew_at, drawn[place]) = (now, drawn[place] + 1);
            }
            steps += 1;
        }
        assert!(longest <= 115_000, "{longest} us between two tokens");
        assert!(drawn[10..].iter().all(|count| *count >= 900), "{drawn:?}");
        assert!(drawn[..10].iter().all(|count| *count >= 100), "{drawn:?}");
    }
}
