//! How long answers become, learnt one at a time with forgetting: the survival curve of their length, from answers that
//! stopped by themselves and from those that were cut off (A4).
//!
//! Lengths fall into bins: one token wide below 32, sixteen to each doubling above. Invariant: the curve is the
//! Kaplan-Meier estimate over bins with answer i of n weighted `forgetting^(n - i)`: a cut-off answer says that the length
//! is at least where it was cut, and no more. Within a bin lengths count as evenly spread.
//! Cost: O(1) per answer; a curve costs the bins. State: 16 bytes per bin up to the longest answer's, at most
//! [`BINS_MAX`].
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::rows::{End, MAX_TOKENS};

/// Bins of one token each.
const PLAIN: u32 = 32;
/// Bins to each doubling above.
const PER_DOUBLING: u32 = 16;
/// Bins for the whole range a row may state.
pub const BINS_MAX: usize = (PLAIN + (32 - 5) * PER_DOUBLING) as usize;
/// Weights are scaled down before they leave the range in which sums are exact enough.
const WEIGHT_MAX: f64 = 1e100;

/// The bin of a length.
fn bin_of(tokens: u32) -> usize {
    if tokens < PLAIN {
        return tokens as usize;
    }
    let doubling = tokens.ilog2();
    (PLAIN + (doubling - 5) * PER_DOUBLING + ((tokens >> (doubling - 4)) & (PER_DOUBLING - 1))) as usize
}

/// The first length of a bin.
fn start_of(bin: usize) -> u64 {
    let bin = bin as u64;
    let Some(above) = bin.checked_sub(u64::from(PLAIN)) else { return bin };
    let (doubling, place) = (5 + above / u64::from(PER_DOUBLING), above % u64::from(PER_DOUBLING));
    (u64::from(PER_DOUBLING) + place) << (doubling - 4)
}

/// What an answer's length will be, given what is out already, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct LengthPrediction {
    pub mean: f64,
    pub p05: u64,
    pub p50: u64,
    pub p95: u64,
}

/// A survival curve to predict from. Copies share it.
///
/// Where answers were cut off, nothing is known beyond the longest one: means and quantiles end there.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct LengthModel {
    /// Answers seen.
    pub samples: u64,
    /// Share of answers at least as long as each bin's first length, and one number for the end of the last bin.
    #[serde(with = "crate::on_the_wire::shared")]
    survival: Arc<[f64]>,
}

impl LengthModel {
    /// Share of answers that are at least `tokens` long.
    pub fn at_least(&self, tokens: u32) -> f64 {
        let bin = bin_of(tokens);
        let (Some(from), Some(to)) = (self.survival.get(bin), self.survival.get(bin + 1)) else {
            return self.survival.last().copied().unwrap_or(1.0);
        };
        let (start, end) = (start_of(bin), start_of(bin + 1));
        from + (to - from) * (u64::from(tokens) - start) as f64 / (end - start) as f64
    }

    /// The length of an answer of which `so_far` tokens are out, end to end; `None` if no answer was ever that long.
    pub fn predict(&self, so_far: u32) -> Option<LengthPrediction> {
        let mean = self.mean(so_far)?;
        let [p05, p50, p95] = [0.05, 0.50, 0.95].map(|share| self.quantile(so_far, share));
        Some(LengthPrediction { mean, p05: p05?, p50: p50?, p95: p95? })
    }

    /// The length that an answer of which `so_far` tokens are out ends within, with probability `share` above 0.
    pub fn quantile(&self, so_far: u32, share: f64) -> Option<u64> {
        let known = self.known(so_far)?;
        let target = known * (1.0 - share);
        let from = u64::from(so_far);
        for bin in bin_of(so_far)..self.survival.len() - 1 {
            let (upper, lower) = (self.survival[bin], self.survival[bin + 1]);
            if lower <= target && lower < upper {
                let (start, end) = (start_of(bin), start_of(bin + 1));
                let within = ((upper - target) / (upper - lower) * (end - start) as f64).ceil() as u64;
                return Some((start + within.min(end - start)).saturating_sub(1).max(from));
            }
        }
        Some(self.end().saturating_sub(1).max(from))
    }

    /// Mean length of answers of which `so_far` tokens are out.
    fn mean(&self, so_far: u32) -> Option<f64> {
        let known = self.known(so_far)?;
        let mut longer = 0.0;
        for bin in bin_of(so_far)..self.survival.len() - 1 {
            let (start, end) = (start_of(bin), start_of(bin + 1));
            let slope = (self.survival[bin + 1] - self.survival[bin]) / (end - start) as f64;
            let first = start.max(u64::from(so_far) + 1);
            if first < end {
                let at = |tokens: u64| self.survival[bin] + slope * (tokens - start) as f64;
                longer += (end - first) as f64 * (at(first) + at(end - 1)) / 2.0;
            }
        }
        Some(f64::from(so_far) + longer / known)
    }

    /// The share of answers that long, if there were any.
    fn known(&self, so_far: u32) -> Option<f64> {
        Some(self.at_least(so_far)).filter(|share| *share > 0.0 && u64::from(so_far) < self.end())
    }

    /// First length that no answer has reached.
    fn end(&self) -> u64 {
        start_of(self.survival.len() - 1)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct LengthHistogram {
    forgetting: f64,
    samples: u64,
    /// Weight of the next answer: growing it is the same as letting the others shrink.
    weight: f64,
    /// Weights of answers that stopped, and of those that were cut off, by bin.
    bins: Vec<[f64; 2]>,
}

impl LengthHistogram {
    pub fn new(forgetting: f64) -> Self {
        Self { forgetting, samples: 0, weight: 1.0, bins: Vec::new() }
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// `tokens` is at most [`MAX_TOKENS`].
    pub fn learn(&mut self, tokens: u32, end: End) {
        debug_assert!(u64::from(tokens) <= MAX_TOKENS, "checked before");
        let bin = bin_of(tokens);
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, [0.0; 2]);
        }
        self.samples += 1;
        self.bins[bin][usize::from(end == End::Capped)] += self.weight;
        self.weight /= self.forgetting;
        if self.weight > WEIGHT_MAX {
            self.bins.iter_mut().flatten().for_each(|weight| *weight /= self.weight);
            self.weight = 1.0;
        }
    }

    pub fn model(&self) -> LengthModel {
        let mut at_risk: f64 = self.bins.iter().map(|[stopped, capped]| stopped + capped).sum();
        let mut share = 1.0;
        let mut survival = Vec::with_capacity(self.bins.len() + 1);
        survival.push(share);
        for (place, [stopped, capped]) in self.bins.iter().enumerate() {
            // All that are left stop here: said outright, lest rounding leave a few.
            let is_last = *capped == 0.0 && self.bins[place + 1..].iter().flatten().all(|weight| *weight == 0.0);
            share = if is_last { 0.0 } else { share * (1.0 - stopped / at_risk).max(0.0) };
            survival.push(share);
            at_risk -= stopped + capped;
        }
        LengthModel { samples: self.samples, survival: survival.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: every length up to a million, and some around powers of two above.
    /// Guarantees: bins follow each other without a gap, a length lies in its bin, and a bin is at most a sixteenth of its
    /// length wide.
    #[test]
    fn bins_cover_all_lengths() {
        let lengths =
            (0..1 << 20).chain((20..32).flat_map(|power| [(1u32 << power) - 1, 1 << power, (1 << power) + 1]));
        for tokens in lengths {
            let bin = bin_of(tokens);
            let (start, end) = (start_of(bin), start_of(bin + 1));
            assert!((start..end).contains(&u64::from(tokens)), "{tokens} in {start}..{end}");
            assert!(end - start <= (start / 16).max(1));
        }
        assert!(bin_of(MAX_TOKENS as u32) < BINS_MAX);
    }
}
