//! The twin of `funnel_window`: all cases kept, every sum taken anew.
//!
//! Invariant: the same spans as the operator, unbounded. Cost: O(all cases) per window. State: all cases.
use std::collections::BTreeSet;

use crate::{FunnelCase, FunnelGroup, FunnelSums, FunnelWindowConfig, FunnelWindowRow, LOSSES, Span};

/// See the module.
pub struct SlowFunnelWindow {
    config: FunnelWindowConfig,
    cases: Vec<(u64, FunnelCase)>,
}

impl SlowFunnelWindow {
    pub fn new(config: FunnelWindowConfig) -> Self {
        Self { config, cases: Vec::new() }
    }

    /// Folds one epoch, must be called for every epoch; gives its rows, sorted.
    pub fn epoch(&mut self, epoch: u64, cases: &[FunnelCase]) -> Vec<FunnelWindowRow> {
        self.cases.extend(cases.iter().map(|case| (epoch, *case)));
        if !(epoch + 1).is_multiple_of(self.config.window_epochs) {
            return Vec::new();
        }
        let window = epoch + 1 - self.config.window_epochs;
        let key = |case: &FunnelCase| FunnelGroup {
            model: case.model,
            region: case.region,
            tier: case.tier,
            tenant: case.tenant,
        };
        let fresh: BTreeSet<_> = self.cases.iter().filter(|(at, _)| *at >= window).map(|(_, case)| key(case)).collect();
        let mut rows = Vec::new();
        for group in fresh {
            let all: Vec<_> = self.cases.iter().filter(|(_, case)| key(case) == group).collect();
            let recent: Vec<_> = all.iter().copied().filter(|(at, _)| *at >= window).collect();
            let row = |span, from_epoch, sums| FunnelWindowRow { epoch, group, span, from_epoch, sums };
            rows.push(row(Span::Tumbling, window, sums(&recent)));
            rows.push(row(Span::Running, all[0].0, sums(&all)));
        }
        rows.sort();
        rows
    }
}

fn sums(cases: &[&(u64, FunnelCase)]) -> FunnelSums {
    let total = |of: &dyn Fn(&FunnelCase) -> u64| cases.iter().map(|(_, case)| of(case)).sum::<u64>();
    let mut sums = FunnelSums { requests: cases.len() as u64, ..FunnelSums::default() };
    sums.layers = std::array::from_fn(|at| total(&|case| case.layers[at]));
    sums.present_by_level = std::array::from_fn(|at| total(&|case| case.present_by_level[at]));
    for at in 0..LOSSES {
        sums.losses[at] = cases.iter().map(|(_, case)| case.losses[at]).sum();
        let ns = |case: &FunnelCase| i128::from(case.losses[at]) * i128::from(case.ns_per_token);
        sums.loss_ns[at] = cases.iter().map(|(_, case)| ns(case)).sum();
    }
    sums
}
