//! The twin of `atom_load`: a list of open requests and a list of ended ones, summed anew after every epoch.
//!
//! Invariant: the same rules as the operator, said over plain lists. Cost: O(rows × open requests) per epoch.
//! State: the bounds of `AtomLoadConfig`.
use std::collections::BTreeMap;

use crate::{AtomLoadConfig, LoadEvent, LoadKey, LoadRow, LoadTotal};

/// See the module.
pub struct SlowAtomLoad {
    config: AtomLoadConfig,
    /// In order of opening.
    open: Vec<LoadRow>,
    /// In order of ending.
    ended: Vec<u64>,
}

impl SlowAtomLoad {
    pub fn new(config: AtomLoadConfig) -> Self {
        Self { config, open: Vec::new(), ended: Vec::new() }
    }

    fn end(&mut self, request: u64) {
        self.open.retain(|open| open.request != request);
        self.ended.push(request);
        if self.ended.len() > self.config.max_closed {
            self.ended.remove(0);
        }
    }

    /// Folds one epoch; gives the requests that had to be dropped.
    pub fn epoch(&mut self, rows: &[LoadRow]) -> Vec<u64> {
        let good: Vec<&LoadRow> = rows.iter().filter(|row| row.check().is_ok()).collect();
        let mut requests: Vec<u64> = good.iter().map(|row| row.request).collect();
        requests.sort();
        requests.dedup();
        let mut dropped = Vec::new();
        for request in requests {
            if self.ended.contains(&request) {
                continue;
            }
            let mine: Vec<&LoadRow> = good.iter().copied().filter(|row| row.request == request).collect();
            if mine.iter().any(|row| row.event == LoadEvent::Finished) {
                self.end(request);
                continue;
            }
            let seq = mine.iter().map(|row| row.seq).max().unwrap_or(0);
            let Some(latest) = mine.iter().filter(|row| row.seq == seq).min() else { continue };
            if let Some(open) = self.open.iter_mut().find(|open| open.request == request) {
                if open.seq < seq {
                    *open = **latest;
                }
                continue;
            }
            if self.open.len() >= self.config.max_open {
                let oldest = self.open[0].request;
                dropped.push(oldest);
                self.end(oldest);
            }
            self.open.push(**latest);
        }
        dropped
    }

    /// All totals that are not zero, but for the buckets'.
    pub fn totals(&self) -> BTreeMap<LoadKey, LoadTotal> {
        let mut totals = BTreeMap::<LoadKey, LoadTotal>::new();
        for row in &self.open {
            let LoadRow { instance, region, model, tier, .. } = *row;
            let atom = row.tokens / 500;
            for key in [
                LoadKey::Cell { instance, atom },
                LoadKey::Atom(atom),
                LoadKey::Instance(instance),
                LoadKey::Region(region),
                LoadKey::Model(model),
                LoadKey::Group { model, tier },
                LoadKey::ModelAtom { model, atom },
            ] {
                let total = totals.entry(key).or_default();
                total.tokens += i64::from(row.tokens);
                total.uncached += i64::from(row.tokens.saturating_sub(row.cached));
                total.requests += 1;
            }
        }
        totals
    }
}
