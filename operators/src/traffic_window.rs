//! The figures of one group of requests over some epochs, mergeable: counts, token sums and four quantile sketches (D4).
//!
//! Invariant: merging the windows of disjoint epochs gives the window of their union; a quantile is within
//! [`RELATIVE_ERROR`] of the exact one, and half a unit for rounding to whole tokens or microseconds.
//! Cost: O(1) to add; a merge or a quantile costs the sketch's bins. State: at most 1500 bins of 8 bytes per sketch for
//! the range a row may state (2^40 at 1 %).
use serde::{Deserialize, Serialize};
use sketches_ddsketch::{Config, DDSketch};

use crate::rows::TrafficRow;

/// How far a reported quantile may be from the exact one, as a share of it.
pub const RELATIVE_ERROR: f64 = 0.01;
/// Room for the whole range of a row at [`RELATIVE_ERROR`], so that no bins are ever merged.
const MAX_BINS: u32 = 2048;
/// Values below count as zero; rows hold whole numbers.
const LEAST_VALUE: f64 = 0.5;

/// Three quantiles; the value at rank `floor(q * (n - 1))` of the sorted values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Quantiles {
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct TrafficWindow {
    pub arrivals: u64,
    pub finished: u64,
    /// Over finished requests.
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    /// Prompt lengths of requests that arrived.
    pub prompt: DDSketch,
    pub output: DDSketch,
    pub ttft_us: DDSketch,
    pub itl_us: DDSketch,
}

impl TrafficWindow {
    pub fn new() -> Self {
        let sketch = || DDSketch::new(Config::new(RELATIVE_ERROR, MAX_BINS, LEAST_VALUE));
        Self {
            arrivals: 0,
            finished: 0,
            prompt_tokens: 0,
            output_tokens: 0,
            cached_tokens: 0,
            prompt: sketch(),
            output: sketch(),
            ttft_us: sketch(),
            itl_us: sketch(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.arrivals == 0 && self.finished == 0
    }

    pub fn add(&mut self, row: &TrafficRow) {
        match row {
            TrafficRow::Arrived(row) => {
                self.arrivals += 1;
                self.prompt.add(row.prompt_tokens.into());
            }
            TrafficRow::Finished(row) => {
                self.finished += 1;
                self.prompt_tokens += u64::from(row.prompt_tokens);
                self.output_tokens += u64::from(row.output_tokens);
                self.cached_tokens += u64::from(row.cached_tokens);
                self.output.add(row.output_tokens.into());
                for (sketch, value) in [(&mut self.ttft_us, row.ttft_us), (&mut self.itl_us, row.itl_us_mean)] {
                    if let Some(value) = value {
                        sketch.add(value as f64);
                    }
                }
            }
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.arrivals += other.arrivals;
        self.finished += other.finished;
        self.prompt_tokens += other.prompt_tokens;
        self.output_tokens += other.output_tokens;
        self.cached_tokens += other.cached_tokens;
        let pairs = [
            (&mut self.prompt, &other.prompt),
            (&mut self.output, &other.output),
            (&mut self.ttft_us, &other.ttft_us),
            (&mut self.itl_us, &other.itl_us),
        ];
        for (mine, theirs) in pairs {
            mine.merge(theirs).expect("invariant: all sketches have one configuration");
        }
    }
}

/// The quantiles of a sketch; `None` if nothing was added.
pub(crate) fn quantiles(sketch: &DDSketch) -> Option<Quantiles> {
    let at = |q: f64| Some(sketch.quantile(q).ok()??.round() as u64);
    Some(Quantiles { p50: at(0.50)?, p95: at(0.95)?, p99: at(0.99)? })
}
