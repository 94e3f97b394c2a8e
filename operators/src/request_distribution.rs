//! What requests look like per model and tier: prompt and output lengths, time to first token, gaps, arrival rate, hit
//! rate; over tumbling windows of N epochs and over the last K of them running (D4).
//!
//! Invariant: after an epoch, the last running row of a group covers the current window so far and the K - 1 before it,
//! as of the last epoch in which the group had rows or a window ended; quantiles are within `RELATIVE_ERROR` and half a
//! unit of the exact ones.
//! Cost: O(1) per row; per changed group and epoch one merge of four sketches;
//! per window end and group K merges.
//! State: per group at most K + 1 windows of four sketches (at most 12 KiB each, about 2 KiB in practice); at most
//! `max_keys` groups per worker: at the bound rows of new groups are refused. A group without rows for K windows emits a
//! row of zeros and is forgotten.
use std::collections::VecDeque;

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};
use timely::dataflow::StreamVec;

use crate::{
    IntMap,
    epochs::{Closed, EpochFold, fold_epochs},
    refused::{Input, Refusal, Refused},
    rows::TrafficRow,
    traffic_window::{Quantiles, TrafficWindow, quantiles},
};

/// Windows and bounds of [`RequestDistribution`].
#[derive(Clone, Copy, Debug)]
pub struct DistributionConfig {
    /// Epochs in a tumbling window; at least 1.
    pub window_epochs: u64,
    /// Windows a running row covers, the current one included; at least 1.
    pub windows: u64,
    /// Length of an epoch, microseconds; turns counts into rates.
    pub epoch_us: u64,
    /// Groups held per worker. At the bound: rows of new groups are refused.
    pub max_keys: usize,
}

impl Default for DistributionConfig {
    fn default() -> Self {
        Self { window_epochs: 100, windows: 6, epoch_us: 100_000, max_keys: 1024 }
    }
}

/// What a row covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Span {
    /// One whole window that has just ended.
    Tumbling,
    /// The last K windows up to now.
    Running,
}

/// Figures of one `(model, tier)` group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DistributionRow {
    /// The last epoch covered, and the one in which the row was made.
    pub epoch: u64,
    pub model: u32,
    pub tier: u8,
    pub span: Span,
    /// The first epoch covered; not before the group's first row.
    pub from_epoch: u64,
    pub arrivals: u64,
    pub finished: u64,
    /// Arrivals per second over the epochs covered, in thousandths.
    pub arrivals_per_s_milli: u64,
    /// Prompt tokens of finished requests; the hit rate is `cached_tokens / prompt_tokens`.
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    /// Prompt lengths of requests that arrived, tokens; `None` if none did.
    pub prompt: Option<Quantiles>,
    /// Output lengths of finished requests, tokens; `None` (as the next two) if none finished.
    pub output: Option<Quantiles>,
    pub ttft_us: Option<Quantiles>,
    pub itl_us: Option<Quantiles>,
}

/// What [`RequestDistribution::request_distribution`] gives.
pub struct Distributions<'scope> {
    pub rows: StreamVec<'scope, u64, DistributionRow>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Keeps the request distribution.
///
/// ```
/// use operators::{ArrivedRow, DistributionConfig, RequestDistribution, Span, TrafficRow};
/// use timely::dataflow::operators::{Capture, ToStream, capture::Extract};
///
/// let rows: Vec<_> = (1..=100)
///     .map(|n| TrafficRow::Arrived(ArrivedRow { tier: 1, prompt_tokens: 10 * n, ..ArrivedRow::default() }))
///     .collect();
/// let rows = timely::example(|scope| {
///     let rows = rows.to_stream(scope).container::<Vec<_>>();
///     rows.request_distribution(DistributionConfig::default()).rows.capture()
/// });
/// let row = rows.extract()[0].1[0];
/// assert_eq!((row.span, row.arrivals, row.arrivals_per_s_milli), (Span::Running, 100, 1_000_000));
/// assert!(row.prompt.unwrap().p50.abs_diff(500) <= 5 && row.ttft_us.is_none());
/// ```
pub trait RequestDistribution<'scope> {
    /// Folds traffic rows, exchanged by model and tier, into figures.
    fn request_distribution(self, config: DistributionConfig) -> Distributions<'scope>;
}

impl<'scope> RequestDistribution<'scope> for StreamVec<'scope, u64, TrafficRow> {
    fn request_distribution(self, config: DistributionConfig) -> Distributions<'scope> {
        let (rows, refused) = fold_epochs(self, DistributionFold::new(config));
        Distributions { rows, refused }
    }
}

type Key = (u32, u8);

struct Group {
    first_epoch: u64,
    /// The last epoch with rows.
    changed: Option<u64>,
    current: TrafficWindow,
    /// Windows before the current one that still count and had rows, oldest first, by index.
    ended: VecDeque<(u64, TrafficWindow)>,
    /// The ended windows merged.
    merged: TrafficWindow,
}

impl Group {
    fn new(first_epoch: u64) -> Self {
        Self {
            first_epoch,
            changed: None,
            current: TrafficWindow::new(),
            ended: VecDeque::new(),
            merged: TrafficWindow::new(),
        }
    }

    fn running(&self) -> TrafficWindow {
        let mut running = self.merged.clone();
        running.merge(&self.current);
        running
    }

    /// Ends window `index`; windows before `oldest` count no more.
    fn end_window(&mut self, index: u64, oldest: u64) {
        let ended = std::mem::replace(&mut self.current, TrafficWindow::new());
        if !ended.is_empty() {
            self.ended.push_back((index, ended));
        }
        while self.ended.front().is_some_and(|(index, _)| *index < oldest) {
            self.ended.pop_front();
        }
        self.merged = TrafficWindow::new();
        for (_, window) in &self.ended {
            self.merged.merge(window);
        }
    }
}

pub(crate) struct DistributionFold {
    config: DistributionConfig,
    /// Index of the current window.
    window: u64,
    groups: IntMap<Key, Group>,
}

impl DistributionFold {
    pub(crate) fn new(config: DistributionConfig) -> Self {
        let (window_epochs, windows) = (config.window_epochs.max(1), config.windows.max(1));
        let config = DistributionConfig { window_epochs, windows, ..config };
        Self { config, window: 0, groups: IntMap::default() }
    }

    fn last_epoch_of_window(&self) -> u64 {
        self.window.saturating_mul(self.config.window_epochs).saturating_add(self.config.window_epochs - 1)
    }

    /// `from` is where the span would start if the group were old enough.
    fn row(&self, key: Key, span: (Span, u64, u64), window: &TrafficWindow) -> DistributionRow {
        let (span, from, epoch) = span;
        let first = self.groups.get(&key).map_or(epoch, |group| group.first_epoch);
        let from_epoch = from.max(first).min(epoch);
        let covered_us = u128::from(epoch - from_epoch + 1) * u128::from(self.config.epoch_us.max(1));
        let per_s_milli = u128::from(window.arrivals) * 1_000_000_000 / covered_us;
        DistributionRow {
            epoch,
            model: key.0,
            tier: key.1,
            span,
            from_epoch,
            arrivals: window.arrivals,
            finished: window.finished,
            arrivals_per_s_milli: u64::try_from(per_s_milli).unwrap_or(u64::MAX),
            prompt_tokens: window.prompt_tokens,
            output_tokens: window.output_tokens,
            cached_tokens: window.cached_tokens,
            prompt: quantiles(&window.prompt),
            output: quantiles(&window.output),
            ttft_us: quantiles(&window.ttft_us),
            itl_us: quantiles(&window.itl_us),
        }
    }

    fn running_row(&self, key: Key, epoch: u64) -> Option<DistributionRow> {
        let oldest = (self.window + 1).saturating_sub(self.config.windows);
        let from = oldest.saturating_mul(self.config.window_epochs);
        Some(self.row(key, (Span::Running, from, epoch), &self.groups.get(&key)?.running()))
    }

    /// Emits each group's running row and ended window, then opens the next window.
    fn end_window(&mut self, epoch: u64, out: &mut Vec<DistributionRow>) {
        let from = self.window.saturating_mul(self.config.window_epochs);
        let mut keys: Vec<Key> = self.groups.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            let current = self.groups.get(&key).map(|group| group.current.clone()).filter(|window| !window.is_empty());
            out.extend(current.map(|window| self.row(key, (Span::Tumbling, from, epoch), &window)));
            let running = self.running_row(key, epoch);
            out.extend(running);
            if running.is_some_and(|row| row.arrivals == 0 && row.finished == 0) {
                self.groups.remove(&key);
            }
        }
        let oldest = (self.window + 2).saturating_sub(self.config.windows);
        for group in self.groups.values_mut() {
            group.end_window(self.window, oldest);
        }
        self.window += 1;
    }

    /// Takes rows of groups that are not known yet, in the order of their keys; says which groups there is no room for,
    /// and how many rows each had.
    fn open_groups(&mut self, epoch: u64, mut rows: Vec<&TrafficRow>, changed: &mut Vec<Key>) -> Vec<(Key, u64)> {
        rows.sort_by_key(|row| row.key());
        let mut full = Vec::new();
        for group in rows.chunk_by(|a, b| a.key() == b.key()) {
            let key = group[0].key();
            if self.groups.len() >= self.config.max_keys {
                full.push((key, group.len() as u64));
                continue;
            }
            let state = self.groups.entry(key).or_insert_with(|| Group::new(epoch));
            group.iter().for_each(|row| state.current.add(row));
            state.changed = Some(epoch);
            changed.push(key);
        }
        full
    }
}

fn subject(key: Key) -> u64 {
    u64::from(key.0) << 8 | u64::from(key.1)
}

impl EpochFold for DistributionFold {
    type Row = TrafficRow;
    type Out = DistributionRow;
    const NAME: &'static str = "RequestDistribution";

    fn route(row: &TrafficRow) -> u64 {
        row.key().hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<TrafficRow>, closed: &mut Closed<DistributionRow>) {
        if self.groups.is_empty() {
            self.window = epoch / self.config.window_epochs;
        }
        debug_assert_eq!(self.window, epoch / self.config.window_epochs, "each window's end is a wake-up");
        let refused = |key, rows, reason| Refused {
            epoch,
            input: Input::Traffic,
            instance: None,
            subject: subject(key),
            rows,
            reason,
        };
        rows.retain(|row| {
            let checked = row.check();
            closed.refused.extend(checked.err().map(|reason| refused(row.key(), 1, reason)));
            checked.is_ok()
        });
        let (mut changed, mut unknown) = (Vec::new(), Vec::new());
        for row in rows.iter() {
            let Some(group) = self.groups.get_mut(&row.key()) else {
                unknown.push(row);
                continue;
            };
            group.current.add(row);
            if group.changed != Some(epoch) {
                group.changed = Some(epoch);
                changed.push(row.key());
            }
        }
        for (key, rows) in self.open_groups(epoch, unknown, &mut changed) {
            let reason = Refusal::KeysFull { max_keys: self.config.max_keys as u64 };
            closed.refused.push(refused(key, rows, reason));
        }
        let window_ends = epoch == self.last_epoch_of_window();
        if !window_ends {
            changed.sort_unstable();
            closed.out.extend(changed.into_iter().filter_map(|key| self.running_row(key, epoch)));
        }
        if window_ends {
            self.end_window(epoch, &mut closed.out);
        }
    }

    fn wake_at(&self) -> Option<u64> {
        (!self.groups.is_empty()).then(|| self.last_epoch_of_window())
    }
}
