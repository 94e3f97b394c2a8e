//! What a step costs by its number of tokens, learnt from the times of steps that ran.
//!
//! Steps without proposals and steps with them are learnt apart: the latter want more logits and carry their proposer's
//! time. Within each, sizes fall into classes (exact up to 16 tokens, then half an octave wide) that keep the median of
//! their newest times; between known classes the time is interpolated, outside it is extrapolated.
//!
//! Invariant: times are positive and finite; a single odd time moves no class that has three. Cost: O(classes) an
//! estimate. Memory: [`CLASSES`] rings of [`RECENT`] times, twice.

const CLASSES: usize = 32;
const EXACT: usize = 16;
const RECENT: usize = 9;
/// Cost of a further token, in shares of the time a token takes in the step, before anything is known.
const PRIOR_SLOPE: f64 = 0.25;

#[derive(Debug, Clone, Copy, Default)]
struct SizeClass {
    times: [f64; RECENT],
    count: usize,
    next: usize,
    median: f64,
    /// Mean size of its steps, faded.
    tokens: f64,
}

impl SizeClass {
    fn add(&mut self, tokens: f64, time: f64) {
        self.tokens = if self.count == 0 { tokens } else { self.tokens + (tokens - self.tokens) / 8.0 };
        self.times[self.next] = time;
        self.next = (self.next + 1) % RECENT;
        self.count = (self.count + 1).min(RECENT);
        let mut sorted = self.times;
        let sorted = &mut sorted[..self.count];
        sorted.sort_unstable_by(f64::total_cmp);
        // The lower one of two in the middle: disturbances only add time.
        self.median = sorted[(self.count - 1) / 2];
    }
}

#[derive(Debug, Clone, Default)]
struct Curve {
    classes: [SizeClass; CLASSES],
}

fn class_of(tokens: usize) -> usize {
    if tokens <= EXACT {
        return tokens.saturating_sub(1);
    }
    let halves = ((tokens as f64 / EXACT as f64).log2() * 2.0) as usize;
    (EXACT + halves).min(CLASSES - 1)
}

impl Curve {
    fn known(&self) -> impl DoubleEndedIterator<Item = &SizeClass> {
        self.classes.iter().filter(|class| class.count > 0)
    }

    /// Time of a step of `tokens`, as far as sizes on both sides, or on one, tell; `None` if nothing is known.
    fn estimate(&self, tokens: f64) -> Option<f64> {
        let below = self.known().rfind(|class| class.tokens <= tokens);
        let above = self.known().find(|class| class.tokens > tokens);
        match (below, above) {
            (None, None) => None,
            (Some(below), Some(above)) => {
                let share = (tokens - below.tokens) / (above.tokens - below.tokens);
                Some(below.median + share * (above.median - below.median))
            }
            (Some(below), None) => {
                let first = self.known().next().filter(|first| first.tokens < below.tokens);
                let prior = PRIOR_SLOPE * below.median / below.tokens;
                let slope = first
                    .map_or(prior, |first| ((below.median - first.median) / (below.tokens - first.tokens)).max(0.0));
                Some(below.median + slope * (tokens - below.tokens))
            }
            (None, Some(above)) => Some(above.median * (1.0 - PRIOR_SLOPE * (1.0 - tokens / above.tokens))),
        }
    }
}

/// A step whose time becomes known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepSize {
    /// Tokens of decoding sequences, proposals not counted.
    pub decodes: usize,
    pub proposals: usize,
}

/// See the file's header.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepCost {
    plain: Curve,
    verifying: Curve,
}

impl StepCost {
    /// A step of this size took `time` microseconds.
    pub fn record(&mut self, size: StepSize, time: f64) {
        let tokens = size.decodes + size.proposals;
        if tokens == 0 || !time.is_finite() || time <= 0.0 {
            return;
        }
        let curve = if size.proposals == 0 { &mut self.plain } else { &mut self.verifying };
        curve.classes[class_of(tokens)].add(tokens as f64, time);
    }

    /// Time of a step of `tokens` without proposals; `None` before any such step ran.
    pub fn plain(&self, tokens: usize) -> Option<f64> {
        self.plain.estimate(tokens as f64)
    }

    /// Time that `proposals` add to a step of `base` tokens; at least 0. Between the plain step and the verified sizes it
    /// is interpolated; beyond them the line through the plain step and the last of them goes on.
    pub fn added(&self, base: usize, proposals: usize) -> Option<f64> {
        let plain = self.plain(base)?;
        let (from, tokens) = (base as f64, (base + proposals) as f64);
        let mut below = (from, plain);
        for class in self.verifying.known().filter(|class| class.tokens > from) {
            if class.tokens > tokens {
                let share = (tokens - below.0) / (class.tokens - below.0);
                return Some((below.1 + share * (class.median - below.1) - plain).max(0.0));
            }
            below = (class.tokens, class.median);
        }
        let slope = match below.0 > from {
            true => (below.1 - plain) / (below.0 - from),
            false if self.plain.known().any(|class| class.tokens >= tokens) => {
                (self.plain.estimate(tokens)? - plain) / (tokens - from)
            }
            false => PRIOR_SLOPE * plain / from,
        };
        Some((below.1 + slope * (tokens - below.0) - plain).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(decodes: usize, proposals: usize) -> StepSize {
        StepSize { decodes, proposals }
    }

    /// Scenario: a machine whose steps take 100 µs and 10 more a verified token, with one hiccup.
    /// Guarantees: the curve finds the figures between and beyond the sizes seen; the hiccup does not show.
    #[test]
    fn a_linear_machine_is_learnt() {
        let mut cost = StepCost::default();
        assert_eq!(cost.plain(1), None);
        for _ in 0..9 {
            cost.record(size(1, 0), 100.0);
            cost.record(size(1, 1), 110.0);
            cost.record(size(1, 7), 170.0);
        }
        cost.record(size(1, 0), 100_000.0);
        assert_eq!(cost.plain(1), Some(100.0));
        for proposals in [1, 3, 7, 11] {
            let added = cost.added(1, proposals).unwrap();
            assert!((added - 10.0 * proposals as f64).abs() < 1e-6, "{proposals}: {added}");
        }
    }

    /// Scenario: nothing was verified yet.
    /// Guarantees: a further token is believed to cost a quarter of what one costs.
    #[test]
    fn before_evidence_the_prior_counts() {
        let mut cost = StepCost::default();
        cost.record(size(1, 0), 100.0);
        assert_eq!(cost.added(1, 4), Some(100.0));
    }

    /// Scenario: sizes up to the largest.
    /// Guarantees: classes are in range and in order.
    #[test]
    fn size_classes_are_ordered() {
        let classes: Vec<usize> = (1..5000).map(class_of).collect();
        assert!(classes.is_sorted() && classes[4998] < CLASSES && classes[15] == 15);
    }
}
