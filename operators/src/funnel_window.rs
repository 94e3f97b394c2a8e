//! The funnel summed up: per model, region, tier and tenant, over tumbling windows and since the start (C5).
//!
//! Invariant: as in each request, `layer k = layer k + 1 + sum of the losses of layer k + 1`, in every row; the sum over all
//! groups of a span is the sum over all requests closed in it, also beyond the bound.
//! Cost: O(1) per request, O(groups with requests) per window end. State: two sums of 700 bytes per group; at most
//! `max_groups` groups per worker: at the bound the requests of new groups are counted in one more group, [`FunnelGroup::OTHER`].
use std::collections::BTreeMap;

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};
use timely::dataflow::StreamVec;

use crate::{
    epochs::{Closed, EpochFold, fold_epochs},
    funnel::{FunnelCase, LAYERS, LOSSES},
    request_distribution::Span,
    rows::LEVELS,
};

/// Windows and bounds of [`FunnelWindow`].
#[derive(Clone, Copy, Debug)]
pub struct FunnelWindowConfig {
    /// Epochs in a tumbling window; at least 1.
    pub window_epochs: u64,
    /// Groups held per worker. At the bound: requests of new groups count in [`FunnelGroup::OTHER`].
    pub max_groups: usize,
}

impl Default for FunnelWindowConfig {
    fn default() -> Self {
        Self { window_epochs: 100, max_groups: 4096 }
    }
}

/// Whose requests a sum is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunnelGroup {
    pub model: u32,
    pub region: u32,
    pub tier: u8,
    pub tenant: u32,
}

impl FunnelGroup {
    /// The groups beyond the bound.
    pub const OTHER: Self = Self { model: u32::MAX, region: u32::MAX, tier: u8::MAX, tenant: u32::MAX };

    fn of(case: &FunnelCase) -> Self {
        Self { model: case.model, region: case.region, tier: case.tier, tenant: case.tenant }
    }
}

/// Sums over requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunnelSums {
    pub requests: u64,
    /// Tokens by layer.
    pub layers: [u64; LAYERS],
    /// `present` by KV level.
    pub present_by_level: [u64; LEVELS as usize],
    /// Tokens by reason; gains are negative.
    pub losses: [i64; LOSSES],
    /// Predicted time to compute them, nanoseconds, of the requests for which a rate was known.
    pub loss_ns: [i128; LOSSES],
}

impl FunnelSums {
    fn add(&mut self, case: &FunnelCase) {
        self.requests += 1;
        for (sum, tokens) in self.layers.iter_mut().zip(case.layers) {
            *sum += tokens;
        }
        for (sum, tokens) in self.present_by_level.iter_mut().zip(case.present_by_level) {
            *sum += tokens;
        }
        for (place, tokens) in case.losses.into_iter().enumerate() {
            self.losses[place] += tokens;
            self.loss_ns[place] += i128::from(tokens) * i128::from(case.ns_per_token);
        }
    }
}

/// One group over one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunnelWindowRow {
    /// The last epoch covered, and the one in which the row was made.
    pub epoch: u64,
    pub group: FunnelGroup,
    /// `Running` is since the group's first request.
    pub span: Span,
    /// The first epoch covered.
    pub from_epoch: u64,
    pub sums: FunnelSums,
}

/// Sums up the funnel.
///
/// ```
/// use operators::{FunnelCase, FunnelWindow, FunnelWindowConfig, LOSSES, Span};
/// use timely::dataflow::operators::{Capture, ToStream, capture::Extract};
///
/// let mut losses = [0; LOSSES];
/// losses[0] = 30;
/// let case = FunnelCase {
///     epoch: 0, request: 1, at_us: 5, model: 2, region: 0, tier: 1, tenant: 4, instance: Some(0), is_reported: true,
///     ns_per_token: 10, layers: [40, 10, 10, 10, 10, 10, 10], present_by_level: [10, 0, 0, 0, 0, 0, 0, 0], losses,
/// };
/// let rows = timely::example(move |scope| {
///     let cases = vec![case, FunnelCase { request: 2, ..case }].to_stream(scope).container::<Vec<_>>();
///     cases.funnel_window(FunnelWindowConfig { window_epochs: 1, max_groups: 8 }).capture()
/// });
/// let rows = rows.extract().remove(0).1;
/// assert_eq!((rows[0].span, rows[0].sums.requests, rows[0].sums.layers[0]), (Span::Tumbling, 2, 80));
/// assert_eq!((rows[1].span, rows[1].sums.loss_ns[0]), (Span::Running, 600));
/// ```
pub trait FunnelWindow<'scope> {
    /// Folds cases, exchanged by group, into rows at each window's end.
    fn funnel_window(self, config: FunnelWindowConfig) -> StreamVec<'scope, u64, FunnelWindowRow>;
}

impl<'scope> FunnelWindow<'scope> for StreamVec<'scope, u64, FunnelCase> {
    fn funnel_window(self, config: FunnelWindowConfig) -> StreamVec<'scope, u64, FunnelWindowRow> {
        fold_epochs(self, WindowFold::new(config)).0
    }
}

struct Group {
    first_epoch: u64,
    window: FunnelSums,
    total: FunnelSums,
}

pub(crate) struct WindowFold {
    config: FunnelWindowConfig,
    groups: BTreeMap<FunnelGroup, Group>,
    /// The last epoch of the window with requests, if there is one.
    ends: Option<u64>,
}

impl WindowFold {
    pub(crate) fn new(config: FunnelWindowConfig) -> Self {
        let config = FunnelWindowConfig { window_epochs: config.window_epochs.max(1), ..config };
        Self { config, groups: BTreeMap::new(), ends: None }
    }

    fn add(&mut self, epoch: u64, case: &FunnelCase) {
        let mut key = FunnelGroup::of(case);
        let named = self.groups.len() - usize::from(self.groups.contains_key(&FunnelGroup::OTHER));
        if !self.groups.contains_key(&key) && named >= self.config.max_groups {
            key = FunnelGroup::OTHER;
        }
        let new = || Group { first_epoch: epoch, window: FunnelSums::default(), total: FunnelSums::default() };
        let group = self.groups.entry(key).or_insert_with(new);
        group.window.add(case);
        group.total.add(case);
    }

    fn end_window(&mut self, epoch: u64, out: &mut Vec<FunnelWindowRow>) {
        let window = epoch / self.config.window_epochs * self.config.window_epochs;
        for (key, group) in self.groups.iter_mut().filter(|(_, group)| group.window.requests > 0) {
            let sums = std::mem::take(&mut group.window);
            let row = |span, from_epoch, sums| FunnelWindowRow { epoch, group: *key, span, from_epoch, sums };
            out.push(row(Span::Tumbling, window, sums));
            out.push(row(Span::Running, group.first_epoch, group.total));
        }
    }
}

impl EpochFold for WindowFold {
    type Row = FunnelCase;
    type Out = FunnelWindowRow;
    const NAME: &'static str = "FunnelWindow";

    fn route(row: &FunnelCase) -> u64 {
        FunnelGroup::of(row).hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<FunnelCase>, closed: &mut Closed<FunnelWindowRow>) {
        // Sorted, so that which groups are beyond the bound does not depend on the order of rows.
        rows.sort_unstable_by_key(|case| (FunnelGroup::of(case), case.request));
        rows.iter().for_each(|case| self.add(epoch, case));
        let last = epoch / self.config.window_epochs * self.config.window_epochs + self.config.window_epochs - 1;
        if !rows.is_empty() {
            self.ends = Some(last);
        }
        if self.ends.is_some_and(|ends| ends == epoch) {
            self.end_window(epoch, &mut closed.out);
            self.ends = None;
        }
    }

    fn wake_at(&self) -> Option<u64> {
        self.ends
    }
}
