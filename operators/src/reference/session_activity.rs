//! The twin of `session_activity`: all arrivals kept, sessions collected anew for every window's end.
//!
//! Invariant: the same spans and rules; the share held is the largest power of one half that fits all sessions of the span
//! at once. Cost: O(all rows) per window end. State: all rows, unbounded.
use std::collections::BTreeMap;

use crate::{Quantiles, SessionConfig, SessionRow, TrafficRow, session_sketch::mixed};

/// See the module.
pub struct SlowSessionActivity {
    config: SessionConfig,
    /// Epoch, model, session, turns.
    seen: Vec<(u64, u32, u64, u32)>,
}

impl SlowSessionActivity {
    pub fn new(config: SessionConfig) -> Self {
        Self { config, seen: Vec::new() }
    }

    /// Folds one epoch; must be called for every epoch from the first, with no rows too. Gives its rows, by model.
    pub fn epoch(&mut self, epoch: u64, rows: &[TrafficRow]) -> Vec<SessionRow> {
        for row in rows {
            if let TrafficRow::Arrived(row) = row
                && let Some(session) = row.session
            {
                self.seen.push((epoch, row.model, session, row.turns));
            }
        }
        let SessionConfig { window_epochs, windows, .. } = self.config;
        if !(epoch + 1).is_multiple_of(window_epochs) {
            return Vec::new();
        }
        let window = epoch / window_epochs;
        let from_epoch = (window + 1).saturating_sub(windows) * window_epochs;
        // A model is known for one window longer than its sessions count, and then reported empty.
        let known_from = window.saturating_sub(windows) * window_epochs;
        let models: BTreeMap<u32, ()> =
            self.seen.iter().filter(|(at, ..)| *at >= known_from).map(|(_, model, ..)| (*model, ())).collect();
        models.into_keys().map(|model| self.row((epoch, from_epoch), model)).collect()
    }

    fn row(&self, (epoch, from_epoch): (u64, u64), model: u32) -> SessionRow {
        let mut turns = BTreeMap::<u64, u32>::new();
        let mut requests = 0;
        for (_, _, session, stated) in self.seen.iter().filter(|(at, of, ..)| *at >= from_epoch && *of == model) {
            requests += 1;
            let turns = turns.entry(*session).or_default();
            *turns = (*turns).max(*stated);
        }
        let mut level = 0;
        while turns.len() > self.config.max_sessions {
            level += 1;
            turns.retain(|session, _| mixed(*session) <= u64::MAX >> level);
        }
        let mut sorted: Vec<u64> = turns.values().map(|turns| u64::from(*turns)).collect();
        sorted.sort();
        let at = |q: f64| sorted[(q * (sorted.len() as f64 - 1.0)) as usize];
        SessionRow {
            epoch,
            from_epoch,
            model,
            sessions: (sorted.len() as u64) << level,
            requests,
            turns: (!sorted.is_empty()).then(|| Quantiles { p50: at(0.50), p95: at(0.95), p99: at(0.99) }),
            sampled_one_in: 1 << level,
        }
    }
}
