//! Active sessions per model, their requests and their turns, over the last K windows of N epochs (D4).
//!
//! A session is active while one of its requests arrived within the windows. Invariant: a row depends on the set of
//! sessions in its windows only; counts are exact up to `max_sessions` sessions and sampled above (`session_sketch` has
//! the error), turns are quantiles over the sessions held, exact where all are.
//! Cost: one map access per arrival; per window end and model K merges and a sort of the sessions held.
//! State: per model at most K + 1 sketches of `max_sessions` sessions, 24 bytes each; at most `max_models` models per
//! worker: at the bound arrivals of further models are refused. A model without sessions for K windows is told as zero
//! and forgotten.
use std::collections::{BTreeMap, VecDeque};

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};
use timely::dataflow::{StreamVec, operators::vec::Map};

use crate::{
    epochs::{Closed, EpochFold, fold_epochs},
    refused::{Input, Refusal, Refused},
    rows::TrafficRow,
    session_sketch::SessionSketch,
    traffic_window::Quantiles,
};

/// Windows and bounds of [`SessionActivity`].
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    /// Epochs in a window; at least 1.
    pub window_epochs: u64,
    /// Windows a row covers; at least 1.
    pub windows: u64,
    /// Sessions held apart per model. At the bound: half of them by key are let go, and counts are scaled.
    pub max_sessions: usize,
    /// Models held per worker. At the bound: arrivals of further models are refused.
    pub max_models: usize,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self { window_epochs: 100, windows: 6, max_sessions: 4096, max_models: 64 }
    }
}

/// The sessions of one model at the end of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionRow {
    /// The last epoch covered.
    pub epoch: u64,
    /// The first epoch covered.
    pub from_epoch: u64,
    pub model: u32,
    /// Active sessions.
    pub sessions: u64,
    /// Requests of known sessions.
    pub requests: u64,
    /// Turns per session so far; `None` if there is none.
    pub turns: Option<Quantiles>,
    /// Of how many sessions one was held: 1 where the figures are exact.
    pub sampled_one_in: u64,
}

/// What [`SessionActivity::session_activity`] gives.
pub struct Sessions<'scope> {
    pub rows: StreamVec<'scope, u64, SessionRow>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Counts sessions.
///
/// ```
/// use operators::{ArrivedRow, SessionActivity, SessionConfig, TrafficRow};
/// use timely::dataflow::{InputHandleVec, operators::{Capture, Probe, capture::Extract}};
///
/// let rows = timely::execute_directly(|worker| {
///     let mut input = InputHandleVec::<u64, TrafficRow>::new();
///     let (rows, probe) = worker.dataflow(|scope| {
///         let sessions = input.to_stream(scope).session_activity(SessionConfig::default());
///         let (probe, rows) = sessions.rows.probe();
///         (rows.capture(), probe)
///     });
///     // Three conversations; the first is at its third turn.
///     for (session, turns) in [(7, 2), (8, 1), (7, 3), (9, 1)] {
///         input.send(TrafficRow::Arrived(ArrivedRow { session: Some(session), turns, ..ArrivedRow::default() }));
///     }
///     input.advance_to(100);
///     worker.step_while(|| probe.less_than(&99));
///     rows
/// });
/// let row = rows.extract()[0].1[0];
/// assert_eq!((row.epoch, row.sessions, row.requests, row.sampled_one_in), (99, 3, 4, 1));
/// assert_eq!(row.turns.unwrap().p50, 1);
/// ```
pub trait SessionActivity<'scope> {
    /// Folds the arrivals of known sessions, exchanged by model, into one row per model and window.
    fn session_activity(self, config: SessionConfig) -> Sessions<'scope>;
}

impl<'scope> SessionActivity<'scope> for StreamVec<'scope, u64, TrafficRow> {
    fn session_activity(self, config: SessionConfig) -> Sessions<'scope> {
        let seen = self.flat_map(|row| match row {
            TrafficRow::Arrived(row) => row.session.map(|session| Seen { model: row.model, session, turns: row.turns }),
            TrafficRow::Finished(_) => None,
        });
        let (rows, refused) = fold_epochs(seen, SessionFold::new(config));
        Sessions { rows, refused }
    }
}

/// A request of a known session.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Seen {
    model: u32,
    session: u64,
    turns: u32,
}

struct Model {
    current: SessionSketch,
    /// Windows before the current one that had sessions, oldest first, by index.
    ended: VecDeque<(u64, SessionSketch)>,
}

struct SessionFold {
    config: SessionConfig,
    /// Index of the current window.
    window: u64,
    models: BTreeMap<u32, Model>,
}

impl SessionFold {
    fn new(config: SessionConfig) -> Self {
        let (window_epochs, windows) = (config.window_epochs.max(1), config.windows.max(1));
        Self { config: SessionConfig { window_epochs, windows, ..config }, window: 0, models: BTreeMap::new() }
    }

    fn last_epoch_of_window(&self) -> u64 {
        self.window.saturating_mul(self.config.window_epochs).saturating_add(self.config.window_epochs - 1)
    }

    /// Emits each model's row, then opens the next window.
    fn end_window(&mut self, epoch: u64, out: &mut Vec<SessionRow>) {
        let (window, most) = (self.window, self.config.max_sessions);
        let oldest = (window + 1).saturating_sub(self.config.windows);
        let from_epoch = oldest.saturating_mul(self.config.window_epochs);
        self.models.retain(|model, state| {
            let current = std::mem::replace(&mut state.current, SessionSketch::new(most));
            if !current.is_empty() {
                state.ended.push_back((window, current));
            }
            while state.ended.front().is_some_and(|(index, _)| *index < oldest) {
                state.ended.pop_front();
            }
            let mut all = SessionSketch::new(most);
            state.ended.iter().for_each(|(_, sketch)| all.merge(sketch));
            out.push(row((epoch, from_epoch), *model, &all));
            !state.ended.is_empty()
        });
        self.window += 1;
    }
}

fn row((epoch, from_epoch): (u64, u64), model: u32, all: &SessionSketch) -> SessionRow {
    let mut turns: Vec<u32> = all.held().map(|session| session.turns).collect();
    turns.sort_unstable();
    let at = |share: f64| u64::from(turns[(share * (turns.len() as f64 - 1.0)) as usize]);
    SessionRow {
        epoch,
        from_epoch,
        model,
        sessions: all.sessions(),
        requests: all.requests(),
        turns: (!turns.is_empty()).then(|| Quantiles { p50: at(0.50), p95: at(0.95), p99: at(0.99) }),
        sampled_one_in: all.one_in(),
    }
}

impl EpochFold for SessionFold {
    type Row = Seen;
    type Out = SessionRow;
    const NAME: &'static str = "SessionActivity";

    fn route(row: &Seen) -> u64 {
        row.model.hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<Seen>, closed: &mut Closed<SessionRow>) {
        if self.models.is_empty() {
            self.window = epoch / self.config.window_epochs;
        }
        debug_assert_eq!(self.window, epoch / self.config.window_epochs, "each window's end is a wake-up");
        rows.sort_unstable_by_key(|row| row.model);
        for group in rows.chunk_by(|a, b| a.model == b.model) {
            let model = group[0].model;
            if !self.models.contains_key(&model) && self.models.len() >= self.config.max_models {
                let (rows, reason) =
                    (group.len() as u64, Refusal::KeysFull { max_keys: self.config.max_models as u64 });
                let (input, subject) = (Input::Traffic, u64::from(model) << 8);
                closed.refused.push(Refused { epoch, input, instance: None, subject, rows, reason });
                continue;
            }
            let fresh = || Model { current: SessionSketch::new(self.config.max_sessions), ended: VecDeque::new() };
            let state = self.models.entry(model).or_insert_with(fresh);
            group.iter().for_each(|row| state.current.add(row.session, row.turns));
        }
        if epoch == self.last_epoch_of_window() {
            self.end_window(epoch, &mut closed.out);
        }
    }

    fn wake_at(&self) -> Option<u64> {
        (!self.models.is_empty()).then(|| self.last_epoch_of_window())
    }
}
