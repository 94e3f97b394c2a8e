//! The twin of `request_distribution`: all rows kept, every figure counted and every quantile sorted for anew.
//!
//! Invariant: the same spans and rules as the operator; quantiles are exact. Cost: O(all rows) per group and epoch.
//! State: all rows, unbounded.
use std::collections::BTreeSet;

use crate::{ArrivedRow, DistributionConfig, DistributionRow, FinishedRow, Quantiles, Span, TrafficRow};

/// See the module.
pub struct SlowRequestDistribution {
    config: DistributionConfig,
    rows: Vec<(u64, TrafficRow)>,
}

fn exact(mut values: Vec<u64>) -> Option<Quantiles> {
    values.sort();
    let at = |q: f64| values[(q * (values.len() as f64 - 1.0)) as usize];
    (!values.is_empty()).then(|| Quantiles { p50: at(0.50), p95: at(0.95), p99: at(0.99) })
}

impl SlowRequestDistribution {
    pub fn new(config: DistributionConfig) -> Self {
        Self { config, rows: Vec::new() }
    }

    /// The group's first epoch since it was last forgotten: a row after more than K windows without one starts anew.
    fn first_epoch(&self, key: (u32, u8)) -> u64 {
        let mut first = 0;
        let mut last_window = None;
        for (epoch, _) in self.rows.iter().filter(|(_, row)| row.key() == key) {
            let window = epoch / self.config.window_epochs;
            if last_window.is_none_or(|last| window - last > self.config.windows) {
                first = *epoch;
            }
            last_window = Some(window);
        }
        first
    }

    fn figures(&self, key: (u32, u8), span: (Span, u64, u64)) -> DistributionRow {
        let (span, from, epoch) = span;
        let within = |at: &u64| (from..=epoch).contains(at);
        let rows = || self.rows.iter().filter(|(at, row)| row.key() == key && within(at)).map(|(_, row)| row);
        let arrived: Vec<ArrivedRow> =
            rows().filter_map(|row| if let TrafficRow::Arrived(row) = row { Some(*row) } else { None }).collect();
        let finished: Vec<FinishedRow> =
            rows().filter_map(|row| if let TrafficRow::Finished(row) = row { Some(*row) } else { None }).collect();
        let of = |field: fn(&FinishedRow) -> u64| -> Vec<u64> { finished.iter().map(field).collect() };
        let from_epoch = from.max(self.first_epoch(key));
        let covered_us = (epoch - from_epoch + 1) * self.config.epoch_us;
        DistributionRow {
            epoch,
            model: key.0,
            tier: key.1,
            span,
            from_epoch,
            arrivals: arrived.len() as u64,
            finished: finished.len() as u64,
            arrivals_per_s_milli: arrived.len() as u64 * 1_000_000_000 / covered_us,
            prompt_tokens: of(|row| row.prompt_tokens.into()).iter().sum(),
            output_tokens: of(|row| row.output_tokens.into()).iter().sum(),
            cached_tokens: of(|row| row.cached_tokens.into()).iter().sum(),
            prompt: exact(arrived.iter().map(|row| row.prompt_tokens.into()).collect()),
            output: exact(of(|row| row.output_tokens.into())),
            ttft_us: exact(finished.iter().filter_map(|row| row.ttft_us).collect()),
            itl_us: exact(finished.iter().filter_map(|row| row.itl_us_mean).collect()),
        }
    }

    /// Folds one epoch; must be called for every epoch from the first, with no rows too. Gives its rows, sorted.
    pub fn epoch(&mut self, epoch: u64, rows: &[TrafficRow]) -> Vec<DistributionRow> {
        let DistributionConfig { window_epochs, windows, .. } = self.config;
        self.rows.extend(rows.iter().filter(|row| row.check().is_ok()).map(|row| (epoch, *row)));
        let window = epoch / window_epochs;
        let from = (window + 1).saturating_sub(windows) * window_epochs;
        // A group is known for one window longer than its rows count, and then reported empty.
        let known_from = window.saturating_sub(windows) * window_epochs;
        let keys = |from: u64| -> BTreeSet<(u32, u8)> {
            self.rows.iter().filter(|(at, _)| *at >= from).map(|(_, row)| row.key()).collect()
        };
        let mut out = Vec::new();
        if (epoch + 1).is_multiple_of(window_epochs) {
            for key in keys(window * window_epochs) {
                out.push(self.figures(key, (Span::Tumbling, window * window_epochs, epoch)));
            }
            out.extend(keys(known_from).into_iter().map(|key| self.figures(key, (Span::Running, from, epoch))));
        } else {
            out.extend(keys(epoch).into_iter().map(|key| self.figures(key, (Span::Running, from, epoch))));
        }
        out.sort();
        out
    }
}
