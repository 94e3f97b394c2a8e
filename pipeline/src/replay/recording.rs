//! Decisions in the order of the log, each with what was read for it.
//!
//! What was read is published before its decision, in a topic of its own; the two are joined by `decision_id`. Invariant: each
//! decision comes once; inputs whose decision never comes are dropped and counted.
//! Cost: one pass over both topics. State: inputs read ahead of their decision, at most [`AHEAD_MAX`]; at the bound the oldest
//! is dropped.

use std::collections::{HashMap, HashSet, VecDeque};

use queries::HistoryError;

use crate::{
    bus::Archive,
    config::{Policy, Recorded},
    ids::{Micros, Name},
    rows::{DecisionRow, PolicyInputRow, SettingsRow},
};

/// Inputs held that wait for their decision.
const AHEAD_MAX: usize = 100_000;
/// Inputs are read this much further than their decision's time: two topics are not written at the same instant.
const AHEAD_US: Micros = 2_000_000;

/// Every settings text of the log, by id.
pub struct Settings(HashMap<String, Result<Recorded, String>>);

impl Settings {
    pub fn read(archive: &Archive, damage: &mut dyn FnMut(HistoryError)) -> Settings {
        Settings::read_with(archive, damage, &|text| Recorded::parse(text).map_err(|error| error.to_string()))
    }

    /// Each text as `parse` reads it.
    pub fn read_with(
        archive: &Archive,
        damage: &mut dyn FnMut(HistoryError),
        parse: &dyn Fn(&str) -> Result<Recorded, String>,
    ) -> Settings {
        let mut settings = HashMap::new();
        for read in archive.rows::<SettingsRow>() {
            match read {
                Ok((_, rows)) => settings.extend(rows.into_iter().map(|row| (row.id, parse(&row.text)))),
                Err(error) => damage(error),
            }
        }
        Settings(settings)
    }

    /// # Errors
    /// Why there are none of this id.
    pub fn get(&self, id: &str) -> Result<&Recorded, String> {
        match self.0.get(id) {
            Some(Ok(recorded)) => Ok(recorded),
            Some(Err(error)) => Err(format!("settings {id} are not for this version: {error}")),
            None => Err(format!("settings {id} are not in the log")),
        }
    }
}

/// The model that a row is about, and the policies as they hold for it.
pub struct Under {
    pub model: Name,
    pub policy: Policy,
}

impl Under {
    pub fn of(recorded: &Recorded, row: &PolicyInputRow) -> Under {
        let model = row.model.clone().unwrap_or_else(|| recorded.served.model.as_str().into());
        Under { policy: recorded.policy_of(&model), model }
    }
}

/// A decision and the readings it names, in the order in which they were made.
pub struct Made {
    pub decision: DecisionRow,
    pub inputs: Vec<PolicyInputRow>,
}

type Rows<R> = Box<dyn Iterator<Item = Result<(u64, Vec<R>), HistoryError>>>;

/// See the module.
pub struct Recording {
    decisions: Rows<DecisionRow>,
    inputs: Rows<PolicyInputRow>,
    ready: VecDeque<DecisionRow>,
    held: HashMap<Name, Vec<PolicyInputRow>>,
    order: VecDeque<Name>,
    /// Moves of the throttle without a request, since the last look.
    pub ticks: Vec<PolicyInputRow>,
    read_to: Option<Micros>,
    inputs_ended: bool,
    pub damage: Vec<HistoryError>,
    /// Inputs dropped without a decision.
    pub dropped: u64,
}

impl Recording {
    pub fn open(archive: &Archive) -> Recording {
        Recording {
            decisions: Box::new(archive.rows()),
            inputs: Box::new(archive.rows()),
            ready: VecDeque::new(),
            held: HashMap::new(),
            order: VecDeque::new(),
            ticks: Vec::new(),
            read_to: None,
            inputs_ended: false,
            damage: Vec::new(),
            dropped: 0,
        }
    }

    fn next_decision(&mut self) -> Option<DecisionRow> {
        while self.ready.is_empty() {
            match self.decisions.next()? {
                Ok((_, rows)) => self.ready.extend(rows),
                Err(error) => self.damage.push(error),
            }
        }
        self.ready.pop_front()
    }

    fn read_inputs(&mut self, until: Micros) {
        while !self.inputs_ended && self.read_to.is_none_or(|read_to| read_to <= until) {
            match self.inputs.next() {
                Some(Ok((_, rows))) => rows.into_iter().for_each(|row| self.hold(row)),
                Some(Err(error)) => self.damage.push(error),
                None => self.inputs_ended = true,
            }
        }
    }

    fn hold(&mut self, row: PolicyInputRow) {
        self.read_to = self.read_to.max(Some(row.at));
        if row.decision_id.is_empty() {
            return self.ticks.push(row);
        }
        let held = self.held.entry(row.decision_id.clone()).or_default();
        if held.is_empty() {
            self.order.push_back(row.decision_id.clone());
        }
        held.push(row);
        while self.held.len() > AHEAD_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.dropped += self.held.remove(&oldest).map_or(0, |rows| rows.len() as u64);
        }
        if self.order.len() > 2 * AHEAD_MAX {
            let known: HashSet<&Name> = self.held.keys().collect();
            self.order.retain(|id| known.contains(id));
        }
    }

    /// The next decision with its inputs.
    pub fn next(&mut self) -> Option<Made> {
        let decision = self.next_decision()?;
        self.read_inputs(decision.at.saturating_add(AHEAD_US));
        let inputs = self.held.remove(&decision.decision_id).unwrap_or_default();
        Some(Made { decision, inputs })
    }

    /// What is left when there are no more decisions.
    pub fn finish(&mut self) {
        self.read_inputs(Micros::MAX);
        self.dropped += self.held.drain().map(|(_, rows)| rows.len() as u64).sum::<u64>();
    }
}
