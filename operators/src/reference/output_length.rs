//! The twin of `output_length`: all answers kept, every curve estimated over all of them anew.
//!
//! Invariant: the same bins, weights and scores, said over plain lists. Cost: O(answers × bins) per prediction.
//! State: all answers, unbounded.
use std::collections::BTreeMap;

use super::least_squares::slow_error;
use crate::{End, FinishedRow, LengthGroup, LengthKey, OutputLengthConfig, PredictionError, TrafficRow};

/// See the module.
pub struct SlowOutputLength {
    config: OutputLengthConfig,
    answers: BTreeMap<LengthKey, Vec<Answer>>,
}

#[derive(Clone, Copy)]
struct Answer {
    tokens: u32,
    end: End,
    /// Mean, 5th and 95th percentile as predicted before, if they were.
    claim: Option<(f64, f64, f64)>,
}

/// Shares of answers at least so long, by the lengths at which bins start, in order.
pub struct SlowCurve(Vec<(u64, f64)>);

/// First lengths of all bins that hold lengths up to `longest`, and the end of the last.
fn edges(longest: u32) -> Vec<u64> {
    let mut edges: Vec<u64> = (0..=32).collect();
    let mut width = 2;
    while *edges.last().unwrap_or(&0) <= longest.into() {
        for _ in 0..16 {
            edges.push(edges.last().unwrap_or(&0) + width);
        }
        width *= 2;
    }
    let end = edges.iter().position(|edge| *edge > longest.into()).unwrap_or(0);
    edges.truncate(end + 1);
    edges
}

impl SlowCurve {
    fn of(answers: &[Answer], forgetting: f64) -> Option<Self> {
        let longest = answers.iter().map(|answer| answer.tokens).max()?;
        let edges = edges(longest);
        let weigh = |from: u64, to: u64, cut: bool| -> f64 {
            let inside = |answer: &&(usize, &Answer)| (from..to).contains(&answer.1.tokens.into());
            let kind = |answer: &&(usize, &Answer)| !cut || answer.1.end == End::Stopped;
            let aged: Vec<_> = answers.iter().rev().enumerate().collect();
            aged.iter().filter(inside).filter(kind).map(|(age, _)| forgetting.powi(*age as i32)).sum()
        };
        let mut curve = vec![(0, 1.0)];
        let mut share = 1.0;
        for pair in edges.windows(2) {
            let (stopped, at_risk) = (weigh(pair[0], pair[1], true), weigh(pair[0], u64::MAX, false));
            share *= 1.0 - stopped / at_risk;
            curve.push((pair[1], share));
        }
        Some(Self(curve))
    }

    /// Share of answers at least `tokens` long.
    pub fn at_least(&self, tokens: u64) -> f64 {
        for pair in self.0.windows(2) {
            let ((from, upper), (to, lower)) = (pair[0], pair[1]);
            if (from..to).contains(&tokens) {
                return upper + (lower - upper) * (tokens - from) as f64 / (to - from) as f64;
            }
        }
        self.0[self.0.len() - 1].1
    }

    /// First length that no answer has reached.
    pub fn end(&self) -> u64 {
        self.0[self.0.len() - 1].0
    }

    /// The least length within which an answer of at least `so_far` ends with probability `share`, tried one by one. A
    /// share off by `slack` counts as reached.
    pub fn quantile(&self, so_far: u64, share: f64, slack: f64) -> u64 {
        let target = self.at_least(so_far) * (1.0 - share) + slack;
        (so_far..self.end()).find(|tokens| self.at_least(tokens + 1) <= target).unwrap_or(self.end() - 1)
    }

    /// Mean length of answers of at least `so_far`, summed one by one.
    pub fn mean(&self, so_far: u64) -> f64 {
        let longer: f64 = (so_far + 1..self.end()).map(|tokens| self.at_least(tokens)).sum();
        so_far as f64 + longer / self.at_least(so_far)
    }
}

impl SlowOutputLength {
    pub fn new(config: OutputLengthConfig) -> Self {
        Self { config, answers: BTreeMap::new() }
    }

    /// Folds one epoch; gives the keys that learnt something, in order.
    pub fn epoch(&mut self, rows: &[FinishedRow]) -> Vec<LengthKey> {
        let mut rows: Vec<_> = rows.iter().filter(|row| TrafficRow::Finished(**row).check().is_ok()).collect();
        rows.sort();
        let mut learnt = Vec::new();
        for row in rows {
            let prompt_class = match row.prompt_tokens {
                0..128 => 0,
                128..512 => 1,
                512..2048 => 2,
                2048..8192 => 3,
                8192..32_768 => 4,
                _ => 5,
            };
            let group = LengthGroup { tier: row.tier, tenant_class: row.tenant_class, prompt_class };
            let (own, whole) =
                (LengthKey { model: row.model, group: Some(group) }, LengthKey { model: row.model, group: None });
            let claim = self.claim(own).or_else(|| self.claim(whole));
            let most = if row.end == End::Capped { f64::from(row.output_tokens) } else { f64::MAX };
            let claim = claim.map(|(mean, low, high)| (mean.min(most), low.min(most), high.min(most)));
            let answer = Answer { tokens: row.output_tokens, end: row.end, claim };
            learnt.extend([(own, answer), (whole, answer)]);
        }
        // What was known before the epoch is all that its answers were predicted from.
        let mut changed: Vec<LengthKey> = learnt.iter().map(|(key, _)| *key).collect();
        learnt.into_iter().for_each(|(key, answer)| self.answers.entry(key).or_default().push(answer));
        changed.sort();
        changed.dedup();
        changed
    }

    fn claim(&self, key: LengthKey) -> Option<(f64, f64, f64)> {
        let enough = self.answers.get(&key).filter(|answers| answers.len() as u64 >= self.config.min_samples)?;
        let curve = SlowCurve::of(enough, self.config.forgetting)?;
        let quantile = |share| curve.quantile(0, share, 0.0) as f64;
        Some((curve.mean(0), quantile(0.05), quantile(0.95)))
    }

    pub fn curve(&self, key: LengthKey) -> Option<SlowCurve> {
        SlowCurve::of(self.answers.get(&key)?, self.config.forgetting)
    }

    pub fn samples(&self, key: LengthKey) -> u64 {
        self.answers.get(&key).map_or(0, |answers| answers.len() as u64)
    }

    pub fn error(&self, key: LengthKey) -> PredictionError {
        let scores = self.answers.get(&key).into_iter().flatten().filter_map(|answer| {
            let ((mean, low, high), actual) = (answer.claim?, f64::from(answer.tokens));
            Some((mean - actual, low..=high, actual))
        });
        slow_error(self.config.forgetting, 1.0, &scores.collect::<Vec<_>>())
    }
}
