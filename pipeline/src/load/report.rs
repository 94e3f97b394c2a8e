//! What a replay showed: counts, percentiles, rates; as a table and as JSON.
//!
//! Percentiles come from histograms with buckets 1 % apart, so a figure is within 1 % of the true nearest-rank value.
//! Invariant: a figure nobody measured is `None`, never zero. Memory: two histograms of 2,100 counters; at most
//! `KINDS_MAX` error kinds, further ones count as `other`.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use serde::Serialize;

use super::request::Outcome;

const STEP: f64 = 1.01;
const BUCKETS: usize = 2_100;
const KINDS_MAX: usize = 32;

/// Counts of durations from 1 µs to about 20 minutes; longer ones count in the last bucket.
#[derive(Debug, Clone)]
struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    fn new() -> Self {
        Histogram { counts: vec![0; BUCKETS], total: 0 }
    }

    fn add(&mut self, duration: Duration) {
        let us = (duration.as_secs_f64() * 1e6).max(1.0);
        let bucket = (us.ln() / STEP.ln()) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.total += 1;
    }

    /// Nearest-rank quantile in milliseconds.
    fn quantile_ms(&self, q: f64) -> Option<f64> {
        let rank = ((q * self.total as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        (self.total > 0).then_some(())?;
        bucket.map(|bucket| STEP.powf(bucket as f64 + 0.5) / 1000.0)
    }

    fn percentiles(&self) -> Percentiles {
        Percentiles { p50: self.quantile_ms(0.5), p95: self.quantile_ms(0.95), p99: self.quantile_ms(0.99) }
    }
}

/// Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
}

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub requests: u64,
    pub succeeded: u64,
    /// Requests by kind of error.
    pub errors: BTreeMap<String, u64>,
    /// Requests that waited for a place in flight, so were sent after their time.
    pub started_late: u64,
    /// Requests cut to `--tokens-max`.
    pub cut: u64,
    pub ttft_ms: Percentiles,
    pub itl_ms: Percentiles,
    /// As the endpoint counted them, over requests that told their usage.
    pub prompt_tokens: u64,
    /// Words sent for the same requests: how far a word is a token.
    pub prompt_words: u64,
    pub cached_tokens: u64,
    /// Of the prompt tokens; `None` if no request told its cached tokens.
    pub cached_share: Option<f64>,
    pub output_tokens: u64,
    pub output_tokens_per_second: f64,
    pub duration_seconds: f64,
}

/// Adds outcomes up.
pub(super) struct Tally {
    report: Report,
    ttft: Histogram,
    itl: Histogram,
    cache_told: u64,
}

impl Tally {
    pub fn new() -> Self {
        let none = Percentiles { p50: None, p95: None, p99: None };
        let report = Report {
            requests: 0,
            succeeded: 0,
            errors: BTreeMap::new(),
            started_late: 0,
            cut: 0,
            ttft_ms: none,
            itl_ms: none,
            prompt_tokens: 0,
            prompt_words: 0,
            cached_tokens: 0,
            cached_share: None,
            output_tokens: 0,
            output_tokens_per_second: 0.0,
            duration_seconds: 0.0,
        };
        Tally { report, ttft: Histogram::new(), itl: Histogram::new(), cache_told: 0 }
    }

    pub fn late(&mut self) {
        self.report.started_late += 1;
    }

    pub fn cut(&mut self) {
        self.report.cut += 1;
    }

    /// `words` were in the prompt.
    pub fn add(&mut self, outcome: Outcome, words: u64) {
        let report = &mut self.report;
        report.requests += 1;
        match outcome.error {
            None => report.succeeded += 1,
            Some(kind) => {
                let known = report.errors.len() < KINDS_MAX || report.errors.contains_key(&kind);
                *report.errors.entry(if known { kind } else { "other".into() }).or_default() += 1;
            }
        }
        if let Some(ttft) = outcome.ttft {
            self.ttft.add(ttft);
        }
        outcome.gaps.into_iter().for_each(|gap| self.itl.add(gap));
        if let Some(tokens) = outcome.prompt_tokens {
            report.prompt_tokens += tokens;
            report.prompt_words += words;
            if let Some(cached) = outcome.cached_tokens {
                report.cached_tokens += cached;
                self.cache_told += tokens;
            }
        }
        report.output_tokens += outcome.output_tokens.unwrap_or(0);
    }

    pub fn finish(self, took: Duration) -> Report {
        let seconds = took.as_secs_f64();
        let told = self.cache_told;
        Report {
            ttft_ms: self.ttft.percentiles(),
            itl_ms: self.itl.percentiles(),
            cached_share: (told > 0).then(|| self.report.cached_tokens as f64 / told as f64),
            output_tokens_per_second: if seconds > 0.0 { self.report.output_tokens as f64 / seconds } else { 0.0 },
            duration_seconds: seconds,
            ..self.report
        }
    }
}

impl Report {
    /// The report for a person, lines of `name  value`.
    pub fn table(&self) -> String {
        let ms = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.1}"));
        let row = |p: &Percentiles| format!("p50 {}  p95 {}  p99 {} ms", ms(p.p50), ms(p.p95), ms(p.p99));
        let share = self.cached_share.map_or_else(|| "not told".into(), |share| format!("{:.1} %", share * 100.0));
        let mut lines = vec![
            ("requests", format!("{} ({} succeeded)", self.requests, self.succeeded)),
            ("time to first token", row(&self.ttft_ms)),
            ("between tokens", row(&self.itl_ms)),
            ("output", format!("{} tokens, {:.1} tokens/s", self.output_tokens, self.output_tokens_per_second)),
            ("prompt", format!("{} tokens from {} words", self.prompt_tokens, self.prompt_words)),
            ("cached", format!("{} tokens, {share}", self.cached_tokens)),
            ("started late", self.started_late.to_string()),
            ("cut to fit", self.cut.to_string()),
            ("duration", format!("{:.2} s", self.duration_seconds)),
        ];
        lines.extend(self.errors.iter().map(|(kind, count)| ("error", format!("{count} × {kind}"))));
        lines.iter().fold(String::new(), |mut text, (name, value)| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:<20}  {value}");
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Scenario: any durations. Guarantees: each percentile is within 1 % of the nearest-rank value of the sorted list.
        #[test]
        fn percentiles_match_sorting(mut us in proptest::collection::vec(1u64..100_000_000, 1..300)) {
            let mut histogram = Histogram::new();
            us.iter().for_each(|us| histogram.add(Duration::from_micros(*us)));
            us.sort_unstable();
            for q in [0.5, 0.95, 0.99] {
                let rank = ((q * us.len() as f64).ceil() as usize).max(1);
                let exact = us[rank - 1] as f64 / 1000.0;
                let found = histogram.quantile_ms(q).unwrap();
                prop_assert!((found / exact - 1.0).abs() <= 0.0101, "q {q}: {found} for {exact}");
            }
        }
    }

    /// Scenario: nothing measured, then forty kinds of error. Guarantees: unknown stays unknown, kinds are bounded and none is lost.
    #[test]
    fn unknown_is_not_zero_and_kinds_are_bounded() {
        let mut tally = Tally::new();
        assert_eq!(tally.ttft.quantile_ms(0.5), None);
        for number in 0..40 {
            tally.add(Outcome { error: Some(format!("kind {number}")), ..Outcome::default() }, 1);
        }
        let report = tally.finish(Duration::from_secs(1));
        assert_eq!((report.errors.len(), report.errors["other"], report.requests), (KINDS_MAX + 1, 8, 40));
        assert_eq!((report.ttft_ms.p50, report.cached_share), (None, None));
        assert!(report.table().contains("8 × other"));
    }
}
